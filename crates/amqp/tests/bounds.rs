//! What connections hold in memory is bounded in bytes: each, and all together.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::time::Duration;

use nexo_amqp::codec::method::{BasicMethod, ChannelMethod, basic, channel, tx};
use nexo_amqp::codec::{Method, ShortStr, encode_message};
use nexo_amqp_client::methods;
use nexo_broker::BrokerOptions;
use nexo_types::limits;
use raw_client::{Client, MAX, Served, TRANSIENT, eventually, within};

const MIB: u64 = 1 << 20;

/// A channel is closed for want of memory; says which, and why.
async fn refused(client: &mut Client) -> (u16, String) {
    let got = client.expect("channel.close").await;
    let Method::Channel(ChannelMethod::Close(close)) = got.method() else { panic!("{got:?}") };
    assert_eq!(close.reply_code, 506, "{}", close.reply_text);
    let why = close.reply_text.to_string();
    client.send(got.channel, &channel::CloseOk {}).await;
    (got.channel, why)
}

/// The tag of the next delivery, if one comes. Those up to `least` are waited for, however slow the machine is.
async fn delivery_after(client: &mut Client, got: u64, least: u64) -> Option<u64> {
    // Only the wait for its first frame may be given up: the rest of it would be lost.
    let next = match got < least {
        true => client.next().await,
        false => tokio::time::timeout(Duration::from_secs(1), client.next()).await.ok()?,
    };
    let next = next.expect("the connection goes on");
    let Method::Basic(BasicMethod::Deliver(deliver)) = next.method() else { panic!("{next:?}") };
    client.content().await;
    Some(deliver.delivery_tag)
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_have_not_come_whole_are_bounded_for_all_connections_together() {
    let served = Served::start().await;
    let mut greedy = served.client().await;
    greedy.declare("q").await;
    greedy.announce(1, "q", 60 * MIB).await;
    greedy.send_body(1, &[1; 1000]).await;
    for number in 2..=20 {
        greedy.open_channel(number).await;
        greedy.announce(number, "q", 60 * MIB).await;
        let (channel, why) = refused(&mut greedy).await;
        assert_eq!(channel, number);
        assert!(why.contains("the broker has no memory for 629"), "{why}");
    }
    assert!(served.broker.intake().held_bytes() <= 64 * MIB);

    // One that holds nothing waits, and is served when there is room.
    let mut patient = served.client().await;
    patient.announce(1, "q", 10 * MIB).await;
    let body = vec![7; 10 << 20];
    {
        let sent = patient.send_body(1, &body);
        tokio::pin!(sent);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut sent).await;
        assert!(early.is_err(), "what there is no room for is not read");
        drop(greedy);
        within(sent).await;
    }
    patient.consume("q", true).await;
    assert_eq!(patient.delivery().await.2, body);
    assert_eq!(served.broker.intake().held_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_on_gives_way_to_those_that_wait() {
    let options = nexo_amqp::Options { standstill_max: Duration::from_millis(500), ..Default::default() };
    let served = Served::start_with(options).await;
    let mut stuck = served.client().await;
    stuck.declare("q").await;
    stuck.announce(1, "q", 60 * MIB).await;
    stuck.send_body(1, &[1; 1000]).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(served.broker.intake().held_bytes() > 0, "nobody waits, so it may take its time");
    let mut patient = served.client().await;
    patient.announce(1, "q", 10 * MIB).await;
    let (_, why) = refused(&mut stuck).await;
    assert!(why.contains("have not come on for 500ms"), "{why}");
    patient.send_body(1, &vec![7; 10 << 20]).await;
    patient.consume("q", true).await;
    assert_eq!(patient.delivery().await.2.len(), 10 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_holds_one_largest_message_and_no_more() {
    let options = BrokerOptions { memory_bytes_max: 4 << 30, ..BrokerOptions::new("memory") };
    let served = Served::start_on(nexo_amqp::Options::default(), options).await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.announce(1, "q", limits::BODY_BYTES_MAX as u64).await;
    client.open_channel(2).await;
    client.announce(2, "q", 60 * MIB).await;
    let (channel, why) = refused(&mut client).await;
    assert_eq!(channel, 2);
    assert!(why.contains("of one connection take at most 136314880 bytes"), "{why}");
    let mut other = served.client().await;
    other.announce(1, "q", 60 * MIB).await;
    eventually("another connection has its own", || served.broker.intake().held_bytes() > 180 * MIB).await;
    drop((client, other));
    eventually("everything is given back", || served.broker.intake().held_bytes() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_transactions_are_bounded_together_and_give_their_memory_back() {
    let served = Served::start().await;
    let body = vec![1; 100_000];
    let mut open = Vec::new();
    let mut refused_too = 0;
    for _ in 0..8 {
        let mut client = served.client().await;
        client.declare("q").await;
        client.send(1, &tx::Select {}).await;
        client.expect("tx.select-ok").await;
        for _ in 0..100 {
            client.publish("q", TRANSIENT, &body).await;
        }
        client.send(1, &tx::Select {}).await;
        let got = client.next().await.unwrap();
        assert!(served.broker.intake().held_bytes() <= 64 * MIB);
        match got.name() {
            "tx.select-ok" => open.push(client),
            "channel.close" => refused_too += 1,
            other => panic!("{other}"),
        }
    }
    assert!(open.len() >= 5 && refused_too >= 1, "{} are open, {refused_too} were refused", open.len());
    let before = served.broker.intake().held_bytes();
    let mut client = open.pop().unwrap();
    client.send(1, &tx::Rollback {}).await;
    client.expect("tx.rollback-ok").await;
    assert!(served.broker.intake().held_bytes() < before);
    let mut client = open.pop().unwrap();
    client.send(1, &tx::Commit {}).await;
    client.expect("tx.commit-ok").await;
    assert_eq!(client.depth("q").await, 100);
    drop((client, open));
    eventually("everything is given back", || served.broker.intake().held_bytes() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_waits_for_memory_that_others_hold() {
    let served = Served::start().await;
    let mut greedy = served.client().await;
    greedy.declare("q").await;
    greedy.announce(1, "q", 100 * MIB).await;
    eventually("everything is taken", || served.broker.intake().held_bytes() == 64 * MIB).await;
    let mut client = served.client().await;
    client.send(1, &tx::Select {}).await;
    client.expect("tx.select-ok").await;
    client.publish("q", TRANSIENT, b"small").await;
    client.send(1, &tx::Commit {}).await;
    let early = tokio::time::timeout(Duration::from_millis(200), client.next()).await;
    assert!(early.is_err(), "there is no memory yet");
    drop(greedy);
    client.expect("tx.commit-ok").await;
    assert_eq!(client.depth("q").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_prefetch_does_not_bring_a_client_that_does_not_read_more_bytes() {
    let served = Served::start().await;
    let mut deaf = served.client().await;
    deaf.declare("q").await;
    deaf.qos(60_000, false).await;
    deaf.consume("q", false).await;
    let mut client = served.client().await;
    let body = vec![3; 100_000];
    for _ in 0..400 {
        client.publish("q", TRANSIENT, &body).await;
    }
    let mut left = u32::MAX;
    let mut same = 0;
    while same < 5 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = client.depth("q").await;
        same = if now == left { same + 1 } else { 0 };
        left = now;
        let held = served.broker.outgoing().bytes();
        assert!(held <= limits::CONSUMER_BYTES_MAX + 101_000, "{held} bytes are out");
    }
    assert!(left > 200, "{left} wait in the queue");
    for _ in 0..400 {
        assert_eq!(deaf.delivery().await.2.len(), 100_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_limit_that_does_not_acknowledge_gets_no_more_when_memory_is_short() {
    const COUNT: u64 = 120_000;
    const LEAST: u64 = 65_000;
    let options = BrokerOptions { memory_bytes_max: 16 * MIB, ..BrokerOptions::new("memory") };
    let served = Served::start_on(nexo_amqp::Options::default(), options).await;
    let mut client = served.client().await;
    client.declare("q").await;
    for _ in 0..COUNT / 1000 {
        client.publish_at_once("q", TRANSIENT, &[b"x".as_slice(); 1000]).await;
    }
    let mut greedy = served.client().await;
    greedy.consume("q", false).await;
    let mut got = 0;
    while let Some(tag) = delivery_after(&mut greedy, got, LEAST).await {
        got = tag;
    }
    assert!((LEAST..COUNT - 20_000).contains(&got), "{got} came");
    // Others have their share.
    let mut modest = served.client().await;
    modest.consume("q", true).await;
    assert_eq!(modest.delivery().await.2, b"x");
    drop(modest);
    greedy.send(1, &basic::Ack { delivery_tag: got, multiple: true }).await;
    assert_eq!(greedy.delivery().await.0, got + 1, "it goes on");
}

/// The whole frames of a message on any channel.
async fn publish_on(client: &mut Client, number: u16, name: &'static str, body: &[u8]) {
    let publish = methods::publish(ShortStr::EMPTY, ShortStr::from_static(name));
    let mut out = Vec::new();
    encode_message(&mut out, number, &publish, TRANSIENT, body, MAX);
    client.raw(&out).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transactions_of_one_connection_are_bounded_together() {
    /// What one connection may hold, as the refusal tells it.
    const CONNECTION_BYTES_MAX: u64 = 136_314_880;
    let options = BrokerOptions { memory_bytes_max: 4 << 30, ..BrokerOptions::new("memory") };
    let served = Served::start_on(nexo_amqp::Options::default(), options).await;
    let mut client = served.client().await;
    client.declare("q").await;
    let body = vec![1; 4 << 20];
    for number in 1..=3 {
        if number > 1 {
            client.open_channel(number).await;
        }
        client.send(number, &tx::Select {}).await;
        client.expect("tx.select-ok").await;
    }
    // Each of them could have it alone: 13 messages take 52 MiB, three times that is too much.
    for number in 1..=3 {
        for _ in 0..13 {
            publish_on(&mut client, number, "q", &body).await;
            let held = served.broker.intake().held_bytes();
            assert!(held <= CONNECTION_BYTES_MAX, "{held} bytes are held");
        }
    }
    let (channel, why) = refused(&mut client).await;
    assert_eq!(channel, 3, "those before it fit");
    assert!(why.contains("of one connection take at most 136314880 bytes"), "{why}");
    // What was refused is given back, and the others are as good as before.
    eventually("the rest is held", || served.broker.intake().held_bytes() < 110 * MIB).await;
    client.send(2, &tx::Rollback {}).await;
    client.expect("tx.rollback-ok").await;
    client.send(1, &tx::Commit {}).await;
    client.expect("tx.commit-ok").await;
    assert_eq!(client.depth("q").await, 13);
    assert_eq!(served.broker.intake().held_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_and_not_committed_is_held_when_memory_is_short() {
    const COUNT: u64 = 120_000;
    const LEAST: u64 = 65_000;
    let options = BrokerOptions { memory_bytes_max: 16 * MIB, ..BrokerOptions::new("memory") };
    let served = Served::start_on(nexo_amqp::Options::default(), options).await;
    let mut client = served.client().await;
    client.declare("q").await;
    for _ in 0..COUNT / 1000 {
        client.publish_at_once("q", TRANSIENT, &[b"x".as_slice(); 1000]).await;
    }
    let mut greedy = served.client().await;
    greedy.send(1, &tx::Select {}).await;
    greedy.expect("tx.select-ok").await;
    greedy.consume("q", false).await;
    let mut got = 0;
    while let Some(tag) = delivery_after(&mut greedy, got, LEAST).await {
        got = tag;
        if got % 1000 == 0 {
            greedy.send(1, &basic::Ack { delivery_tag: got, multiple: true }).await;
        }
    }
    assert!((LEAST..COUNT - 20_000).contains(&got), "{got} came");
    greedy.send(1, &tx::Commit {}).await;
    // What the commit settles makes room, so deliveries may come before its answer.
    let (mut is_committed, mut came) = (false, got);
    while !is_committed || came == got {
        let next = greedy.next().await.expect("the connection goes on");
        match next.name() {
            "tx.commit-ok" => is_committed = true,
            "basic.deliver" => {
                greedy.content().await;
                came += 1;
            }
            _ => panic!("{next:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_channels_do_not_hold_more_unacknowledged_than_one_when_memory_is_short() {
    const COUNT: u64 = 160_000;
    const LEAST: u64 = 65_000;
    let options = BrokerOptions { memory_bytes_max: 16 * MIB, ..BrokerOptions::new("memory") };
    let served = Served::start_on(nexo_amqp::Options::default(), options).await;
    let mut client = served.client().await;
    client.declare("q").await;
    for _ in 0..COUNT / 1000 {
        client.publish_at_once("q", TRANSIENT, &[b"x".as_slice(); 1000]).await;
    }
    let mut greedy = served.client().await;
    for number in 2..=4 {
        greedy.open_channel(number).await;
    }
    for number in 1..=4 {
        let consume = basic::Consume {
            nowait: true,
            ..methods::consume(ShortStr::from_static("q"), ShortStr::from_static("tag"))
        };
        greedy.send(number, &consume).await;
    }
    let mut got = 0;
    while delivery_after(&mut greedy, got, LEAST).await.is_some() {
        got += 1;
    }
    assert!((LEAST..COUNT - 40_000).contains(&got), "{got} came");
    for number in 1..=4 {
        greedy.send(number, &basic::Ack { delivery_tag: 0, multiple: true }).await;
    }
    greedy.delivery().await;
}
