//! Queues that are taken to another broker: everything in them comes along, whenever the power goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use nexo_core::config::{Fate, QueueConfig};
use nexo_core::message::NewMessage;
use nexo_core::queue::{Outline, QueueSnapshot, Stage};
use nexo_log::disk::{CutMode, Disk, FaultyDisk, MemoryDisk};
use nexo_types::{DedupId, GroupId, Millis, Offset, Priority, QueueName, Timestamp};

use crate::broker::Broker;
use crate::options::BrokerOptions;
use crate::request::{PopRequest, Settle};
use crate::transplant::{InstallError, StoredBody};

const HOUR: Millis = Millis::from_secs(3600);

fn name() -> QueueName {
    QueueName::new("q").unwrap()
}

fn open(disk: Arc<dyn Disk>) -> Broker {
    Broker::open_on(disk, BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") }).unwrap()
}

async fn push(broker: &Broker, message: NewMessage, count: usize) {
    let answers = broker.push(&name(), vec![message; count]).await.unwrap();
    assert!(answers.iter().all(Result::is_ok));
}

async fn take(broker: &Broker, max: usize) -> Vec<(Offset, u32)> {
    let request = PopRequest { max, wait: Millis::ZERO, visibility: None, bytes_max: None };
    broker.pop(&name(), request).await.unwrap().iter().map(|one| (one.offset, one.attempt)).collect()
}

/// Has something of everything in a queue. Nobody moves its dead letters until what comes back is dropped.
async fn fill(broker: &Broker, backlog: usize) -> std::sync::mpsc::Sender<()> {
    let config = QueueConfig {
        visibility: HOUR,
        dedup_window: HOUR,
        max_attempts: Some(5),
        on_expiry: Fate::DeadLetter,
        ..QueueConfig::default()
    };
    broker.create_queue(&name(), config).await.unwrap();
    let cell = broker.shared.catalog.get(&name()).unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let moving = Arc::clone(&cell);
    std::thread::spawn(move || {
        let _held = moving.dead_lettering.lock();
        locked.send(()).unwrap();
        let _ = released.recv();
    });
    is_locked.recv().unwrap();
    push(broker, NewMessage { ttl: Some(Millis(1)), ..NewMessage::new("expired") }, 2).await;
    push(broker, NewMessage::new("taken"), 6).await;
    for part in 0..backlog.div_ceil(100) {
        let body = format!("backlog {part} {}", "x".repeat(100 + part));
        for priority in 0..3 {
            push(broker, NewMessage { priority: Priority(priority), ..NewMessage::new(body.clone()) }, 33)
                .await;
        }
    }
    let held = take(broker, 4).await;
    let handle = broker.queue(&name()).unwrap();
    handle.settle(&held[..1], Settle::Reject).unwrap();
    handle.settle(&held[1..2], Settle::Ack).unwrap();
    handle.settle(&held[2..3], Settle::Requeue).unwrap();
    push(broker, NewMessage { delay: HOUR, ..NewMessage::new("delayed") }, 20).await;
    for group in ["a", "b"] {
        let group = Some(GroupId::new(group).unwrap());
        push(broker, NewMessage { group: group.clone(), ..NewMessage::new("grouped") }, 4).await;
    }
    for id in 0..5 {
        let dedup = Some(DedupId::new(&format!("id {id}")).unwrap());
        push(broker, NewMessage { dedup, ..NewMessage::new("once") }, 1).await;
    }
    let deaths = || cell.state.lock().queue.deaths().len();
    while deaths() < 3 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        let _ = broker.shared.with(&cell, |_, _| ());
    }
    cell.state.lock().queue.page_out(u64::MAX);
    push(broker, NewMessage::new("resident"), 10).await;
    release
}

/// A queue on its way.
struct Parcel {
    snapshot: QueueSnapshot,
    time: Timestamp,
    batches: Vec<Vec<StoredBody>>,
    outline: Outline,
    bodies: BTreeMap<Offset, Bytes>,
}

fn export(broker: &Broker) -> Parcel {
    let outline = broker.outline(&name()).unwrap();
    let mut export = broker.export_queue(&name()).unwrap();
    let mut batches = Vec::new();
    loop {
        let batch = export.next_batch().unwrap();
        if batch.is_empty() {
            break;
        }
        batches.push(batch);
    }
    let (snapshot, time) = (export.snapshot().clone(), export.time());
    Parcel { snapshot, time, batches, bodies: bodies(broker, &outline), outline }
}

fn install(broker: &Broker, parcel: &Parcel) -> Result<(), InstallError> {
    let mut install = broker.install_queue(&parcel.snapshot, parcel.time)?;
    for batch in &parcel.batches {
        install.add(batch)?;
    }
    install.finish()
}

/// The stored forms of all messages, as the log has them.
fn bodies(broker: &Broker, outline: &Outline) -> BTreeMap<Offset, Bytes> {
    let cell = broker.shared.catalog.get(&name()).unwrap();
    let wanted: Vec<(Priority, Offset)> =
        outline.messages.iter().map(|(offset, state)| (state.priority, *offset)).collect();
    let found = broker.shared.read_payloads(&cell, &wanted);
    assert_eq!(found.len(), wanted.len(), "every message can be read");
    found
}

/// What died moves on as soon as there is a broker that moves it.
fn without_deaths(mut outline: Outline) -> Outline {
    let is_dying = |stage: &Stage| {
        matches!(stage, Stage::Dying(_)) || matches!(stage, Stage::Leased { dying: Some(_), .. })
    };
    outline.messages.retain(|_, state| !is_dying(&state.stage));
    outline.totals.dead_lettered = 0;
    outline
}

async fn compare(broker: &Broker, parcel: &Parcel, what: &str) {
    let dead = QueueName::new("q_dlq").unwrap();
    let moved = || broker.queue(&dead).map_or(0, |dead| dead.counts().0);
    let dying = parcel.outline.messages.len() - without_deaths(parcel.outline.clone()).messages.len();
    while moved() < dying as u64 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let outline = broker.outline(&name()).unwrap();
    assert_eq!(without_deaths(outline.clone()), without_deaths(parcel.outline.clone()), "{what}");
    let found = bodies(broker, &outline);
    assert!(found.iter().all(|(offset, body)| parcel.bodies[offset] == body), "{what}: all bodies are right");
    let cell = broker.shared.catalog.get(&name()).unwrap();
    let mut state = cell.state.lock();
    state.queue.check_invariants();
    let counted = state.placement.messages_by_segment();
    let state = &mut *state;
    state.placement.recount(&state.queue);
    assert_eq!(state.placement.messages_by_segment(), counted, "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_the_same_in_another_broker() {
    let source = open(Arc::new(MemoryDisk::new()));
    let release = fill(&source, 3000).await;
    let parcel = tokio::task::block_in_place(|| export(&source));
    let stages = |wanted: fn(&Stage) -> bool| {
        parcel.outline.messages.values().filter(|state| wanted(&state.stage)).count()
    };
    assert_eq!(stages(|stage| matches!(stage, Stage::Dying(_))), 2);
    assert_eq!(stages(|stage| matches!(stage, Stage::Leased { dying: Some(_), .. })), 1);
    assert_eq!(stages(|stage| matches!(stage, Stage::Leased { dying: None, .. })), 1);
    assert_eq!(stages(|stage| matches!(stage, Stage::Delayed(_))), 20);
    assert_eq!(stages(|stage| matches!(stage, Stage::Grouped)), 6);
    assert!(stages(|stage| matches!(stage, Stage::Ready)) > 2900);
    assert_eq!(parcel.outline.dedup.len(), 5);
    assert!(parcel.batches.len() > 3, "they come in batches");
    let batch_bytes =
        |batch: &Vec<StoredBody>| batch.iter().map(|message| message.payload.len()).sum::<usize>();
    assert!(parcel.batches.iter().all(|batch| batch.len() <= 1000 && batch_bytes(batch) < 2 << 20));

    let disk = MemoryDisk::new();
    let target = open(Arc::new(disk.clone()));
    tokio::task::block_in_place(|| install(&target, &parcel)).unwrap();
    // It was safe when that returned.
    let crashed = disk.after_power_cut(CutMode::Drop, 0);
    compare(&target, &parcel, "in the other broker").await;
    target.shutdown().await;
    let target = open(Arc::new(crashed.clone()));
    compare(&target, &parcel, "after a crash of it").await;
    // It is a queue like any other.
    let held = take(&target, 10).await;
    assert_eq!(held.len(), 10);
    target.queue(&name()).unwrap().settle(&held, Settle::Ack).unwrap();
    push(&target, NewMessage::new("later"), 1).await;
    let before = target.outline(&name()).unwrap();
    target.shutdown().await;
    let target = open(Arc::new(crashed));
    assert_eq!(without_deaths(target.outline(&name()).unwrap()), without_deaths(before));
    target.shutdown().await;
    drop(release);
    source.shutdown().await;
}

/// The source goes on while its queue is exported, and gives up nothing that the export needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_leaves_a_queue_while_it_is_exported_comes_along() {
    let source = open(Arc::new(MemoryDisk::new()));
    source.create_queue(&name(), QueueConfig::default()).await.unwrap();
    for _ in 0..60 {
        push(&source, NewMessage::new("x".repeat(3000)), 10).await;
    }
    let before = source.shared.log.segments().len();
    assert!(before > 20);
    let mut export = source.export_queue(&name()).unwrap();
    source.purge(&name()).await.unwrap();
    let checkpoint = |broker: &Broker| {
        tokio::task::block_in_place(|| (0..3).for_each(|_| broker.shared.checkpoint().unwrap()))
    };
    checkpoint(&source);
    let mut count = 0;
    loop {
        let batch = tokio::task::block_in_place(|| export.next_batch()).unwrap();
        if batch.is_empty() {
            break;
        }
        count += batch.len();
    }
    assert_eq!(count, 600);
    drop(export);
    checkpoint(&source);
    assert!(source.shared.log.segments().len() < before / 2, "then the segments are given up");
    source.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_cannot_be_installed_leaves_nothing() {
    let source = open(Arc::new(MemoryDisk::new()));
    let release = fill(&source, 300).await;
    let mut parcel = tokio::task::block_in_place(|| export(&source));
    let target = open(Arc::new(MemoryDisk::new()));
    let last = parcel.batches.last_mut().unwrap().pop().unwrap();
    let refused = tokio::task::block_in_place(|| install(&target, &parcel)).unwrap_err();
    assert_eq!(refused, InstallError::Incomplete { missing: 1 });
    assert!(target.outline(&name()).is_err());
    assert!(target.shared.log.segments().iter().all(|segment| segment.live_bytes == 0), "nothing is alive");
    parcel.batches.last_mut().unwrap().push(last.clone());
    parcel.batches.push(vec![last.clone()]);
    let refused = tokio::task::block_in_place(|| install(&target, &parcel)).unwrap_err();
    assert_eq!(refused, InstallError::Unexpected { offset: last.offset });
    parcel.batches.pop();
    {
        let _first = target.install_queue(&parcel.snapshot, parcel.time).unwrap();
        let refused = target.install_queue(&parcel.snapshot, parcel.time).unwrap_err();
        assert_eq!(refused, InstallError::Exists { name: name() });
        assert!(target.create_queue(&name(), QueueConfig::default()).await.is_err(), "the name is kept");
    }
    let ahead = target.shared.clock.now().plus(HOUR);
    let late =
        Parcel { time: ahead, snapshot: parcel.snapshot.clone(), batches: parcel.batches.clone(), ..parcel };
    let refused = tokio::task::block_in_place(|| install(&target, &late)).unwrap_err();
    assert!(matches!(refused, InstallError::Clock { .. }), "{refused}");
    let in_time = Parcel { time: Timestamp(0), ..late };
    tokio::task::block_in_place(|| install(&target, &in_time)).unwrap();
    compare(&target, &in_time, "in the end").await;
    let refused = tokio::task::block_in_place(|| install(&target, &in_time)).unwrap_err();
    assert_eq!(refused, InstallError::Exists { name: name() });
    target.shutdown().await;
    drop(release);
    source.shutdown().await;
}

#[test]
fn a_crash_leaves_nothing_of_a_queue_or_all_of_it() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let parcel = runtime().block_on(async {
        let source = open(Arc::new(MemoryDisk::new()));
        let release = fill(&source, 600).await;
        let parcel = tokio::task::block_in_place(|| export(&source));
        drop(release);
        source.shutdown().await;
        parcel
    });
    let run = |disk: &FaultyDisk| {
        runtime().block_on(async {
            let disk: Arc<dyn Disk> = Arc::new(disk.clone());
            let options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") };
            let Ok(target) = Broker::open_on(disk, options) else { return false };
            let installed = tokio::task::block_in_place(|| install(&target, &parcel)).is_ok();
            // As a crash leaves it.
            drop(target);
            installed
        })
    };
    let (mut nothing, mut all) = (0, 0);
    for operation in 1.. {
        let disk = FaultyDisk::new();
        disk.cut_power_at(operation);
        let installed = run(&disk);
        // How many operations there are is not always the same.
        let was_cut = disk.is_cut();
        assert!(was_cut || installed, "nothing was in the way");
        for mode in [CutMode::Drop, CutMode::Tear, CutMode::Keep] {
            let what = format!("cut at operation {operation}, {mode:?}");
            runtime().block_on(async {
                let found = open(Arc::new(disk.restart(mode, operation)));
                if found.outline(&name()).is_ok() {
                    all += 1;
                    compare(&found, &parcel, &what).await;
                } else {
                    nothing += 1;
                    assert!(!installed, "{what}: it was safe");
                    let segments = found.shared.log.segments();
                    assert!(segments.iter().all(|segment| segment.live_bytes == 0), "{what}");
                }
                found.shutdown().await;
            });
        }
        if !was_cut {
            break;
        }
    }
    assert!(nothing > 20 && all >= 3, "{nothing} times nothing was there, {all} times all");
}
