//! A disk that does not give some bytes back, for ever or for a while. Nothing is dropped for that: health says at once
//! which segment it is, others are delivered, and what cannot be read is tried again, not in a hot loop.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use nexo_broker::{Broker, BrokerOptions, Health, PopRequest, QueueConfig};
use nexo_log::disk::{Disk, FaultyDisk, MemoryDisk};
use nexo_log::{Region, regions_of};
use nexo_types::Millis;

const COUNT: u32 = 120;

fn small() -> BrokerOptions {
    BrokerOptions { segment_bytes: 16 * 1024, ..BrokerOptions::new("memory") }
}

fn body(n: u32) -> String {
    format!("{n:04}-{}", "x".repeat(400))
}

/// A closed broker with messages in two queues, in turns.
async fn image() -> MemoryDisk {
    let memory = MemoryDisk::new();
    let broker = open_with(&memory, small());
    for queue in ["q", "other"] {
        broker.create_queue(&name(queue), QueueConfig::default()).await.unwrap();
    }
    for n in 0..COUNT {
        push(&broker, &name("q"), &body(n)).await;
        push(&broker, &name("other"), &body(n)).await;
    }
    broker.shutdown().await;
    memory
}

/// Where the message with this number lies: the file, and the bytes of its frame.
fn place_of(disk: &MemoryDisk, n: u32) -> (String, std::ops::Range<u64>) {
    let head = format!("{n:04}-");
    for file in disk.list("segments").unwrap() {
        let path = format!("segments/{file}");
        let open = disk.open(&path).unwrap();
        let mut bytes = vec![0; open.len().unwrap() as usize];
        open.read_at(&mut bytes, 0).unwrap();
        for (region, range) in regions_of(disk, &path).unwrap() {
            let frame = &bytes[range.start as usize..range.end as usize];
            if region == Region::Frame && frame.windows(head.len()).any(|window| window == head.as_bytes()) {
                return (path, u64::from(range.start)..u64::from(range.end));
            }
        }
    }
    panic!("{n} is nowhere");
}

/// Takes so many messages, and then whatever comes within a moment.
async fn take(broker: &Broker, queue: &str, count: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    loop {
        let wait = if found.len() < count { Millis::from_secs(20) } else { Millis(300) };
        let request =
            PopRequest { max: 10, wait, visibility: Some(Millis::from_secs(3600)), bytes_max: None };
        let part = broker.pop(&name(queue), request).await.unwrap();
        if part.is_empty() {
            return found;
        }
        found.extend(bodies(&part));
        ack(broker, &part).await;
    }
}

fn all() -> BTreeSet<String> {
    (0..COUNT).map(body).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_waits_and_is_named_and_comes_when_the_disk_is_back() {
    let memory = image().await;
    let (path, frame) = place_of(&memory, 60);
    let disk = FaultyDisk::from_memory(memory);
    let broker = Broker::open_on(Arc::new(disk.clone()), small()).unwrap();
    assert_eq!(broker.health(), Health::Ok);
    disk.set_unreadable(&path, frame.start + 100..frame.start + 104);

    let first = take(&broker, "q", 60).await;
    assert_eq!(first, (0..60).map(body).collect(), "all before it, its neighbour too");
    let health = broker.health();
    let Health::Degraded { reason } = &health else { panic!("{health:?}") };
    assert!(reason.contains(&path) && reason.contains("cannot be read"), "{reason}");
    assert!(health.can_serve());
    let stats = broker.queue_stats(&name("q")).unwrap();
    assert_eq!((stats.damaged, stats.ready), (0, u64::from(COUNT) - 60), "nothing is dropped");

    assert_eq!(take(&broker, "other", COUNT as usize).await, all(), "another queue in the same segments");
    push(&broker, &name("other"), "more").await;
    assert_eq!(take(&broker, "other", 1).await.len(), 1);

    // A consumer that waits has it tried again and again, but less and less often.
    let waiting = subscribe(&broker, &name("q"), 10);
    let before = disk.failed_reads();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tried = disk.failed_reads() - before;
    assert!(tried < 50, "{tried} reads in two seconds");
    drop(waiting);

    disk.set_readable();
    assert_eq!(take(&broker, "q", (COUNT - 60) as usize).await, (60..COUNT).map(body).collect());
    assert_eq!(broker.health(), Health::Ok);
    assert_eq!(broker.stats().damaged_messages, 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_does_not_need_what_cannot_be_read() {
    let memory = image().await;
    let (path, frame) = place_of(&memory, 3);
    let disk = FaultyDisk::from_memory(memory);
    let broker = Broker::open_on(Arc::new(disk.clone()), small()).unwrap();
    disk.set_unreadable(&path, frame);
    assert_eq!(take(&broker, "q", 3).await.len(), 3);
    assert!(matches!(broker.health(), Health::Degraded { .. }));
    broker.shutdown().await;
    drop(broker);

    // The next start does not need it.
    let broker = Broker::open_on(Arc::new(disk.clone()), small()).unwrap();
    assert_eq!(broker.queue_stats(&name("q")).unwrap().ready, u64::from(COUNT) - 3);
    disk.set_readable();
    let rest = take(&broker, "q", COUNT as usize - 3).await;
    assert_eq!(rest, (3..COUNT).map(body).collect());
    assert_eq!(broker.stats().damaged_messages, 0);
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_cannot_be_read_waits_alone_and_is_not_read_again_and_again() {
    let memory = image().await;
    let places: Vec<_> = (0..3).map(|n| place_of(&memory, n)).collect();
    let disk = FaultyDisk::from_memory(memory);
    let broker = Broker::open_on(Arc::new(disk.clone()), small()).unwrap();
    let held = pop(&broker, &name("q"), 3).await;
    assert_eq!(bodies(&held), [body(0), body(1), body(2)]);
    let (path, frame) = &places[1];
    disk.set_unreadable(path, frame.start + 100..frame.start + 104);

    let began = std::time::Instant::now();
    let answers = broker.reject(&receipts(&held)).await;
    let refused: Vec<bool> = answers.iter().map(Result::is_err).collect();
    assert_eq!(refused, [false, true, false], "those that can be read have moved: {answers:?}");
    let dead = name("q_dlq");
    assert_eq!(bodies(&pop(&broker, &dead, 9).await), [body(0), body(2)]);
    let Health::Degraded { reason } = broker.health() else { panic!("{:?}", broker.health()) };
    assert!(reason.contains(path) && reason.contains("cannot be read"), "{reason}");

    // It is tried again after half a second, and then after twice as long each time.
    for _ in 0..2 {
        let before = disk.failed_reads();
        eventually("it is tried again", || disk.failed_reads() > before).await;
        // All reads of one try.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let took = began.elapsed() - Duration::from_millis(300);
    assert!(took >= Duration::from_millis(1400), "{took:?} for three tries");

    disk.set_readable();
    eventually("it has moved", || broker.queue_stats(&dead).unwrap().ready == 1).await;
    assert_eq!(bodies(&pop(&broker, &dead, 9).await), [body(1)]);
    assert_eq!((broker.health(), broker.stats().damaged_messages), (Health::Ok, 0));
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_goes_nowhere_need_not_be_read() {
    let memory = MemoryDisk::new();
    let broker = open_with(&memory, small());
    let config = QueueConfig { dead_letters: nexo_broker::DeadLetters::Nowhere, ..QueueConfig::default() };
    broker.create_queue(&name("q"), config).await.unwrap();
    push(&broker, &name("q"), &body(7)).await;
    broker.shutdown().await;
    drop(broker);
    let (path, frame) = place_of(&memory, 7);
    let disk = FaultyDisk::from_memory(memory);
    let broker = Broker::open_on(Arc::new(disk.clone()), small()).unwrap();
    let held = pop(&broker, &name("q"), 1).await;
    disk.set_unreadable(&path, frame);
    broker.reject(&receipts(&held)).await.remove(0).unwrap();
    assert_eq!(broker.queue_stats(&name("q")).unwrap().leased, 0);
    assert_eq!(broker.health(), Health::Ok);
    broker.shutdown().await;
}
