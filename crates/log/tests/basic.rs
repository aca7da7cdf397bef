//! The log on a good day: append, wait, read, reopen, retire; on the real disk and in memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use nexo_log::disk::{MemoryDisk, RealDisk};
use nexo_log::{
    AppendError, Claim, EntryKind, EntryRef, Log, LogError, LogHealth, LogOptions, OpenError, ReadError,
    Span, Urgency,
};
use nexo_types::{Offset, Position, Priority, QueueId, SegmentId};

#[test]
fn what_was_appended_is_read_back_before_and_after_it_is_written() {
    let (log, _) = open(MemoryDisk::new());
    let span = Span { lane: Priority(9), first: Offset(5), last: Offset(7), count: 3 };
    let entries = [
        EntryRef { queue: QueueId(300), kind: EntryKind::Messages, spans: &[span], payload: b"three" },
        EntryRef { queue: QueueId(1), kind: EntryKind::Record, spans: &[], payload: b"" },
    ];
    let appended = log.append(&entries, Urgency::Lazy, Claim::Normal).unwrap();

    for _ in 0..2 {
        let frame = log.read_frame(appended.at).unwrap();
        assert_eq!((frame.at, frame.end), (appended.at, appended.end));
        assert_eq!(frame.entries.len(), 2);
        assert_eq!(frame.entries[0].queue, QueueId(300));
        assert_eq!(frame.entries[0].spans, [span]);
        assert_eq!(&frame.entries[0].payload[..], b"three");
        assert_eq!(frame.entries[1].kind, EntryKind::Record);
        block_on(log.synced(appended.end)).unwrap();
    }
    assert!(matches!(log.read_frame(appended.end), Err(ReadError::NoFrame { .. })));
}

#[test]
fn a_real_directory_holds_the_log_across_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let disk = || RealDisk::open(dir.path().join("data")).unwrap();
    let (log, recovered) = open(disk());
    assert_eq!(recovered.last_manifest, None);
    for n in 0..100 {
        push(&log, n, 300, Urgency::Written).unwrap();
    }
    let at = manifest(&log, b"start here").unwrap().at;
    let appended = push(&log, 100, 10, Urgency::Synced).unwrap();
    block_on(log.synced(appended.end)).unwrap();
    let before = all_frames(&log);
    log.close();
    assert!(matches!(push(&log, 101, 1, Urgency::Lazy), Err(AppendError::Closed)));
    drop(log);

    let (log, recovered) = open(disk());
    assert_eq!(recovered.scanned_segments, 0, "a closed log needs no scan");
    assert_eq!(recovered.damage, []);
    assert_eq!(recovered.end, appended.end);
    assert_eq!(
        recovered.last_manifest.map(|(at, text)| (at, text.to_vec())),
        Some((at, b"start here".to_vec()))
    );
    assert_eq!(all_frames(&log), before);
    assert!(push(&log, 102, 1, Urgency::Synced).unwrap().at > appended.end);
}

#[test]
fn lazy_appends_are_written_and_synced_although_nobody_waits() {
    let (log, _) = open(MemoryDisk::new());
    let appended = push(&log, 1, 10, Urgency::Lazy).unwrap();
    eventually("a background sync", || log.synced_position() >= appended.end);
}

#[test]
fn full_segments_are_sealed_and_retired_ones_are_used_again() {
    let (log, _) = open(MemoryDisk::new());
    let rotations = Arc::new(AtomicU32::new(0));
    let seen = rotations.clone();
    log.on_rotate(Box::new(move |id| {
        seen.fetch_max(id.0, Ordering::Relaxed);
    }));
    let first = push(&log, 0, 1000, Urgency::Synced).unwrap().at;
    for n in 1..40 {
        push(&log, n, 1000, Urgency::Lazy).unwrap();
    }
    log.sync_blocking().unwrap();
    let active = log.segments().last().unwrap().id;
    assert_eq!(rotations.load(Ordering::Relaxed), active.0);
    eventually("all but the active are sealed", || {
        log.segments().iter().all(|segment| segment.sealed || segment.id == active)
    });

    assert_eq!(log.retire(active), Err(LogError::NotSealed { segment: active }));
    log.account(first.segment, 50);
    log.account(first.segment, -20);
    assert_eq!(log.segments()[0].live_bytes, 30);
    log.retire(first.segment).unwrap();
    assert_eq!(log.read_frame(first), Err(ReadError::Retired { segment: first.segment }));
    assert!(log.read_frames(first.segment, &[first.byte])[0].is_err());
    assert_eq!(log.retire(first.segment), Err(LogError::NoSegment { segment: first.segment }));

    let before = all_frames(&log);
    for n in 40..60 {
        push(&log, n, 1000, Urgency::Lazy).unwrap();
    }
    let after = all_frames(&log);
    assert_eq!(after[..before.len()], before);
    assert_eq!(after.len(), before.len() + 20, "the reused file shows only new frames");
}

#[test]
fn sealing_keeps_up_with_appends_that_never_pause() {
    let (log, _) = open(MemoryDisk::new());
    for n in 0..600 {
        push(&log, n, 1000, Urgency::Lazy).unwrap();
        let unsealed = log.segments().iter().filter(|segment| !segment.sealed).count();
        assert!(unsealed <= 4, "{unsealed} segments wait to be sealed");
    }
}

#[test]
fn segment_numbers_are_not_used_again_after_a_restart() {
    let disk = MemoryDisk::new();
    let (log, _) = open(disk.clone());
    let pushed: Vec<_> = (0..40).map(|n| push(&log, n, 1000, Urgency::Lazy).unwrap()).collect();
    let last = pushed.last().unwrap();
    log.close();
    let (log, _) = open(disk);
    assert!(push(&log, 40, 10, Urgency::Lazy).unwrap().at.segment > last.at.segment);
}

#[test]
fn a_second_opener_is_refused_until_the_first_has_closed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = || Arc::new(RealDisk::open(dir.path()).unwrap());
    let (log, _) = Log::open(disk(), small()).unwrap();
    let error = Log::open(disk(), small()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&dir.path().display().to_string()));
    drop(log);
    Log::open(disk(), small()).unwrap();
}

#[test]
fn a_directory_that_is_not_ours_is_refused_and_left_alone() {
    for (name, text, expected) in [
        ("precious.txt", "mine", "is not a Nexo data directory"),
        ("FORMAT", "nexo-data 10\n", "version 10"),
        ("FORMAT", "nexo-data 1\n", "says 'nexo-data 1'"),
        ("FORMAT", "something\n", "is not a Nexo data directory"),
        ("segments", "", ""),
    ] {
        let dir = tempfile::tempdir().unwrap();
        if name == "segments" {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join("segments/other"), "x").unwrap();
        } else {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let error = Log::open(Arc::new(RealDisk::open(dir.path()).unwrap()), small()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [name], "nothing was added");
    }
}

#[test]
fn a_newer_format_names_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("FORMAT"), "nexo-data 10\n").unwrap();
    let error = Log::open(Arc::new(RealDisk::open(dir.path()).unwrap()), small()).unwrap_err();
    assert!(error.to_string().contains("version 10") && error.to_string().contains("version 9"), "{error}");
}

#[test]
fn an_older_format_is_opened_and_raised_so_that_its_release_refuses_it() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Log::open(Arc::new(RealDisk::open(dir.path()).unwrap()), small()).unwrap();
    let (log, _) = open();
    let entry = EntryRef { queue: QueueId(1), kind: EntryKind::Record, spans: &[], payload: b"before" };
    let appended = log.append(&[entry], Urgency::Synced, Claim::Normal).unwrap();
    block_on(log.synced(appended.end)).unwrap();
    drop(log);
    let format = dir.path().join("FORMAT");
    assert_eq!(std::fs::read_to_string(&format).unwrap(), "nexo-data 9\n");
    std::fs::write(&format, "nexo-data 2\n").unwrap();
    let (log, _) = open();
    assert_eq!(&log.read_frame(appended.at).unwrap().entries[0].payload[..], b"before");
    assert_eq!(std::fs::read_to_string(&format).unwrap(), "nexo-data 2\n", "it may still be refused");
    log.raise_format().unwrap();
    assert_eq!(std::fs::read_to_string(&format).unwrap(), "nexo-data 9\n");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let options = LogOptions { segment_bytes: 4096, ..LogOptions::default() };
    let error = Log::open(Arc::new(MemoryDisk::new()), options).unwrap_err();
    assert!(matches!(error, OpenError::BadOption { .. }), "{error}");
}

#[test]
fn many_threads_share_few_syncs_and_positions_keep_order() {
    const THREADS: u64 = 8;
    const EACH: u64 = 200;
    let disk = Arc::new(MemoryDisk::new());
    let options = LogOptions { segment_bytes: 64 * 1024, ..small() };
    let (log, _) = Log::open(disk, options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let log = log.clone();
            scope.spawn(move || {
                let mut last = Position::default();
                for chunk in 0..EACH / 4 {
                    let mut end = last;
                    for i in 0..4 {
                        let appended =
                            push(&log, thread * EACH + chunk * 4 + i, 20, Urgency::Synced).unwrap();
                        assert!(appended.at >= end && appended.end > appended.at);
                        end = appended.end;
                    }
                    block_on(log.synced(end)).unwrap();
                    assert!(log.synced_position() >= end);
                    last = end;
                }
            });
        }
    });
    let stats = log.stats();
    assert_eq!(stats.frames, THREADS * EACH);
    assert!(stats.syncs < stats.frames, "{} syncs for {} frames", stats.syncs, stats.frames);
    assert_eq!(stats.health, LogHealth::Ok);
    assert_eq!(all_frames(&log).len() as u64, THREADS * EACH);
}

#[test]
fn waiting_for_what_is_reached_is_ready_at_once() {
    let (log, _) = open(MemoryDisk::new());
    let appended = push(&log, 0, 10, Urgency::Written).unwrap();
    block_on(log.written(appended.end)).unwrap();
    block_on(log.synced(appended.end)).unwrap();
    block_on(log.synced(Position { segment: SegmentId(u32::MAX), byte: 0 })).unwrap();
    assert_eq!(log.stats().groups, 1);
}

#[test]
fn an_idle_log_does_nothing() {
    let (log, _) = open(MemoryDisk::new());
    push(&log, 0, 10, Urgency::Synced).unwrap();
    log.sync_blocking().unwrap();
    eventually("the first sync", || log.stats().syncs == 1);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((log.stats().syncs, log.stats().groups), (1, 1));
}

#[test]
fn nobody_else_can_read_the_data_also_where_they_could_before() {
    use std::os::unix::fs::PermissionsExt;
    fn modes(dir: &std::path::Path, found: &mut Vec<(std::path::PathBuf, u32)>) {
        found.push((dir.to_owned(), dir.metadata().unwrap().permissions().mode() & 0o777));
        if dir.is_dir() {
            for entry in std::fs::read_dir(dir).unwrap() {
                modes(&entry.unwrap().path(), found);
            }
        }
    }
    let check = |dir: &std::path::Path| {
        let mut found = Vec::new();
        modes(dir, &mut found);
        assert!(found.len() > 6, "{found:?}");
        for (path, mode) in found {
            assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
        }
    };
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("data");
    let (log, _) = open(RealDisk::open(&dir).unwrap());
    push(&log, 1, 10, Urgency::Synced).unwrap();
    log.close();
    check(&dir);

    let mut all = Vec::new();
    modes(&dir, &mut all);
    for (path, _) in all {
        let open = if path.is_dir() { 0o755 } else { 0o644 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(open)).unwrap();
    }
    let (log, _) = open(RealDisk::open(&dir).unwrap());
    log.close();
    check(&dir);
}
