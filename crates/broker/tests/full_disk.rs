//! A full disk: what is left of it is for acknowledgements, consumers go on receiving, nothing is answered as done that
//! is not, and everything goes on when there is room.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use nexo_broker::policy::{ApplyTo, Policy, PolicyKind, PolicyRecord};
use nexo_broker::{
    Broker, BrokerOptions, DeadLetters, Delivery, Durability, Fate, Health, NewMessage, PopRequest,
    QueueConfig, QueueError, Settle, SettleError,
};
use nexo_log::disk::{CutMode, FaultyDisk};
use nexo_types::{Millis, Offset, QueueName, VhostName};

const BODY_BYTES: usize = 2_000;

fn open_on(disk: &FaultyDisk) -> Broker {
    let options = BrokerOptions { segment_bytes: 256 * 1024, ..BrokerOptions::new("faulty") };
    Broker::open_on(Arc::new(disk.clone()), options).unwrap()
}

/// A broker whose disk is full of messages, and their bodies.
async fn full(config: QueueConfig) -> (FaultyDisk, Broker, QueueName, Vec<String>) {
    let disk = FaultyDisk::new();
    let broker = open_on(&disk);
    let queue = name("q");
    broker.create_queue(&queue, config).await.unwrap();
    let pushed = fill(&disk, &broker, &queue).await;
    (disk, broker, queue, pushed)
}

/// Fills a broker's disk with messages, and gives back their bodies.
async fn fill(disk: &FaultyDisk, broker: &Broker, queue: &QueueName) -> Vec<String> {
    disk.set_bytes_max(Some(disk.used_bytes() + 2 * 1024 * 1024));
    let mut pushed = Vec::new();
    loop {
        let body = format!("{:06}{}", pushed.len(), "x".repeat(BODY_BYTES));
        match broker.push(queue, vec![NewMessage::new(body.clone())]).await {
            Ok(_) => pushed.push(body),
            Err(QueueError::Alarm(_)) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(matches!(broker.health(), Health::DiskFull { .. }));
    assert!(pushed.len() > 800, "{} messages", pushed.len());
    pushed
}

async fn pop_one(broker: &Broker, queue: &QueueName) -> Delivery {
    let request = PopRequest {
        max: 1,
        wait: Millis::from_secs(20),
        visibility: Some(Millis::from_secs(3600)),
        bytes_max: None,
    };
    broker.pop(queue, request).await.unwrap().pop().expect("there is a message")
}

/// The bodies that wait when the power goes now and comes back, those in flight included.
fn after_power_cut(disk: &FaultyDisk, queue: &QueueName) -> Vec<u32> {
    let broker = open_on(&disk.restart(CutMode::Drop, 0));
    broker.outline(queue).unwrap().messages.values().map(|message| message.attempts).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_use_nothing_of_what_is_kept_for_acknowledgements() {
    let (disk, broker, queue, pushed) = full(QueueConfig::default()).await;
    let before = broker.stats().log.frame_bytes;
    let mut held = Vec::new();
    for body in &pushed[..500] {
        let one = pop_one(&broker, &queue).await;
        assert_eq!(bodies(std::slice::from_ref(&one)), [body.as_str()]);
        assert_eq!(one.attempt, 1);
        held.push(one);
    }
    // A message found no room any more, but a few leases did before what is kept began.
    let written = broker.stats().log.frame_bytes - before;
    assert!(written < BODY_BYTES as u64 + 100, "{written} bytes were written for 500 deliveries");
    // One by one, as the worst client does it.
    for one in &held[..100] {
        ack(&broker, std::slice::from_ref(one)).await;
    }
    assert_eq!(
        after_power_cut(&disk, &queue).len(),
        pushed.len() - 100,
        "what was acknowledged is gone for good"
    );
    for one in &held[100..130] {
        broker.nack(&[one.receipt()], Some(Millis::from_secs(3600))).await.remove(0).unwrap();
    }
    let attempts = after_power_cut(&disk, &queue);
    let counted = attempts.iter().filter(|attempts| **attempts == 1).count();
    assert!(counted >= 30, "a failure counts, but only {counted} do");

    disk.set_bytes_max(None);
    eventually("the leases are written down", || {
        after_power_cut(&disk, &queue).into_iter().filter(|attempts| *attempts == 1).count() == 400
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_work_a_full_disk_off_to_the_end() {
    let (disk, broker, queue, pushed) = full(QueueConfig::default()).await;
    disk.set_bytes_max(Some(disk.used_bytes()));
    let mut seen = BTreeSet::new();
    let mut refused = 0;
    for _ in &pushed {
        let one = pop_one(&broker, &queue).await;
        assert!(seen.insert(one.offset));
        // A fast consumer may be ahead of maintenance, which frees segments as they become empty.
        while let Err(error) = broker.ack(&[one.receipt()]).await.remove(0) {
            assert!(matches!(error, SettleError::Unavailable { .. }), "{error}");
            refused += 1;
            let segments = broker.stats().log;
            assert!(
                refused < 500,
                "acknowledgements are refused for good: {} seen, {segments:?}",
                seen.len()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(seen.len(), pushed.len());
    assert_eq!(after_power_cut(&disk, &queue).len(), 0);
    eventually("there is room again", || broker.health() == Health::Ok).await;
    push(&broker, &queue, "more").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_keeps_what_is_with_consumers_also_after_a_crash() {
    let (disk, broker, queue, pushed) = full(QueueConfig::default()).await;
    let held = [pop_one(&broker, &queue).await, pop_one(&broker, &queue).await];
    assert_eq!(broker.purge(&queue).await.unwrap(), pushed.len() as u64 - 2);
    assert_eq!(after_power_cut(&disk, &queue).len(), 2);
    ack(&broker, &held).await;
    assert_eq!(after_power_cut(&disk, &queue).len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_is_not_answered_as_done_before_its_message_is_where_it_went() {
    let (disk, broker, queue, pushed) = full(QueueConfig::default()).await;
    let one = pop_one(&broker, &queue).await;
    for _ in 0..2 {
        let answer = broker.reject(&[one.receipt()]).await.remove(0);
        assert!(matches!(&answer, Err(SettleError::Unavailable { .. })), "{answer:?}");
    }
    let dead = name("q_dlq");
    {
        // That it died may have been written down: then it is a dead letter after all.
        let broker = open_on(&disk.restart(CutMode::Drop, 0));
        let count = |queue: &QueueName| broker.outline(queue).map_or(0, |outline| outline.messages.len());
        eventually("it is in one of the two", || count(&queue) + count(&dead) == pushed.len()).await;
    }
    disk.set_bytes_max(None);
    let is_moved = || broker.queue(&dead).is_some_and(|queue| queue.counts().0 == 1);
    eventually("it is moved", is_moved).await;
    let other = pop_one(&broker, &queue).await;
    broker.reject(&[other.receipt()]).await.remove(0).unwrap();
    assert_eq!(after_power_cut(&disk, &queue).len(), pushed.len() - 2);
    assert_eq!(after_power_cut(&disk, &dead).len(), 2);
}

/// A dead letter frees nothing before it has been copied, and for that there is no room: it may not use what is kept for
/// acknowledgements. Neither may what expires.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_die_leave_room_for_acknowledgements() {
    let config = QueueConfig { on_expiry: Fate::DeadLetter, ..QueueConfig::default() };
    let (disk, broker, queue, pushed) = full(config).await;
    disk.set_bytes_max(Some(disk.used_bytes()));
    let held = pop_all(&broker, &queue, 300).await;
    let before = broker.stats().log.frame_bytes;
    let handle = broker.queue(&queue).unwrap();
    let mut refused = 0;
    for one in &places(&held[..200]) {
        match handle.settle(std::slice::from_ref(one), Settle::Reject) {
            // Before what is kept began.
            Ok(()) => {}
            Err(QueueError::Alarm(_)) => {
                refused += 1;
                handle.settle_eventually(std::slice::from_ref(one), Settle::Reject).unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 100, "{refused} of 200 were refused");
    let written = broker.stats().log.frame_bytes - before;
    assert!(written < BODY_BYTES as u64 + 100, "{written} bytes were written for 200 rejections");
    // What is kept of rejections does not hold up an acknowledgement, of the same queue neither.
    ack(&broker, &held[200..]).await;
    let dead = name("q_dlq");
    // One that died before what is kept began may have been moved meanwhile.
    let restarted = open_on(&disk.restart(CutMode::Drop, 0));
    let left = |queue: &QueueName| restarted.outline(queue).map_or(0, |outline| outline.messages.len());
    // While it moves it may be seen in both.
    let all = || left(&queue) + left(&dead) == pushed.len() - 100;
    eventually("each is in one of the two", all).await;
    drop(restarted);

    disk.set_bytes_max(None);
    eventually("they are moved", || broker.queue(&dead).is_some_and(|queue| queue.counts().0 == 200)).await;
    assert_eq!(handle.counts().0, pushed.len() as u64 - 300);
    push(&broker, &queue, "synced").await;
    assert_eq!(after_power_cut(&disk, &dead).len(), 200);
}

/// Only what consumers acknowledge makes room.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_go_on_though_what_expired_cannot_be_written_down() {
    let disk = FaultyDisk::new();
    let broker = open_on(&disk);
    let queue = name("q");
    let config = QueueConfig { on_expiry: Fate::DeadLetter, ..QueueConfig::default() };
    broker.create_queue(&queue, config).await.unwrap();
    // Long enough for the disk to be full by then, also on a busy machine.
    let ttl = Duration::from_secs(3);
    let expires = NewMessage { ttl: Some(Millis(3000)), ..NewMessage::new("expires") };
    push_message(&broker, &queue, expires).await;
    let pushed = Instant::now();
    for number in 0..10 {
        push(&broker, &queue, &format!("{number}")).await;
    }
    disk.set_bytes_max(Some(disk.used_bytes()));
    let mut bytes = 100_000;
    while bytes > 0 {
        if broker.push(&queue, vec![NewMessage::new(vec![b'x'; bytes])]).await.is_err() {
            bytes /= 2;
        }
    }
    assert!(pushed.elapsed() < ttl, "the disk was full too late to tell anything");
    tokio::time::sleep_until((pushed + ttl + Duration::from_millis(100)).into()).await;
    for number in 0..10 {
        let one = pop_one(&broker, &queue).await;
        assert_eq!(bodies(std::slice::from_ref(&one)), [format!("{number}")]);
        ack(&broker, &[one]).await;
    }
    // A death is shorter than any message: it may have found room, and been moved.
    disk.set_bytes_max(None);
    let is_moved = || broker.queue(&name("q_dlq")).is_some_and(|dead| dead.counts().0 == 1);
    eventually("it is moved", is_moved).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_back_does_not_wait_for_what_dies() {
    let config = QueueConfig { max_attempts: Some(2), ..QueueConfig::default() };
    let (disk, broker, queue, pushed) = full(config).await;
    disk.set_bytes_max(Some(disk.used_bytes()));
    let once = pop_one(&broker, &queue).await;
    broker.nack(&[once.receipt()], None).await.remove(0).unwrap();
    let held = pop_all(&broker, &queue, 2).await;
    assert_eq!((held[0].attempt, held[1].attempt), (2, 1));
    let answers = broker.nack(&[held[0].receipt(), held[1].receipt()], None).await;
    assert!(matches!(&answers[0], Err(SettleError::Unavailable { .. })), "{:?}", answers[0]);
    assert!(answers[1].is_ok(), "{:?}", answers[1]);
    let handle = broker.queue(&queue).unwrap();
    assert_eq!((handle.in_flight(), handle.counts().0), (1, pushed.len() as u64 - 1));
    disk.set_bytes_max(None);
    eventually("there is room again", || broker.health() == Health::Ok).await;
    broker.nack(&[held[0].receipt()], None).await.remove(0).unwrap();
    assert_eq!(broker.queue(&name("q_dlq")).unwrap().counts().0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_dies_and_goes_nowhere_frees_space() {
    let config = QueueConfig { dead_letters: DeadLetters::Nowhere, ..QueueConfig::default() };
    let (disk, broker, queue, pushed) = full(config).await;
    disk.set_bytes_max(Some(disk.used_bytes()));
    let one = pop_one(&broker, &queue).await;
    broker.reject(&[one.receipt()]).await.remove(0).unwrap();
    assert_eq!(after_power_cut(&disk, &queue).len(), pushed.len() - 1);
}

/// Takes as many messages as asked for. One pop may give fewer.
async fn pop_all(broker: &Broker, queue: &QueueName, count: usize) -> Vec<Delivery> {
    let mut held = Vec::new();
    while held.len() < count {
        let request = PopRequest {
            max: count - held.len(),
            wait: Millis::from_secs(10),
            visibility: Some(Millis::from_secs(3600)),
            bytes_max: None,
        };
        let more = broker.pop(queue, request).await.unwrap();
        assert!(!more.is_empty(), "{} of {count} came", held.len());
        held.extend(more);
    }
    held
}

fn places(held: &[Delivery]) -> Vec<(Offset, u32)> {
    held.iter().map(|one| (one.offset, one.attempt)).collect()
}

/// Uses up what the log keeps for acknowledgements, with changes to a queue called `other`. At the end there is not even
/// room for the smallest of them: that one message goes back.
async fn use_up_reserve(disk: &FaultyDisk, broker: &Broker) {
    let other = name("other");
    let message = || NewMessage { durability: Durability::Durable, ..NewMessage::new("x") };
    broker.push(&other, std::iter::repeat_with(message).take(64).collect()).await.unwrap();
    let held = places(&pop_all(broker, &other, 64).await);
    disk.set_bytes_max(Some(disk.used_bytes()));
    let mut text = "x".repeat(10_000);
    while !text.is_empty() {
        let annotated = |config: &QueueConfig| {
            let mut config = config.clone();
            config.annotations.insert("test".into(), text.clone().into());
            config
        };
        if broker.update_queue(&other, annotated).await.is_err() {
            text.truncate(text.len() / 2);
        }
    }
    let handle = broker.queue(&other).unwrap();
    let is_refused = held.iter().any(|one| handle.settle(&[*one], Settle::Undelivered).is_err());
    assert!(is_refused, "there is still room");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_went_back_before_there_was_no_room_does_not_go_back_twice() {
    /// As many as are settled under one hold of the queue's lock.
    const SLICE: usize = 4096;
    let disk = FaultyDisk::new();
    let broker = open_on(&disk);
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    broker.create_queue(&name("other"), QueueConfig::default()).await.unwrap();
    // Those that nobody writes down go back whatever the disk says.
    for durability in [Durability::Transient, Durability::Durable] {
        let message = || NewMessage { durability, ..NewMessage::new("x") };
        broker.push(&queue, std::iter::repeat_with(message).take(SLICE).collect()).await.unwrap();
    }
    let held = places(&pop_all(&broker, &queue, 2 * SLICE).await);
    use_up_reserve(&disk, &broker).await;
    let handle = broker.queue(&queue).unwrap();
    handle.settle_eventually(&held, Settle::Undelivered).unwrap();
    assert_eq!(
        (handle.in_flight(), handle.counts().0),
        (SLICE, SLICE as u64),
        "the second half waits for room"
    );
    let others = pop_all(&broker, &queue, SLICE).await;
    assert!(others.iter().all(|one| one.attempt == 1), "the first half was never seen");

    disk.set_bytes_max(None);
    eventually("the second half is back", || handle.counts().0 >= SLICE as u64).await;
    assert_eq!(
        (handle.in_flight(), handle.counts().0),
        (SLICE, SLICE as u64),
        "the first half is somebody else's by now"
    );
    eventually("that is on disk", || after_power_cut(&disk, &queue) == [0; SLICE]).await;
}

#[tokio::test]
async fn a_policy_that_a_full_disk_held_up_is_applied_when_there_is_room() {
    let disk = FaultyDisk::new();
    let broker = open_on(&disk);
    let queues: Vec<QueueName> = (0..500).map(|number| name(&format!("q{number}"))).collect();
    for queue in &queues {
        broker.create_queue(queue, QueueConfig::default()).await.unwrap();
    }
    fill(&disk, &broker, &queues[0]).await;
    let terms = serde_json::json!({"max-length": 1_000_000}).as_object().unwrap().clone();
    let policy = Policy::new(PolicyKind::Regular, "p", ".*", 0, ApplyTo::Queues, terms).unwrap();
    let (kind, vhost) = (PolicyKind::Regular, VhostName::DEFAULT);
    broker.change_policies(&[PolicyRecord::Put { kind, vhost, policy: Arc::new(policy) }]).await.unwrap();
    let applied = || {
        let max = |queue| broker.queue_stats(queue).unwrap().config.max_messages;
        queues.iter().filter(|queue| max(queue) == Some(1_000_000)).count()
    };
    assert!(applied() < queues.len(), "what is left of the disk is too little for all of them");
    disk.set_bytes_max(None);
    let end = Instant::now() + Duration::from_secs(60);
    while applied() < queues.len() {
        assert!(Instant::now() < end, "{} of {} queues", applied(), queues.len());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    broker.shutdown().await;
}
