//! What goes wrong when things happen at the same time, or in the wrong moment: slow and failing reads, segments given
//! up under a reader, queues deleted under a waiting consumer, confirmations that come too early.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use nexo_broker::{
    Broker, BrokerOptions, Durability, Fate, Handed, LeaseTerms, MessageView, NewMessage, Overflow,
    PopRequest, QueueConfig, RateLimit, Settle, SettleMode, SharedCredit, SubscribeRequest, SyncMode, Terms,
};
use nexo_log::disk::{CutMode, FaultyDisk, GateDisk, MemoryDisk};
use nexo_types::{DedupId, Millis, Priority, QueueName};

/// The threads that read for the broker.
const WORKERS: &str = "nexo-worker";

fn options(segment_bytes: u32) -> BrokerOptions {
    BrokerOptions { segment_bytes, ..BrokerOptions::new("memory") }
}

fn open_gate(gate: &GateDisk, segment_bytes: u32) -> Broker {
    Broker::open_on(Arc::new(gate.clone()), options(segment_bytes)).unwrap()
}

fn handed_body(handed: &Handed) -> String {
    let view = MessageView::parse(handed.payload.as_ref().unwrap()).unwrap();
    String::from_utf8(view.body.to_vec()).unwrap()
}

fn total(broker: &Broker, queue: &QueueName) -> u64 {
    let stats = broker.queue_stats(queue).unwrap();
    stats.ready + stats.leased + stats.delayed + stats.grouped
}

/// A queue with one message that has been given back, so that its bytes are not in memory.
async fn with_returned_message(broker: &Broker) -> QueueName {
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    push(broker, &q, "precious").await;
    let held = pop(broker, &q, 1).await;
    broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    q
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_settles_when_it_is_taken_stays_until_it_is_read() {
    let gate = GateDisk::default();
    let broker = open_gate(&gate, 256 * 1024);
    let q = with_returned_message(&broker).await;
    let queue = broker.queue(&q).unwrap();
    let terms = Terms { lease: LeaseTerms::Session, settle: SettleMode::Automatic, ..Terms::default() };
    gate.fail_reads();
    assert!(queue.get(terms).await.unwrap().is_none(), "it cannot be read now");
    assert_eq!(total(&broker, &q), 1, "the message is still there");
    gate.open_gate();
    let mut got = None;
    while got.is_none() {
        got = queue.get(terms).await.unwrap();
    }
    assert_eq!(handed_body(&got.unwrap().0), "precious");
    assert_eq!(total(&broker, &q), 0, "what was read is gone");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_fails_loses_nothing() {
    let gate = GateDisk::default();
    let broker = open_gate(&gate, 256 * 1024);
    let q = with_returned_message(&broker).await;
    gate.fail_reads();
    let popped = pop(&broker, &q, 1).await;
    assert!(popped.is_empty() || bodies(&popped) == ["precious"]);
    gate.open_gate();
    assert_eq!(total(&broker, &q), 1, "the message is still there");
    if popped.is_empty() {
        let again = pop_wait(&broker, &q).await;
        assert_eq!((bodies(&again), again[0].attempt), (vec!["precious".to_owned()], 2));
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_given_up_under_a_slow_reader_takes_no_message_with_it() {
    let gate = GateDisk::default();
    let broker = open_gate(&gate, 64 * 1024);
    let q = with_returned_message(&broker).await;
    let other = name("other");
    broker.create_queue(&other, QueueConfig::default()).await.unwrap();
    push(&broker, &other, "x").await;
    gate.hold_reads_by(WORKERS);
    let request =
        SubscribeRequest { credit: 1, visibility: Some(Millis::from_secs(3600)), keep_leases: false };
    let mut slow = broker.subscribe(&q, request).unwrap();
    eventually("the message is read", || gate.reads_held() > 0).await;
    for _ in 0..200 {
        let messages = (0..20).map(|_| NewMessage::new(vec![1u8; 300])).collect();
        broker.push(&other, messages).await.unwrap();
        let held = pop(&broker, &other, 50).await;
        ack(&broker, &held).await;
    }
    eventually("segments are given up", || broker.stats().log.retired > 3).await;
    gate.open_gate();
    assert_eq!(bodies(&next(&mut slow).await), ["precious"]);
    drop(slow);
    assert_eq!(total(&broker, &q), 1);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_is_not_confirmed_before_what_it_repeats() {
    let disk = FaultyDisk::new();
    let broker = Broker::open_on(Arc::new(disk.clone()), options(64 * 1024)).unwrap();
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    disk.fail_next_sync();
    let message = NewMessage { dedup: Some(DedupId::new("order-7").unwrap()), ..NewMessage::new("pay") };
    assert!(broker.push(&q, vec![message.clone()]).await.is_err());
    assert!(broker.push(&q, vec![message]).await.is_err(), "the log has failed, so nothing can be confirmed");
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_from_before_a_crash_does_not_fit_another_message() {
    let disk = FaultyDisk::new();
    let unsynced = BrokerOptions { sync: SyncMode::Os, ..options(64 * 1024) };
    let broker = Broker::open_on(Arc::new(disk.clone()), unsynced).unwrap();
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    push(&broker, &q, "never synced").await;
    let old = receipts(&pop(&broker, &q, 1).await);
    disk.cut_power();
    broker.shutdown().await;
    let broker = Broker::open_on(Arc::new(disk.restart(CutMode::Drop, 1)), options(64 * 1024)).unwrap();
    push(&broker, &q, "confirmed").await;
    let held = pop(&broker, &q, 1).await;
    assert_eq!((old[0].offset, old[0].attempt), (held[0].offset, held[0].attempt), "they look the same");
    assert!(broker.ack(&old).await.remove(0).is_err());
    ack(&broker, &held).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_over_its_bytes_evicts_no_more_than_it_must() {
    let broker = open_with(&MemoryDisk::new(), options(1024 * 1024));
    let q = name("q");
    let config = QueueConfig {
        max_bytes: Some(100 * 100),
        overflow: Overflow::DropOldest,
        on_overflow: Fate::DeadLetter,
        ..QueueConfig::default()
    };
    broker.create_queue(&q, config).await.unwrap();
    broker.push(&q, (0..101).map(|_| NewMessage::new(vec![1u8; 100])).collect()).await.unwrap();
    let dlq = name("q_dlq");
    eventually("one is moved", || broker.queue_stats(&dlq).is_ok_and(|stats| stats.ready > 0)).await;
    assert_eq!((total(&broker, &q), total(&broker, &dlq)), (100, 1));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_larger_than_a_segment_in_sum_are_moved() {
    let broker = open_with(&MemoryDisk::new(), options(256 * 1024));
    let q = name("q");
    broker.create_queue(&q, QueueConfig { max_attempts: Some(1), ..QueueConfig::default() }).await.unwrap();
    broker.push(&q, (0..100).map(|_| NewMessage::new(vec![1u8; 10 * 1024])).collect()).await.unwrap();
    let held = pop(&broker, &q, 100).await;
    broker.nack(&receipts(&held), None).await;
    let dlq = name("q_dlq");
    assert_eq!((total(&broker, &q), total(&broker, &dlq)), (0, 100));
    let back = broker.redrive(&dlq, nexo_broker::Redrive::default(), &|_| {}).await.unwrap();
    assert_eq!((back.moved, total(&broker, &q)), (100, 100));
    broker.shutdown().await;
}

/// The move of an earlier dead letter waits for the disk. Those behind it lose their consumer meanwhile: one that was
/// rejected must not come back for that, and one that has no attempts left must not be moved twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_fails_for_good_and_loses_its_consumer_is_one_dead_letter() {
    let gate = GateDisk::default();
    let broker = open_gate(&gate, 256 * 1024);
    let q = name("q");
    broker.create_queue(&q, QueueConfig { max_attempts: Some(2), ..QueueConfig::default() }).await.unwrap();
    push(&broker, &q, "earlier").await;
    let held = pop(&broker, &q, 1).await;
    broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    let earlier = pop_wait(&broker, &q).await;
    push(&broker, &q, "used up").await;
    let held = pop(&broker, &q, 1).await;
    broker.nack(&receipts(&held), None).await.remove(0).unwrap();
    push(&broker, &q, "rejected").await;
    let request = SubscribeRequest { credit: 2, visibility: None, keep_leases: false };
    let mut subscription = broker.subscribe(&q, request).unwrap();
    let mut later = Vec::new();
    while later.len() < 2 {
        later.extend(subscription.next().await.unwrap());
    }

    gate.hold_reads_by(WORKERS);
    let rejecting = tokio::spawn({
        let (broker, receipts) = (broker.clone(), receipts(&earlier));
        async move { broker.reject(&receipts).await }
    });
    eventually("the first move waits for the disk", || gate.reads_held() > 0).await;
    let handle = broker.queue(&q).unwrap();
    let held: Vec<_> = later.iter().map(|delivery| (delivery.offset, delivery.attempt)).collect();
    handle.settle(&held[..1], Settle::Requeue).unwrap();
    handle.settle(&held[1..], Settle::Reject).unwrap();
    drop(subscription);
    gate.open_gate();
    assert_eq!(rejecting.await.unwrap(), [Ok(())]);
    let dlq = name("q_dlq");
    eventually("all are moved", || total(&broker, &q) == 0).await;
    assert_eq!(bodies(&broker.peek(&dlq, 9).await.unwrap()), ["earlier", "used up", "rejected"]);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_not_in_memory_expire_too() {
    let broker = open_with(&MemoryDisk::new(), options(1024 * 1024));
    let q = name("q");
    broker.create_queue(&q, QueueConfig { ttl: Some(Millis(300)), ..QueueConfig::default() }).await.unwrap();
    for _ in 0..20 {
        broker.push(&q, vec![NewMessage::new("x"); 1000]).await.unwrap();
    }
    eventually("all expire", || broker.queue_stats(&q).unwrap().expired == 20_000).await;
    assert_eq!(total(&broker, &q), 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_transient_messages_count_as_memory() {
    let small = BrokerOptions { memory_bytes_max: 1_000_000, ..options(1024 * 1024) };
    let broker = open_with(&MemoryDisk::new(), small);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    for _ in 0..100 {
        let message = NewMessage {
            durability: Durability::Transient,
            delay: Millis::from_secs(3600),
            ..NewMessage::new(vec![1u8; 50_000])
        };
        push_message(&broker, &q, message).await;
    }
    let stats = broker.stats();
    assert!(stats.message_memory_bytes < 6_000_000, "{} bytes in memory", stats.message_memory_bytes);
    assert!(stats.log.frame_bytes > 3_000_000, "most went to the log: {}", stats.log.frame_bytes);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_ends_when_its_queue_is_deleted_while_the_log_is_read() {
    let gate = GateDisk::default();
    let q = name("q");
    let broker = open_gate(&gate, 256 * 1024);
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    broker.push(&q, vec![NewMessage::new("x"); 100]).await.unwrap();
    broker.shutdown().await;
    let broker = open_gate(&gate, 256 * 1024);
    gate.hold_reads_by(WORKERS);
    let waiting = tokio::spawn({
        let (broker, q) = (broker.clone(), q.clone());
        async move { pop(&broker, &q, 10).await }
    });
    eventually("the page is read", || gate.reads_held() > 0).await;
    broker.delete_queue(&q).await.unwrap();
    gate.open_gate();
    let popped = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the pop ends").unwrap();
    assert!(popped.is_empty());
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_is_given_up_while_the_log_is_read_keeps_nothing() {
    let gate = GateDisk::default();
    let q = name("q");
    let broker = open_gate(&gate, 16 * 1024 * 1024);
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    for _ in 0..6 {
        broker.push(&q, vec![NewMessage::new(vec![1u8; 1000]); 1000]).await.unwrap();
    }
    broker.shutdown().await;
    let broker = open_gate(&gate, 16 * 1024 * 1024);
    // Part of the backlog comes into memory.
    let seen = pop(&broker, &q, 1).await;
    broker.return_unseen(&receipts(&seen)).await.remove(0).unwrap();
    gate.hold_reads_by(WORKERS);
    let request = PopRequest { max: 6000, wait: Millis::ZERO, visibility: None, bytes_max: None };
    let given_up = tokio::time::timeout(Duration::from_millis(200), broker.pop(&q, request)).await;
    assert!(given_up.is_err(), "part of the backlog cannot be read yet");
    gate.open_gate();
    eventually("all is ready", || broker.queue_stats(&q).unwrap().ready == 6000).await;
    assert_eq!(broker.queue_stats(&q).unwrap().leased, 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_nothing_whose_lease_has_ended() {
    let broker = open_with(&MemoryDisk::new(), options(256 * 1024));
    let q = name("q");
    let config = QueueConfig { visibility: Millis(50), max_attempts: Some(2), ..QueueConfig::default() };
    broker.create_queue(&q, config).await.unwrap();
    let mut slow = subscribe(&broker, &q, 10);
    push(&broker, &q, "x").await;
    let dlq = name("q_dlq");
    eventually("its attempts are used up", || broker.queue_stats(&dlq).is_ok_and(|stats| stats.ready == 1))
        .await;
    let patient =
        |config: &QueueConfig| QueueConfig { visibility: Millis::from_secs(3600), ..config.clone() };
    broker.update_queue(&q, patient).await.unwrap();
    push(&broker, &q, "y").await;
    assert_eq!(bodies(&next(&mut slow).await), ["y"], "x has gone elsewhere");
    drop(slow);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_whose_time_comes_at_once_the_urgent_go_first() {
    let broker = open_with(&MemoryDisk::new(), options(1024 * 1024));
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    let message = |urgent| NewMessage {
        priority: Priority(if urgent { 9 } else { 0 }),
        delay: Millis(400),
        ..NewMessage::new("x")
    };
    broker.push(&q, (0..9000).map(|n| message(n >= 8000)).collect()).await.unwrap();
    let mut subscription = subscribe(&broker, &q, 1000);
    let mut first = Vec::new();
    while first.len() < 1000 {
        first.extend(next(&mut subscription).await);
    }
    assert!(first.iter().all(|delivery| delivery.message.priority == Priority(9)));
    drop(subscription);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limited_queue_goes_on_when_its_page_has_come() {
    let gate = GateDisk::default();
    let q = name("q");
    let broker = open_gate(&gate, 256 * 1024);
    let rate_limit = Some(RateLimit { deliveries: 10, period: Millis(1000) });
    broker.create_queue(&q, QueueConfig { rate_limit, ..QueueConfig::default() }).await.unwrap();
    broker.push(&q, vec![NewMessage::new("x"); 100]).await.unwrap();
    broker.shutdown().await;
    let broker = open_gate(&gate, 256 * 1024);
    gate.hold_reads_by(WORKERS);
    let mut subscription = subscribe(&broker, &q, 10);
    eventually("the page is read", || gate.reads_held() > 0).await;
    gate.open_gate();
    assert_eq!(next(&mut subscription).await.len(), 10);
    drop(subscription);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_created_while_checkpoints_are_written_survive() {
    let disk = FaultyDisk::new();
    let broker = Broker::open_on(Arc::new(disk.clone()), options(16 * 1024)).unwrap();
    let busy = name("busy");
    broker.create_queue(&busy, QueueConfig::default()).await.unwrap();
    let raced = Arc::new(AtomicBool::new(false));
    let churn = tokio::spawn({
        let (broker, busy, raced) = (broker.clone(), busy.clone(), Arc::clone(&raced));
        async move {
            for round in 0.. {
                if round >= 150 && raced.load(Ordering::SeqCst) {
                    break;
                }
                broker.push(&busy, vec![NewMessage::new(vec![1u8; 300]); 20]).await.unwrap();
                let held = pop(&broker, &busy, 50).await;
                ack(&broker, &held).await;
            }
        }
    });
    let mut created = Vec::new();
    while !churn.is_finished() {
        let queue = name(&format!("new-{}", created.len()));
        broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        push(&broker, &queue, "confirmed").await;
        created.push(queue);
        raced.store(created.len() > 5, Ordering::SeqCst);
    }
    churn.await.unwrap();
    disk.cut_power();
    broker.shutdown().await;
    let broker = Broker::open_on(Arc::new(disk.restart(CutMode::Keep, 1)), options(16 * 1024)).unwrap();
    for queue in &created {
        assert_eq!(broker.queue_stats(queue).map(|stats| stats.ready), Ok(1), "{queue}");
    }
    broker.shutdown().await;
}

/// Consumers that take without acknowledging, each for a moment, while messages come.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_handed_to_a_consumer_that_leaves_is_given_to_it() {
    const MESSAGES: usize = 20_000;
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let queue = broker.queue(&q).unwrap();
    let pushing = std::thread::spawn({
        let queue = queue.clone();
        move || {
            for number in 0..MESSAGES {
                let message =
                    NewMessage { durability: Durability::Transient, ..NewMessage::new(number.to_string()) };
                queue.push(&message).unwrap();
            }
        }
    });
    let terms = Terms { lease: LeaseTerms::Session, settle: SettleMode::Automatic, ..Terms::default() };
    let mut seen = Vec::new();
    while seen.len() < MESSAGES {
        assert!(!pushing.is_finished() || total(&broker, &q) > 0, "only {} came", seen.len());
        let subscription = queue.subscribe(terms, 50, None, Arc::default()).unwrap();
        std::thread::yield_now();
        seen.extend(subscription.close().await.iter().map(handed_body));
    }
    let expected: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
    assert!(seen == expected, "every message came once and in order");
    pushing.join().unwrap();
    broker.shutdown().await;
}

/// Gets that find nothing, over and over, while messages come.
#[tokio::test(flavor = "multi_thread")]
async fn a_get_that_settles_at_once_loses_nothing() {
    const MESSAGES: usize = 20_000;
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let queue = broker.queue(&q).unwrap();
    let pushing = std::thread::spawn({
        let queue = queue.clone();
        move || {
            for number in 0..MESSAGES {
                let message = NewMessage::new(number.to_string());
                queue.push(&NewMessage { durability: Durability::Transient, ..message }).unwrap();
                // The getter should mostly be faster.
                std::thread::yield_now();
            }
        }
    });
    let terms = Terms { lease: LeaseTerms::Session, settle: SettleMode::Automatic, ..Terms::default() };
    let mut seen = 0;
    while seen < MESSAGES {
        let finished = pushing.is_finished();
        match queue.get(terms).await.unwrap() {
            Some((delivery, _)) => {
                assert_eq!(handed_body(&delivery), seen.to_string());
                seen += 1;
            }
            None => assert!(!finished, "only {seen} came"),
        }
    }
    pushing.join().unwrap();
    broker.shutdown().await;
}

#[tokio::test]
async fn a_consumer_that_leaves_gives_back_what_it_shared() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    let (queue, terms) =
        (broker.queue(&q).unwrap(), Terms { lease: LeaseTerms::Session, ..Terms::default() });
    for number in 0..5 {
        push(&broker, &q, &number.to_string()).await;
    }
    let limit = Arc::new(SharedCredit::new(3));
    // Handed to it, and never taken from its mailbox.
    drop(queue.subscribe(terms, 100, Some(Arc::clone(&limit)), Arc::default()).unwrap());
    let mut other = queue.subscribe(terms, 100, Some(Arc::clone(&limit)), Arc::default()).unwrap();
    assert_eq!(bodies(&other.next().await.unwrap()), ["0", "1", "2"]);
    drop(other);

    let limit = Arc::new(SharedCredit::new(3));
    let deleted = queue.subscribe(terms, 100, Some(Arc::clone(&limit)), Arc::default()).unwrap();
    broker.delete_queue(&q).await.unwrap();
    let r = name("r");
    broker.create_queue(&r, QueueConfig::default()).await.unwrap();
    push(&broker, &r, "elsewhere").await;
    let mut other = broker.queue(&r).unwrap().subscribe(terms, 100, Some(limit), Arc::default()).unwrap();
    assert_eq!(bodies(&other.next().await.unwrap()), ["elsewhere"]);
    drop((deleted, other));
    broker.shutdown().await;
}
