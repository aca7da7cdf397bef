//! A message for many queues is worked on a part at a time: it reaches all of them, in order, and is confirmed once all
//! have it. So do messages that come back.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::time::Duration;

use nexo_amqp::codec::method::{BasicMethod, queue};
use nexo_amqp::codec::{Method, ShortStr, Table, TableBuf, encode_message};
use nexo_amqp_client::methods;
use nexo_broker::BrokerOptions;
use raw_client::{Client, MAX, PERSISTENT, Served, TRANSIENT};
use tokio::sync::oneshot;

/// More than are pushed at a time.
const QUEUES: usize = 600;

async fn fan_out(client: &mut Client, queues: usize) -> Vec<&'static str> {
    let mut names = Vec::new();
    for number in 0..queues {
        let name: &'static str = Box::leak(format!("q{number}").into_boxed_str());
        client.declare(name).await;
        bind(client, name).await;
        names.push(name);
    }
    names
}

async fn bind(client: &mut Client, name: &'static str) {
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
}

async fn publish(client: &mut Client, properties: &[u8], bodies: &[&[u8]]) {
    let publish = methods::publish(ShortStr::from_static("amq.fanout"), ShortStr::EMPTY);
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

/// A queue of the fan-out that is durable or not and has an argument.
async fn fan_out_to(client: &mut Client, name: &'static str, durable: bool, argument: (&'static str, i64)) {
    let mut arguments = TableBuf::new();
    arguments.set(ShortStr::from_static(argument.0), argument.1);
    if argument.0 == "x-max-length" {
        arguments.set(ShortStr::from_static("x-overflow"), "reject-publish");
    }
    let declare = queue::Declare {
        ticket: 0,
        queue: ShortStr::from_static(name),
        passive: false,
        durable,
        exclusive: false,
        auto_delete: false,
        nowait: false,
        arguments: arguments.as_table(),
    };
    client.send(1, &declare).await;
    client.expect("queue.declare-ok").await;
    bind(client, name).await;
}

/// Each kind of queue stores a message in another form, or looks at each.
#[tokio::test(flavor = "multi_thread")]
async fn queues_of_all_kinds_get_what_some_of_them_share_in_order() {
    let served = Served::start().await;
    let mut client = served.client().await;
    let mut names = fan_out(&mut client, 5).await;
    for (name, durable, argument) in [
        ("passing", false, ("x-expires", 600_000)),
        ("urgent", true, ("x-max-priority", 3)),
        ("mortal", true, ("x-message-ttl", 600_000)),
        ("strict", true, ("x-max-length", 1_000)),
    ] {
        fan_out_to(&mut client, name, durable, argument).await;
        names.push(name);
    }
    client.select_confirms().await;
    let bodies: Vec<Vec<u8>> = [10, 5_000, 3_000, 5_000, 4_200, 20, 200_000, 5_000, 30, 9_000, 150_000]
        .iter()
        .enumerate()
        .map(|(number, len)| vec![number as u8; *len])
        .collect();
    let all: Vec<&[u8]> = bodies.iter().map(|body| &body[..]).collect();
    let before = served.broker.stats().log.frame_bytes;
    publish(&mut client, PERSISTENT, &all).await;
    confirmed(&mut client, all.len() as u64).await;
    // Priority 2, and it survives a restart.
    publish(&mut client, &[0x18, 0, 2, 2], &all).await;
    confirmed(&mut client, 2 * all.len() as u64).await;
    let written = served.broker.stats().log.frame_bytes - before;
    let len: usize = all.iter().map(|body| body.len()).sum();
    let copies = written as usize / (2 * len);
    assert!((2..=4).contains(&copies), "nine queues, and what is shared is written once: {copies} copies");
    for name in names {
        let mut taker = served.client().await;
        taker.consume(name, true).await;
        for round in 0..2 {
            for (number, expected) in all.iter().enumerate() {
                let (_, _, body) = taker.delivery().await;
                assert!(body == *expected, "{name}, round {round}, message {number}: {} bytes", body.len());
            }
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

/// Asks what messages take, until told that it is enough, and once more then: it may be told so before it has asked at all.
/// Gives back the most.
async fn most_memory(broker: nexo_broker::Broker, mut enough: oneshot::Receiver<()>) -> u64 {
    let mut most = 0;
    loop {
        let is_last = enough.try_recv().is_ok();
        most = most.max(broker.stats().message_memory_bytes + broker.intake().held_bytes());
        if is_last {
            return most;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_large_message_goes_to_many_queues_memory_is_bounded_and_others_are_confirmed() {
    const BOUND: u64 = 64 << 20;
    const ROUNDS: u64 = 20;
    /// What a message takes in its queue beside its body, and what a queue takes that has some.
    const ENTRY_BYTES: u64 = 256;
    const QUEUE_BYTES: u64 = 2048;
    let options = BrokerOptions { memory_bytes_max: BOUND, ..BrokerOptions::new("memory") };
    let served = Served::start_on(nexo_amqp::Options::default(), options).await;
    let mut publisher = served.client().await;
    let names = fan_out(&mut publisher, 300).await;
    publisher.select_confirms().await;
    let mut other = served.client().await;
    other.declare("other").await;
    other.select_confirms().await;
    let (enough, is_enough) = oneshot::channel();
    let memory = tokio::spawn(most_memory(served.broker.clone(), is_enough));

    let body = vec![7; 1 << 20];
    let mut published = 0;
    let mut meanwhile = 0;
    let mut rounds = 0;
    // Whether a round ends before the other is heard is chance. If others had to wait, none would be in any of them.
    for round in 1..=ROUNDS {
        publish(&mut publisher, TRANSIENT, &[&body]).await;
        let spread = confirmed(&mut publisher, round);
        tokio::pin!(spread);
        loop {
            other.publish("other", TRANSIENT, b"small").await;
            published += 1;
            let is_first = tokio::select! {
                biased;
                () = &mut spread => false,
                () = confirmed(&mut other, published) => true,
            };
            if !is_first {
                confirmed(&mut other, published).await;
                break;
            }
            meanwhile += 1;
        }
        rounds = round;
        if meanwhile > 0 {
            break;
        }
    }
    assert!(meanwhile > 0, "nobody else was confirmed meanwhile, in {ROUNDS} rounds");
    enough.send(()).unwrap();
    let most = memory.await.unwrap();
    // A body is there once for all queues, and once more while it is received. Each queue has an entry for it, and so has
    // the other queue for each of its messages. All copies would be 300 MiB in each round.
    let bodies = (rounds + 1) * (body.len() as u64 + 1024);
    let entries = (rounds * names.len() as u64 + published) * ENTRY_BYTES + names.len() as u64 * QUEUE_BYTES;
    assert!((1..=bodies + entries).contains(&most), "{most} bytes, {bodies} and {entries} at most");
    let last = names.last().unwrap();
    let mut taker = served.client().await;
    taker.consume(last, true).await;
    assert!(taker.delivery().await.2 == body, "it is there whole");
}
