//! While the disk is behind, a connection that publishes is not read from. Everything else goes on.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::sync::Arc;
use std::time::Duration;

use nexo_amqp::codec::method::{basic, queue, tx};
use nexo_amqp::codec::{FrameKind, ShortStr, encode_message, encode_method};
use nexo_amqp_client::methods;
use nexo_broker::{Broker, BrokerOptions, Protocol};
use nexo_log::disk::{FaultyDisk, GateDisk};
use nexo_types::QueueName;
use raw_client::{Client, Got, MAX, PERSISTENT, Served, TRANSIENT, eventually};

/// More than fits into the segments that are ready while nothing is written.
const MESSAGES: u32 = 2_600;
const BODY: [u8; 1_000] = [7; 1_000];

/// A gate that opens at the end of a test that failed, too: the broker could not end otherwise.
struct Gate(GateDisk);

impl std::ops::Deref for Gate {
    type Target = GateDisk;

    fn deref(&self) -> &GateDisk {
        &self.0
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.0.open_gate();
    }
}

/// A broker whose log has little room while the gate is closed.
async fn gated() -> (Served, Gate) {
    let gate = GateDisk::default();
    let options = BrokerOptions {
        segment_bytes: 1 << 20,
        codecs: nexo_amqp::register(nexo_broker::Codecs::default()),
        ..BrokerOptions::new("memory")
    };
    let broker = Broker::open_on(Arc::new(gate.clone()), options).unwrap();
    (Served::serve(broker, FaultyDisk::new(), nexo_amqp::Options::default()).await, Gate(gate))
}

async fn beating(served: &Served) -> Client {
    let mut client = Client::connect_beating(served.address, MAX, 1).await;
    client.open_channel(1).await;
    client
}

async fn declare_transient(client: &mut Client, name: &'static str) {
    let declare = methods::declare_queue(ShortStr::from_static(name));
    client.send(1, &declare).await;
    client.expect("queue.declare-ok").await;
}

fn publish_to(queue: &'static str) -> basic::Publish<'static> {
    methods::publish(ShortStr::EMPTY, ShortStr::from_static(queue))
}

/// Publishes of more than the log takes now.
fn flood() -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..MESSAGES {
        encode_message(&mut out, 1, &publish_to("q"), PERSISTENT, &BODY, MAX);
    }
    out
}

fn depth(served: &Served, queue: &str) -> u64 {
    served.broker.queue(&QueueName::new(queue).unwrap()).unwrap().counts().0
}

/// Waits until no more is taken from the client.
async fn until_stuck(served: &Served) {
    let mut last = u64::MAX;
    eventually("the log takes no more", || {
        std::thread::sleep(Duration::from_millis(50));
        let now = depth(served, "q");
        std::mem::replace(&mut last, now) == now && now > 0
    })
    .await;
    assert!(last < u64::from(MESSAGES), "the gate holds the log back");
}

/// The next frame that is no heartbeat; notes whether there were any.
async fn next_but_beats(client: &mut Client, beats: &mut u32) -> Got {
    loop {
        let got = client.next().await.expect("the connection stays");
        match got.kind {
            FrameKind::Heartbeat => *beats += 1,
            FrameKind::Method | FrameKind::Header | FrameKind::Body => return got,
        }
    }
}

/// A connection with a consumer of 'memory' and one message that it holds, stuck with what it publishes to 'q'. `last`
/// comes right behind that.
async fn stuck(served: &Served, gate: &GateDisk, last: &[u8]) -> Client {
    let mut client = beating(served).await;
    client.declare("q").await;
    declare_transient(&mut client, "memory").await;
    client.consume("memory", false).await;
    client.publish("memory", TRANSIENT, b"first").await;
    client.delivery().await;
    gate.hold_writes();
    client.raw(&flood()).await;
    client.raw(last).await;
    until_stuck(served).await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_waits_for_the_disk_gets_messages_and_heartbeats() {
    let (served, gate) = gated().await;
    let mut client = stuck(&served, &gate, &[]).await;
    let mut other = served.client().await;
    let mut beats = 0;
    for body in [b"second".as_slice(), b"third"] {
        other.publish("memory", TRANSIENT, body).await;
        let got = next_but_beats(&mut client, &mut beats).await;
        assert_eq!(got.name(), "basic.deliver");
        assert_eq!(client.content().await, body);
    }
    while beats < 3 {
        assert_eq!(client.next().await.expect("the connection stays").kind, FrameKind::Heartbeat);
        beats += 1;
    }
    assert!(depth(&served, "q") < u64::from(MESSAGES));
    gate.open_gate();
    eventually("all is there", || depth(&served, "q") == u64::from(MESSAGES)).await;
    drop((client, other));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_behind_publishes_waits_for_them() {
    let (served, gate) = gated().await;
    let mut last = Vec::new();
    // The queue is asked for its depth, which must tell of everything that was published before.
    let declare = queue::Declare { passive: true, ..methods::declare_queue(ShortStr::from_static("q")) };
    encode_method(&mut last, 1, &declare);
    // There is no such exchange: the channel ends, after that.
    let nowhere = basic::Publish { exchange: ShortStr::from_static("nowhere"), ..publish_to("q") };
    encode_message(&mut last, 1, &publish_to("q"), PERSISTENT, b"last", MAX);
    encode_message(&mut last, 1, &nowhere, PERSISTENT, b"x", MAX);
    let mut client = stuck(&served, &gate, &last).await;
    gate.open_gate();
    let mut beats = 0;
    let got = next_but_beats(&mut client, &mut beats).await;
    match got.method() {
        nexo_amqp::codec::Method::Queue(nexo_amqp::codec::method::QueueMethod::DeclareOk(ok)) => {
            assert_eq!(ok.message_count, MESSAGES);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(next_but_beats(&mut client, &mut beats).await.name(), "channel.close");
    assert_eq!(depth(&served, "q"), u64::from(MESSAGES) + 1);
    assert_eq!(depth(&served, "memory"), 1, "what the channel held is back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_for_the_disk_lets_the_connection_live() {
    let (served, gate) = gated().await;
    let mut client = beating(&served).await;
    client.declare("q").await;
    declare_transient(&mut client, "memory").await;
    client.consume("memory", false).await;
    client.send(1, &tx::Select {}).await;
    client.expect("tx.select-ok").await;
    gate.hold_writes();
    let mut sent = flood();
    encode_method(&mut sent, 1, &tx::Commit {});
    client.raw(&sent).await;
    until_stuck(&served).await;
    let mut other = served.client().await;
    let mut beats = 0;
    other.publish("memory", TRANSIENT, b"x").await;
    assert_eq!(next_but_beats(&mut client, &mut beats).await.name(), "basic.deliver");
    client.content().await;
    while beats < 2 {
        assert_eq!(client.next().await.expect("the connection stays").kind, FrameKind::Heartbeat);
        beats += 1;
    }
    gate.open_gate();
    assert_eq!(next_but_beats(&mut client, &mut beats).await.name(), "tx.commit-ok");
    assert_eq!(depth(&served, "q"), u64::from(MESSAGES));
}

/// Neither one that publishes, nor one that ends with a queue of its own, which cannot be deleted.
#[tokio::test(flavor = "multi_thread")]
async fn connections_do_not_outlive_a_stop_though_the_disk_hangs() {
    let gate = GateDisk::default();
    let options = BrokerOptions {
        segment_bytes: 1 << 20,
        codecs: nexo_amqp::register(nexo_broker::Codecs::default()),
        ..BrokerOptions::new("memory")
    };
    let broker = Broker::open_on(Arc::new(gate.clone()), options).unwrap();
    let gate = Gate(gate);
    let amqp = nexo_amqp::Options { close_max: Duration::from_millis(300), ..nexo_amqp::Options::default() };
    let mut served = Served::serve(broker, FaultyDisk::new(), amqp).await;
    let mut leaving = served.client().await;
    let own = queue::Declare {
        durable: true,
        auto_delete: true,
        ..methods::declare_queue(ShortStr::from_static("own"))
    };
    leaving.send(1, &own).await;
    leaving.expect("queue.declare-ok").await;
    leaving.consume("own", false).await;
    let client = stuck(&served, &gate, &[]).await;
    drop(leaving);
    served.begin_stop();
    served.ended().await;
    drop(client);
    gate.open_gate();
    served.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_goes_while_it_waits_for_the_disk_is_noticed() {
    let (served, gate) = gated().await;
    let client = stuck(&served, &gate, &[]).await;
    assert_eq!(depth(&served, "memory"), 0);
    // It goes as a process that is killed: what it has not read is reset.
    client.raw.stream.set_zero_linger().unwrap();
    drop(client);
    eventually("what it held is back", || depth(&served, "memory") == 1).await;
    let taken = depth(&served, "q");
    assert!(taken < u64::from(MESSAGES), "the disk is still behind");
    gate.open_gate();
    eventually("what was read from it is pushed", || depth(&served, "q") > taken).await;
    let connections = || served.broker.traffic().of(Protocol::Amqp).stats().connections;
    eventually("it is gone", || connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_finished_although_its_client_is_gone() {
    let (served, gate) = gated().await;
    let mut client = beating(&served).await;
    client.declare("q").await;
    declare_transient(&mut client, "memory").await;
    client.publish("memory", TRANSIENT, b"work").await;
    client.send(1, &tx::Select {}).await;
    client.expect("tx.select-ok").await;
    client.consume("memory", false).await;
    let (tag, ..) = client.delivery().await;
    client.send(1, &basic::Ack { delivery_tag: tag, multiple: false }).await;
    gate.hold_writes();
    let mut sent = flood();
    encode_method(&mut sent, 1, &tx::Commit {});
    client.raw(&sent).await;
    until_stuck(&served).await;
    client.raw.stream.set_zero_linger().unwrap();
    drop(client);
    gate.open_gate();
    let connections = || served.broker.traffic().of(Protocol::Amqp).stats().connections;
    eventually("it is gone", || connections() == 0).await;
    assert_eq!(depth(&served, "q"), u64::from(MESSAGES), "all that it published is there");
    assert_eq!(depth(&served, "memory"), 0, "what it acknowledged is done");
}
