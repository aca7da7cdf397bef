//! Checkpoints of queues with very many loose messages and deduplication ids: they cost in proportion to what was written,
//! hold nobody up, and are right wherever the power goes.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use nexo_broker::{Broker, BrokerOptions, NewMessage, PopRequest, QueueConfig};
use nexo_log::disk::{CutMode, FaultyDisk, GateDisk, MemoryDisk};
use nexo_types::{DedupId, Millis, Offset};

const HOUR: Millis = Millis::from_secs(3600);

fn small_segments() -> BrokerOptions {
    BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") }
}

/// Messages of which each has an id that is remembered, and every other one is delayed.
fn loose(from: usize, count: usize) -> Vec<NewMessage> {
    let message = |number: usize| NewMessage {
        delay: if number.is_multiple_of(2) { HOUR } else { Millis::ZERO },
        dedup: Some(DedupId::new(&format!("id {number}")).unwrap()),
        ..NewMessage::new(format!("{number:06}"))
    };
    (from..from + count).map(message).collect()
}

fn appended(broker: &Broker) -> u64 {
    broker.stats().log.frame_bytes
}

/// Waits until the broker has written nothing for a while; gives back how much it has written by then.
async fn quiet(broker: &Broker) -> u64 {
    let mut last = appended(broker);
    let mut same = 0;
    for _ in 0..400 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = appended(broker);
        same = if now == last { same + 1 } else { 0 };
        last = now;
        if same == 10 {
            return last;
        }
    }
    panic!("an idle broker goes on writing");
}

#[tokio::test]
async fn an_idle_broker_with_many_ids_and_delays_writes_nothing() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small_segments());
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    for batch in 0..20 {
        broker.push(&queue, loose(batch * 1000, 1000)).await.unwrap();
    }
    let written = quiet(&broker).await;
    let outline = broker.outline(&queue).unwrap();
    assert_eq!((outline.messages.len(), outline.dedup.len()), (20_000, 20_000));
    broker.shutdown().await;
    let broker = open_with(&disk, small_segments());
    assert_eq!(broker.outline(&queue).unwrap(), outline, "a snapshot in many chunks brings it back");
    let again = quiet(&broker).await;
    assert!(again < written / 10, "after a restart there is little to write: {again} of {written}");
    broker.shutdown().await;
}

#[tokio::test]
async fn checkpoints_cost_in_proportion_to_what_was_written() {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small_segments());
    let (queue, other) = (name("q"), name("other"));
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    broker.create_queue(&other, QueueConfig::default()).await.unwrap();
    for batch in 0..20 {
        broker.push(&queue, loose(batch * 1000, 1000)).await.unwrap();
    }
    let before = quiet(&broker).await;
    // Twelve segments, and the large queue changes a little in each.
    let mut pushed = 0;
    for round in 0..60 {
        broker.push(&queue, loose(100_000 + round, 1)).await.unwrap();
        for _ in 0..4 {
            push(&broker, &other, &"x".repeat(3000)).await;
            pushed += 3000;
        }
    }
    let cost = quiet(&broker).await - before;
    assert!(cost < pushed * 5 / 2, "{pushed} bytes were pushed, and {cost} written");
    broker.shutdown().await;
}

#[tokio::test]
async fn a_snapshot_that_waits_for_the_disk_holds_nobody_up() {
    let gate = GateDisk::default();
    let broker = Broker::open_on(Arc::new(gate.clone()), small_segments()).unwrap();
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    for batch in 0..10 {
        broker.push(&queue, loose(batch * 1000, 1000)).await.unwrap();
    }
    quiet(&broker).await;
    // Every chunk changes, so that the next snapshot is many segments long.
    let request = PopRequest { max: 5000, wait: Millis::ZERO, visibility: Some(HOUR), bytes_max: None };
    assert_eq!(broker.pop(&queue, request).await.unwrap().len(), 5000);
    gate.hold_writes();
    let stopping = tokio::spawn({
        let broker = broker.clone();
        async move { broker.shutdown().await }
    });
    eventually("the snapshot waits for the disk", || gate.writes_held() > 0).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let (broker, queue) = (broker.clone(), queue.clone());
        let look = tokio::task::spawn_blocking(move || broker.queue_stats(&queue).unwrap().leased);
        let looked = tokio::time::timeout(Duration::from_secs(20), look).await;
        assert_eq!(looked.expect("the queue's lock is free").unwrap(), 5000);
    }
    assert!(!stopping.is_finished(), "the snapshot still waits");
    gate.open_gate();
    stopping.await.unwrap();
}

/// What a run was told, by offset.
#[derive(Default)]
struct Told {
    confirmed: BTreeSet<Offset>,
    maybe_done: BTreeSet<Offset>,
    done: BTreeSet<Offset>,
    purging: bool,
}

fn tiny_segments() -> BrokerOptions {
    BrokerOptions { segment_bytes: 32 * 1024, ..BrokerOptions::new("faulty") }
}

/// Pushes, takes and finishes messages in several chunks, while checkpoints are written.
async fn script(broker: &Broker, told: &mut Told) -> Option<()> {
    let queue = name("q");
    broker.create_queue(&queue, QueueConfig::default()).await.ok()?;
    for round in 0..5 {
        for pushed in broker.push(&queue, loose(round * 700, 700)).await.ok()? {
            told.confirmed.insert(pushed.ok()?.offset);
        }
        let request = PopRequest { max: 250, wait: Millis::ZERO, visibility: Some(HOUR), bytes_max: None };
        let held = broker.pop(&queue, request).await.ok()?;
        // Every third is finished, every third comes back, every third stays with its consumer.
        let part = |rest: usize| held.iter().filter(move |one| one.offset.0 as usize % 3 == rest).cloned();
        let done: Vec<_> = part(0).collect();
        told.maybe_done.extend(done.iter().map(|one| one.offset));
        for answer in broker.ack(&receipts(&done)).await {
            answer.ok()?;
        }
        told.done.extend(done.iter().map(|one| one.offset));
        let back: Vec<_> = part(1).collect();
        for answer in broker.nack(&receipts(&back), Some(HOUR)).await {
            answer.ok()?;
        }
    }
    told.purging = true;
    broker.purge(&queue).await.ok()?;
    broker.push(&queue, loose(900_000, 10)).await.ok()?;
    Some(())
}

async fn run(disk: &FaultyDisk) -> Told {
    let mut told = Told::default();
    if let Ok(broker) = Broker::open_on(Arc::new(disk.clone()), tiny_segments()) {
        // The script ends where the power goes.
        let _ = script(&broker, &mut told).await;
        broker.shutdown().await;
    }
    told
}

async fn check(told: &Told, disk: FaultyDisk, what: &str) {
    let broker =
        Broker::open_on(Arc::new(disk), tiny_segments()).unwrap_or_else(|error| panic!("{what}: {error}"));
    if let Ok(outline) = broker.outline(&name("q")) {
        let ids: BTreeSet<Offset> = outline.dedup.values().map(|(_, first)| *first).collect();
        for offset in &told.confirmed {
            let there = outline.messages.contains_key(offset);
            assert!(!there || !told.done.contains(offset), "{what}: {offset} was finished and is back");
            let may_be_gone = told.purging || told.maybe_done.contains(offset);
            assert!(there || may_be_gone, "{what}: {offset} was lost");
            // Each message that was confirmed brought an id, which outlives it.
            assert!(ids.contains(offset), "{what}: an id was forgotten");
        }
    } else {
        assert!(told.confirmed.is_empty(), "{what}: the queue was lost");
    }
    broker.shutdown().await;
}

fn on_runtime<R>(future: impl Future<Output = R>) -> R {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn snapshots_in_chunks_are_right_wherever_the_power_goes() {
    let calm = FaultyDisk::new();
    let told = on_runtime(run(&calm));
    assert!(
        told.purging && told.confirmed.len() == 3500 && told.done.len() > 300,
        "the script does what it should"
    );
    on_runtime(check(&told, calm.restart(CutMode::Drop, 1), "after a clean end"));
    let operations = calm.operations();
    let mut cut = 0;
    for operation in 1..=operations + 10 {
        let disk = FaultyDisk::new();
        disk.cut_power_at(operation);
        let told = on_runtime(run(&disk));
        if !disk.is_cut() {
            continue;
        }
        cut += 1;
        let mode = [CutMode::Keep, CutMode::Drop, CutMode::Tear, CutMode::Reorder][operation as usize % 4];
        let found = disk.restart(mode, operation);
        on_runtime(check(&told, found, &format!("cut at operation {operation}, {mode:?}")));
    }
    assert!(cut as u64 > operations / 2, "most runs were cut");
}
