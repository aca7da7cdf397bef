//! A disk that is full, and a disk that fails.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use common::*;
use nexo_log::disk::FaultyDisk;
use nexo_log::{
    AppendError, Claim, Log, LogError, LogHealth, LogOptions, OPEN_FILES_MAX, OpenError,
    SEALED_FILES_OPEN_MAX, Urgency,
};

fn is_full(log: &Log) -> bool {
    matches!(log.health(), LogHealth::Full { .. })
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
    eventually("the log finds the new room", || log.health() == LogHealth::Ok);
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
    // A checkpoint still fits: it is what frees space.
    push_as(&log, 20_000, 200, Urgency::Lazy, Claim::Checkpoint).unwrap();
    log.sync_blocking().unwrap();
    assert_eq!(all_frames(&log).len() as u64, taken + reserved + 1);
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
    assert!(matches!(log.health(), LogHealth::Failed { .. }));
    assert!(matches!(log.stats().health, LogHealth::Failed { .. }));
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
    assert!(matches!(log.health(), LogHealth::Failed { .. }));
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

const EDQUOT: i32 = 122;
const ENOSPC: i32 = 28;
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
/// What a disk says that has none of something for now.
const SHORTAGES: [i32; 4] = [ENOSPC, EDQUOT, EMFILE, ENFILE];

#[test]
fn sealed_segments_keep_no_descriptor() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    for n in 0..3_000 {
        push(&log, n, 500, Urgency::Lazy).unwrap();
    }
    log.sync_blocking().unwrap();
    eventually("all full segments are sealed", || {
        let segments = log.segments();
        segments.len() > 2 * SEALED_FILES_OPEN_MAX && segments.iter().rev().skip(1).all(|s| s.sealed)
    });
    assert!(disk.open_files() < 10, "{} files are open", disk.open_files());
    assert_eq!(all_frames(&log).len(), 3_000);
    assert!(disk.open_files() <= OPEN_FILES_MAX, "{} files are open", disk.open_files());
    drop(log);

    let (log, _) = open(disk.clone());
    assert!(disk.open_files() < 10, "{} files are open after a start", disk.open_files());
    assert_eq!(all_frames(&log).len(), 3_000);
    let oldest = log.segments()[0].id;
    log.retire(oldest).unwrap();
    assert!(log.read_frames(oldest, &[4096])[0].is_err());
}

#[test]
fn without_descriptors_the_log_refuses_and_goes_on_when_there_are_some() {
    for (errno, words) in [(EMFILE, "Too many open files"), (ENFILE, "Too many open files in system")] {
        run_out_of_descriptors(errno, words);
    }
}

fn run_out_of_descriptors(errno: i32, words: &str) {
    let disk = FaultyDisk::new();
    disk.set_open_files_errno(errno);
    let (log, _) = open(disk.clone());
    eventually("a prepared segment", || log.stats().disk_bytes > 12 * 1024);
    disk.set_open_files_max(Some(disk.open_files()));
    let taken = fill(&log, 0);
    assert!(taken > 20, "the room there is is used: {taken}");
    let LogHealth::Full { reason } = log.health() else { panic!("{:?}", log.health()) };
    assert!(reason.contains(words), "{reason}");
    push_as(&log, 10_000, 100, Urgency::Synced, Claim::Reserved).unwrap();
    log.sync_blocking().unwrap();

    disk.set_open_files_max(None);
    eventually("the log finds descriptors", || log.health() == LogHealth::Ok);
    push(&log, taken, 500, Urgency::Synced).unwrap();
    log.sync_blocking().unwrap();
    assert_eq!(all_frames(&log).len() as u64, taken + 2);
    drop(log);
    assert_eq!(all_frames(&open(disk).0).len() as u64, taken + 2);
}

#[test]
fn a_spare_file_that_cannot_be_opened_now_is_used_later() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    let mut n = 0;
    while log.segments().len() < 3 {
        push(&log, n, 500, Urgency::Lazy).unwrap();
        n += 1;
    }
    log.sync_blocking().unwrap();
    eventually("two are sealed", || log.stats().sealed_segments == 2);
    for segment in &log.segments()[..2] {
        log.retire(segment.id).unwrap();
    }
    eventually("spares", || log.stats().spare_segments > 0);
    let used = disk.used_bytes();
    disk.set_open_files_max(Some(0));
    let taken = fill(&log, n);
    disk.set_open_files_max(None);
    eventually("the log finds descriptors", || log.health() == LogHealth::Ok);
    push(&log, taken, 500, Urgency::Synced).unwrap();
    assert_eq!(disk.used_bytes(), used, "the spare file was used, and none was made");
}

#[test]
fn a_quota_that_is_used_up_is_a_full_disk() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    disk.set_full_errno(EDQUOT);
    disk.set_bytes_max(Some(45 * 1024));
    let taken = fill(&log, 0);
    disk.set_bytes_max(None);
    eventually("the log finds the new room", || log.health() == LogHealth::Ok);
    assert_eq!(all_frames(&log).len() as u64, taken);
}

#[test]
fn a_write_that_finds_no_room_is_done_when_there_is_room() {
    for errno in SHORTAGES {
        run_out_of_room(errno);
    }
}

fn run_out_of_room(errno: i32) {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    eventually("a prepared segment", || log.stats().disk_bytes > 12 * 1024);
    disk.fail_writes_with(Some(errno));
    let first = push(&log, 0, 10, Urgency::Synced).unwrap();
    eventually("the log says so", || is_full(&log));
    assert!(matches!(push(&log, 9, 10, Urgency::Lazy), Err(AppendError::Full { .. })));
    push_as(&log, 1, 10, Urgency::Lazy, Claim::Reserved).unwrap();
    assert!(log.synced_position() < first.end, "nothing is promised that was not written");

    disk.fail_writes_with(None);
    block_on(log.synced(first.end)).unwrap();
    eventually("the log says so", || log.health() == LogHealth::Ok);
    push(&log, 2, 10, Urgency::Synced).unwrap();
    log.sync_blocking().unwrap();
    drop(log);
    let numbers: Vec<u64> = all_frames(&open(disk).0)
        .iter()
        .map(|frame| u64::from_le_bytes(frame.entries[0].payload[..8].try_into().unwrap()))
        .collect();
    assert_eq!(numbers, [0, 1, 2]);
}

#[test]
fn any_call_may_run_short_once_and_the_log_goes_on() {
    for errno in SHORTAGES {
        (1..110).for_each(|call| run_short_once(call, errno));
    }
}

fn run_short_once(call: u64, errno: i32) {
    let disk = FaultyDisk::new();
    disk.run_short_at(call, errno);
    // An opening may be refused. The next one finds all it needs.
    let log = Log::open(Arc::new(disk.clone()), small()).map(|(log, _)| log);
    let log = log.unwrap_or_else(|_| open(disk.clone()).0);
    for n in 0..40 {
        eventually("it is taken", || match push(&log, n, 700, Urgency::Synced) {
            Ok(_) => true,
            Err(AppendError::Full { .. }) => false,
            Err(other) => panic!("{other}"),
        });
        log.sync_blocking().unwrap_or_else(|error| panic!("call {call}, {errno}: {error}"));
    }
    eventually("all full segments are sealed", || {
        log.segments().iter().rev().skip(1).all(|segment| segment.sealed)
    });
    let oldest = log.segments()[0].id;
    log.retire(oldest).unwrap();
    eventually("the log is well", || log.health() == LogHealth::Ok);
    let frames = all_frames(&log).len();
    drop(log);
    assert_eq!(all_frames(&open(disk).0).len(), frames, "call {call}, {errno}");
}
