//! A disk that is full, and a disk that fails.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use common::*;
use nexo_log::disk::FaultyDisk;
use nexo_log::{AppendError, Claim, Health, Log, LogError, LogOptions, OpenError, Urgency};

fn is_full(log: &Log) -> bool {
    matches!(log.health(), Health::Full { .. })
}

/// Pushes until the log refuses, and says how many were taken.
fn fill(log: &Log, from: u64) -> u64 {
    for n in from.. {
        match push(log, n, 500, Urgency::Lazy) {
            Ok(_) => {}
            Err(AppendError::Full { reason }) => {
                assert!(reason.contains("no room for another segment"), "{reason}");
                return n;
            }
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!()
}

#[test]
fn a_full_disk_refuses_pushes_takes_acknowledgements_and_recovers_by_itself() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    disk.set_bytes_max(Some(45 * 1024));
    let taken = fill(&log, 0);
    assert!(taken > 20, "the room there is is used: {taken}");
    assert!(is_full(&log));
    let reserved = push_as(&log, 10_000, 100, Urgency::Synced, Claim::Reserved).unwrap();
    block_on(log.synced(reserved.end)).unwrap();

    disk.set_bytes_max(None);
    eventually("the log finds the new room", || log.health() == Health::Ok);
    push(&log, taken, 500, Urgency::Synced).unwrap();
    log.sync_blocking().unwrap();
    assert_eq!(all_frames(&log).len() as u64, taken + 2);
}

#[test]
fn the_reserve_ends_too_but_without_harm() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    disk.set_bytes_max(Some(30 * 1024));
    let taken = fill(&log, 0);
    let mut reserved = 0;
    while push_as(&log, 10_000 + reserved, 100, Urgency::Lazy, Claim::Reserved).is_ok() {
        reserved += 1;
    }
    assert!(reserved > 3, "only {reserved}");
    log.sync_blocking().unwrap();
    assert_eq!(all_frames(&log).len() as u64, taken + reserved);
}

#[test]
fn retiring_a_segment_makes_room_at_once() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    disk.set_bytes_max(Some(45 * 1024));
    let taken = fill(&log, 0);
    let oldest = log.segments()[0].id;
    eventually("the oldest is sealed", || log.segments()[0].sealed);
    log.retire(oldest).unwrap();
    eventually("room", || !is_full(&log));
    assert!(fill(&log, taken) > taken);
}

#[test]
fn a_full_disk_can_still_be_opened_and_worked_off() {
    let disk = FaultyDisk::new();
    let options = || LogOptions { segment_bytes: 64 * 1024, spare_segments_max: 0, ..small() };
    let (log, _) = Log::open(Arc::new(disk.clone()), options()).unwrap();
    push(&log, 0, 100, Urgency::Synced).unwrap();
    log.close();
    drop(log);
    disk.set_bytes_max(Some(disk.used_bytes() + 20 * 1024));

    let (log, _) = Log::open(Arc::new(disk.clone()), options()).unwrap();
    fill(&log, 1);
    push_as(&log, 2, 100, Urgency::Synced, Claim::Reserved).unwrap();
    log.sync_blocking().unwrap();
    drop(log);

    disk.set_bytes_max(Some(disk.used_bytes()));
    let error = Log::open(Arc::new(disk), options()).unwrap_err();
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
}

#[test]
fn a_failed_sync_fails_the_log_and_everybody_who_waits() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    eventually("a prepared segment", || log.stats().disk_bytes > 12 * 1024);
    disk.fail_next_sync();
    let appended = push(&log, 0, 10, Urgency::Synced).unwrap();
    let error = block_on(log.synced(appended.end)).unwrap_err();
    assert!(matches!(&error, LogError::Failed { reason } if reason.contains("sync")), "{error}");
    // The next sync would succeed, but it would prove nothing about what the failed one should have written.
    assert!(block_on(log.synced(appended.end)).is_err());
    assert!(log.sync_blocking().is_err());
    assert!(matches!(push(&log, 1, 10, Urgency::Lazy), Err(AppendError::Failed { .. })));
    assert!(matches!(log.health(), Health::Failed { .. }));
    assert!(matches!(log.stats().health, Health::Failed { .. }));
}

#[test]
fn a_failed_write_fails_the_log() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    eventually("a prepared segment", || log.stats().disk_bytes > 12 * 1024);
    disk.fail_next_write();
    let appended = push(&log, 0, 10, Urgency::Written).unwrap();
    let error = block_on(log.written(appended.end)).unwrap_err();
    assert!(matches!(&error, LogError::Failed { reason } if reason.contains("write")), "{error}");
    assert!(matches!(log.health(), Health::Failed { .. }));
    log.close();
}

#[test]
fn any_call_may_fail_and_what_was_promised_is_still_there() {
    for n in 1..120 {
        let disk = FaultyDisk::new();
        disk.fail_at(n);
        let mut promised = 0;
        if let Ok((log, _)) = Log::open(Arc::new(disk.clone()), small()) {
            for n in 0..40 {
                let Ok(appended) = push(&log, n, 700, Urgency::Synced) else { break };
                if block_on(log.synced(appended.end)).is_err() {
                    break;
                }
                promised = n + 1;
            }
        }
        let (log, recovered) = open(disk);
        assert_eq!(recovered.damage, [], "call {n}");
        let frames = all_frames(&log);
        assert!(frames.len() as u64 >= promised, "call {n}: {} of {promised}", frames.len());
        for (i, frame) in frames.iter().enumerate() {
            assert_eq!(frame.entries[0].payload, payload(i as u64, 700), "call {n}");
        }
    }
}
