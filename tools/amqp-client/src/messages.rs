//! Whole messages, on top of [`Client`]'s frames: publishing, consuming, getting, and the confirms of the broker.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use nexo_amqp::codec::method::{BasicMethod, basic, confirm};
use nexo_amqp::codec::{FrameKind, Method};
use tokio::time::timeout;

use crate::assembly::{Assembly, Content};
use crate::client::Client;
use crate::error::{Error, refuse_close};
use crate::frame::OwnedFrame;
use crate::methods::{self, short};

/// What the broker says.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message, whole.
    Message(Message),
    /// Any method that carries none.
    Method(OwnedFrame),
}

/// A message from the broker.
#[derive(Clone, Debug)]
pub struct Message {
    /// The channel that it came on.
    pub channel: u16,
    /// Why it came.
    pub origin: Origin,
    /// Its properties, as they stand in the header.
    pub properties: Bytes,
    /// Its body.
    pub body: Bytes,
}

/// Why a message came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was delivered to a consumer.
    Deliver {
        /// The consumer's tag.
        consumer_tag: String,
        /// Its own tag.
        delivery_tag: u64,
        /// Whether it was delivered before.
        redelivered: bool,
    },
    /// It was asked for by `basic.get`.
    Get {
        /// Its own tag.
        delivery_tag: u64,
        /// Whether it was delivered before.
        redelivered: bool,
    },
    /// It was published as mandatory, and no queue wanted it.
    Return,
}

/// Messages of which something is missing, by channel.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    parts: BTreeMap<u16, (Origin, Option<Assembly>)>,
}

impl Incoming {
    /// Takes a frame; gives what it completes. Heartbeats complete nothing.
    fn take(&mut self, frame: OwnedFrame) -> Result<Option<Event>, Error> {
        let channel = frame.channel;
        match frame.kind {
            FrameKind::Heartbeat => return Ok(None),
            FrameKind::Method => {
                let method = frame.method()?;
                let Some(origin) = origin(&method) else {
                    refuse_close(&method)?;
                    return Ok(Some(Event::Method(frame)));
                };
                self.parts.insert(channel, (origin, None));
                return Ok(None);
            }
            FrameKind::Header | FrameKind::Body => {}
        }
        let (_, content) =
            self.parts.get_mut(&channel).ok_or_else(|| Error::unexpected("a method", &frame))?;
        let content = match content {
            None => content.insert(Assembly::begin(&frame)?),
            Some(content) => {
                content.add(&frame)?;
                content
            }
        };
        if !content.is_complete() {
            return Ok(None);
        }
        Ok(self.parts.remove(&channel).and_then(|(origin, content)| {
            let Content { properties, body } = content?.finish();
            Some(Event::Message(Message { channel, origin, properties, body }))
        }))
    }
}

fn origin(method: &Method<'_>) -> Option<Origin> {
    Some(match method {
        Method::Basic(BasicMethod::Deliver(it)) => Origin::Deliver {
            consumer_tag: it.consumer_tag.to_string(),
            delivery_tag: it.delivery_tag,
            redelivered: it.redelivered,
        },
        Method::Basic(BasicMethod::GetOk(it)) => {
            Origin::Get { delivery_tag: it.delivery_tag, redelivered: it.redelivered }
        }
        Method::Basic(BasicMethod::Return(_)) => Origin::Return,
        _ => return None,
    })
}

impl Client {
    /// What the broker says next, where a message counts as one. This waits as long as it takes; it may be dropped and
    /// called again.
    ///
    /// # Errors
    /// If the connection fails or ends, or the broker closes it or a channel.
    pub async fn event(&mut self) -> Result<Event, Error> {
        loop {
            let frame = self.next_frame().await?.ok_or(Error::Ended)?;
            if let Some(event) = self.incoming.take(frame)? {
                return Ok(event);
            }
        }
    }

    /// Adds a message to what is sent next.
    ///
    /// # Errors
    /// If a name is too long.
    pub fn add_publish(
        &mut self,
        channel: u16,
        exchange: &str,
        routing_key: &str,
        properties: &[u8],
        body: &[u8],
    ) -> Result<(), Error> {
        let publish = methods::publish(short(exchange)?, short(routing_key)?);
        self.add_message(channel, &publish, properties, body);
        Ok(())
    }

    /// Has publishes confirmed from now on.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub async fn select_confirms(&mut self, channel: u16) -> Result<(), Error> {
        self.call(channel, &confirm::Select { nowait: false }, "confirm.select-ok").await?;
        Ok(())
    }

    /// Reads confirms until this one has come; the broker must confirm in order.
    ///
    /// # Errors
    /// If something else comes, a refusal included.
    pub async fn confirmed(&mut self, tag: u64) -> Result<(), Error> {
        loop {
            let frame = self.next().await?;
            let method = frame.method()?;
            match method {
                Method::Basic(BasicMethod::Ack(ack)) if ack.delivery_tag >= tag => return Ok(()),
                Method::Basic(BasicMethod::Ack(_)) => {}
                other => {
                    refuse_close(&other)?;
                    return Err(Error::unexpected("a confirm", other));
                }
            }
        }
    }

    /// Consumes with acknowledgements.
    ///
    /// # Errors
    /// If the broker refuses or does not answer.
    pub async fn consume(&mut self, channel: u16, queue: &str, consumer_tag: &str) -> Result<(), Error> {
        let consume = methods::consume(short(queue)?, short(consumer_tag)?);
        self.call(channel, &consume, "basic.consume-ok").await?;
        Ok(())
    }

    /// The next message, if all of it comes within this time.
    ///
    /// # Errors
    /// If something else comes.
    pub async fn message(&mut self, wait: Duration) -> Result<Option<Message>, Error> {
        match timeout(wait, self.event()).await {
            Ok(Ok(Event::Message(message))) => Ok(Some(message)),
            Ok(Ok(Event::Method(frame))) => Err(Error::unexpected("a message", frame.method()?)),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Takes one message, or hears that there is none.
    ///
    /// # Errors
    /// If something else comes, or nothing.
    pub async fn get(&mut self, channel: u16, queue: &str, no_ack: bool) -> Result<Option<Message>, Error> {
        self.add(channel, &basic::Get { ticket: 0, queue: short(queue)?, no_ack });
        let event = timeout(self.patience, self.event()).await;
        match event.map_err(|_| Error::Silent(self.patience))?? {
            Event::Message(message) => Ok(Some(message)),
            Event::Method(frame) => {
                frame.expect("basic.get-empty")?;
                Ok(None)
            }
        }
    }
}
