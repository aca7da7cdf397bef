//! One AMQP connection with one channel: what the shared client says, in the words of this program.

use std::net::SocketAddr;
use std::time::Duration;

use nexo_amqp::codec::method::{BasicMethod, basic};
use nexo_amqp::codec::{AmqpMethod, Method, Properties, PropertiesBuilder, ShortStr, Table, TableBuf, Value};
use nexo_amqp_client::{Client, Error, Login, Message, Origin, methods};
use tokio::time::timeout;

use super::judge::Death;
use crate::ledger::SessionId;
use crate::queues::Place;
use crate::stamp::{Durability, HEADER, Stamp};
use crate::world::World;

/// The only channel.
const CHANNEL: u16 = 1;
/// How long an answer may take, a frozen broker and a full disk included.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a client waits to be let in before it tries the next node: one that is frozen takes connections and says nothing.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Most of what is unsent that goes out before a connection is cut.
const CUT_BYTES_MAX: usize = 200_000;

/// The connection is over, and why.
#[derive(Debug)]
pub(crate) struct Gone(pub(crate) String);

impl From<Error> for Gone {
    fn from(error: Error) -> Self {
        Self(format!("{:#}", anyhow::Error::new(error)))
    }
}

/// A delivered message, to a consumer or as the answer to a get.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) tag: u64,
    /// The consumer's tag; empty for what was got.
    pub(crate) consumer: String,
    pub(crate) redelivered: bool,
    pub(crate) stamp: Option<Stamp>,
    /// How often it had been delivered before, where the queue tells.
    pub(crate) count: Option<u32>,
    /// What `x-death` says, if it is there.
    pub(crate) deaths: Option<Vec<Death>>,
    pub(crate) body: Vec<u8>,
}

/// When a message that is got is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settles {
    /// When it is acknowledged.
    Later,
    /// When it is handed out.
    AtOnce,
}

/// What the broker says.
#[derive(Debug)]
pub(crate) enum Event {
    Delivered(Delivered),
    /// A message that no queue wanted.
    Returned(Option<Stamp>),
    /// Publishes up to this one are confirmed, or only this one.
    Confirmed {
        tag: u64,
        multiple: bool,
    },
    Refused {
        tag: u64,
        multiple: bool,
    },
    /// Any other method, by name.
    Other(&'static str),
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Wire {
    client: Client,
}

impl Wire {
    /// As [`Self::connect`], for a session: if its life has ended meanwhile, the connection is of no use.
    pub(crate) async fn connect_as(world: &World, session: SessionId) -> Result<Self, Gone> {
        let wire = Self::connect(world.doors.of(session).amqp).await?;
        if world.ledger().is_current(session) { Ok(wire) } else { Err(Gone("its life is over".into())) }
    }

    /// Connects, and opens the channel.
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self, Gone> {
        let login = Login::default();
        let connecting = Client::connect(address, &login, PATIENCE);
        let connected = timeout(CONNECT_PATIENCE, connecting).await;
        let mut client = connected.map_err(|_| Gone("it was not let in in time".into()))??;
        client.open_channel(CHANNEL).await?;
        Ok(Self { client })
    }

    /// Sends a method and waits for its answer. Only before anything is consumed or published.
    pub(crate) async fn call<M: AmqpMethod>(&mut self, method: &M, answer: &str) -> Result<(), Gone> {
        self.client.call(CHANNEL, method, answer).await?;
        Ok(())
    }

    /// Starts a consumer under its queue's name.
    pub(crate) fn consume(&mut self, queue: &'static str) {
        let queue = ShortStr::from_static(queue);
        self.send(&basic::Consume { nowait: true, ..methods::consume(queue, queue) });
    }

    /// Takes one message, or hears that there is none.
    pub(crate) async fn get(&mut self, place: Place, settles: Settles) -> Result<Option<Delivered>, Gone> {
        let no_ack = settles == Settles::AtOnce;
        self.send(&basic::Get { ticket: 0, queue: ShortStr::from_static(place.name()), no_ack });
        let event = timeout(PATIENCE, self.event()).await;
        match event.map_err(|_| Gone("no answer to a get in time".into()))?? {
            Event::Delivered(delivered) => Ok(Some(delivered)),
            Event::Other("basic.get-empty") => Ok(None),
            other => Err(Gone(format!("a message was due, not {other:?}"))),
        }
    }

    pub(crate) fn send<M: AmqpMethod>(&mut self, method: &M) {
        self.client.add(CHANNEL, method);
    }

    pub(crate) fn publish(&mut self, publish: &basic::Publish<'_>, properties: &[u8], body: &[u8]) {
        self.client.add_message(CHANNEL, publish, properties, body);
    }

    /// How many bytes the broker has not taken yet.
    pub(crate) fn unsent(&self) -> usize {
        self.client.unsent()
    }

    /// Writes what is to be sent, and waits for what the broker says next. May be dropped and called again.
    pub(crate) async fn event(&mut self) -> Result<Event, Gone> {
        let frame = match self.client.event().await? {
            nexo_amqp_client::Event::Message(message) => return Ok(seen(message)),
            nexo_amqp_client::Event::Method(frame) => frame,
        };
        Ok(match frame.method()? {
            Method::Basic(BasicMethod::Ack(it)) => {
                Event::Confirmed { tag: it.delivery_tag, multiple: it.multiple }
            }
            Method::Basic(BasicMethod::Nack(it)) => {
                Event::Refused { tag: it.delivery_tag, multiple: it.multiple }
            }
            other => Event::Other(other.name()),
        })
    }

    /// Ends the connection with a reset, after a part of what was still to be sent: most likely within a frame.
    pub(crate) async fn cut(self, chances: &mut fastrand::Rng) {
        let part = chances.usize(0..=self.unsent().min(CUT_BYTES_MAX));
        self.client.cut(part).await;
    }
}

/// A message, and what its headers say.
fn seen(message: Message) -> Event {
    let headers = Properties::parse(&message.properties).ok().and_then(|properties| properties.headers());
    let text = headers.and_then(|headers| headers.get(HEADER)?.as_str());
    let stamp = text.and_then(Stamp::parse);
    let (tag, consumer, redelivered) = match message.origin {
        Origin::Deliver { consumer_tag, delivery_tag, redelivered } => {
            (delivery_tag, consumer_tag, redelivered)
        }
        Origin::Get { delivery_tag, redelivered } => (delivery_tag, String::new(), redelivered),
        Origin::Return => return Event::Returned(stamp),
    };
    let count = headers.and_then(|headers| headers.get("x-delivery-count")?.as_integer());
    let count = count.and_then(|count| u32::try_from(count).ok());
    let deaths = headers.and_then(deaths);
    let body = message.body.to_vec();
    Event::Delivered(Delivered { tag, consumer, redelivered, stamp, count, deaths, body })
}

/// What `x-death` says; entries that do not say what they should are left out.
fn deaths(headers: Table<'_>) -> Option<Vec<Death>> {
    let entries = headers.get("x-death")?.as_array()?;
    let death = |entry: Value<'_>| {
        let entry = entry.as_table()?;
        let text = |name| entry.get(name)?.as_str().map(str::to_owned);
        let times = entry.get("count")?.as_integer()?;
        Some(Death { queue: text("queue")?, reason: text("reason")?, times })
    };
    Some(entries.iter().filter_map(death).collect())
}

/// The properties of a message with this stamp.
pub(crate) fn properties(stamp: &Stamp, delay: Option<Duration>, dedup: Option<&str>) -> Vec<u8> {
    let mut headers = TableBuf::new();
    let text = stamp.to_string();
    headers.put(ShortStr::from_static(HEADER), text.as_str());
    if let Some(delay) = delay {
        let delay = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
        headers.put(ShortStr::from_static("x-delay"), Value::I64(delay));
    }
    if let Some(id) = dedup {
        headers.put(ShortStr::from_static("x-deduplication-header"), id);
    }
    let mode = match stamp.durability {
        Durability::Durable => 2,
        Durability::Transient => 1,
    };
    PropertiesBuilder::new().headers(headers.as_table()).delivery_mode(mode).priority(stamp.priority).to_vec()
}
