//! What clients see of a broker that is short of memory, and of the limits that an operator sets.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::num::NonZeroU16;

use nexo_amqp::Options;
use nexo_amqp::codec::method::{ChannelMethod, ConnectionMethod, queue};
use nexo_amqp::codec::{Method, ShortStr};
use nexo_amqp_client::methods;
use nexo_broker::{BrokerOptions, MemoryHigh, Protocol};
use nexo_types::QueueName;
use raw_client::{Client, Got, PERSISTENT, Served, TRANSIENT, eventually};

const NOTHING: MemoryHigh = MemoryHigh::Bytes(0);
const PLENTY: MemoryHigh = MemoryHigh::Bytes(1 << 40);

async fn served_by(change: impl FnOnce(&mut BrokerOptions)) -> Served {
    let mut options =
        BrokerOptions { owns_process: true, memory_high: PLENTY, ..BrokerOptions::new("memory") };
    change(&mut options);
    Served::start_on(Options::default(), options).await
}

fn reason(got: &Got) -> String {
    match got.method() {
        Method::Connection(ConnectionMethod::Blocked(blocked)) => blocked.reason.to_string(),
        other => panic!("{other:?}"),
    }
}

fn ready(served: &Served, queue: &str) -> u64 {
    served.broker.queue_stats(&QueueName::new(queue).unwrap()).unwrap().ready
}

/// Why the broker closed the channel.
async fn refused(client: &mut Client) -> (u16, String) {
    let got = client.expect("channel.close").await;
    match got.method() {
        Method::Channel(ChannelMethod::Close(close)) => (close.reply_code, close.reply_text.to_string()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn publishers_are_blocked_while_memory_is_short_and_consumers_drain() {
    let served = served_by(|_| {}).await;
    let (mut publisher, mut consumer) = (served.client().await, served.client().await);
    publisher.declare("q").await;
    publisher.publish("q", PERSISTENT, b"before").await;
    eventually("it is there", || ready(&served, "q") == 1).await;
    served.broker.set_memory_high(NOTHING);
    publisher.publish("q", TRANSIENT, b"one").await;
    assert_eq!(reason(&publisher.expect("connection.blocked").await), "low on memory");
    // What comes now is not read, and nothing of it is lost.
    publisher.publish_at_once("q", TRANSIENT, &[b"two", b"three"]).await;
    consumer.consume("q", true).await;
    assert_eq!(consumer.delivery().await.2, b"before");
    assert_eq!(consumer.depth("q").await, 0, "and who does not publish is served");
    let shown = served.broker.open_connections().all();
    assert_eq!(shown.iter().filter(|connection| connection.is_blocked()).count(), 1);
    served.broker.set_memory_high(PLENTY);
    publisher.expect("connection.unblocked").await;
    for body in [&b"one"[..], b"two", b"three"] {
        assert_eq!(consumer.delivery().await.2, body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_is_not_read_while_memory_is_short() {
    let served = served_by(|_| {}).await;
    let mut publisher = served.client().await;
    publisher.declare("q").await;
    served.broker.set_memory_high(NOTHING);
    publisher.announce(1, "q", 10 << 20).await;
    assert_eq!(reason(&publisher.expect("connection.blocked").await), "low on memory");
    served.broker.set_memory_high(PLENTY);
    publisher.expect("connection.unblocked").await;
    publisher.send_body(1, &vec![7; 10 << 20]).await;
    eventually("it has come whole", || ready(&served, "q") == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reason_names_all_that_runs_short() {
    let served = served_by(|options| options.data_dir = std::env::temp_dir()).await;
    let mut publisher = served.client().await;
    served.broker.set_memory_high(NOTHING);
    served.broker.set_disk_free_min(u64::MAX);
    publisher.publish("nowhere", TRANSIENT, b"lost").await;
    assert_eq!(reason(&publisher.expect("connection.blocked").await), "low on memory & disk");
    served.broker.set_memory_high(PLENTY);
    let mut other = served.client().await;
    other.publish("nowhere", TRANSIENT, b"lost").await;
    assert_eq!(reason(&other.expect("connection.blocked").await), "low on disk");
    served.broker.set_disk_free_min(0);
    publisher.expect("connection.unblocked").await;
    other.expect("connection.unblocked").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_too_many_is_told_so() {
    let served = served_by(|options| options.clients_max = 2).await;
    let (first, second) = (served.client().await, served.client().await);
    let login = nexo_amqp_client::Login::default();
    let patience = std::time::Duration::from_secs(60);
    let third = nexo_amqp_client::Client::connect(served.address, &login, patience).await;
    let error = format!("{:?}", third.expect_err("there are two already"));
    let words = "code: 530, text: \"NOT_ALLOWED - connection refused: node connection limit (2) is reached\"";
    assert!(error.contains(words), "{error}");
    drop(first);
    eventually("its place is free", || served.broker.connections().counts(Protocol::Amqp).open == 1).await;
    let third = served.client().await;
    drop((second, third));
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_are_limited_by_what_was_agreed_on() {
    let options = Options { channel_max: NonZeroU16::new(3).unwrap(), ..Options::default() };
    let served = Served::start_with(options).await;
    let mut client = Client::connect(served.address).await;
    for number in 1..=3 {
        client.open_channel(number).await;
    }
    client.send(4, &nexo_amqp::codec::method::channel::Open { out_of_band: ShortStr::EMPTY }).await;
    client.expect_close(530).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_larger_than_the_limit_closes_its_channel() {
    let served = served_by(|options| options.body_bytes_max = 1000).await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.publish("q", TRANSIENT, &[b'x'; 1000]).await;
    client.publish("q", TRANSIENT, &[b'x'; 1001]).await;
    let words = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000";
    assert_eq!(refused(&mut client).await, (406, words.to_owned()));
    eventually("the one that fits is there", || ready(&served, "q") == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_queue_too_many_closes_its_channel() {
    let served = served_by(|options| options.queues_max = 1).await;
    let mut client = served.client().await;
    client.declare("a").await;
    client.declare("a").await;
    let declare = methods::declare_queue(ShortStr::from_static("b"));
    client.send(1, &queue::Declare { durable: true, ..declare }).await;
    let words = "PRECONDITION_FAILED - cannot declare queue 'b': queue limit in cluster (1) is reached";
    assert_eq!(refused(&mut client).await, (406, words.to_owned()));
}
