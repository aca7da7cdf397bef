//! A message for many queues is worked on a part at a time: it reaches all of them, in order, and is confirmed once all
//! have it. So do messages that come back.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use nexo_amqp::codec::method::{BasicMethod, basic, queue};
use nexo_amqp::codec::{Method, ShortStr, Table, encode_message};
use raw_client::{Client, MAX, PERSISTENT, Served, TRANSIENT};

/// More than are pushed at a time.
const QUEUES: usize = 600;

async fn fan_out(client: &mut Client, queues: usize) -> Vec<&'static str> {
    let mut names = Vec::new();
    for number in 0..queues {
        let name: &'static str = Box::leak(format!("q{number}").into_boxed_str());
        client.declare(name).await;
        let bind = queue::Bind {
            ticket: 0,
            queue: ShortStr::from_static(name),
            exchange: ShortStr::from_static("amq.fanout"),
            routing_key: ShortStr::EMPTY,
            nowait: false,
            arguments: Table::EMPTY,
        };
        client.send(1, &bind).await;
        client.expect("queue.bind-ok").await;
        names.push(name);
    }
    names
}

async fn publish(client: &mut Client, properties: &[u8], bodies: &[&[u8]]) {
    let publish = basic::Publish {
        ticket: 0,
        exchange: ShortStr::from_static("amq.fanout"),
        routing_key: ShortStr::EMPTY,
        mandatory: false,
        immediate: false,
    };
    let mut out = Vec::new();
    for body in bodies {
        encode_message(&mut out, 1, &publish, properties, body, MAX);
    }
    client.raw(&out).await;
}

/// Waits until publishes up to this one are confirmed.
async fn confirmed(client: &mut Client, last: u64) {
    loop {
        let got = client.expect("basic.ack").await;
        let Method::Basic(BasicMethod::Ack(ack)) = got.method() else { panic!("{got:?}") };
        if ack.delivery_tag == last {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_message_reaches_all_its_queues_before_it_is_confirmed_and_is_not_overtaken() {
    let served = Served::start().await;
    let mut client = served.client().await;
    let names = fan_out(&mut client, 40).await;
    client.select_confirms().await;
    let large = vec![7; 300_000];
    for properties in [PERSISTENT, TRANSIENT] {
        let first = if properties == PERSISTENT { 1 } else { 4 };
        publish(&mut client, properties, &[b"before", &large, b"after"]).await;
        confirmed(&mut client, first + 2).await;
        for name in &names {
            assert_eq!(client.depth(name).await, 3, "{name}");
        }
        for name in &names {
            let mut taker = served.client().await;
            taker.consume(name, true).await;
            for expected in [&b"before"[..], &large, b"after"] {
                assert!(taker.delivery().await.2 == expected, "{name}");
            }
            // Or it would take what comes next.
            taker.close_channel(1).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_message_reaches_more_queues_than_are_pushed_at_a_time() {
    let served = Served::start().await;
    let mut client = served.client().await;
    let names = fan_out(&mut client, QUEUES).await;
    client.select_confirms().await;
    publish(&mut client, TRANSIENT, &[b"one", b"two"]).await;
    confirmed(&mut client, 2).await;
    for name in names {
        assert_eq!(client.depth(name).await, 2, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_messages_come_back_than_are_settled_at_a_time() {
    const COUNT: u64 = 12_000;
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.select_confirms().await;
    let body: &[u8] = b"again";
    for _ in 0..COUNT / 1000 {
        client.publish_at_once("q", TRANSIENT, &vec![body; 1000]).await;
    }
    confirmed(&mut client, COUNT).await;
    let mut holder = served.client().await;
    holder.consume("q", false).await;
    for _ in 0..COUNT {
        holder.delivery().await;
    }
    drop(holder);
    let mut taker = served.client().await;
    taker.consume("q", true).await;
    for _ in 0..COUNT {
        let (_, redelivered, _) = taker.delivery().await;
        assert!(redelivered);
    }
    taker.expect_silence().await;
}
