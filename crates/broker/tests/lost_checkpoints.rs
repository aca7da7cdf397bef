//! Checkpoints that cannot be read. The one before it does as well, if the log since then is there. If it is not, because
//! the disk was full and segments were given up at once, or because two checkpoints are lost, or the one segment that held
//! them all, then the start is refused by name until the loss is accepted, and it is reported.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use common::*;
use nexo_broker::topology::{Binding, Destination, ExchangeKind, ExchangeSpec, Matching};
use nexo_broker::{Broker, BrokerOptions, Health, NewMessage, OpenError, QueueConfig, QueueError};
use nexo_core::queue::Outline;
use nexo_log::disk::{CutMode, Disk, FaultyDisk, MemoryDisk};
use nexo_log::{EntryKind, Log, LogOptions};
use nexo_types::{ExchangeName, Position, QueueId};

const SEGMENT_BYTES: u32 = 32 * 1024;
/// Checkpoints are written by a thread of their own. When it comes to it decides whether an earlier one would still do, so
/// what must be refused is looked for on so many disks.
const TRIES: usize = 30;
const QUEUES: [&str; 4] = ["first", "second", "third", "late"];

fn small() -> BrokerOptions {
    BrokerOptions { segment_bytes: SEGMENT_BYTES, ..BrokerOptions::new("memory") }
}

fn copy(image: &MemoryDisk) -> MemoryDisk {
    image.after_power_cut(CutMode::Keep, 0)
}

fn segment_path(at: Position) -> String {
    format!("segments/{}.seg", at.segment)
}

/// Frames with checkpoints' parts: where they are, of which kind, and whose.
fn checkpoint_frames(image: &MemoryDisk) -> Vec<(Position, EntryKind, QueueId)> {
    let options = LogOptions { segment_bytes: SEGMENT_BYTES, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(copy(image)), options).unwrap();
    let mut found = Vec::new();
    let damage = log.replay(Position::default(), &mut |frame| {
        let parts = frame.entries.iter();
        let parts = parts.filter(|entry| matches!(entry.kind, EntryKind::Snapshot | EntryKind::Manifest));
        found.extend(parts.map(|entry| (frame.at, entry.kind, entry.queue)));
        ControlFlow::Continue(())
    });
    assert_eq!(damage.unwrap(), []);
    log.close();
    found
}

fn manifests(image: &MemoryDisk) -> Vec<Position> {
    let frames = checkpoint_frames(image).into_iter();
    frames.filter(|(_, kind, _)| *kind == EntryKind::Manifest).map(|(at, _, _)| at).collect()
}

/// The disk with these frames damaged.
fn damaged(image: &MemoryDisk, frames: &[Position]) -> MemoryDisk {
    let disk = copy(image);
    for at in frames {
        // Behind the length and the checksum.
        disk.flip_bit(&segment_path(*at), at.byte as usize + 9, 3);
    }
    disk
}

fn open_on(disk: &MemoryDisk, accept_loss: bool) -> Result<Broker, OpenError> {
    Broker::open_on(Arc::new(disk.clone()), BrokerOptions { accept_loss, ..small() })
}

/// What the queues are and hold, and their figures: what was acknowledged after an earlier checkpoint is not lost, although
/// its segment is gone when the log is replayed from there. Only deliveries are not compared: on a full disk they are not
/// written down.
fn outlines(broker: &Broker) -> BTreeMap<&'static str, Outline> {
    let outline = |queue| {
        let mut outline = broker.outline(&name(queue)).ok()?;
        (outline.totals.delivered, outline.totals.redelivered) = (0, 0);
        Some((queue, outline))
    };
    QUEUES.into_iter().filter_map(outline).collect()
}

/// What was in it before anything was harmed.
async fn whole(image: &MemoryDisk) -> BTreeMap<&'static str, Outline> {
    let broker = open_on(&copy(image), false).unwrap();
    assert_eq!(broker.health(), Health::Ok);
    let expected = outlines(&broker);
    broker.shutdown().await;
    expected
}

fn assert_same(found: &BTreeMap<&str, Outline>, expected: &BTreeMap<&str, Outline>, what: &str) {
    assert!(found.keys().eq(expected.keys()), "{what}: {:?}", found.keys());
    for (queue, outline) in expected {
        let here = &found[queue];
        assert_eq!(here.totals, outline.totals, "{what}: the figures of {queue}");
        assert!(here == outline, "{what}: {queue} is not as it was");
    }
}

/// What a start after a loss of checkpoints came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing is missing.
    Whole,
    /// A chunk of a snapshot is lost, and that is reported.
    Reported,
    /// It was refused, and went on when told to.
    Refused,
}

/// Opens a disk on which nothing but checkpoints is lost: all must be there, or the loss be named.
async fn judge(disk: &MemoryDisk, expected: &BTreeMap<&'static str, Outline>, what: &str) -> Outcome {
    match open_on(disk, false) {
        Ok(broker) => {
            let stats = broker.stats();
            if stats.damaged_uncounted && matches!(stats.health, Health::Degraded { .. }) {
                assert_eq!(outlines(&broker).len(), expected.len(), "{what}: a queue is missing");
                broker.shutdown().await;
                return Outcome::Reported;
            }
            assert_same(&outlines(&broker), expected, what);
            broker.shutdown().await;
            let broker = open_on(disk, false).unwrap();
            assert_same(&outlines(&broker), expected, &format!("{what}, after another start"));
            broker.shutdown().await;
            Outcome::Whole
        }
        Err(error) => {
            accept(disk, expected, what, &error.to_string()).await;
            Outcome::Refused
        }
    }
}

/// A start was refused: it says why, also the second time, and with the loss accepted the broker goes on and reports it.
async fn accept(disk: &MemoryDisk, expected: &BTreeMap<&'static str, Outline>, what: &str, error: &str) {
    assert!(error.contains("accept-loss") && error.contains("segment"), "{what}: {error}");
    let again = open_on(disk, false).unwrap_err().to_string();
    assert!(again.contains("accept-loss"), "{what}: the second time: {again}");
    let broker = open_on(disk, true).unwrap();
    let stats = broker.stats();
    let reported = matches!(stats.health, Health::Degraded { .. }) && stats.damaged_uncounted;
    let missing = expected.keys().filter(|queue| !outlines(&broker).contains_key(*queue)).count();
    assert!(reported, "{what}: {missing} queues are missing, and: {stats:?}");
    // It goes on, and the next start knows all that this one wrote.
    broker.create_queue(&name("new"), QueueConfig::default()).await.unwrap();
    push(&broker, &name("new"), "message").await;
    broker.shutdown().await;
    let broker = open_on(disk, true).unwrap();
    assert_eq!(bodies(&pop(&broker, &name("new"), 1).await), ["message"], "{what}");
    broker.shutdown().await;
}

async fn push_and_ack(broker: &Broker, queue: &str, count: usize) {
    for _ in 0..count {
        push(broker, &name(queue), &"x".repeat(2000)).await;
    }
    let held = pop(broker, &name(queue), count).await;
    ack(broker, &held).await;
}

/// Several checkpoints on a disk with room, and a queue created late.
async fn with_room() -> MemoryDisk {
    let disk = MemoryDisk::new();
    let broker = open_on(&disk, false).unwrap();
    for queue in &QUEUES[..3] {
        broker.create_queue(&name(queue), QueueConfig::default()).await.unwrap();
        push(&broker, &name(queue), "stays").await;
    }
    let spec = ExchangeSpec::durable(ExchangeKind::Plain(Matching::Direct));
    broker.declare_exchange(&ExchangeName::new("events").unwrap(), spec).await.unwrap();
    broker.bind(binding("first")).await.unwrap();
    for round in 0..30 {
        push_and_ack(&broker, QUEUES[round % 3], 6).await;
        if round % 5 == 0 {
            push(&broker, &name(QUEUES[round % 3]), &format!("stays {round}")).await;
        }
        if round == 20 {
            broker.create_queue(&name("late"), QueueConfig::default()).await.unwrap();
            push(&broker, &name("late"), "stays").await;
            broker.bind(binding("late")).await.unwrap();
        }
    }
    broker.shutdown().await;
    disk
}

fn binding(queue: &str) -> Binding {
    let source = ExchangeName::new("events").unwrap();
    Binding::new(source, Destination::Queue(name(queue)), bytes::Bytes::from_static(b"key"), Vec::new())
}

async fn routes(disk: &MemoryDisk) -> nexo_broker::topology::Outline {
    let broker = open_on(disk, false).unwrap();
    let routes = broker.topology_outline();
    broker.shutdown().await;
    routes
}

/// A disk that was full after a first checkpoint: what nothing was alive in was given up at once, and with it the beginning
/// of a queue that was created after that checkpoint.
async fn full() -> MemoryDisk {
    let disk = FaultyDisk::new();
    let broker = Broker::open_on(Arc::new(disk.clone()), small()).unwrap();
    broker.create_queue(&name("first"), QueueConfig::default()).await.unwrap();
    push(&broker, &name("first"), "stays").await;
    let seals = broker.stats().log.seals;
    while broker.stats().log.seals < seals + 3 {
        push(&broker, &name("first"), &"x".repeat(2000)).await;
    }
    broker.create_queue(&name("late"), QueueConfig::default()).await.unwrap();
    push(&broker, &name("late"), "stays").await;
    disk.set_bytes_max(Some(disk.used_bytes() + 8 * u64::from(SEGMENT_BYTES)));
    loop {
        let message = NewMessage::new("y".repeat(2000));
        match broker.push(&name("late"), vec![message]).await {
            Ok(_) => {}
            Err(QueueError::Alarm(_)) => break,
            Err(other) => panic!("{other}"),
        }
    }
    let retired = broker.stats().log.retired;
    loop {
        let held = pop(&broker, &name("late"), 1).await;
        let Some(one) = held.first() else { break };
        if one.message.body.starts_with(b"stays") {
            continue;
        }
        while broker.ack(&[one.receipt()]).await.remove(0).is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        if broker.stats().log.retired >= retired + 3 {
            break;
        }
    }
    assert!(broker.stats().log.retired > retired, "{:?}", broker.stats().log);
    let stopped = disk.restart(CutMode::Keep, 0);
    broker.shutdown().await;
    // Sealed, so that what is damaged cannot pass for a torn end.
    let options = LogOptions { segment_bytes: SEGMENT_BYTES, ..LogOptions::default() };
    Log::open(Arc::new(stopped.clone()), options).unwrap().0.close();
    let memory = MemoryDisk::new();
    for dir in ["", "segments", "spare", "damaged"] {
        for file in stopped.list(dir).unwrap() {
            let path = if dir.is_empty() { file } else { format!("{dir}/{file}") };
            let Ok(from) = stopped.open(&path) else { continue };
            let mut bytes = vec![0; from.len().unwrap() as usize];
            from.read_at(&mut bytes, 0).unwrap();
            let to = memory.create(&path).unwrap();
            to.write_at(&bytes, 0).unwrap();
            to.sync_data().unwrap();
        }
        memory.sync_dir(dir).unwrap();
    }
    memory
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latest_checkpoint_costs_nothing_and_more_are_named() {
    let image = with_room().await;
    let expected = whole(&image).await;
    assert_eq!(expected.len(), QUEUES.len());
    let expected_routes = routes(&copy(&image)).await;
    assert_eq!(expected_routes.bindings.len(), 2);
    let places = manifests(&image);
    let mut refused = 0;
    for lost in 1..=places.len() {
        let disk = damaged(&image, &places[places.len() - lost..]);
        let outcome =
            judge(&disk, &expected, &format!("the last {lost} of {} checkpoints", places.len())).await;
        assert!(lost > 1 || outcome == Outcome::Whole, "one checkpoint costs nothing");
        assert_ne!(outcome, Outcome::Reported, "the last {lost}");
        if outcome == Outcome::Whole {
            assert_eq!(routes(&disk).await, expected_routes, "the last {lost}");
        }
        refused += u32::from(outcome == Outcome::Refused);
    }
    assert!(refused > 0, "segments were given up, so {} checkpoints cannot all be lost", places.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_full_disk_a_lost_checkpoint_is_named() {
    for _ in 0..TRIES {
        let image = full().await;
        let expected = whole(&image).await;
        assert!(expected.contains_key("late"));
        let places = manifests(&image);
        let mut refused = 0;
        for lost in 1..=places.len() {
            let disk = damaged(&image, &places[places.len() - lost..]);
            let what = format!("the last {lost} of {places:?}");
            refused += u32::from(judge(&disk, &expected, &what).await == Outcome::Refused);
        }
        if refused > 0 {
            return;
        }
    }
    panic!("nothing was ever refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_full_disk_a_lost_snapshot_is_named() {
    for _ in 0..TRIES {
        let image = full().await;
        let expected = whole(&image).await;
        let places = manifests(&image);
        let between = &places[1..places.len() - 1];
        let mut refused = 0;
        for (at, kind, queue) in checkpoint_frames(&image) {
            if kind != EntryKind::Snapshot {
                continue;
            }
            let what = format!("the snapshot of {queue} at {at}");
            judge(&damaged(&image, &[at]), &expected, &what).await;
            // Only the first checkpoint could stand in for it, and the log since then is not there.
            let frames: Vec<Position> = between.iter().copied().chain([at]).collect();
            let what = format!("{what} and {between:?}");
            refused +=
                u32::from(judge(&damaged(&image, &frames), &expected, &what).await == Outcome::Refused);
        }
        if refused > 0 {
            return;
        }
    }
    panic!("nothing was ever refused");
}

/// A disk on which one segment holds all checkpoints, after earlier ones were given up; and that segment.
async fn with_one_segment_of_checkpoints() -> (MemoryDisk, Position) {
    for _ in 0..TRIES {
        let disk = MemoryDisk::new();
        let broker = open_on(&disk, false).unwrap();
        broker.create_queue(&name("first"), QueueConfig::default()).await.unwrap();
        while broker.stats().log.retired == 0 {
            push_and_ack(&broker, "first", 1).await;
        }
        push(&broker, &name("first"), "stays").await;
        let image = disk.after_power_cut(CutMode::Drop, 0);
        broker.shutdown().await;
        let places = manifests(&image);
        if places.iter().all(|at| at.segment == places[0].segment) {
            return (image, places[0]);
        }
    }
    panic!("checkpoints were in several segments each time");
}

/// Only the snapshots in that segment know of the queue.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_segment_with_checkpoints_cut_to_nothing_is_named() {
    let (image, only) = with_one_segment_of_checkpoints().await;
    let expected = whole(&image).await;
    assert_eq!(expected["first"].messages.len(), 1);

    let disk = copy(&image);
    disk.open(&segment_path(only)).unwrap().set_len(0).unwrap();
    let error = open_on(&disk, false).unwrap_err().to_string();
    assert!(error.contains(&segment_path(only)), "{error}");
    accept(&disk, &expected, "cut to nothing", &error).await;
}

/// What an earlier checkpoint knows in a segment that was given up since, after the last message in it was copied forward.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_copied_forward_is_found_from_an_earlier_checkpoint() {
    let disk = MemoryDisk::new();
    let broker = open_on(&disk, false).unwrap();
    for queue in &QUEUES[..2] {
        broker.create_queue(&name(queue), QueueConfig::default()).await.unwrap();
    }
    for _ in 0..60 {
        push(&broker, &name("first"), &"x".repeat(2000)).await;
    }
    // After a start every snapshot is written anew, here behind the segments that will be given up. All that is pushed
    // from now on stays, so that nothing of the log behind them is.
    broker.shutdown().await;
    let broker = open_on(&disk, false).unwrap();
    let on_disk = || manifests(&disk.after_power_cut(CutMode::Drop, 0));
    let known = on_disk().len();
    while on_disk().len() < known + 2 {
        push(&broker, &name("first"), "stays").await;
        push(&broker, &name("second"), &"y".repeat(2000)).await;
    }
    let earlier = *on_disk().last().unwrap();
    let held = pop(&broker, &name("first"), 60).await;
    assert_eq!(held.len(), 60);
    for one in held.iter().filter(|one| one.offset.0 % 30 != 17) {
        ack(&broker, std::slice::from_ref(one)).await;
    }
    while broker.stats().log.retired < 3 {
        push(&broker, &name("second"), &"y".repeat(2000)).await;
    }
    broker.shutdown().await;
    let expected = whole(&disk).await;
    assert!(expected["first"].messages.contains_key(&held[17].offset));
    let later: Vec<Position> = manifests(&disk).into_iter().filter(|at| *at > earlier).collect();
    let image = damaged(&disk, &later);
    assert_eq!(judge(&image, &expected, "from an earlier checkpoint").await, Outcome::Whole);
}

/// As the damage test, but nothing waits for maintenance: whatever it had done when the power went.
#[tokio::test(flavor = "multi_thread")]
async fn any_segment_of_a_busy_broker_cut_to_nothing_is_named_or_costs_only_itself() {
    for rounds in [3, 6, 9, 14, 20] {
        let disk = MemoryDisk::new();
        let broker = open_on(&disk, false).unwrap();
        for queue in &QUEUES[..3] {
            broker.create_queue(&name(queue), QueueConfig::default()).await.unwrap();
        }
        for round in 0..rounds {
            push_and_ack(&broker, QUEUES[round % 3], 6).await;
            push(&broker, &name(QUEUES[round % 3]), &format!("stays {round}")).await;
        }
        let image = disk.after_power_cut(CutMode::Drop, 0);
        broker.shutdown().await;
        let expected = whole(&image).await;
        for file in image.list("segments").unwrap() {
            let what = format!("{file} after {rounds} rounds");
            let disk = copy(&image);
            disk.open(&format!("segments/{file}")).unwrap().set_len(0).unwrap();
            match open_on(&disk, false) {
                Err(error) => accept(&disk, &expected, &what, &error.to_string()).await,
                Ok(broker) => {
                    let stats = broker.stats();
                    assert!(matches!(stats.health, Health::Degraded { .. }), "{what}: {stats:?}");
                    let known = outlines(&broker);
                    assert!(
                        known == expected || stats.damaged_uncounted || stats.damaged_messages > 0,
                        "{what}"
                    );
                    broker.shutdown().await;
                }
            }
        }
    }
}
