//! Frames larger than a segment: each gets a segment of its own, and everything holds for it that holds for
//! others.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use common::*;
use nexo_log::disk::{CutMode, Disk, FaultyDisk, MemoryDisk, RealDisk};
use nexo_log::{
    AppendError, Appended, Claim, EntryKind, EntryRef, FRAME_BYTES_MAX, Log, LogHealth, LogOptions, Urgency,
};
use nexo_types::{Offset, Priority, QueueId};

/// Three small segments would not hold it.
const LARGE: usize = 40_000;

/// Every way to read the frame finds it.
fn assert_reads_back(log: &Log, n: u64, size: usize, appended: Appended) {
    let Appended { at, end } = appended;
    let frame = log.read_frame(at).unwrap();
    assert_eq!((frame.at, frame.end), (at, end));
    assert_eq!(frame.entries[0].payload, payload(n, size));
    let found = log.frames_of(at.segment, QueueId(1), Priority(0), Offset(n)..=Offset(n), 9).unwrap();
    assert_eq!(found.iter().map(|found| found.byte).collect::<Vec<_>>(), [at.byte]);
    assert_eq!(log.read_frames(at.segment, &[at.byte]), [Ok(frame.clone())]);
    assert!(all_frames(log).contains(&frame));
}

#[test]
fn a_frame_larger_than_a_segment_is_read_back_from_memory_file_and_footer_and_after_a_restart() {
    let disk = MemoryDisk::new();
    let (log, _) = open(disk.clone());
    push(&log, 0, 100, Urgency::Lazy).unwrap();
    let large = push(&log, 1, LARGE, Urgency::Lazy).unwrap();
    assert_reads_back(&log, 1, LARGE, large);
    block_on(log.synced(large.end)).unwrap();
    assert_reads_back(&log, 1, LARGE, large);

    let after = push(&log, 2, 100, Urgency::Synced).unwrap();
    assert!(after.at.segment > large.at.segment, "the segment is its own");
    let is_sealed = || log.segments().iter().any(|s| s.id == large.at.segment && s.sealed);
    eventually("the large segment is sealed", is_sealed);
    assert_reads_back(&log, 1, LARGE, large);
    drop(log);

    let (log, recovered) = open(disk);
    assert_eq!((recovered.scanned_segments, recovered.damage.len()), (0, 0));
    assert_reads_back(&log, 1, LARGE, large);
    assert_eq!(all_frames(&log).len(), 3);
}

#[test]
fn the_largest_frame_is_taken_on_a_real_disk_and_a_larger_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let disk = || Arc::new(RealDisk::open(dir.path()).unwrap());
    let (log, _) = Log::open(disk(), small()).unwrap();
    let append = |payload: &[u8]| {
        let entry = EntryRef { queue: QueueId(1), kind: EntryKind::Record, spans: &[], payload };
        log.append(&[entry], Urgency::Synced, Claim::Normal)
    };
    let mut body = vec![7; FRAME_BYTES_MAX];
    let Err(AppendError::TooLarge { bytes, max }) = append(&body) else { panic!("taken") };
    assert_eq!(max, FRAME_BYTES_MAX);
    body.truncate(body.len() - (bytes - max));
    let appended = append(&body).unwrap();
    block_on(log.synced(appended.end)).unwrap();
    drop(log);

    let (log, _) = Log::open(disk(), small()).unwrap();
    assert!(log.read_frame(appended.at).unwrap().entries[0].payload == body, "another body");
}

#[test]
fn frames_just_below_and_above_what_fits_into_a_segment_are_taken() {
    let (log, _) = open(MemoryDisk::new());
    let sizes = 8000..8200;
    for (n, size) in sizes.clone().enumerate() {
        push(&log, n as u64, size, Urgency::Lazy).unwrap();
    }
    let frames = all_frames(&log);
    assert_eq!(frames.len(), sizes.len());
    for (n, (size, frame)) in sizes.zip(frames).enumerate() {
        assert_eq!(frame.entries[0].payload, payload(n as u64, size));
    }
}

#[test]
fn large_frames_in_a_row_use_no_other_segments_and_leave_no_spare_files() {
    let disk = MemoryDisk::new();
    let (log, _) = open(disk.clone());
    push(&log, 0, 100, Urgency::Lazy).unwrap();
    let large: Vec<Appended> = (1..10).map(|n| push(&log, n, LARGE, Urgency::Lazy).unwrap()).collect();
    push(&log, 10, 100, Urgency::Synced).unwrap();
    assert_eq!(log.segments().len(), 11);
    eventually("seals", || log.segments().iter().rev().skip(1).all(|segment| segment.sealed));
    let before = log.stats();
    for appended in &large {
        log.retire(appended.at.segment).unwrap();
    }
    let after = log.stats();
    assert_eq!(after.spare_segments, before.spare_segments);
    assert!(before.disk_bytes - after.disk_bytes >= (large.len() * LARGE) as u64);
    assert_eq!(all_frames(&log).len(), 2);
    drop(log);
    assert_eq!(disk.list("spare").unwrap().len(), 1, "the prepared segment");
}

#[test]
fn a_manifest_may_be_larger_than_a_segment() {
    let disk = MemoryDisk::new();
    let (log, _) = open(disk.clone());
    let text = vec![b'm'; LARGE];
    let at = manifest(&log, &text).unwrap().at;
    push(&log, 0, 100, Urgency::Synced).unwrap();
    drop(log);
    let (_, recovered) = open(disk);
    assert_eq!(recovered.last_manifest, Some((at, text.into())));
}

#[test]
fn others_go_on_appending_around_large_frames() {
    const EACH: u64 = 60;
    let disk = MemoryDisk::new();
    let (log, _) = open(disk.clone());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let log = &log;
            scope.spawn(move || {
                for n in thread * EACH..(thread + 1) * EACH {
                    let size = if thread == 0 || n % 20 == 7 { LARGE } else { 300 };
                    let appended = push(log, n, size, Urgency::Synced).unwrap();
                    if n % 3 == 0 {
                        block_on(log.synced(appended.end)).unwrap();
                        assert_eq!(log.read_frame(appended.at).unwrap().entries[0].payload, payload(n, size));
                    }
                }
            });
        }
    });
    let frames = all_frames(&log);
    assert_eq!(frames.len() as u64, 4 * EACH);
    assert!(frames.is_sorted_by_key(|frame| frame.at));
    drop(log);
    let (log, recovered) = open(disk);
    assert_eq!(recovered.damage, []);
    assert_eq!(all_frames(&log), frames);
}

#[test]
fn a_full_disk_refuses_a_large_frame_and_the_log_goes_on() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    push(&log, 0, 100, Urgency::Lazy).unwrap();
    eventually("a prepared segment", || log.stats().disk_bytes == 2 * 12 * 1024);
    disk.set_bytes_max(Some(disk.used_bytes() + LARGE as u64 / 2));
    for claim in [Claim::Normal, Claim::Reserved] {
        let error = push_as(&log, 1, LARGE, Urgency::Synced, claim).unwrap_err();
        assert!(matches!(&error, AppendError::Full { reason } if reason.contains("large frame")), "{error}");
    }
    assert_eq!(log.health(), LogHealth::Ok, "others are not concerned");
    for n in 1..30 {
        push(&log, n, 500, Urgency::Lazy).unwrap();
    }
    log.sync_blocking().unwrap();
    assert_eq!(all_frames(&log).len(), 30);

    disk.set_bytes_max(None);
    let large = push(&log, 30, LARGE, Urgency::Synced).unwrap();
    block_on(log.synced(large.end)).unwrap();
    drop(log);
    let (log, _) = open(disk);
    assert_reads_back(&log, 30, LARGE, large);
    assert_eq!(all_frames(&log).len(), 31);
}

#[test]
fn a_large_frame_is_refused_rather_than_leaving_no_room_for_what_frees_space() {
    let disk = FaultyDisk::new();
    let (log, _) = open(disk.clone());
    disk.set_bytes_max(Some(30 * 1024));
    let mut taken = 0;
    while push(&log, taken, 500, Urgency::Lazy).is_ok() {
        taken += 1;
    }
    assert!(matches!(log.health(), LogHealth::Full { .. }));
    // The large file would fit now, but no segment after it.
    disk.set_bytes_max(Some(disk.used_bytes() + 40 * 1024));
    let refused = push(&log, taken, 28 * 1024, Urgency::Lazy);
    assert!(matches!(refused, Err(AppendError::Full { .. })), "{refused:?}");
    push_as(&log, 1000, 100, Urgency::Synced, Claim::Reserved).unwrap();
    log.sync_blocking().unwrap();

    disk.set_bytes_max(None);
    eventually("room", || log.health() == LogHealth::Ok);
    push(&log, taken, LARGE, Urgency::Synced).unwrap();
    log.sync_blocking().unwrap();
}

#[test]
fn a_log_that_is_closed_meanwhile_keeps_what_it_took() {
    for delay_micros in (0..2000).step_by(100) {
        let disk = MemoryDisk::new();
        let (log, _) = open(disk.clone());
        let taken = std::thread::scope(|scope| {
            let appending = scope.spawn(|| {
                let results = (0..50).map(|n| push(&log, n, LARGE, Urgency::Lazy));
                results.take_while(Result::is_ok).count()
            });
            std::thread::sleep(std::time::Duration::from_micros(delay_micros));
            log.close();
            appending.join().unwrap()
        });
        drop(log);
        let (log, recovered) = open(disk);
        assert_eq!((recovered.scanned_segments, recovered.damage.len()), (0, 0));
        assert_eq!(all_frames(&log).len(), taken);
    }
}

#[test]
fn any_call_may_fail_around_large_frames_and_what_was_promised_is_still_there() {
    for call in 1..150 {
        let disk = FaultyDisk::new();
        disk.fail_at(call);
        let mut promised = 0;
        let size = |n: u64| if n % 3 == 1 { LARGE } else { 2000 };
        if let Ok((log, _)) = Log::open(Arc::new(disk.clone()), small()) {
            for n in 0..20 {
                let Ok(appended) = push(&log, n, size(n), Urgency::Synced) else { break };
                if block_on(log.synced(appended.end)).is_err() {
                    break;
                }
                promised = n + 1;
            }
        }
        let (log, recovered) = open(disk);
        assert_eq!(recovered.damage, [], "call {call}");
        let frames = all_frames(&log);
        assert!(frames.len() as u64 >= promised, "call {call}: {} of {promised}", frames.len());
        for (n, frame) in (0..).zip(&frames) {
            assert_eq!(frame.entries[0].payload, payload(n, size(n)), "call {call}");
        }
    }
}

#[test]
fn recovery_reads_a_large_frame_once() {
    let size = 1_000_000;
    let disk = FaultyDisk::new();
    let options = || LogOptions { segment_bytes: 16 * 1024, ..small() };
    let (log, _) = Log::open(Arc::new(disk.clone()), options()).unwrap();
    let large = push(&log, 0, size, Urgency::Synced).unwrap();
    block_on(log.synced(large.end)).unwrap();
    disk.cut_power();
    drop(log);
    let disk = disk.restart(CutMode::Keep, 0);
    let (log, recovered) = Log::open(Arc::new(disk.clone()), options()).unwrap();
    assert!(recovered.scanned_segments > 0);
    let read = disk.read_bytes();
    assert!(read < size as u64 + 100_000, "{read} bytes were read");
    assert_reads_back(&log, 0, size, large);
}

#[test]
fn damage_to_a_large_frame_is_reported_and_what_follows_is_kept() {
    let memory = MemoryDisk::new();
    let disk = FaultyDisk::from_memory(memory.clone());
    let (log, _) = open(disk.clone());
    let large = push(&log, 0, LARGE, Urgency::Synced).unwrap();
    push(&log, 1, 100, Urgency::Synced).unwrap();
    log.sync_blocking().unwrap();
    eventually("a seal", || log.segments().iter().any(|s| s.id == large.at.segment && s.sealed));
    disk.cut_power();
    drop(log);
    let disk = memory.after_power_cut(CutMode::Keep, 0);
    disk.flip_bit(&format!("segments/{}.seg", large.at.segment), large.at.byte as usize + LARGE / 2, 1);
    let (log, _) = open(disk.clone());
    let mut frames = Vec::new();
    let damage = log
        .replay(nexo_types::Position::default(), &mut |frame| {
            frames.push(frame);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(damage.iter().map(|damage| damage.at).collect::<Vec<_>>(), [large.at]);
    assert_eq!(disk.list("damaged").unwrap().len(), 1);
    assert_eq!(frames.len(), 1);
    assert!(log.read_frame(large.at).is_err());
}
