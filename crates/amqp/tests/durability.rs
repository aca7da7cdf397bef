//! What a client was told, or told the broker, on a disk that loses what was not synced, or is full.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::sync::Arc;
use std::time::Duration;

use nexo_amqp::codec::method::{basic, channel, connection, tx};
use nexo_amqp::codec::{ShortStr, TableBuf};
use nexo_broker::{Broker, BrokerOptions, DeadLetters, NewMessage, QueueConfig, QueueError};
use nexo_log::disk::{CutMode, FaultyDisk};
use nexo_types::QueueName;
use raw_client::{Client, PERSISTENT, Served, eventually, within};

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

/// How many messages a queue has when the power goes now and comes back.
fn after_power_cut(disk: &FaultyDisk, queue: &str) -> u64 {
    let broker = restarted(disk);
    broker.queue(&name(queue)).map_or(0, |queue| queue.counts().0 + queue.in_flight() as u64)
}

/// A broker as it is when the power goes now and comes back.
fn restarted(disk: &FaultyDisk) -> Broker {
    let options = BrokerOptions {
        segment_bytes: 1 << 20,
        codecs: nexo_amqp::register(nexo_broker::Codecs::default()),
        ..BrokerOptions::new("memory")
    };
    Broker::open_on(Arc::new(disk.restart(CutMode::Drop, 0)), options).unwrap()
}

/// A queue whose dead letters go to 'q_dlq', by the native rules or through an exchange.
fn dead_lettering(to_exchange: bool) -> QueueConfig {
    match to_exchange {
        false => QueueConfig { max_attempts: Some(5), ..QueueConfig::default() },
        true => QueueConfig {
            dead_letters: DeadLetters::Exchange {
                exchange: nexo_types::ExchangeName::new("").unwrap(),
                routing_key: Some(bytes::Bytes::from_static(b"q_dlq")),
            },
            ..QueueConfig::default()
        },
    }
}

async fn publish_ten(served: &Served) {
    let mut client = served.client().await;
    client.select_confirms().await;
    for number in 0..10u8 {
        client.publish("q", PERSISTENT, &[number]).await;
        client.expect("basic.ack").await;
    }
}

/// A client in a transaction that was delivered ten messages.
async fn in_transaction_with_ten(served: &Served) -> Client {
    publish_ten(served).await;
    receive_ten(served).await
}

async fn receive_ten(served: &Served) -> Client {
    let mut client = served.client().await;
    client.send(1, &tx::Select {}).await;
    client.expect("tx.select-ok").await;
    client.consume("q", false).await;
    for _ in 0..10 {
        client.delivery().await;
    }
    client
}

/// Publishes until the disk is full, and leaves what the log keeps for acknowledgements.
async fn use_up_room(served: &Served) {
    served.disk.set_bytes_max(Some(served.disk.used_bytes()));
    let mut bytes = 10_000;
    while bytes > 0 {
        match served.broker.push(&name("other"), vec![NewMessage::new(vec![0; bytes])]).await {
            Ok(_) => {}
            Err(QueueError::Alarm(_)) => bytes /= 2,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Uses up what the log keeps for acknowledgements when the disk is full.
async fn use_up_reserve(served: &Served) {
    served.disk.set_bytes_max(Some(served.disk.used_bytes()));
    // A checkpoint may free something meanwhile, until there is nothing left to free.
    for _ in 0..100 {
        fill(served).await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        match served.broker.purge(&name("other")).await {
            Ok(_) => {}
            Err(QueueError::Alarm(_)) => return,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("there is room again and again");
}

/// Writes down whatever is taken.
async fn fill(served: &Served) {
    let mut text = "x".repeat(10_000);
    loop {
        let annotated = |config: &QueueConfig| {
            let mut config = config.clone();
            config.annotations.insert("test".into(), text.clone().into());
            config
        };
        match served.broker.update_queue(&name("other"), annotated).await {
            Ok(()) => {}
            Err(_) if text.len() > 1 => text.truncate(text.len() / 2),
            Err(_) => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn committed_acknowledgements_survive_a_power_cut() {
    let served = Served::start().await;
    served.client().await.declare("q").await;
    let mut client = in_transaction_with_ten(&served).await;
    client.send(1, &basic::Ack { delivery_tag: 4, multiple: true }).await;
    client.send(1, &basic::Ack { delivery_tag: 6, multiple: false }).await;
    client.send(1, &tx::Commit {}).await;
    client.expect("tx.commit-ok").await;
    assert_eq!(after_power_cut(&served.disk, "q"), 5);
    client.send(1, &basic::Ack { delivery_tag: 0, multiple: true }).await;
    client.send(1, &tx::Commit {}).await;
    client.expect("tx.commit-ok").await;
    assert_eq!(after_power_cut(&served.disk, "q"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn committed_rejections_survive_a_power_cut_where_they_went() {
    for to_exchange in [false, true] {
        let served = Served::start().await;
        served.broker.create_queue(&name("q"), dead_lettering(to_exchange)).await.unwrap();
        served.client().await.declare("q_dlq").await;
        let mut client = in_transaction_with_ten(&served).await;
        client.send(1, &basic::Nack { delivery_tag: 7, multiple: true, requeue: false }).await;
        client.send(1, &basic::Ack { delivery_tag: 0, multiple: true }).await;
        client.send(1, &tx::Commit {}).await;
        client.expect("tx.commit-ok").await;
        assert_eq!(after_power_cut(&served.disk, "q"), 0);
        assert_eq!(after_power_cut(&served.disk, "q_dlq"), 7);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_cannot_be_synced_is_not_answered_as_done() {
    let served = Served::start().await;
    served.client().await.declare("q").await;
    let mut client = in_transaction_with_ten(&served).await;
    client.send(1, &basic::Ack { delivery_tag: 0, multiple: true }).await;
    served.disk.fail_next_sync();
    client.send(1, &tx::Commit {}).await;
    client.expect_close(541).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_finds_no_room_is_kept_until_there_is() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.declare("other").await;
    for number in 0..10u8 {
        client.publish("q", PERSISTENT, &[number]).await;
    }
    client.send(1, &basic::Qos { prefetch_size: 0, prefetch_count: 4, global: false }).await;
    client.expect("basic.qos-ok").await;
    client.consume("q", false).await;
    for _ in 0..4 {
        client.delivery().await;
    }
    use_up_reserve(&served).await;
    client.send(1, &basic::Ack { delivery_tag: 2, multiple: true }).await;
    client.send(1, &basic::Nack { delivery_tag: 3, multiple: false, requeue: true }).await;
    // The connection goes on, and nothing comes in the place of what could not be settled.
    assert_eq!(client.depth("other").await, 0);
    let queue = served.broker.queue(&name("q")).unwrap();
    assert_eq!((queue.in_flight(), queue.counts().0), (4, 6));

    served.disk.set_bytes_max(None);
    let (tag, redelivered, body) = client.delivery().await;
    assert_eq!((tag, redelivered, body), (5, false, vec![4]));
    eventually("all is settled", || queue.counts().0 + queue.in_flight() as u64 == 8).await;
    served.broker.purge(&name("other")).await.unwrap();
    assert_eq!(after_power_cut(&served.disk, "q"), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_recover_could_not_give_back_makes_room_for_no_others() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.declare("other").await;
    for number in 0..10u8 {
        client.publish("q", PERSISTENT, &[number]).await;
    }
    client.qos(4, false).await;
    client.consume("q", false).await;
    for _ in 0..4 {
        client.delivery().await;
    }
    use_up_reserve(&served).await;
    client.send(1, &basic::Recover { requeue: true }).await;
    client.expect("basic.recover-ok").await;
    assert_eq!(client.depth("other").await, 0);
    let queue = served.broker.queue(&name("q")).unwrap();
    assert_eq!((queue.in_flight(), queue.counts().0), (4, 6));

    served.disk.set_bytes_max(None);
    for number in 0..4u8 {
        let (_, redelivered, body) = client.delivery().await;
        assert_eq!((redelivered, body), (true, vec![number]));
    }
    client.send(1, &basic::Ack { delivery_tag: 8, multiple: false }).await;
    assert_eq!(client.delivery().await.2, [4], "one settled, one more");
    assert_eq!((queue.in_flight(), queue.counts().0), (4, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_of_a_client_that_went_are_written_when_there_is_room() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.declare("other").await;
    for number in 0..10u8 {
        client.publish("q", PERSISTENT, &[number]).await;
    }
    client.consume("q", false).await;
    for _ in 0..10 {
        client.delivery().await;
    }
    use_up_reserve(&served).await;
    client.send(1, &basic::Ack { delivery_tag: 6, multiple: true }).await;
    let (reply_code, reply_text) = (200, ShortStr::EMPTY);
    client.send(0, &connection::Close { reply_code, reply_text, class_id: 0, method_id: 0 }).await;
    client.expect("connection.close-ok").await;
    let queue = served.broker.queue(&name("q")).unwrap();
    assert_eq!((queue.in_flight(), queue.counts().0), (10, 0), "nobody else gets what was acknowledged");

    served.disk.set_bytes_max(None);
    eventually("all is settled", || (queue.in_flight(), queue.counts().0) == (0, 4)).await;
    served.broker.purge(&name("other")).await.unwrap();
    assert_eq!(after_power_cut(&served.disk, "q"), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_acknowledgements_find_no_room_waits() {
    let served = Served::start().await;
    let mut other = served.client().await;
    other.declare("q").await;
    other.declare("other").await;
    let mut client = in_transaction_with_ten(&served).await;
    use_up_reserve(&served).await;
    client.send(1, &basic::Ack { delivery_tag: 0, multiple: true }).await;
    client.send(1, &tx::Commit {}).await;
    client.expect("connection.blocked").await;
    assert_eq!(after_power_cut(&served.disk, "q"), 10);
    served.disk.set_bytes_max(None);
    let mut told = [client.next().await.unwrap().name(), client.next().await.unwrap().name()];
    told.sort_unstable();
    assert_eq!(told, ["connection.unblocked", "tx.commit-ok"]);
    assert_eq!(after_power_cut(&served.disk, "q"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_dead_letters_find_no_room_waits() {
    for to_exchange in [false, true] {
        let served = Served::start().await;
        let mut other = served.client().await;
        served.broker.create_queue(&name("q"), dead_lettering(to_exchange)).await.unwrap();
        other.declare("q_dlq").await;
        other.declare("other").await;
        let mut client = in_transaction_with_ten(&served).await;
        // There is room to write down what is said about messages, but not for copies of them.
        use_up_room(&served).await;
        client.send(1, &basic::Nack { delivery_tag: 7, multiple: true, requeue: false }).await;
        client.send(1, &tx::Commit {}).await;
        client.expect("connection.blocked").await;
        {
            // That they died may have been written down: then they are dead letters after all.
            let broker = restarted(&served.disk);
            let count = |queue: &str| broker.queue(&name(queue)).map_or(0, |queue| queue.counts().0);
            eventually("all are in one of the two", || {
                [(10, 0), (3, 7)].contains(&(count("q"), count("q_dlq")))
            })
            .await;
        }
        served.disk.set_bytes_max(None);
        let mut told = [client.next().await.unwrap().name(), client.next().await.unwrap().name()];
        told.sort_unstable();
        assert_eq!(told, ["connection.unblocked", "tx.commit-ok"]);
        assert_eq!(after_power_cut(&served.disk, "q"), 3);
        assert_eq!(after_power_cut(&served.disk, "q_dlq"), 7);
        client.send(1, &basic::Ack { delivery_tag: 0, multiple: true }).await;
        client.send(1, &tx::Commit {}).await;
        client.expect("tx.commit-ok").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_for_room_keeps_its_channel() {
    let options = nexo_amqp::Options { consumer_timeout: Duration::from_secs(1), ..Default::default() };
    let served = Served::start_with(options).await;
    let mut other = served.client().await;
    other.declare("q").await;
    other.declare("other").await;
    publish_ten(&served).await;
    use_up_reserve(&served).await;
    let mut client = receive_ten(&served).await;
    client.send(1, &basic::Ack { delivery_tag: 6, multiple: true }).await;
    client.send(1, &tx::Commit {}).await;
    client.expect("connection.blocked").await;
    // It holds the other four for too long, but nothing that it says is read: it may well have acknowledged.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    served.disk.set_bytes_max(None);
    let mut told = [client.next().await.unwrap().name(), client.next().await.unwrap().name()];
    told.sort_unstable();
    assert_eq!(told, ["connection.unblocked", "tx.commit-ok"]);
    client.expect("channel.close").await;
    client.send(1, &channel::CloseOk {}).await;
    client.open_channel(1).await;
    let queue = served.broker.queue(&name("q")).unwrap();
    eventually("the rest is back", || (queue.in_flight(), queue.counts().0) == (0, 4)).await;
    served.broker.purge(&name("other")).await.unwrap();
    assert_eq!(after_power_cut(&served.disk, "q"), 4, "what was committed is done all the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_acknowledgement_can_never_be_written_is_told() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.publish("q", PERSISTENT, b"x").await;
    client.consume("q", false).await;
    client.delivery().await;
    served.disk.fail_next_write();
    assert!(within(served.broker.purge(&name("q"))).await.is_err());
    client.send(1, &basic::Ack { delivery_tag: 1, multiple: false }).await;
    client.expect_close(541).await;
}

/// A queue of a release that kept the highest priority only among the arguments of its declaration.
#[tokio::test(flavor = "multi_thread")]
async fn the_highest_priority_of_an_old_queue_holds_after_a_restart() {
    let disk = FaultyDisk::new();
    let mut arguments = TableBuf::new();
    arguments.set(ShortStr::from_static("x-max-priority"), 3i64);
    let old = QueueConfig {
        arguments: bytes::Bytes::copy_from_slice(arguments.as_table().as_raw()),
        has_unread_arguments: true,
        ..QueueConfig::default()
    };
    let broker = Broker::open_on(Arc::new(disk.clone()), BrokerOptions::new("memory")).unwrap();
    broker.create_queue(&name("old"), old).await.unwrap();
    broker.shutdown().await;
    let served = Served::serve(restarted(&disk), disk, nexo_amqp::Options::default()).await;
    let mut client = served.client().await;
    client.declare("plain").await;
    client.select_confirms().await;
    for queue in ["old", "plain"] {
        for (priority, body) in [(1, b"1"), (3, b"2"), (200, b"3"), (0, b"4")] {
            client.publish(queue, &[0x18, 0, 2, priority], body).await;
            client.expect("basic.ack").await;
        }
    }
    for (queue, order) in [("old", ["2", "3", "1", "4"]), ("plain", ["1", "2", "3", "4"])] {
        let mut taker = served.client().await;
        taker.consume(queue, true).await;
        for body in order {
            assert_eq!(taker.delivery().await.2, body.as_bytes(), "{queue}");
        }
    }
}
