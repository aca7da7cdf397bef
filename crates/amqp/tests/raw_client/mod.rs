//! A client that does what it is told and nothing else, and a broker in this process for it to talk to.

// Each test program uses its own part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nexo_amqp::codec::method::{basic, channel, confirm, connection, queue};
use nexo_amqp::codec::{
    AmqpMethod, ContentHeader, Frame, FrameKind, FrameMax, Method, PROTOCOL_HEADER, ShortStr, Table,
    TableBuf, encode_message, encode_method,
};
use nexo_broker::{Broker, BrokerOptions};
use nexo_log::disk::FaultyDisk;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
pub const MAX: FrameMax = FrameMax::new(131_072).unwrap();
/// Properties of a message that survives a restart, and of one that need not.
pub const PERSISTENT: &[u8] = &[0x10, 0, 2];
pub const TRANSIENT: &[u8] = &[0, 0];

/// A served broker.
pub struct Served {
    pub broker: Broker,
    pub disk: FaultyDisk,
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Served {
    pub async fn start() -> Self {
        Self::start_with(nexo_amqp::Options::default()).await
    }

    pub async fn start_with(amqp: nexo_amqp::Options) -> Self {
        Self::start_on(amqp, BrokerOptions::new("memory")).await
    }

    pub async fn start_on(amqp: nexo_amqp::Options, options: BrokerOptions) -> Self {
        let disk = FaultyDisk::new();
        let options = BrokerOptions {
            segment_bytes: 1 << 20,
            scribe: Some(Arc::new(nexo_amqp::AmqpScribe)),
            ..options
        };
        let broker = Broker::open_on(Arc::new(disk.clone()), options).unwrap();
        Self::serve(broker, disk, amqp).await
    }

    pub async fn serve(broker: Broker, disk: FaultyDisk, amqp: nexo_amqp::Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            let _ = stopped.await;
        };
        let server = tokio::spawn(nexo_amqp::serve(broker.clone(), listener, amqp, shutdown));
        Self { broker, disk, address, stop: Some(stop), server }
    }

    /// Tells the server to end; connections are told.
    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    pub async fn stopped(self) {
        within(self.server).await.unwrap().unwrap();
        self.broker.shutdown().await;
    }

    /// A client with channel 1 open.
    pub async fn client(&self) -> Client {
        let mut client = Client::connect(self.address).await;
        client.open_channel(1).await;
        client
    }
}

pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it takes too long")
}

/// One frame, out of its buffer.
#[derive(Clone, Debug)]
pub struct Got {
    pub kind: FrameKind,
    pub channel: u16,
    pub payload: Vec<u8>,
}

impl Got {
    pub fn method(&self) -> Method<'_> {
        assert_eq!(self.kind, FrameKind::Method, "a method is due, not {self:?}");
        Method::decode(&self.payload).unwrap()
    }

    /// The name of the method, as the specification has it.
    pub fn name(&self) -> &'static str {
        self.method().name()
    }
}

/// A connection.
pub struct Client {
    pub stream: TcpStream,
    input: Vec<u8>,
}

impl Client {
    /// Connects and says nothing.
    pub async fn begin(address: SocketAddr) -> Self {
        let client = Self { stream: TcpStream::connect(address).await.unwrap(), input: Vec::new() };
        // Clients send what they have; a write that waits for the last one to be acknowledged takes 40 ms.
        client.stream.set_nodelay(true).unwrap();
        client
    }

    /// Connects and gets as far as `connection.open-ok`.
    pub async fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, MAX).await
    }

    /// As [`Self::connect`], with frames of at most this size.
    pub async fn connect_with(address: SocketAddr, max: FrameMax) -> Self {
        Self::connect_beating(address, max, 0).await
    }

    /// As [`Self::connect_with`], with a heartbeat of so many seconds.
    pub async fn connect_beating(address: SocketAddr, max: FrameMax, heartbeat: u16) -> Self {
        let mut client = Self::begin(address).await;
        client.raw(&PROTOCOL_HEADER).await;
        client.expect("connection.start").await;
        let mut abilities = TableBuf::new();
        abilities.put(ShortStr::from_static("connection.blocked"), true);
        abilities.put(ShortStr::from_static("consumer_cancel_notify"), true);
        let mut properties = TableBuf::new();
        properties.put(ShortStr::from_static("capabilities"), abilities.as_table());
        let start_ok = connection::StartOk {
            client_properties: properties.as_table(),
            mechanism: ShortStr::from_static("PLAIN"),
            response: b"\0guest\0guest",
            locale: ShortStr::from_static("en_US"),
        };
        client.send(0, &start_ok).await;
        client.expect("connection.tune").await;
        let tune = connection::TuneOk { channel_max: 2047, frame_max: max.bytes(), heartbeat };
        client.send(0, &tune).await;
        let virtual_host = ShortStr::from_static("/");
        client
            .send(0, &connection::Open { virtual_host, capabilities: ShortStr::EMPTY, insist: false })
            .await;
        client.expect("connection.open-ok").await;
        client
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    pub async fn send<M: AmqpMethod>(&mut self, number: u16, method: &M) {
        let mut out = Vec::new();
        encode_method(&mut out, number, method);
        self.raw(&out).await;
    }

    /// The next frame; `None` at the end of the connection.
    pub async fn next(&mut self) -> Option<Got> {
        loop {
            if let Some(frame) = Frame::parse(&self.input, MAX).unwrap() {
                let got = Got { kind: frame.kind, channel: frame.channel, payload: frame.payload.to_vec() };
                let bytes = frame.bytes();
                self.input.drain(..bytes);
                return Some(got);
            }
            let mut buffer = vec![0; 65_536];
            let count = within(self.stream.read(&mut buffer)).await.unwrap_or(0);
            if count == 0 {
                return None;
            }
            self.input.extend_from_slice(&buffer[..count]);
        }
    }

    /// The next frame, which must be this method.
    pub async fn expect(&mut self, name: &str) -> Got {
        let got = self.next().await.unwrap_or_else(|| panic!("the connection ended; {name} was due"));
        assert_eq!(got.name(), name, "{:?}", got.method());
        got
    }

    /// The body that follows the method just read.
    pub async fn content(&mut self) -> Vec<u8> {
        let header = self.next().await.unwrap();
        let bytes = ContentHeader::decode(&header.payload).unwrap().body_bytes;
        let mut body = Vec::new();
        while (body.len() as u64) < bytes {
            body.extend(self.next().await.unwrap().payload);
        }
        body
    }

    /// The server ends the connection with this code.
    pub async fn expect_close(&mut self, code: u16) {
        let got = self.expect("connection.close").await;
        let Method::Connection(nexo_amqp::codec::method::ConnectionMethod::Close(close)) = got.method()
        else {
            panic!("{got:?}")
        };
        assert_eq!(close.reply_code, code, "{}", close.reply_text);
        self.send(0, &connection::CloseOk {}).await;
        assert!(self.next().await.is_none(), "the connection ends");
    }

    pub async fn open_channel(&mut self, number: u16) {
        self.send(number, &channel::Open { out_of_band: ShortStr::EMPTY }).await;
        self.expect("channel.open-ok").await;
    }

    pub async fn close_channel(&mut self, number: u16) {
        let reply_text = ShortStr::EMPTY;
        self.send(number, &channel::Close { reply_code: 200, reply_text, class_id: 0, method_id: 0 }).await;
        self.expect("channel.close-ok").await;
    }

    pub async fn declare(&mut self, name: &'static str) {
        let declare = queue::Declare {
            ticket: 0,
            queue: ShortStr::from_static(name),
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            nowait: false,
            arguments: Table::EMPTY,
        };
        self.send(1, &declare).await;
        self.expect("queue.declare-ok").await;
    }

    /// How many messages are ready.
    pub async fn depth(&mut self, name: &'static str) -> u32 {
        let declare = queue::Declare {
            ticket: 0,
            queue: ShortStr::from_static(name),
            passive: true,
            durable: false,
            exclusive: false,
            auto_delete: false,
            nowait: false,
            arguments: Table::EMPTY,
        };
        self.send(1, &declare).await;
        let got = self.expect("queue.declare-ok").await;
        match got.method() {
            Method::Queue(nexo_amqp::codec::method::QueueMethod::DeclareOk(ok)) => ok.message_count,
            other => panic!("{other:?}"),
        }
    }

    pub async fn select_confirms(&mut self) {
        self.send(1, &confirm::Select { nowait: false }).await;
        self.expect("confirm.select-ok").await;
    }

    pub async fn publish(&mut self, name: &'static str, properties: &[u8], body: &[u8]) {
        self.publish_at_once(name, properties, &[body]).await;
    }

    /// Publishes messages in one write.
    pub async fn publish_at_once(&mut self, name: &'static str, properties: &[u8], bodies: &[&[u8]]) {
        let publish = basic::Publish {
            ticket: 0,
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::from_static(name),
            mandatory: false,
            immediate: false,
        };
        let mut out = Vec::new();
        for body in bodies {
            encode_message(&mut out, 1, &publish, properties, body, MAX);
        }
        self.raw(&out).await;
    }

    /// Begins a publish: its method and a content header that announces so many bytes.
    pub async fn announce(&mut self, number: u16, name: &'static str, body_bytes: u64) {
        let publish = basic::Publish {
            ticket: 0,
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::from_static(name),
            mandatory: false,
            immediate: false,
        };
        let mut out = Vec::new();
        encode_method(&mut out, number, &publish);
        let mut payload = vec![0, 60, 0, 0];
        payload.extend(body_bytes.to_be_bytes());
        payload.extend([0, 0]);
        push_frame(&mut out, 2, number, &payload);
        self.raw(&out).await;
    }

    /// Sends a part of a body.
    pub async fn send_body(&mut self, number: u16, part: &[u8]) {
        let mut out = Vec::new();
        for chunk in part.chunks(100_000) {
            push_frame(&mut out, 3, number, chunk);
        }
        self.raw(&out).await;
    }

    pub async fn consume(&mut self, name: &'static str, no_ack: bool) {
        self.consume_as("tag", name, no_ack).await;
    }

    /// Consumes under a tag of its own.
    pub async fn consume_as(&mut self, tag: &'static str, name: &'static str, no_ack: bool) {
        let consume = basic::Consume {
            ticket: 0,
            queue: ShortStr::from_static(name),
            consumer_tag: ShortStr::from_static(tag),
            no_local: false,
            no_ack,
            exclusive: false,
            nowait: false,
            arguments: Table::EMPTY,
        };
        self.send(1, &consume).await;
        self.expect("basic.consume-ok").await;
    }

    /// Limits what consumers hold: all of the channel together if `global`.
    pub async fn qos(&mut self, prefetch_count: u16, global: bool) {
        self.send(1, &basic::Qos { prefetch_size: 0, prefetch_count, global }).await;
        self.expect("basic.qos-ok").await;
    }

    /// The next delivery: the consumer's tag, and its own.
    pub async fn delivery_to(&mut self) -> (String, u64) {
        let got = self.expect("basic.deliver").await;
        let Method::Basic(nexo_amqp::codec::method::BasicMethod::Deliver(deliver)) = got.method() else {
            panic!("{got:?}")
        };
        let to = (deliver.consumer_tag.to_string(), deliver.delivery_tag);
        self.content().await;
        to
    }

    /// Nothing has come, and what comes next is the answer to a question.
    pub async fn expect_silence(&mut self) {
        self.qos(0, false).await;
    }

    /// The next delivery: its tag, whether it was delivered before, and its body.
    pub async fn delivery(&mut self) -> (u64, bool, Vec<u8>) {
        let got = self.expect("basic.deliver").await;
        let (tag, redelivered) = match got.method() {
            Method::Basic(nexo_amqp::codec::method::BasicMethod::Deliver(it)) => {
                (it.delivery_tag, it.redelivered)
            }
            other => panic!("{other:?}"),
        };
        (tag, redelivered, self.content().await)
    }
}

fn push_frame(out: &mut Vec<u8>, kind: u8, number: u16, payload: &[u8]) {
    out.push(kind);
    out.extend(number.to_be_bytes());
    out.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend(payload);
    out.push(nexo_amqp::codec::FRAME_END);
}
