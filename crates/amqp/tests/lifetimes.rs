//! Ends: of connections, of auto-delete queues, of messages without a time to live; and publishers that are blocked.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::time::{Duration, Instant};

use nexo_amqp::codec::method::{basic, connection, queue};
use nexo_amqp::codec::{PropertiesBuilder, ShortStr};
use nexo_amqp_client::methods;
use nexo_broker::Protocol;
use nexo_types::QueueName;
use raw_client::{Client, PERSISTENT, Served, TRANSIENT, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn declare_auto_delete(client: &mut Client, name: &'static str) {
    let declare = queue::Declare { auto_delete: true, ..methods::declare_queue(ShortStr::from_static(name)) };
    client.send(1, &declare).await;
    client.expect("queue.declare-ok").await;
}

async fn close(client: &mut Client) {
    let reply_text = ShortStr::EMPTY;
    client.send(0, &connection::Close { reply_code: 200, reply_text, class_id: 0, method_id: 0 }).await;
    client.expect("connection.close-ok").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_still_writes_after_the_end_gets_no_reset() {
    let served = Served::start().await;
    let mut client = served.client().await;
    close(&mut client).await;
    assert!(client.next().await.is_none(), "the broker says no more");
    // A reset would show on a write after the one that caused it, or on the read.
    for _ in 0..20 {
        within(client.raw.stream.write_all(&[0; 10_000])).await.expect("the broker still reads");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(within(client.raw.stream.read(&mut [0; 10])).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_closes_its_socket_is_not_waited_for_without_end() {
    let close_max = Duration::from_millis(500);
    let options = nexo_amqp::Options { close_max, ..Default::default() };
    let served = Served::start_with(options).await;
    let connections = || served.broker.traffic().of(Protocol::Amqp).stats().connections;
    let mut silent = served.client().await;
    let mut talkative = served.client().await;
    let began = Instant::now();
    close(&mut silent).await;
    close(&mut talkative).await;
    assert!(talkative.next().await.is_none(), "the broker says no more");
    within(async {
        while connections() > 0 {
            assert!(connections() == 2 || began.elapsed() >= close_max, "both are waited for");
            // What it still writes does not keep it longer.
            let _ = talkative.raw.stream.write_all(b"more").await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(began.elapsed() >= close_max, "both were waited for, not {:?}", began.elapsed());
    // The socket is closed, not only said to be: who still writes is told so.
    within(async { while talkative.raw.stream.write_all(b"more").await.is_ok() {} }).await;
    assert!(silent.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stops_does_not_wait_for_clients_that_stay() {
    let options = nexo_amqp::Options { close_max: Duration::from_secs(3600), ..Default::default() };
    let mut served = Served::start_with(options).await;
    let mut client = served.client().await;
    close(&mut client).await;
    served.begin_stop();
    // A connection that has ended is not waited for: this would take an hour.
    served.stopped().await;
    drop(client);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_auto_delete_queue_is_gone_before_the_answer() {
    let served = Served::start().await;
    let name = QueueName::new("passing").unwrap();
    for round in 0..60 {
        let mut client = served.client().await;
        declare_auto_delete(&mut client, "passing").await;
        client.consume("passing", round % 2 == 0).await;
        match round % 3 {
            0 => {
                let cancel = basic::Cancel { consumer_tag: ShortStr::from_static("tag"), nowait: false };
                client.send(1, &cancel).await;
                client.expect("basic.cancel-ok").await;
            }
            1 => client.close_channel(1).await,
            _ => close(&mut client).await,
        }
        assert!(served.broker.queue(&name).is_none(), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_a_time_to_live_does_not_come_back() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.consume("q", false).await;
    let properties = PropertiesBuilder::new().expiration(ShortStr::from_static("0")).to_vec();
    client.publish("q", &properties, b"now or never").await;
    let (tag, _, _) = client.delivery().await;
    client.send(1, &basic::Reject { delivery_tag: tag, requeue: true }).await;
    client.expect_silence().await;
    client.publish("q", TRANSIENT, b"next").await;
    assert_eq!(client.delivery().await.2, b"next");
    let stats = served.broker.queue_stats(&QueueName::new("q").unwrap()).unwrap();
    assert_eq!(stats.ready, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_publishes_to_nowhere_is_blocked_too_while_the_disk_is_full() {
    use nexo_amqp::codec::method::tx;
    let served = Served::start().await;
    let mut plain = served.client().await;
    let mut in_transaction = served.client().await;
    in_transaction.send(1, &tx::Select {}).await;
    in_transaction.expect("tx.select-ok").await;
    let mut filler = served.client().await;
    filler.declare("q").await;
    filler.select_confirms().await;
    served.disk.set_bytes_max(Some(served.disk.used_bytes()));
    let body = vec![b'x'; 10_000];
    loop {
        filler.publish("q", PERSISTENT, &body).await;
        if filler.next().await.unwrap().name() == "connection.blocked" {
            break;
        }
    }
    for publisher in [&mut plain, &mut in_transaction] {
        publisher.publish("nowhere", TRANSIENT, b"lost").await;
        publisher.expect("connection.blocked").await;
    }
    served.disk.set_bytes_max(None);
    for publisher in [&mut plain, &mut in_transaction] {
        publisher.expect("connection.unblocked").await;
        publisher.expect_silence().await;
    }
}
