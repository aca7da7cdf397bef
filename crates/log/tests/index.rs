//! Finding frames by lane and offset agrees with a naive list, sealed or not, before and after reopening.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use common::*;
use nexo_log::disk::MemoryDisk;
use nexo_log::{Claim, EntryKind, EntryRef, FrameRef, Log, LogOptions, Span, Urgency};
use nexo_types::{Offset, Position, Priority, QueueId, SegmentId};
use proptest::prelude::*;

/// One batch of messages: whose, which lane, first offset, how many more, payload size.
type Batch = (u64, u8, u64, u64, usize);

fn batch() -> impl Strategy<Value = Batch> {
    (0u64..3, 0u8..2, 0u64..500, 0u64..20, 0usize..300)
}

#[derive(Debug)]
struct Placed {
    at: Position,
    batches: Vec<Batch>,
}

fn append(log: &Log, batches: &[Batch]) -> Placed {
    let spans: Vec<Span> = batches
        .iter()
        .map(|&(_, lane, first, more, _)| Span {
            lane: Priority(lane),
            first: Offset(first),
            last: Offset(first + more),
            count: more as u32 + 1,
        })
        .collect();
    let payloads: Vec<Vec<u8>> = batches.iter().map(|batch| payload(batch.2, batch.4)).collect();
    let entries: Vec<EntryRef<'_>> = batches
        .iter()
        .enumerate()
        .map(|(i, batch)| EntryRef {
            queue: QueueId(batch.0),
            kind: EntryKind::Messages,
            spans: &spans[i..=i],
            payload: &payloads[i],
        })
        .collect();
    let at = log.append(&entries, Urgency::Lazy, Claim::Normal).unwrap().at;
    Placed { at, batches: batches.to_vec() }
}

/// What `frames_of` should answer, from the list of everything that was appended.
fn naive(
    placed: &[Placed],
    segment: SegmentId,
    queue: u64,
    lane: u8,
    first: u64,
    last: u64,
) -> Vec<FrameRef> {
    let mut found = Vec::new();
    for frame in placed.iter().filter(|frame| frame.at.segment == segment) {
        let mine: Vec<_> = frame.batches.iter().filter(|b| b.0 == queue && b.1 == lane).collect();
        let Some(lowest) = mine.iter().map(|b| b.2).min() else { continue };
        let highest = mine.iter().map(|b| b.2 + b.3).max().unwrap();
        let count = mine.iter().map(|b| b.3 as u32 + 1).sum();
        if lowest <= last && first <= highest {
            let (first, last) = (Offset(lowest), Offset(highest));
            found.push(FrameRef { byte: frame.at.byte, first, last, count });
        }
    }
    found
}

fn compare(log: &Log, placed: &[Placed], ranges: &[(u64, u64)]) {
    for segment in log.segments() {
        for (queue, lane) in [(0, 0), (0, 1), (1, 0), (2, 1), (9, 0)] {
            for &(first, more) in ranges {
                let want = naive(placed, segment.id, queue, lane, first, first + more);
                let range = Offset(first)..=Offset(first + more);
                let all = log
                    .frames_of(segment.id, QueueId(queue), Priority(lane), range.clone(), usize::MAX)
                    .unwrap();
                assert_eq!(all, want);
                let some = log.frames_of(segment.id, QueueId(queue), Priority(lane), range, 2).unwrap();
                assert_eq!(some, want[..want.len().min(2)]);
            }
        }
        let starts: Vec<u32> =
            placed.iter().filter(|frame| frame.at.segment == segment.id).map(|frame| frame.at.byte).collect();
        let frames = log.read_frames(segment.id, &starts);
        assert_eq!(frames.len(), starts.len());
        for (frame, start) in frames.into_iter().zip(starts) {
            let at = Position { segment: segment.id, byte: start };
            assert_eq!(frame.as_ref().unwrap().at, at);
            assert_eq!(frame, log.read_frame(at));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_of_a_lane_agree_with_a_naive_index(
        frames in prop::collection::vec(prop::collection::vec(batch(), 1..4), 1..120),
        ranges in prop::collection::vec((0u64..520, 0u64..100), 4),
    ) {
        let disk = MemoryDisk::new();
        let (log, _) = open(disk.clone());
        let placed: Vec<Placed> = frames.iter().map(|batches| append(&log, batches)).collect();
        compare(&log, &placed, &ranges);
        log.sync_blocking().unwrap();
        compare(&log, &placed, &ranges);
        drop(log);
        let (log, _) = open(disk);
        compare(&log, &placed, &ranges);
        let seen: Vec<Position> = all_frames(&log).iter().map(|frame| frame.at).collect();
        prop_assert_eq!(seen, placed.iter().map(|frame| frame.at).collect::<Vec<_>>());
    }
}

#[test]
fn a_long_lane_is_found_through_many_blocks_and_large_reads() {
    let disk = Arc::new(MemoryDisk::new());
    let options = || LogOptions { segment_bytes: 4 * 1024 * 1024, ..small() };
    let (log, _) = Log::open(disk.clone(), options()).unwrap();
    let placed: Vec<Placed> = (0..3000).map(|n| append(&log, &[(1, 0, n * 3, 2, 700)])).collect();
    let ranges = [(0, 0), (4000, 50), (8990, 100), (0, 10_000)];
    compare(&log, &placed, &ranges);
    drop(log);
    let (log, _) = Log::open(disk, options()).unwrap();
    compare(&log, &placed, &ranges);
}
