//! Workers that are late, and what ways in keep with a queue.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use bytes::Bytes;
use common::*;
use nexo_broker::{QueueConfig, SettleError};
use nexo_log::disk::MemoryDisk;
use nexo_types::Millis;

#[tokio::test]
async fn a_message_can_be_finished_with_the_receipt_of_any_delivery() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push(&broker, &q, "a").await;
    push(&broker, &q, "b").await;
    let held = pop(&broker, &q, 2).await;
    broker.nack(&receipts(&held), Some(Millis::ZERO)).await;
    let again = pop(&broker, &q, 1).await;
    assert_eq!(bodies(&again), ["a"]);
    let answers = broker.ack_even_late(&receipts(&held)).await;
    assert_eq!(answers, [Ok(()), Ok(())], "'a' is with another, and nobody has been given 'b' since");
    for receipts in [receipts(&held[1..]), receipts(&again)] {
        let gone = broker.ack_even_late(&receipts).await;
        assert!(matches!(gone[0], Err(SettleError::NotLeased { .. })), "{gone:?}");
    }
    assert_eq!(broker.queue_stats(&q).unwrap().acked, 2);
    assert_eq!(broker.queue_stats(&q).unwrap().ready, 0);
}

#[tokio::test]
async fn a_lease_can_be_changed_with_the_receipt_of_any_delivery() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push(&broker, &q, "a").await;
    let held = pop(&broker, &q, 1).await;
    assert_eq!(broker.change_even_late(&receipts(&held), Millis::ZERO).await, [Ok(())]);
    let hour = Millis::from_secs(3600);
    assert_eq!(broker.change_even_late(&receipts(&held), hour).await, [Ok(())], "nobody has it");
    assert_eq!(broker.queue_stats(&q).unwrap().ready, 1, "and it stays where it is");
    let again = pop(&broker, &q, 1).await;
    assert_eq!(broker.change_even_late(&receipts(&held), Millis::ZERO).await, [Ok(())]);
    assert_eq!(broker.queue_stats(&q).unwrap().ready, 1, "the second lease has ended");
    assert_eq!(broker.ack_even_late(&receipts(&again)).await, [Ok(())]);
    let gone = broker.change_even_late(&receipts(&held), hour).await;
    assert!(matches!(gone[0], Err(SettleError::NotLeased { .. })), "{gone:?}");
}

#[tokio::test]
async fn what_a_way_in_keeps_with_a_queue_survives_a_restart_and_is_not_compared() {
    let disk = MemoryDisk::new();
    let broker = open(&disk);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    let note = Bytes::from_static(b"kept");
    let annotate = |config: &QueueConfig| {
        let mut config = config.clone();
        config.annotations.insert("way".into(), note.clone());
        config
    };
    broker.update_queue(&q, annotate).await.unwrap();
    assert!(!broker.create_queue(&q, QueueConfig::default()).await.unwrap(), "it is the same queue");
    broker.shutdown().await;
    let broker = open(&disk);
    let queue = broker.queue(&q).unwrap();
    assert_eq!(queue.annotation("way"), Some(note));
    assert_eq!(queue.annotation("other"), None);
}
