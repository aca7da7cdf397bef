//! Workers that are late, and what ways in keep with a queue.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use bytes::Bytes;
use common::*;
use nexo_broker::{QueueConfig, SettleError};
use nexo_log::disk::MemoryDisk;
use nexo_types::Millis;

#[tokio::test]
async fn a_message_that_came_back_can_still_be_finished_by_who_had_it_last() {
    let (broker, q) = with_queue(QueueConfig::default()).await;
    push(&broker, &q, "a").await;
    push(&broker, &q, "b").await;
    let held = pop(&broker, &q, 2).await;
    broker.nack(&receipts(&held), Some(Millis::ZERO)).await;
    let again = pop(&broker, &q, 1).await;
    assert_eq!(bodies(&again), ["a"]);
    let answers = broker.ack_even_late(&receipts(&held)).await;
    assert!(matches!(answers[0], Err(SettleError::Stale { current: 2, .. })), "{answers:?}");
    assert_eq!(answers[1], Ok(()), "nobody has been given 'b' since");
    let twice = broker.ack_even_late(&receipts(&held[1..])).await;
    assert!(matches!(twice[0], Err(SettleError::NotLeased { .. })), "{twice:?}");
    assert_eq!(
        broker.ack_even_late(&receipts(&again)).await,
        [Ok(())],
        "a lease that holds is as good as ever"
    );
    assert_eq!(broker.queue_stats(&q).unwrap().acked, 2);
    assert_eq!(broker.queue_stats(&q).unwrap().ready, 0);
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
