//! Work that waits for the disk waits alone: consumers of other queues get their messages meanwhile.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use nexo_broker::{Broker, NewMessage, QueueConfig, Subscription};
use nexo_log::disk::GateDisk;
use nexo_types::{Millis, QueueName};

/// What a message says that can be held back.
const MARK: &str = "held back";

fn open_gate(gate: &GateDisk) -> Broker {
    Broker::open_on(Arc::new(gate.clone()), options()).unwrap()
}

/// A broker whose queues were filled before a restart, each in a segment of its own: all must be read from the disk.
async fn with_backlogs(gate: &GateDisk, queues: &[(&QueueName, &str, usize)]) -> Broker {
    for (queue, body, count) in queues {
        let broker = open_gate(gate);
        broker.create_queue(queue, QueueConfig::default()).await.unwrap();
        for _ in 0..*count {
            push(&broker, queue, body).await;
        }
        broker.shutdown().await;
    }
    open_gate(gate)
}

async fn gets_a_message(subscription: &mut Subscription) {
    let next = tokio::time::timeout(Duration::from_secs(20), subscription.next()).await;
    assert_eq!(bodies(&next.expect("delivery does not wait").unwrap())[0], "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_does_not_wait_for_those_who_look() {
    let gate = GateDisk::default();
    let (looked_at, busy) = (name("looked-at"), name("busy"));
    let broker = with_backlogs(&gate, &[(&looked_at, MARK, 2), (&busy, "x", 3)]).await;
    gate.hold_reads_of(MARK);
    let look = || {
        let (broker, queue) = (broker.clone(), looked_at.clone());
        tokio::spawn(async move { broker.peek(&queue, 9).await.unwrap().len() })
    };
    let looks = [look(), look(), look()];
    eventually("somebody looks", || gate.reads_held() > 0).await;
    gets_a_message(&mut subscribe(&broker, &busy, 1)).await;
    gate.open_gate();
    for look in looks {
        assert_eq!(look.await.unwrap(), 2);
    }
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_does_not_wait_for_dead_letters() {
    let gate = GateDisk::default();
    let (dying, busy) = (name("dying"), name("busy"));
    let broker = with_backlogs(&gate, &[(&dying, MARK, 3), (&busy, "x", 3)]).await;
    let mut held = Vec::new();
    while held.len() < 3 {
        held.extend(pop_wait(&broker, &dying).await);
    }
    gate.hold_reads_of(MARK);
    let reject = |at: usize| {
        let (broker, receipts) = (broker.clone(), receipts(&held[at..=at]));
        tokio::spawn(async move { broker.reject(&receipts).await.remove(0).unwrap() })
    };
    let rejects = [reject(0), reject(1), reject(2)];
    eventually("a dead letter is read", || gate.reads_held() > 0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    gets_a_message(&mut subscribe(&broker, &busy, 1)).await;
    gate.open_gate();
    for reject in rejects {
        reject.await.unwrap();
    }
    assert_eq!(broker.queue_stats(&name("dying_dlq")).unwrap().ready, 3);
    broker.shutdown().await;
}

/// More than one slice of dead letters: they all move, in their order.
#[tokio::test(flavor = "multi_thread")]
async fn very_many_dead_letters_move_in_order() {
    let gate = GateDisk::default();
    let broker = open_gate(&gate);
    let queue = name("q");
    let config = QueueConfig { on_expiry: nexo_broker::Fate::DeadLetter, ..QueueConfig::default() };
    broker.create_queue(&queue, config).await.unwrap();
    let message =
        |number: usize| NewMessage { ttl: Some(Millis(100)), ..NewMessage::new(format!("{number:05}")) };
    broker.push(&queue, (0..5000).map(message).collect()).await.unwrap();
    let dead = name("q_dlq");
    eventually("all have moved", || broker.queue_stats(&dead).is_ok_and(|stats| stats.ready == 5000)).await;
    let mut seen = Vec::new();
    while seen.len() < 5000 {
        let part = pop(&broker, &dead, 1000).await;
        seen.extend(bodies(&part));
        ack(&broker, &part).await;
    }
    assert!(seen.is_sorted());
    broker.shutdown().await;
}

/// A queue's deadline comes while the log cannot take anything: the queue's lock is free all the same.
#[tokio::test(flavor = "multi_thread")]
async fn handing_out_does_not_wait_for_the_disk() {
    let gate = GateDisk::default();
    let broker = Broker::open_on(
        Arc::new(gate.clone()),
        nexo_broker::BrokerOptions { segment_bytes: 64 * 1024, ..nexo_broker::BrokerOptions::new("memory") },
    )
    .unwrap();
    let (queue, other, filling, small) = (name("q"), name("other"), name("filling"), name("small"));
    for queue in [&queue, &other, &filling, &small] {
        broker.create_queue(queue, QueueConfig::default()).await.unwrap();
    }
    let delayed = NewMessage { delay: Millis(300), ..NewMessage::new("x") };
    push_message(&broker, &queue, delayed).await;
    let mut subscription = subscribe(&broker, &queue, 1);
    push(&broker, &other, "here").await;
    gate.hold_writes();
    // Pushes fill what is left of the segment and the one that is ready, but for a reserve; small records use that up. Each
    // is given up once it is appended; the last of each kind has to wait for the disk.
    let appended = Arc::new(AtomicU64::new(0));
    let fill = |queue: &QueueName, body: Option<usize>| {
        let (broker, queue, appended) = (broker.clone(), queue.clone(), Arc::clone(&appended));
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            for _ in 0..800 {
                let change = async {
                    match body {
                        Some(bytes) => drop(broker.push(&queue, vec![NewMessage::new(vec![0; bytes])]).await),
                        None => drop(broker.purge(&queue).await),
                    }
                };
                let _ = runtime.block_on(async { tokio::time::timeout(Duration::ZERO, change).await });
                appended.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    let mut filling_up = Vec::new();
    for (queue, body) in [(&filling, Some(4000)), (&small, None)] {
        filling_up.push(fill(queue, body));
        let mut last = u64::MAX;
        eventually("an append waits", || {
            std::thread::sleep(Duration::from_millis(100));
            std::mem::replace(&mut last, appended.load(Ordering::SeqCst)) == appended.load(Ordering::SeqCst)
        })
        .await;
    }
    // The delay ends, and the lease cannot be written.
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (broker, queue) = (broker.clone(), queue.clone());
        let look = tokio::task::spawn_blocking(move || broker.queue_stats(&queue).unwrap());
        tokio::time::timeout(Duration::from_secs(20), look).await.expect("the queue's lock is free").unwrap();
    }
    // Whoever asks for what is there is not told that nothing is.
    let asking = tokio::spawn({
        let (broker, other) = (broker.clone(), other.clone());
        async move { pop(&broker, &other, 1).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!asking.is_finished());
    gate.open_gate();
    assert_eq!(bodies(&next(&mut subscription).await), ["x"]);
    assert_eq!(bodies(&asking.await.unwrap()), ["here"]);
    for filled in filling_up {
        filled.await.unwrap();
    }
    broker.shutdown().await;
}

/// The log takes no more because the disk stands still. Whoever pushes or settles waits for it without a thread and without
/// its queue's lock, and goes on when the disk does.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_push_that_waits_for_the_disk_keeps_no_thread_and_no_lock() {
    let gate = GateDisk::default();
    let options = nexo_broker::BrokerOptions {
        segment_bytes: 1024 * 1024,
        ..nexo_broker::BrokerOptions::new("memory")
    };
    let broker = Broker::open_on(Arc::new(gate.clone()), options).unwrap();
    let (queue, other) = (name("q"), name("other"));
    for queue in [&queue, &other] {
        broker.create_queue(queue, QueueConfig::default()).await.unwrap();
    }
    push(&broker, &other, "here").await;
    let held = pop(&broker, &other, 1).await;
    gate.hold_writes();
    // Far more than two segments take. On a thread of the runtime itself: there is only one.
    let pushes: Vec<_> = (0..200)
        .map(|index| {
            let (broker, queue) = (broker.clone(), queue.clone());
            let body = format!("{index:04}{}", "x".repeat(40_000));
            tokio::spawn(async move { broker.push(&queue, vec![NewMessage::new(body)]).await })
        })
        .collect();
    // One push of many batches is taken in part, and the rest of it waits.
    let many: Vec<NewMessage> = (0..40).map(|_| NewMessage::new(vec![0; 100_000])).collect();
    let in_parts = tokio::spawn({
        let (broker, queue) = (broker.clone(), queue.clone());
        async move { broker.push(&queue, many).await }
    });
    let ack = tokio::spawn({
        let (broker, receipt) = (broker.clone(), held[0].receipt());
        async move { broker.ack(&[receipt]).await }
    });
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        // Answered by the runtime's only thread, under the lock of the very queue.
        assert!(broker.queue_stats(&queue).unwrap().ready <= 240);
    }
    assert!(pushes.iter().all(|push| !push.is_finished()), "nothing is synced");
    assert!(!in_parts.is_finished() && !ack.is_finished());
    gate.open_gate();
    for push in pushes {
        let answers = push.await.unwrap().unwrap();
        assert!(answers[0].is_ok(), "{answers:?}");
    }
    let answers = in_parts.await.unwrap().unwrap();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 40);
    let offsets: Vec<u64> = answers.iter().map(|answer| answer.as_ref().unwrap().offset.0).collect();
    assert!(offsets.is_sorted(), "{offsets:?}");
    assert!(ack.await.unwrap()[0].is_ok());
    assert_eq!(broker.queue_stats(&queue).unwrap().ready, 240);
    assert_eq!(broker.queue_stats(&other).unwrap().ready, 0);
}
