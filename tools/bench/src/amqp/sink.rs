//! A server that only parses: it logs clients in, agrees to whatever they declare, counts what they publish and
//! confirms if asked. What a load reaches here is what it could reach at most, whatever the broker.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use nexo_amqp::codec::method::{
    BasicMethod, ChannelMethod, ConfirmMethod, ConnectionMethod, ExchangeMethod, QueueMethod, basic, channel,
    confirm, connection, exchange, queue,
};
use nexo_amqp::codec::{
    AmqpMethod, Frame, FrameKind, Method, PROTOCOL_HEADER, PublishedMessage, ShortStr, Table, encode_method,
};
use nexo_amqp_client::{FRAME_BYTES_MAX, FRAME_MAX, Filled, Input};

/// A listening sink.
#[derive(Debug)]
pub struct Sink {
    listener: TcpListener,
    received: Arc<AtomicU64>,
}

impl Sink {
    /// Listens on this address.
    ///
    /// # Errors
    /// If nobody can listen there.
    pub fn bind(address: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        Ok(Self { listener, received: Arc::new(AtomicU64::new(0)) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the operating system cannot tell.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// How many messages have come so far, for whoever watches.
    #[must_use]
    pub fn received(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }

    /// Serves every client that comes, each on a thread of its own, for as long as the process lives.
    ///
    /// # Errors
    /// If no more clients can be accepted.
    pub fn serve(&self) -> anyhow::Result<()> {
        loop {
            let (socket, _) = self.listener.accept().context("cannot accept a client")?;
            let received = Arc::clone(&self.received);
            std::thread::spawn(move || {
                // A client that goes without a word is no concern of the others.
                let _ = Client::new(socket, received).and_then(Client::run);
            });
        }
    }
}

/// One client.
struct Client {
    socket: TcpStream,
    input: Input,
    output: Vec<u8>,
    received: Arc<AtomicU64>,
    /// Messages since the client asked for confirms, and how many of them were confirmed; `None` before it asks.
    confirming: Option<(u64, u64)>,
}

/// Whether a client goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    More,
    Bye,
}

impl Client {
    fn new(socket: TcpStream, received: Arc<AtomicU64>) -> anyhow::Result<Self> {
        socket.set_nodelay(true)?;
        let input = Input::new(4 * FRAME_BYTES_MAX as usize);
        Ok(Self { socket, input, output: Vec::new(), received, confirming: None })
    }

    fn run(mut self) -> anyhow::Result<()> {
        while self.input.bytes().len() < PROTOCOL_HEADER.len() {
            self.fill()?;
        }
        self.input.consume(PROTOCOL_HEADER.len());
        self.say(
            0,
            &connection::Start {
                version_major: 0,
                version_minor: 9,
                server_properties: Table::EMPTY,
                mechanisms: b"PLAIN",
                locales: b"en_US",
            },
        );
        loop {
            self.flush()?;
            self.fill()?;
            if self.scan()? == Next::Bye {
                return self.flush();
            }
        }
    }

    /// Everything that one read brought.
    fn scan(&mut self) -> anyhow::Result<Next> {
        let input = std::mem::replace(&mut self.input, Input::new(0));
        let mut at = 0;
        let mut published = 0;
        let mut next = Next::More;
        while next == Next::More {
            let bytes = &input.bytes()[at..];
            if let Some(message) = PublishedMessage::parse(bytes, FRAME_MAX) {
                published += 1;
                at += message.bytes;
            } else if let Some(frame) = Frame::parse(bytes, FRAME_MAX)? {
                at += frame.bytes();
                match frame.kind {
                    FrameKind::Method => {
                        next = self.answer(frame.channel, &Method::decode(frame.payload)?, &mut published)
                    }
                    FrameKind::Header | FrameKind::Body | FrameKind::Heartbeat => {}
                }
            } else {
                break;
            }
        }
        self.input = input;
        self.input.consume(at);
        self.received.fetch_add(published, Ordering::Relaxed);
        if let Some((seen, confirmed)) = &mut self.confirming {
            *seen += published;
            if seen > confirmed {
                *confirmed = *seen;
                let delivery_tag = *seen;
                self.say(1, &basic::Ack { delivery_tag, multiple: true });
            }
        }
        Ok(next)
    }

    fn answer(&mut self, number: u16, method: &Method<'_>, published: &mut u64) -> Next {
        match method {
            // A message in several frames: its method stands for it.
            Method::Basic(BasicMethod::Publish(_)) => *published += 1,
            Method::Connection(ConnectionMethod::StartOk(_)) => {
                let tune = connection::Tune { channel_max: 2047, frame_max: FRAME_BYTES_MAX, heartbeat: 0 };
                self.say(0, &tune);
            }
            Method::Connection(ConnectionMethod::Open(_)) => {
                self.say(0, &connection::OpenOk { known_hosts: ShortStr::EMPTY });
            }
            Method::Connection(ConnectionMethod::Close(_)) => {
                self.say(0, &connection::CloseOk {});
                return Next::Bye;
            }
            Method::Channel(ChannelMethod::Open(_)) => self.say(number, &channel::OpenOk { channel_id: b"" }),
            Method::Channel(ChannelMethod::Close(_)) => self.say(number, &channel::CloseOk {}),
            Method::Confirm(ConfirmMethod::Select(_)) => {
                self.confirming = Some((0, 0));
                self.say(number, &confirm::SelectOk {});
            }
            Method::Queue(QueueMethod::Declare(declare)) => {
                self.say(
                    number,
                    &queue::DeclareOk { queue: declare.queue, message_count: 0, consumer_count: 0 },
                );
            }
            Method::Queue(QueueMethod::Delete(_)) => self.say(number, &queue::DeleteOk { message_count: 0 }),
            Method::Queue(QueueMethod::Bind(_)) => self.say(number, &queue::BindOk {}),
            Method::Exchange(ExchangeMethod::Declare(_)) => self.say(number, &exchange::DeclareOk {}),
            Method::Exchange(ExchangeMethod::Delete(_)) => self.say(number, &exchange::DeleteOk {}),
            Method::Basic(BasicMethod::Qos(_)) => self.say(number, &basic::QosOk {}),
            // Nothing is ever delivered, so nothing else needs an answer.
            _ => {}
        }
        Next::More
    }

    fn say<M: AmqpMethod>(&mut self, number: u16, method: &M) {
        encode_method(&mut self.output, number, method);
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.socket.write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        while self.input.fill(&self.socket)? == Filled::Nothing {}
        Ok(())
    }
}
