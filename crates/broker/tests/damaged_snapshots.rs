//! Snapshots in chunks on a disk that is damaged: one frame that cannot be read costs nothing, whichever it is. If both
//! copies of a chunk are lost, only what it held is, and the broker says so.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use nexo_broker::topology::{Binding, Destination, ExchangeKind, ExchangeSpec, Matching};
use nexo_broker::{Broker, BrokerOptions, Health, NewMessage, PopRequest, QueueConfig};
use nexo_core::queue::Outline;
use nexo_log::disk::{CutMode, MemoryDisk};
use nexo_log::{EntryKind, Log, LogOptions};
use nexo_types::{DedupId, ExchangeName, GroupId, Millis, Position, QueueId};

const HOUR: Millis = Millis::from_secs(3600);
const SEGMENT_BYTES: u32 = 32 * 1024;
/// Offsets of a chunk.
const CHUNK: usize = 1024;
const QUEUES: [&str; 3] = ["q", "other", "late"];
/// What a start reads of the checkpoint at least: the heads of the queues and of the exchanges, and the chunks of `q`.
const FRAMES_READ_MIN: u32 = QUEUES.len() as u32 + 1 + 4;

fn small() -> BrokerOptions {
    BrokerOptions { segment_bytes: SEGMENT_BYTES, ..BrokerOptions::new("memory") }
}

/// Delayed messages, messages in groups and others, each with an id that is remembered.
fn loose(from: usize, count: usize) -> Vec<NewMessage> {
    let message = |number: usize| NewMessage {
        delay: if number.is_multiple_of(3) { HOUR } else { Millis::ZERO },
        group: (number % 3 == 1).then(|| GroupId::new(&format!("group {}", number % 7)).unwrap()),
        dedup: Some(DedupId::new(&format!("id {number}")).unwrap()),
        ..NewMessage::new(format!("{number:06}"))
    };
    (from..from + count).map(message).collect()
}

/// A disk on which chunks of a large queue have become old, some in one copy and most in two.
async fn image(clean: bool) -> MemoryDisk {
    let disk = MemoryDisk::new();
    let broker = open_with(&disk, small());
    let (queue, other) = (name("q"), name("other"));
    broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    broker.create_queue(&other, QueueConfig::default()).await.unwrap();
    let spec = ExchangeSpec::durable(ExchangeKind::Plain(Matching::Direct));
    broker.declare_exchange(&ExchangeName::new("events").unwrap(), spec).await.unwrap();
    broker.bind(binding("q")).await.unwrap();
    for batch in 0..4 {
        broker.push(&queue, loose(batch * 1000, 1000)).await.unwrap();
    }
    let mut round = 0;
    let mut all_there = Position::default();
    // Checkpoints are written by a thread of their own, which may be late. Of those that end when everything is there, the
    // first may have begun before. The second has all chunks, and the third writes them again.
    while round < 40 || checkpoints_since(&disk.after_power_cut(CutMode::Drop, 0), all_there) < 3 {
        for _ in 0..4 {
            let pushed = push(&broker, &other, &"x".repeat(2000)).await;
            assert!(pushed.offset.0 < CHUNK as u64, "no third checkpoint was written");
        }
        if round >= 40 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if round == 20 {
            broker.create_queue(&name("late"), QueueConfig::default()).await.unwrap();
            broker.bind(binding("late")).await.unwrap();
            all_there = end_of(&disk.after_power_cut(CutMode::Drop, 0));
        }
        if round % 8 == 0 {
            broker.push(&queue, loose(100_000 + round, 1)).await.unwrap();
            let request = PopRequest { max: 3, wait: Millis::ZERO, visibility: Some(HOUR), bytes_max: None };
            let held = broker.pop(&queue, request).await.unwrap();
            ack(&broker, &held[..1]).await;
        }
        round += 1;
    }
    if clean {
        broker.shutdown().await;
        return disk;
    }
    // Damage in what was written last is taken for a write that the crash cut off, and is not told. So something is synced
    // behind the last checkpoint.
    let stopped = loop {
        let end = end_of(&disk.after_power_cut(CutMode::Drop, 0));
        let pushed = push(&broker, &other, "behind the last checkpoint").await;
        assert!(pushed.offset.0 < CHUNK as u64, "checkpoints are written without end");
        let stopped = disk.after_power_cut(CutMode::Drop, 0);
        if checkpoints_since(&stopped, end) == 0 {
            break stopped;
        }
    };
    broker.shutdown().await;
    stopped
}

fn binding(queue: &str) -> Binding {
    let source = ExchangeName::new("events").unwrap();
    Binding::new(source, Destination::Queue(name(queue)), Bytes::from_static(b"key"), Vec::new())
}

/// Everything of one kind that checkpoints have written: where it is, whose, and what is in it.
fn entries(disk: &MemoryDisk, kind: EntryKind) -> Vec<(Position, QueueId, Bytes)> {
    let disk = disk.after_power_cut(CutMode::Keep, 0);
    let options = LogOptions { segment_bytes: SEGMENT_BYTES, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(disk), options).unwrap();
    let mut found = Vec::new();
    let damage = log.replay(Position::default(), &mut |frame| {
        let parts = frame.entries.iter().filter(|entry| entry.kind == kind);
        found.extend(parts.map(|entry| (frame.at, entry.queue, entry.payload.clone())));
        ControlFlow::Continue(())
    });
    assert_eq!(damage.unwrap(), []);
    log.close();
    found
}

/// Every frame of a snapshot.
fn snapshot_frames(disk: &MemoryDisk) -> Vec<(Position, QueueId, Bytes)> {
    entries(disk, EntryKind::Snapshot)
}

fn checkpoints_since(disk: &MemoryDisk, from: Position) -> usize {
    entries(disk, EntryKind::Manifest).iter().filter(|(at, _, _)| *at >= from).count()
}

/// Where the log ends.
fn end_of(disk: &MemoryDisk) -> Position {
    let options = LogOptions { segment_bytes: SEGMENT_BYTES, ..LogOptions::default() };
    let (log, recovered) = Log::open(Arc::new(disk.clone()), options).unwrap();
    log.close();
    recovered.end
}

fn outlines(broker: &Broker) -> BTreeMap<&'static str, Outline> {
    QUEUES.into_iter().filter_map(|queue| Some((queue, broker.outline(&name(queue)).ok()?))).collect()
}

/// The disk with these frames damaged.
fn damaged(image: &MemoryDisk, frames: &[Position]) -> MemoryDisk {
    let disk = image.after_power_cut(CutMode::Keep, 0);
    for at in frames {
        // Behind the length and the checksum.
        disk.flip_bit(&format!("segments/{}.seg", at.segment), at.byte as usize + 9, 3);
    }
    disk
}

async fn whole(image: &MemoryDisk) -> BTreeMap<&'static str, Outline> {
    let broker = open_with(&damaged(image, &[]), small());
    assert_eq!(broker.health(), Health::Ok);
    let expected = outlines(&broker);
    assert_eq!(expected.len(), QUEUES.len());
    assert!(expected["q"].messages.len() > 3 * CHUNK);
    broker.shutdown().await;
    expected
}

async fn routes(image: &MemoryDisk) -> nexo_broker::topology::Outline {
    let broker = open_with(&damaged(image, &[]), small());
    let routes = broker.topology_outline();
    broker.shutdown().await;
    routes
}

async fn damage_one(clean: bool) {
    let image = image(clean).await;
    let expected = whole(&image).await;
    let routes = routes(&image).await;
    assert_eq!(routes.bindings.len(), 2);
    let (mut used, mut of_routes) = (0, 0);
    for (at, queue, _) in snapshot_frames(&image) {
        let disk = damaged(&image, &[at]);
        let broker = Broker::open_on(Arc::new(disk.clone()), small())
            .unwrap_or_else(|error| panic!("the snapshot of {queue} at {at}: refused: {error}"));
        let is_used = matches!(broker.health(), Health::Degraded { .. });
        used += u32::from(is_used);
        of_routes += u32::from(is_used && queue == QueueId(0));
        assert!(outlines(&broker) == expected, "the snapshot of {queue} at {at}: something is not as it was");
        assert_eq!(broker.topology_outline(), routes, "the snapshot of {queue} at {at}");
        // It goes on, and what was written anew is as good.
        broker.shutdown().await;
        let broker = open_with(&disk, small());
        assert!(outlines(&broker) == expected, "the snapshot of {queue} at {at}: after another start");
        assert_eq!(broker.topology_outline(), routes, "the snapshot of {queue} at {at}: after another start");
        broker.shutdown().await;
    }
    assert!(used >= FRAMES_READ_MIN, "those that a start reads were needed: {used}");
    assert!(of_routes > 0, "the snapshot of exchanges and bindings was needed once");
}

#[tokio::test]
async fn one_frame_of_a_snapshot_costs_nothing_after_a_clean_stop() {
    damage_one(true).await;
}

#[tokio::test]
async fn one_frame_of_a_snapshot_costs_nothing_after_a_crash() {
    damage_one(false).await;
}

#[tokio::test]
async fn all_copies_of_a_chunk_cost_what_it_held_and_that_is_told() {
    let image = image(true).await;
    let expected = whole(&image).await;
    let routes = routes(&image).await;
    let mut copies: BTreeMap<(QueueId, Bytes), Vec<Position>> = BTreeMap::new();
    for (at, queue, payload) in snapshot_frames(&image) {
        copies.entry((queue, payload)).or_default().push(at);
    }
    copies.retain(|_, frames| frames.len() > 1);
    let (mut lost_chunks, mut refused) = (0, 0);
    for ((queue, _), frames) in copies {
        let broker = match Broker::open_on(Arc::new(damaged(&image, &frames)), small()) {
            Ok(broker) => broker,
            Err(error) => {
                assert!(error.to_string().contains("accept-loss"), "{queue} at {frames:?}: {error}");
                refused += 1;
                continue;
            }
        };
        let is_told = matches!(broker.health(), Health::Degraded { .. });
        assert!(is_told || broker.topology_outline() == routes, "{queue} at {frames:?}: routes are lost");
        let (found, stats) = (outlines(&broker), broker.stats());
        for (name, outline) in &expected {
            let here = &found[name].messages;
            let missing: Vec<u64> =
                outline.messages.keys().filter(|offset| !here.contains_key(offset)).map(|o| o.0).collect();
            let (Some(first), Some(last)) = (missing.first(), missing.last()) else { continue };
            assert!(
                *name == "q" && first / CHUNK as u64 == last / CHUNK as u64,
                "{first} to {last} of {name}"
            );
            assert!(matches!(stats.health, Health::Degraded { .. }) && stats.damaged_uncounted, "{stats:?}");
            lost_chunks += 1;
        }
        broker.shutdown().await;
    }
    assert!(lost_chunks > 0, "some chunks were lost with both copies ({refused} starts refused)");
}
