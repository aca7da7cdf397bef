//! A look at a queue shows all of it, in order, in parts that are bounded in bytes.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::*;
use nexo_broker::{Broker, BrokerOptions, BrowseState, Delivery, NewMessage, QueueConfig};
use nexo_core::message::{Properties, PropertyFormat};
use nexo_log::disk::MemoryDisk;
use nexo_types::limits::PEEK_BYTES_MAX;
use nexo_types::{Millis, Offset, Priority, QueueName, Timestamp};

const KIB: usize = 1024;

fn large_segments() -> BrokerOptions {
    BrokerOptions { segment_bytes: 4 * 1024 * 1024, ..options() }
}

async fn restarted(broker: Broker, disk: &MemoryDisk) -> Broker {
    broker.shutdown().await;
    open_with(disk, large_segments())
}

fn bytes_of(shown: &[Delivery]) -> usize {
    shown.iter().map(|one| one.message.body.len() + one.message.properties.bytes.len()).sum()
}

/// The parts in which a queue is shown.
async fn parts(broker: &Broker, queue: &QueueName) -> Vec<Vec<Delivery>> {
    let mut parts = Vec::new();
    let mut after = None;
    loop {
        let (shown, next) = broker.peek_after(queue, after, 1000).await.unwrap();
        parts.push(shown);
        match next {
            Some(_) => after = next,
            None => return parts,
        }
    }
}

fn assert_bounded_and_complete(parts: &[Vec<Delivery>], count: u64) {
    let offsets: Vec<u64> = parts.iter().flatten().map(|one| one.offset.0).collect();
    assert_eq!(offsets, (0..count).collect::<Vec<_>>(), "all of them, in order");
    for part in parts {
        assert!(part.len() == 1 || bytes_of(part) <= PEEK_BYTES_MAX, "{} bytes", bytes_of(part));
    }
}

#[tokio::test]
async fn a_look_at_large_messages_comes_in_parts() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, large_segments());
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    let larger_than_a_part = PEEK_BYTES_MAX + KIB;
    let sizes = (0..40).map(|n| if n % 8 == 5 { larger_than_a_part } else { (n % 7 + 1) * 200 * KIB });
    for size in sizes {
        push_message(&broker, &queue, NewMessage::new(vec![b'x'; size])).await;
    }
    let in_memory = parts(&broker, &queue).await;
    assert_bounded_and_complete(&in_memory, 40);
    assert!(in_memory.len() > 10);
    let broker = restarted(broker, &disk).await;
    assert_bounded_and_complete(&parts(&broker, &queue).await, 40);
    let head = broker.peek(&queue, 1000).await.unwrap();
    assert!(head.len() > 1 && bytes_of(&head) <= PEEK_BYTES_MAX);
    broker.shutdown().await;
}

#[tokio::test]
async fn properties_count_as_well() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, large_segments());
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    let properties = Properties { format: PropertyFormat::Native, bytes: vec![0; 500 * KIB].into() };
    for _ in 0..30 {
        let message = NewMessage { properties: properties.clone(), ..NewMessage::new("x") };
        push_message(&broker, &queue, message).await;
    }
    // Those that came back have a place of their own each, and their bytes are not in memory after a restart.
    let mut taken = Vec::new();
    while taken.len() < 30 {
        taken.extend(pop_wait(&broker, &queue).await);
    }
    for returned in broker.nack(&receipts(&taken), Some(Millis::ZERO)).await {
        returned.unwrap();
    }
    let broker = restarted(broker, &disk).await;
    assert_bounded_and_complete(&parts(&broker, &queue).await, 30);
    broker.shutdown().await;
}

/// The bodies of all messages of a state, looked at in parts of one, and until when each is leased or delayed.
async fn browsed(broker: &Broker, queue: &QueueName, state: BrowseState) -> Vec<(String, Option<Timestamp>)> {
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let (part, next) = broker.browse(queue, state, after, 1).await.unwrap();
        assert!(part.len() <= 1);
        for one in part {
            seen.push((String::from_utf8(one.delivery.message.body.to_vec()).unwrap(), one.until));
        }
        match next {
            Some(_) => after = next,
            None => return seen,
        }
    }
}

#[tokio::test]
async fn messages_of_every_state_are_looked_at_and_stay() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, large_segments());
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    for body in ["a", "b", "c"] {
        push(&broker, &queue, body).await;
    }
    let hour = Millis::from_secs(3600);
    push_message(&broker, &queue, NewMessage { delay: hour, ..NewMessage::new("late") }).await;
    let taken = pop(&broker, &queue, 2).await;
    let until: Vec<_> = taken.iter().map(|one| one.lease_until).collect();
    assert!(until.iter().all(Option::is_some));
    // In memory first, then from the log.
    let mut broker = broker;
    for _ in 0..2 {
        assert_eq!(browsed(&broker, &queue, BrowseState::Ready).await, [("c".to_owned(), None)]);
        let leased = browsed(&broker, &queue, BrowseState::Leased).await;
        assert_eq!(leased, [("a".to_owned(), until[0]), ("b".to_owned(), until[1])]);
        let (delayed, _) = broker.browse(&queue, BrowseState::Delayed, None, 9).await.unwrap();
        assert_eq!(delayed.len(), 1);
        assert_eq!(delayed[0].until, Some(delayed[0].delivery.enqueued_at.plus(hour)));
        assert_eq!(
            (delayed[0].delivery.message.body.as_ref(), delayed[0].delivery.attempt),
            (&b"late"[..], 0)
        );
        let stats = broker.queue_row(&queue).unwrap().stats;
        assert_eq!((stats.ready, stats.leased, stats.delayed), (1, 2, 1));
        broker = restarted(broker, &disk).await;
    }
    let beyond = Some((Priority(0), Offset(u64::MAX)));
    for state in [BrowseState::Ready, BrowseState::Leased, BrowseState::Delayed] {
        let (seen, next) = broker.browse(&queue, state, beyond, 9).await.unwrap();
        assert!(seen.is_empty() && next.is_none(), "{state:?}");
    }
    ack(&broker, &taken).await;
    assert_eq!(browsed(&broker, &queue, BrowseState::Leased).await, []);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_look_at_large_leased_messages_comes_in_parts() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, large_segments());
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    for _ in 0..8 {
        push_message(&broker, &queue, NewMessage::new(vec![b'x'; 1000 * KIB])).await;
    }
    let mut taken = 0;
    while taken < 8 {
        taken += pop_wait(&broker, &queue).await.len();
    }
    let broker = restarted(broker, &disk).await;
    let (mut parts, mut after) = (Vec::new(), None);
    loop {
        let (part, next) = broker.browse(&queue, BrowseState::Leased, after, 1000).await.unwrap();
        parts.push(part.into_iter().map(|one| one.delivery).collect());
        match next {
            Some(_) => after = next,
            None => break,
        }
    }
    assert_bounded_and_complete(&parts, 8);
    assert!(parts.len() > 2);
    broker.shutdown().await;
}
