//! A broker in this process, and the tools' raw client on it. A failure is a panic here, so that tests read as stories.

// Each test program uses its own part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nexo_access::{FirstUser, Logins};
use nexo_amqp::codec::method::{BasicMethod, ConnectionMethod, QueueMethod, basic, connection, queue};
use nexo_amqp::codec::{
    AmqpMethod, ContentHeader, Frame, FrameKind, FrameMax, Method, ShortStr, encode_frame, encode_message,
    encode_method,
};
pub use nexo_amqp_client::FRAME_MAX as MAX;
use nexo_amqp_client::{Login, OwnedFrame, methods};
use nexo_broker::{Broker, BrokerOptions};
use nexo_log::disk::FaultyDisk;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// Properties of a message that survives a restart, and of one that need not.
pub const PERSISTENT: &[u8] = nexo_amqp_client::PERSISTENT;
pub const TRANSIENT: &[u8] = &[0, 0];

/// A served broker.
pub struct Served {
    pub broker: Broker,
    pub logins: Logins,
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
            codecs: nexo_amqp::register(nexo_broker::Codecs::default()),
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
        let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
        let server = tokio::spawn(nexo_amqp::serve(broker.clone(), logins.clone(), listener, amqp, shutdown));
        Self { broker, logins, disk, address, stop: Some(stop), server }
    }

    /// Tells the server to end; connections are told.
    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the server has ended, while the disk may still hang.
    pub async fn ended(&mut self) {
        within(&mut self.server).await.unwrap().unwrap();
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

/// Waits until `done` says so.
pub async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let poll = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, poll).await.is_ok(), "{what} did not happen");
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

impl From<OwnedFrame> for Got {
    fn from(OwnedFrame { kind, channel, payload }: OwnedFrame) -> Self {
        Self { kind, channel, payload: payload.to_vec() }
    }
}

/// A connection. What it sends goes out at once.
pub struct Client {
    pub raw: nexo_amqp_client::Client,
}

impl Client {
    /// Connects and says nothing.
    pub async fn begin(address: SocketAddr) -> Self {
        Self { raw: nexo_amqp_client::Client::begin(address, PATIENCE).await.unwrap() }
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
    pub async fn connect_beating(address: SocketAddr, frame_max: FrameMax, heartbeat: u16) -> Self {
        let capabilities = &["connection.blocked", "consumer_cancel_notify"];
        let login = Login { frame_max, heartbeat, capabilities, ..Login::default() };
        Self { raw: nexo_amqp_client::Client::connect(address, &login, PATIENCE).await.unwrap() }
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        self.raw.add_raw(bytes);
        self.raw.flush().await.unwrap();
    }

    pub async fn send<M: AmqpMethod>(&mut self, number: u16, method: &M) {
        self.raw.add(number, method);
        self.raw.flush().await.unwrap();
    }

    async fn call<M: AmqpMethod>(&mut self, number: u16, method: &M, answer: &str) -> Got {
        self.send(number, method).await;
        self.expect(answer).await
    }

    /// The next frame; `None` at the end of the connection.
    pub async fn next(&mut self) -> Option<Got> {
        within(self.raw.next_frame()).await.unwrap_or(None).map(Got::from)
    }

    /// The next frame, which must be this method.
    pub async fn expect(&mut self, name: &str) -> Got {
        let got = self.next().await.unwrap_or_else(|| panic!("the connection ended; {name} was due"));
        assert_eq!(got.name(), name, "{:?}", got.method());
        got
    }

    /// The body that follows the method just read.
    pub async fn content(&mut self) -> Vec<u8> {
        self.raw.content().await.unwrap().body.to_vec()
    }

    /// The server ends the connection with this code.
    pub async fn expect_close(&mut self, code: u16) {
        let got = self.expect("connection.close").await;
        let Method::Connection(ConnectionMethod::Close(close)) = got.method() else { panic!("{got:?}") };
        assert_eq!(close.reply_code, code, "{}", close.reply_text);
        self.send(0, &connection::CloseOk {}).await;
        assert!(self.next().await.is_none(), "the connection ends");
    }

    pub async fn open_channel(&mut self, number: u16) {
        self.raw.open_channel(number).await.unwrap();
    }

    pub async fn close_channel(&mut self, number: u16) {
        self.raw.close_channel(number).await.unwrap();
    }

    pub async fn declare(&mut self, name: &'static str) {
        self.raw.declare_queues(1, &[name.to_owned()]).await.unwrap();
    }

    /// How many messages are ready.
    pub async fn depth(&mut self, name: &'static str) -> u32 {
        let declare = methods::declare_queue(ShortStr::from_static(name));
        let declare = queue::Declare { passive: true, ..declare };
        let got = self.call(1, &declare, "queue.declare-ok").await;
        match got.method() {
            Method::Queue(QueueMethod::DeclareOk(ok)) => ok.message_count,
            other => panic!("{other:?}"),
        }
    }

    pub async fn select_confirms(&mut self) {
        self.raw.select_confirms(1).await.unwrap();
    }

    pub async fn publish(&mut self, name: &'static str, properties: &[u8], body: &[u8]) {
        self.publish_at_once(name, properties, &[body]).await;
    }

    /// Publishes messages in one write.
    pub async fn publish_at_once(&mut self, name: &'static str, properties: &[u8], bodies: &[&[u8]]) {
        let publish = methods::publish(ShortStr::EMPTY, ShortStr::from_static(name));
        let mut out = Vec::new();
        for body in bodies {
            encode_message(&mut out, 1, &publish, properties, body, MAX);
        }
        self.raw(&out).await;
    }

    /// Begins a publish: its method and a content header that announces so many bytes.
    pub async fn announce(&mut self, number: u16, name: &'static str, body_bytes: u64) {
        let mut out = Vec::new();
        encode_method(&mut out, number, &methods::publish(ShortStr::EMPTY, ShortStr::from_static(name)));
        let (class_id, weight, properties) = (60, 0, TRANSIENT);
        ContentHeader { class_id, weight, body_bytes, properties }.encode(&mut out, number);
        self.raw(&out).await;
    }

    /// Sends a part of a body.
    pub async fn send_body(&mut self, number: u16, part: &[u8]) {
        let mut out = Vec::new();
        for payload in part.chunks(100_000) {
            encode_frame(&mut out, &Frame { kind: FrameKind::Body, channel: number, payload });
        }
        self.raw(&out).await;
    }

    pub async fn consume(&mut self, name: &'static str, no_ack: bool) {
        self.consume_as("tag", name, no_ack).await;
    }

    /// Consumes under a tag of its own.
    pub async fn consume_as(&mut self, tag: &'static str, name: &'static str, no_ack: bool) {
        let consume = methods::consume(ShortStr::from_static(name), ShortStr::from_static(tag));
        self.call(1, &basic::Consume { no_ack, ..consume }, "basic.consume-ok").await;
    }

    /// Limits what consumers hold: all of the channel together if `global`.
    pub async fn qos(&mut self, prefetch_count: u16, global: bool) {
        self.call(1, &basic::Qos { prefetch_size: 0, prefetch_count, global }, "basic.qos-ok").await;
    }

    /// The next delivery: the consumer's tag, and its own.
    pub async fn delivery_to(&mut self) -> (String, u64) {
        let got = self.expect("basic.deliver").await;
        let Method::Basic(BasicMethod::Deliver(deliver)) = got.method() else { panic!("{got:?}") };
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
        let Method::Basic(BasicMethod::Deliver(it)) = got.method() else { panic!("{got:?}") };
        (it.delivery_tag, it.redelivered, self.content().await)
    }
}
