//! What consumers are handed is bounded in bytes, whatever their credit, each and all together.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use common::*;
use nexo_broker::{
    Broker, BrokerOptions, Durability, LeaseTerms, NewMessage, PopRequest, QueueConfig, SettleMode,
    Subscription, Terms,
};
use nexo_log::disk::MemoryDisk;
use nexo_types::{Millis, QueueName, limits};

const MIB: u64 = 1 << 20;

async fn fill(broker: &Broker, queue: &QueueName, count: usize, bytes: usize, durability: Durability) {
    let message =
        |number: usize| NewMessage { durability, ..NewMessage::new(vec![(number % 251) as u8; bytes]) };
    let messages: Vec<NewMessage> = (0..count).map(message).collect();
    for pushed in broker.push(queue, messages).await.unwrap() {
        pushed.unwrap();
    }
}

/// Takes this many messages, which must come in order.
async fn drain(subscription: &mut Subscription, count: usize) {
    let mut seen = 0;
    while seen < count {
        for delivery in next(subscription).await {
            assert_eq!(delivery.message.body[0], (seen % 251) as u8, "message {seen}");
            seen += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_does_not_read_is_handed_no_more_than_its_bytes() {
    for durability in [Durability::Transient, Durability::Durable] {
        let (broker, queue) = with_queue(QueueConfig::default()).await;
        let mut consumer = subscribe(&broker, &queue, 1_000_000);
        fill(&broker, &queue, 300, 100_000, durability).await;
        eventually("it is handed what it may hold", || broker.queue_stats(&queue).unwrap().leased >= 42)
            .await;
        let held = broker.outgoing().bytes();
        assert!((1..=limits::CONSUMER_BYTES_MAX + 101_000).contains(&held), "{held} bytes are out");
        assert_eq!(broker.queue_stats(&queue).unwrap().leased, 42);
        drain(&mut consumer, 300).await;
        drop(consumer);
        assert_eq!(broker.outgoing().bytes(), 0);
        broker.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_larger_than_the_bytes_of_a_consumer_passes() {
    let (broker, queue) = with_queue(QueueConfig::default()).await;
    let mut consumer = subscribe(&broker, &queue, 100);
    fill(&broker, &queue, 3, 6 << 20, Durability::Transient).await;
    assert_eq!(broker.queue_stats(&queue).unwrap().leased, 1);
    drain(&mut consumer, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_consumers_together_are_handed_little_beyond_their_sum_and_nobody_starves() {
    let options = BrokerOptions { memory_bytes_max: 16 * MIB, ..BrokerOptions::new("memory") };
    let broker = Broker::open_on(Arc::new(MemoryDisk::new()), options).unwrap();
    let mut consumers = Vec::new();
    for number in 0..10 {
        let queue = name(&format!("q{number}"));
        broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        consumers.push(subscribe(&broker, &queue, 1_000_000));
        fill(&broker, &queue, 100, 50_000, Durability::Durable).await;
        if number == 0 {
            // What is served at the same moment may go over the sum; the others come when it is reached.
            eventually("the first holds everything", || broker.outgoing().bytes() >= 4 * MIB).await;
        }
    }
    let held = broker.outgoing().bytes();
    assert!(held <= 4 * MIB + 10 * 2 * 51_000, "{held} bytes are out");
    // The last came when the others held everything.
    drain(consumers.last_mut().unwrap(), 100).await;
    for consumer in consumers.iter_mut().take(9) {
        drain(consumer, 100).await;
    }
    drop(consumers);
    assert_eq!(broker.outgoing().bytes(), 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_from_the_log_counts_as_well() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    fill(&broker, &queue, 200, 100_000, Durability::Durable).await;
    broker.shutdown().await;

    let broker = open(&disk);
    let terms =
        Terms { lease: LeaseTerms::Session, settle: SettleMode::Automatic, priority: 0, ..Terms::default() };
    let mut consumer =
        broker.queue(&queue).unwrap().subscribe(terms, 1_000_000, None, Arc::default()).unwrap();
    let mut seen = 0;
    while seen < 200 {
        seen += consumer.next_handed().await.unwrap().len();
        let held = broker.outgoing().bytes();
        assert!(held <= limits::CONSUMER_BYTES_MAX + 101_000, "{held} bytes are out");
    }
    drop(consumer);
    assert_eq!(broker.outgoing().bytes(), 0);
    assert_eq!(broker.queue_stats(&queue).unwrap().ready, 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_is_handed_little_more_than_the_bytes_it_wants() {
    let (broker, queue) = with_queue(QueueConfig::default()).await;
    fill(&broker, &queue, 100, 1 << 20, Durability::Transient).await;
    let request = PopRequest { max: 100, bytes_max: Some(3 << 20), wait: Millis::ZERO, visibility: None };
    let taken = broker.pop(&queue, request).await.unwrap();
    assert_eq!(taken.len(), 3);
    let stats = broker.queue_stats(&queue).unwrap();
    assert_eq!((stats.leased, stats.ready), (3, 97));
    assert_eq!(broker.outgoing().bytes(), 0);
}
