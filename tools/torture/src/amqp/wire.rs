//! One AMQP connection with one channel.
//!
//! Nothing blocks: what is to be sent is collected, and [`Wire::event`] writes it while it reads. So a broker that does
//! not listen is still listened to.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use nexo_amqp::codec::method::{BasicMethod, ChannelMethod, ConnectionMethod, basic, channel, connection};
use nexo_amqp::codec::{
    AmqpMethod, ContentHeader, Frame, FrameKind, FrameMax, Method, PROTOCOL_HEADER, Properties,
    PropertiesBuilder, ShortStr, Table, TableBuf, Value, encode_message, encode_method,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::judge::Death;
use crate::ledger::SessionId;
use crate::queues::Place;
use crate::stamp::{Durability, HEADER, Stamp};
use crate::world::World;

/// The only channel.
const CHANNEL: u16 = 1;
const FRAME_MAX: FrameMax = FrameMax::new(131_072).expect("it is above the least");
/// How long an answer may take, a frozen broker and a full disk included.
const PATIENCE: Duration = Duration::from_secs(60);

/// The connection is over, and why.
#[derive(Debug)]
pub(crate) struct Gone(pub(crate) String);

impl From<std::io::Error> for Gone {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
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

/// The content that is being read.
#[derive(Debug)]
struct Content {
    of: Head,
    properties: Vec<u8>,
    bytes: usize,
    body: Vec<u8>,
}

#[derive(Debug)]
enum Head {
    Deliver { tag: u64, consumer: String, redelivered: bool },
    Return,
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    input: BytesMut,
    out: BytesMut,
    head: Option<Head>,
    content: Option<Content>,
}

impl Wire {
    /// As [`Self::connect`], for a session: if its life has ended meanwhile, the connection is of no use.
    pub(crate) async fn connect_as(world: &World, session: SessionId) -> Result<Self, Gone> {
        let wire = Self::connect(world.amqp).await?;
        if world.ledger().is_current(session) { Ok(wire) } else { Err(Gone("its life is over".into())) }
    }

    /// Connects, and opens the channel.
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self, Gone> {
        timeout(PATIENCE, Self::open(address)).await.map_err(|_| Gone("no handshake in time".into()))?
    }

    async fn open(address: SocketAddr) -> Result<Self, Gone> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (input, out) = (BytesMut::new(), BytesMut::from(&PROTOCOL_HEADER[..]));
        let mut wire = Self { stream, input, out, head: None, content: None };
        wire.expect("connection.start").await?;
        let mut abilities = TableBuf::new();
        abilities.put(ShortStr::from_static("connection.blocked"), true);
        let mut properties = TableBuf::new();
        properties.put(ShortStr::from_static("capabilities"), abilities.as_table());
        let start_ok = connection::StartOk {
            client_properties: properties.as_table(),
            mechanism: ShortStr::from_static("PLAIN"),
            response: b"\0guest\0guest",
            locale: ShortStr::from_static("en_US"),
        };
        wire.send_on(0, &start_ok);
        wire.expect("connection.tune").await?;
        let tune_ok = connection::TuneOk { channel_max: 10, frame_max: FRAME_MAX.bytes(), heartbeat: 0 };
        wire.send_on(0, &tune_ok);
        let (virtual_host, capabilities) = (ShortStr::from_static("/"), ShortStr::EMPTY);
        wire.send_on(0, &connection::Open { virtual_host, capabilities, insist: false });
        wire.expect("connection.open-ok").await?;
        wire.call(&channel::Open { out_of_band: ShortStr::EMPTY }, "channel.open-ok").await?;
        Ok(wire)
    }

    /// Sends a method and waits for its answer. Only before anything is consumed or published.
    pub(crate) async fn call<M: AmqpMethod>(&mut self, method: &M, answer: &str) -> Result<(), Gone> {
        self.send(method);
        timeout(PATIENCE, self.expect(answer)).await.map_err(|_| Gone(format!("no {answer} in time")))?
    }

    async fn expect(&mut self, name: &str) -> Result<(), Gone> {
        match self.event().await? {
            Event::Other(found) if found == name => Ok(()),
            other => Err(Gone(format!("{name} was due, not {other:?}"))),
        }
    }

    /// Starts a consumer under its queue's name.
    pub(crate) fn consume(&mut self, queue: &'static str) {
        self.send(&basic::Consume {
            ticket: 0,
            queue: ShortStr::from_static(queue),
            consumer_tag: ShortStr::from_static(queue),
            no_local: false,
            no_ack: false,
            exclusive: false,
            nowait: true,
            arguments: Table::EMPTY,
        });
    }

    /// Takes one message, or hears that there is none.
    pub(crate) async fn get(&mut self, place: Place, settles: Settles) -> Result<Option<Delivered>, Gone> {
        let no_ack = settles == Settles::AtOnce;
        self.send(&basic::Get { ticket: 0, queue: ShortStr::from_static(place.name()), no_ack });
        match timeout(PATIENCE, self.event())
            .await
            .map_err(|_| Gone("no answer to a get in time".into()))??
        {
            Event::Delivered(delivered) => Ok(Some(delivered)),
            Event::Other("basic.get-empty") => Ok(None),
            other => Err(Gone(format!("a message was due, not {other:?}"))),
        }
    }

    pub(crate) fn send<M: AmqpMethod>(&mut self, method: &M) {
        self.send_on(CHANNEL, method);
    }

    fn send_on<M: AmqpMethod>(&mut self, number: u16, method: &M) {
        let mut bytes = Vec::new();
        encode_method(&mut bytes, number, method);
        self.out.extend_from_slice(&bytes);
    }

    pub(crate) fn publish(&mut self, publish: &basic::Publish<'_>, properties: &[u8], body: &[u8]) {
        let mut bytes = Vec::new();
        encode_message(&mut bytes, CHANNEL, publish, properties, body, FRAME_MAX);
        self.out.extend_from_slice(&bytes);
    }

    /// How many bytes the broker has not taken yet.
    pub(crate) fn unsent(&self) -> usize {
        self.out.len()
    }

    /// Writes what is to be sent, and waits for what the broker says next. May be dropped and called again.
    pub(crate) async fn event(&mut self) -> Result<Event, Gone> {
        loop {
            if let Some(event) = self.parse()? {
                return Ok(event);
            }
            let (mut reader, mut writer) = self.stream.split();
            tokio::select! {
                read = reader.read_buf(&mut self.input) => if read? == 0 {
                    return Err(Gone("the connection was closed".into()));
                },
                written = writer.write(&self.out), if !self.out.is_empty() => self.out.advance(written?),
            }
        }
    }

    /// Ends the connection with a reset, after a part of what was still to be sent: most likely within a frame.
    pub(crate) async fn cut(mut self, chances: &mut fastrand::Rng) {
        let part = chances.usize(0..=self.out.len().min(200_000));
        // Whatever goes out before the reset is well; the broker may not listen.
        let sending = self.stream.write(&self.out[..part]);
        let _ = timeout(Duration::from_millis(20), sending).await;
        let _ = self.stream.set_zero_linger();
    }

    fn parse(&mut self) -> Result<Option<Event>, Gone> {
        loop {
            let frame = Frame::parse(&self.input, FRAME_MAX).map_err(|error| Gone(error.to_string()))?;
            let Some(Frame { kind, payload, .. }) = frame else { return Ok(None) };
            let bytes = frame.map_or(0, |frame| frame.bytes());
            let payload = payload.to_vec();
            self.input.advance(bytes);
            let event = match kind {
                FrameKind::Method => self.take_method(&payload)?,
                FrameKind::Header => self.take_header(&payload)?,
                FrameKind::Body => self.take_body(&payload),
                FrameKind::Heartbeat => None,
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    fn take_method(&mut self, payload: &[u8]) -> Result<Option<Event>, Gone> {
        let method = Method::decode(payload).map_err(|error| Gone(error.to_string()))?;
        Ok(Some(match method {
            Method::Basic(BasicMethod::Deliver(it)) => {
                let consumer = it.consumer_tag.to_string();
                let (tag, redelivered) = (it.delivery_tag, it.redelivered);
                self.head = Some(Head::Deliver { tag, consumer, redelivered });
                return Ok(None);
            }
            Method::Basic(BasicMethod::GetOk(it)) => {
                let (tag, redelivered) = (it.delivery_tag, it.redelivered);
                self.head = Some(Head::Deliver { tag, consumer: String::new(), redelivered });
                return Ok(None);
            }
            Method::Basic(BasicMethod::Return(_)) => {
                self.head = Some(Head::Return);
                return Ok(None);
            }
            Method::Basic(BasicMethod::Ack(it)) => {
                Event::Confirmed { tag: it.delivery_tag, multiple: it.multiple }
            }
            Method::Basic(BasicMethod::Nack(it)) => {
                Event::Refused { tag: it.delivery_tag, multiple: it.multiple }
            }
            Method::Connection(ConnectionMethod::Close(it)) => {
                return Err(Gone(format!("{} {}", it.reply_code, it.reply_text)));
            }
            Method::Channel(ChannelMethod::Close(it)) => {
                return Err(Gone(format!("{} {}", it.reply_code, it.reply_text)));
            }
            other => Event::Other(other.name()),
        }))
    }

    fn take_header(&mut self, payload: &[u8]) -> Result<Option<Event>, Gone> {
        let header = ContentHeader::decode(payload).map_err(|error| Gone(error.to_string()))?;
        let of = self.head.take().ok_or_else(|| Gone("a header came without a method".into()))?;
        let bytes = usize::try_from(header.body_bytes).unwrap_or(usize::MAX);
        let (properties, body) = (header.properties.to_vec(), Vec::with_capacity(bytes));
        self.content = Some(Content { of, properties, bytes, body });
        Ok(self.take_body(&[]))
    }

    fn take_body(&mut self, part: &[u8]) -> Option<Event> {
        let content = self.content.as_mut()?;
        content.body.extend_from_slice(part);
        if content.body.len() < content.bytes {
            return None;
        }
        let Content { of, properties, body, .. } = self.content.take()?;
        let headers = Properties::parse(&properties).ok().and_then(|properties| properties.headers());
        let text = headers.and_then(|headers| headers.get(HEADER)?.as_str());
        let stamp = text.and_then(Stamp::parse);
        let count = headers.and_then(|headers| headers.get("x-delivery-count")?.as_integer());
        let count = count.and_then(|count| u32::try_from(count).ok());
        Some(match of {
            Head::Deliver { tag, consumer, redelivered } => {
                let deaths = headers.and_then(deaths);
                Event::Delivered(Delivered { tag, consumer, redelivered, stamp, count, deaths, body })
            }
            Head::Return => Event::Returned(stamp),
        })
    }
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
