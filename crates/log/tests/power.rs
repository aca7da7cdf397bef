//! The power goes at every operation of a run, and whatever the disk then holds, no promise is broken.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::*;
use nexo_log::disk::{CutMode, Disk, FaultyDisk, MemoryDisk};
use nexo_log::{EntryKind, Frame, Log, Urgency};
use nexo_types::{Offset, Position, Priority, QueueId, SegmentId};

/// What a run did, to compare with what is found afterwards.
#[derive(Default)]
struct History {
    /// Every frame, in order: where, and its payload.
    appended: Vec<(Position, Vec<u8>)>,
    /// How many of them were promised to be safe.
    durable: usize,
    /// Segments that may or may not be gone.
    retired: BTreeSet<SegmentId>,
    last_durable_manifest: Option<Position>,
    next: u64,
}

impl History {
    fn push(&mut self, log: &Log, urgency: Urgency) -> bool {
        let size = 100 + (self.next as usize * 397) % 1500;
        self.push_sized(log, size, urgency)
    }

    fn push_sized(&mut self, log: &Log, size: usize, urgency: Urgency) -> bool {
        let n = self.next;
        self.next += 1;
        let Ok(appended) = push(log, n, size, urgency) else { return false };
        self.appended.push((appended.at, payload(n, size)));
        match urgency {
            Urgency::Synced => self.await_sync(log, appended.end),
            Urgency::Written => block_on(log.written(appended.end)).is_ok(),
            Urgency::Lazy => true,
        }
    }

    fn manifest(&mut self, log: &Log) -> bool {
        let text = format!("manifest {}", self.next).into_bytes();
        self.next += 1;
        let Ok(appended) = manifest(log, &text) else { return false };
        self.appended.push((appended.at, text));
        let synced = self.await_sync(log, appended.end);
        if synced {
            self.last_durable_manifest = Some(appended.at);
        }
        synced
    }

    fn await_sync(&mut self, log: &Log, end: Position) -> bool {
        let synced = block_on(log.synced(end)).is_ok();
        if synced {
            self.durable = self.appended.len();
        }
        synced
    }

    fn retire_oldest(&mut self, log: &Log) -> bool {
        let Some(oldest) = log.segments().first().copied().filter(|segment| segment.sealed) else {
            return true;
        };
        if Some(oldest.id) == self.last_durable_manifest.map(|at| at.segment) {
            return true;
        }
        self.retired.insert(oldest.id);
        log.retire(oldest.id).is_ok()
    }

    /// Frames that must be found if they are durable.
    fn kept(&self) -> impl Iterator<Item = (usize, &(Position, Vec<u8>))> {
        self.appended.iter().enumerate().filter(|(_, (at, _))| !self.retired.contains(&at.segment))
    }

    /// Checks what is found, and forgets what was cut.
    fn check(&mut self, frames: &[Frame], what: &str) {
        let found: Vec<_> = frames
            .iter()
            .filter(|frame| !self.retired.contains(&frame.at.segment))
            .map(|frame| (frame.at, frame.entries[0].payload.to_vec()))
            .collect();
        let kept: Vec<_> = self.kept().map(|(_, frame)| frame.clone()).collect();
        let durable = self.kept().filter(|(i, _)| *i < self.durable).count();
        assert!(found.len() >= durable, "{what}: {} frames found, {durable} were promised", found.len());
        assert!(found.len() <= kept.len(), "{what}: more frames than were appended");
        assert!(found == kept[..found.len()], "{what}: other frames than were appended");
        self.appended = found;
        self.durable = self.appended.len();
    }
}

/// A run with every kind of thing. Ends early when the power goes.
fn script(log: &Log, history: &mut History) -> bool {
    let urgencies = [Urgency::Synced, Urgency::Lazy, Urgency::Written, Urgency::Lazy, Urgency::Synced];
    for round in 0..5 {
        for urgency in urgencies {
            if !history.push(log, urgency) || !history.push(log, Urgency::Lazy) {
                return false;
            }
        }
        if !history.manifest(log) || (round >= 2 && !history.retire_oldest(log)) {
            return false;
        }
    }
    true
}

/// A run with frames that are larger than a segment, alone and in a row, among others.
fn oversize_script(log: &Log, history: &mut History) -> bool {
    for round in 0..4 {
        let urgency = [Urgency::Synced, Urgency::Lazy][round % 2];
        if !history.push(log, Urgency::Lazy)
            || !history.push_sized(log, OVERSIZE + 5000 * round, urgency)
            || (round > 1 && !history.push_sized(log, OVERSIZE, Urgency::Written))
            || !history.push(log, urgency)
            || !history.manifest(log)
            || (round > 0 && !history.retire_oldest(log))
        {
            return false;
        }
    }
    true
}

/// Larger than a small segment.
const OVERSIZE: usize = 13_000;

/// Something to do until the power goes; says whether it came to its end.
type Script = fn(&Log, &mut History) -> bool;

const SCRIPT_FRAMES: usize = 55;
const OVERSIZE_SCRIPT_FRAMES: usize = 18;

fn run(disk: &FaultyDisk, history: &mut History, script: Script) {
    if let Ok((log, _)) = Log::open(Arc::new(disk.clone()), small()) {
        script(&log, history);
        log.close();
    }
}

fn reopen_and_check(disk: &FaultyDisk, history: &mut History, what: &str) -> Log {
    let (log, recovered) = Log::open(Arc::new(disk.clone()), small())
        .unwrap_or_else(|error| panic!("{what}: the log does not open: {error}"));
    assert_eq!(recovered.damage, [], "{what}: a cut is not damage");
    let frames = all_frames(&log);
    history.check(&frames, what);
    check_index(&log, &frames, what);
    if let Some(at) = history.last_durable_manifest {
        let found = recovered.last_manifest.as_ref().map(|(at, _)| *at);
        assert!(found >= Some(at), "{what}: manifest {at} was durable; found {found:?}");
    }
    log
}

/// The index of every segment, sealed or not, knows the frames that are there.
fn check_index(log: &Log, frames: &[Frame], what: &str) {
    for segment in log.segments() {
        let all = Offset(0)..=Offset(u64::MAX);
        let known = log.frames_of(segment.id, QueueId(1), Priority(0), all, usize::MAX).unwrap();
        let there: Vec<u32> = frames
            .iter()
            .filter(|frame| frame.at.segment == segment.id && frame.entries[0].kind == EntryKind::Messages)
            .map(|frame| frame.at.byte)
            .collect();
        assert_eq!(known.iter().map(|frame| frame.byte).collect::<Vec<_>>(), there, "{what}");
    }
    assert_eq!(log.stats().damage, 0, "{what}: a footer did not verify");
}

/// How many operations a run takes. It varies a little with the timing of threads.
fn operations(script: Script, frames: usize) -> u64 {
    let disk = FaultyDisk::new();
    let mut history = History::default();
    run(&disk, &mut history, script);
    assert_eq!(history.appended.len(), frames, "the script runs to its end without faults");
    reopen_and_check(&disk.restart(CutMode::Drop, 0), &mut history, "no cut");
    assert!(disk.operations() > 60, "the script does something");
    disk.operations()
}

fn cut_everywhere(mode: CutMode) {
    cut_script_everywhere(mode, script, SCRIPT_FRAMES);
}

fn cut_script_everywhere(mode: CutMode, script: Script, frames: usize) {
    for n in 1..=operations(script, frames) + 5 {
        let what = format!("{mode:?} at operation {n}");
        let disk = FaultyDisk::new();
        disk.cut_power_at(n);
        let mut history = History::default();
        run(&disk, &mut history, script);

        // Go on after the cut, lose the power again somewhere, and look once more.
        let disk = disk.restart(mode, n);
        let log = reopen_and_check(&disk, &mut history, &what);
        disk.cut_power_at(disk.operations() + 1 + n * 7 % 40);
        script(&log, &mut history);
        drop(log);
        let disk = disk.restart(mode, n + 1000);
        let what = format!("{what}, and again");
        let log = reopen_and_check(&disk, &mut history, &what);
        assert!(history.push(&log, Urgency::Synced), "{what}: the log takes appends");
        drop(log);
        reopen_and_check(&disk, &mut history, &format!("{what}, closed"));
    }
}

#[test]
fn a_cut_that_keeps_unsynced_writes_breaks_no_promise() {
    cut_everywhere(CutMode::Keep);
}

#[test]
fn a_cut_that_drops_unsynced_writes_breaks_no_promise() {
    cut_everywhere(CutMode::Drop);
}

#[test]
fn a_cut_that_tears_unsynced_writes_breaks_no_promise() {
    cut_everywhere(CutMode::Tear);
}

#[test]
fn a_cut_that_reorders_unsynced_writes_breaks_no_promise() {
    cut_everywhere(CutMode::Reorder);
}

#[test]
fn a_cut_around_frames_larger_than_a_segment_breaks_no_promise() {
    for mode in CutMode::ALL {
        cut_script_everywhere(mode, oversize_script, OVERSIZE_SCRIPT_FRAMES);
    }
}

#[test]
fn a_cut_during_recovery_breaks_no_promise() {
    cut_recovery(script);
}

#[test]
fn a_cut_during_recovery_of_frames_larger_than_a_segment_breaks_no_promise() {
    cut_recovery(oversize_script);
}

fn cut_recovery(script: Script) {
    for mode in CutMode::ALL {
        for n in 1..=40 {
            let disk = FaultyDisk::new();
            disk.cut_power_at(60 + n);
            let mut history = History::default();
            run(&disk, &mut history, script);
            let mut disk = disk.restart(mode, n);
            for again in 1..=3 {
                disk.cut_power_at(n % 13 + again);
                drop(Log::open(Arc::new(disk.clone()), small()));
                disk = disk.restart(mode, n + again);
            }
            reopen_and_check(&disk, &mut history, &format!("{mode:?} during recovery, {n}"));
        }
    }
}

#[test]
fn an_older_format_is_raised_whole_wherever_the_power_goes() {
    let older = MemoryDisk::new();
    let (log, _) = open(older.clone());
    let appended = push(&log, 1, 100, Urgency::Synced).unwrap();
    block_on(log.synced(appended.end)).unwrap();
    drop(log);
    let format = older.create("FORMAT").unwrap();
    format.write_at(b"nexo-data 2\n", 0).unwrap();
    format.sync_data().unwrap();
    older.sync_dir("").unwrap();
    let open_and_raise = |disk: &FaultyDisk| {
        let (log, _) = Log::open(Arc::new(disk.clone()), small()).ok()?;
        let before = disk.operations();
        log.raise_format().ok()?;
        Some((before, disk.operations()))
    };
    let fresh = || FaultyDisk::from_memory(older.after_power_cut(CutMode::Keep, 0));
    let (before, after) = open_and_raise(&fresh()).unwrap();
    assert!(after - before >= 5, "a file is written, synced and renamed: {before} to {after}");
    let mut found = BTreeSet::new();
    for operation in 1..=after + 1 {
        let disk = fresh();
        disk.cut_power_at(operation);
        let raised = open_and_raise(&disk);
        for mode in [CutMode::Keep, CutMode::Drop, CutMode::Tear, CutMode::Reorder] {
            let what = format!("cut at operation {operation}, {mode:?}");
            let disk = disk.restart(mode, operation);
            let mark = read_mark(&disk);
            assert!(raised.is_none() || mark == "nexo-data 9\n", "{what}: raised and then {mark:?}");
            let (log, _) = open(disk.clone());
            let frame = log.read_frame(appended.at).unwrap();
            assert_eq!(frame.entries[0].payload[..], payload(1, 100), "{what}");
            assert_eq!(read_mark(&disk), mark, "{what}: opening alone does not raise it");
            log.raise_format().unwrap();
            assert_eq!(read_mark(&disk), "nexo-data 9\n", "{what}");
            found.insert(mark);
        }
    }
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        ["nexo-data 2\n", "nexo-data 9\n"],
        "one or the other, whole"
    );
}

fn read_mark(disk: &FaultyDisk) -> String {
    let mut bytes = [0; 64];
    let len = disk.open("FORMAT").unwrap().read_at(&mut bytes, 0).unwrap();
    String::from_utf8(bytes[..len].to_vec()).unwrap()
}
