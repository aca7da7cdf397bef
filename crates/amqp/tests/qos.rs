//! A limit that all consumers of a channel share (`basic.qos` with `global`), as RabbitMQ has it.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::collections::BTreeMap;

use nexo_amqp::codec::method::basic;
use raw_client::{Client, Served, TRANSIENT};

async fn ack(client: &mut Client, delivery_tag: u64) {
    client.send(1, &basic::Ack { delivery_tag, multiple: false }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_limit_goes_round_among_the_queues_of_a_channel() {
    let served = Served::start().await;
    let mut client = served.client().await;
    let queues = ["one", "two", "three"];
    client.qos(1, true).await;
    for queue in queues {
        client.declare(queue).await;
        client.consume_as(queue, queue, false).await;
    }
    for queue in queues {
        client.publish_at_once(queue, TRANSIENT, &[&b"x"[..]; 100]).await;
    }
    let mut served_to: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..90 {
        let (consumer, tag) = client.delivery_to().await;
        *served_to.entry(consumer).or_default() += 1;
        ack(&mut client, tag).await;
    }
    for queue in queues {
        let got = served_to.get(queue).copied().unwrap_or(0);
        assert!((20..=40).contains(&got), "{served_to:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_without_acknowledgements_waits_while_the_limit_is_used_up() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("acked").await;
    client.declare("free").await;
    client.qos(1, true).await;
    client.consume_as("acks", "acked", false).await;
    client.publish("acked", TRANSIENT, b"1").await;
    let (_, tag) = client.delivery_to().await;
    client.consume_as("none", "free", true).await;
    client.publish_at_once("free", TRANSIENT, &[b"1", b"2", b"3"]).await;
    client.expect_silence().await;
    assert_eq!(client.depth("free").await, 3);
    ack(&mut client, tag).await;
    for _ in 0..3 {
        assert_eq!(client.delivery_to().await.0, "none");
    }
    assert_eq!(client.depth("free").await, 0, "what it does not acknowledge takes no room");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_comes_later_binds_consumers_without_acknowledgements_too() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("acked").await;
    client.declare("free").await;
    client.consume_as("acks", "acked", false).await;
    client.consume_as("none", "free", true).await;
    client.qos(1, true).await;
    client.publish_at_once("free", TRANSIENT, &[b"1", b"2"]).await;
    for _ in 0..2 {
        assert_eq!(client.delivery_to().await.0, "none", "the limit has room");
    }
    client.publish("acked", TRANSIENT, b"1").await;
    let (consumer, tag) = client.delivery_to().await;
    assert_eq!(consumer, "acks");
    client.publish("free", TRANSIENT, b"3").await;
    client.expect_silence().await;
    ack(&mut client, tag).await;
    assert_eq!(client.delivery_to().await.0, "none");
}
