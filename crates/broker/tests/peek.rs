//! A look at a queue shows all of it, in order, in parts that are bounded in bytes.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::*;
use nexo_broker::{Broker, BrokerOptions, Delivery, NewMessage, QueueConfig};
use nexo_core::message::{Properties, PropertyFormat};
use nexo_log::disk::MemoryDisk;
use nexo_types::limits::PEEK_BYTES_MAX;
use nexo_types::{Millis, QueueName};

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
