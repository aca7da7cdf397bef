//! More messages than memory or a segment should hold: paging, checkpoints, copying forward, retiring.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::*;
use nexo_broker::{BrokerOptions, Durability, NewMessage, QueueConfig};
use nexo_log::disk::MemoryDisk;
use nexo_types::{Millis, Priority};

fn small_segments() -> BrokerOptions {
    BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") }
}

fn numbered(range: std::ops::Range<u32>) -> Vec<NewMessage> {
    range.map(|n| NewMessage::new(format!("{n:06}"))).collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| format!("{n:06}")).collect()
}

#[tokio::test]
async fn a_long_backlog_comes_back_in_order_also_after_a_restart() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small_segments());
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    let count = 30_000;
    for start in (0..count).step_by(1000) {
        broker.push(&q, numbered(start..start + 1000)).await.unwrap();
    }
    let memory = broker.stats().message_memory_bytes;
    assert!(memory < 5_000_000, "most of the backlog is on disk only: {memory} bytes in memory");
    let first = pop(&broker, &q, 5000).await;
    assert_eq!(bodies(&first), numbers(0..5000));
    ack(&broker, &first).await;
    broker.shutdown().await;

    let broker = open_with(&disk, small_segments());
    assert_eq!(broker.queue_stats(&q).unwrap().ready, u64::from(count) - 5000);
    let mut next = 5000;
    while next < count {
        let part = pop(&broker, &q, 2000).await;
        assert!(!part.is_empty(), "the backlog ends early at {next}");
        let end = next + part.len() as u32;
        assert_eq!(bodies(&part), numbers(next..end));
        ack(&broker, &part).await;
        next = end;
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn a_backlog_of_many_priorities_comes_back_most_urgent_first() {
    let broker = open_with(&MemoryDisk::new(), small_segments());
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    let message =
        |n: u32| NewMessage { priority: Priority((n % 3) as u8), ..NewMessage::new(format!("{n:06}")) };
    for start in (0..30_000).step_by(1000) {
        broker.push(&q, (start..start + 1000).map(message).collect()).await.unwrap();
    }
    let mut expected: Vec<u32> = (0..30_000).collect();
    expected.sort_by_key(|n| (std::cmp::Reverse(n % 3), *n));
    let mut seen = 0;
    while seen < expected.len() {
        let part = pop(&broker, &q, 3000).await;
        assert!(!part.is_empty(), "the backlog ends early at {seen}");
        let wanted: Vec<String> =
            expected[seen..seen + part.len()].iter().map(|n| format!("{n:06}")).collect();
        assert_eq!(bodies(&part), wanted);
        seen += part.len();
        ack(&broker, &part).await;
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn many_priorities_that_were_left_on_disk_are_read_back_together() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small_segments());
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    let (count, lanes) = (20_000, 40);
    let message = |n: u32| NewMessage {
        priority: Priority((n * 7 % lanes) as u8),
        ..NewMessage::new(format!("{n:06}"))
    };
    for start in (0..count).step_by(1000) {
        broker.push(&q, (start..start + 1000).map(message).collect()).await.unwrap();
    }
    broker.shutdown().await;

    let broker = open_with(&disk, small_segments());
    let mut expected: Vec<u32> = (0..count).collect();
    expected.sort_by_key(|n| (std::cmp::Reverse(n * 7 % lanes), *n));
    let mut expected = expected.into_iter().map(|n| format!("{n:06}"));
    let mut left = count as usize;
    while left > 0 {
        let part = pop(&broker, &q, 3000).await;
        assert!(!part.is_empty(), "{left} messages are missing");
        assert_eq!(bodies(&part), expected.by_ref().take(part.len()).collect::<Vec<_>>());
        ack(&broker, &part).await;
        left -= part.len();
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn space_is_given_back_although_one_old_message_stays() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small_segments());
    let (q, old) = (name("q"), name("old"));
    for queue in [&q, &old] {
        broker.create_queue(queue, QueueConfig::default()).await.unwrap();
    }
    push(&broker, &old, "still here").await;
    push_message(&broker, &old, NewMessage { delay: Millis::from_secs(3600), ..NewMessage::new("later") })
        .await;
    for _ in 0..150 {
        let messages = (0..50).map(|_| NewMessage::new("x".repeat(200))).collect();
        broker.push(&q, messages).await.unwrap();
        let held = pop(&broker, &q, 100).await;
        ack(&broker, &held).await;
    }
    let written = broker.stats().log.frame_bytes;
    assert!(written > 20 * 64 * 1024, "many segments were written: {written} bytes");
    eventually("segments are given back", || broker.stats().log.segments < 12).await;
    broker.shutdown().await;

    let broker = open_with(&disk, small_segments());
    assert_eq!(bodies(&pop(&broker, &old, 1).await), ["still here"]);
    assert_eq!(broker.queue_stats(&old).unwrap().delayed, 1);
    assert_eq!(broker.queue_stats(&q).unwrap().ready, 0);
    broker.shutdown().await;
}

#[tokio::test]
async fn a_message_larger_than_a_segment_is_kept_delivered_and_its_space_given_back() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small_segments());
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    let large: Vec<u8> = (0..1024 * 1024).map(|i: u32| (i % 251) as u8).collect();
    push(&broker, &q, "before").await;
    push_message(&broker, &q, NewMessage::new(large.clone())).await;
    push(&broker, &q, "after").await;
    broker.shutdown().await;

    let broker = open_with(&disk, small_segments());
    let held = pop(&broker, &q, 9).await;
    assert_eq!(held.len(), 3);
    assert!(held[1].message.body == large, "another body came back");
    assert_eq!(bodies(&[held[0].clone(), held[2].clone()]), ["before", "after"]);
    assert!(broker.stats().log.disk_bytes > 1024 * 1024);
    ack(&broker, &held).await;
    eventually("the space is given back", || broker.stats().log.disk_bytes < 1024 * 1024).await;
    assert_eq!(broker.queue_stats(&q).unwrap().ready, 0);
    broker.shutdown().await;
}

#[tokio::test]
async fn transient_messages_go_to_the_log_when_memory_is_short() {
    let options = BrokerOptions { memory_bytes_max: 1_000_000, ..small_segments() };
    let broker = open_with(&MemoryDisk::new(), options);
    let q = name("q");
    broker.create_queue(&q, QueueConfig::default()).await.unwrap();
    for n in 0..200u32 {
        let message = NewMessage {
            durability: Durability::Transient,
            ..NewMessage::new(format!("{n:06}").repeat(1000))
        };
        push_message(&broker, &q, message).await;
    }
    let memory = broker.stats().message_memory_bytes;
    assert!(memory < 1_500_000, "{memory} bytes in memory");
    let mut seen = Vec::new();
    while seen.len() < 200 {
        let part = pop(&broker, &q, 50).await;
        assert!(!part.is_empty(), "messages are missing after {}", seen.len());
        seen.extend(bodies(&part).into_iter().map(|body| body[..6].to_owned()));
    }
    assert_eq!(seen, numbers(0..200));
    broker.shutdown().await;
}

#[tokio::test]
async fn many_queues_are_created_listed_and_deleted() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small_segments());
    for n in 0..300 {
        broker.create_queue(&name(&format!("queue-{n:03}")), QueueConfig::default()).await.unwrap();
    }
    for n in (0..300).step_by(2) {
        broker.delete_queue(&name(&format!("queue-{n:03}"))).await.unwrap();
    }
    let request = nexo_broker::ListRequest {
        prefix: "queue-0".into(),
        after: Some(name("queue-011")),
        limit: 3,
        ..Default::default()
    };
    let listed: Vec<String> = broker.list_queues(&request).iter().map(|q| q.name.to_string()).collect();
    assert_eq!(listed, ["queue-013", "queue-015", "queue-017"]);
    broker.shutdown().await;
    let broker = open_with(&disk, small_segments());
    assert_eq!(broker.stats().queues, 150);
    broker.shutdown().await;
}

#[tokio::test]
async fn what_queues_themselves_take_is_not_left_for_messages() {
    let options = BrokerOptions { memory_bytes_max: 2_000_000, ..small_segments() };
    let broker = open_with(&MemoryDisk::new(), options);
    let queues: Vec<_> = (0..500).map(|n| name(&format!("q{n}"))).collect();
    for q in &queues {
        broker.create_queue(q, QueueConfig::default()).await.unwrap();
    }
    // Together they are about what three quarters of the bound would hold, in steps that no page-out keeps up with.
    for _ in 0..4 {
        for q in &queues {
            push_message(&broker, q, NewMessage::new("x".repeat(300))).await;
        }
    }
    // Queues take half of the bound, so a quarter is for messages, although nobody pushes any more.
    eventually("messages leave memory", || broker.stats().message_memory_bytes <= 550_000).await;
    for q in &queues {
        assert_eq!(pop(&broker, q, 10).await.len(), 4, "all of them are still there");
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn new_queues_take_their_room_from_messages_that_are_there() {
    let options = BrokerOptions { memory_bytes_max: 2_000_000, ..small_segments() };
    let broker = open_with(&MemoryDisk::new(), options);
    let full: Vec<_> = (0..4).map(|n| name(&format!("full{n}"))).collect();
    for q in &full {
        broker.create_queue(q, QueueConfig::default()).await.unwrap();
        for _ in 0..3 {
            push_message(&broker, q, NewMessage::new("x".repeat(100_000))).await;
        }
    }
    let before = broker.stats().message_memory_bytes;
    assert!(before > 1_200_000, "less than three quarters of the bound, so they stay: {before}");
    for n in 0..400 {
        broker.create_queue(&name(&format!("q{n}")), QueueConfig::default()).await.unwrap();
    }
    eventually("messages leave memory", || broker.stats().message_memory_bytes <= 750_000).await;
    for q in &full {
        assert_eq!(pop(&broker, q, 10).await.len(), 3, "all of them are still there");
    }
    broker.shutdown().await;
}
