//! Writing snapshots for a checkpoint: what has changed since the last one, a bounded slice under each hold of a queue's
//! lock, and the log without it.
//!
//! A snapshot of a queue is its state at one position of the log, which is noted under the queue's lock: its records
//! before that are in it, those behind are not. `nexo_core` keeps it so while the queue goes on: see there,
//! `queue/snapshot.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use nexo_core::queue::ChunkId;
use nexo_log::{AppendError, Claim, EntryKind, EntryRef, SegmentUsage, Urgency};
use nexo_types::{Position, QueueId, SegmentId};

use crate::manifest::{Snapshot, SnapshotForm, SnapshotFrame};
use crate::shared::Shared;
use crate::slot::Slot;

/// The head of a snapshot is written in parts of at most this, so that it fits into any segment.
const PART_BYTES: usize = 1024 * 1024;
/// Chunks looked at, and messages encoded, under one hold of a queue's lock: some hundred microseconds.
const SLICE_CHUNKS: usize = 64;
const SLICE_MESSAGES: usize = 2048;
/// A segment with less than one part in this many alive is worth copying.
const SPARSE: u64 = 4;

/// A snapshot of a queue that has been begun.
struct Begun {
    at: Position,
    head: Bytes,
}

/// What became of one.
enum Outcome {
    Written(Snapshot),
    /// The queue was purged meanwhile: there is little left to write now.
    Cancelled,
}

impl Shared {
    /// The latest snapshot of a queue, which is written if the queue has changed, or if the one before lies in a segment
    /// that is to be given up. `None` if the queue does not survive a restart.
    pub(crate) fn snapshot_queue(
        &self,
        slot: &Arc<Slot>,
        given_up: &BTreeSet<SegmentId>,
    ) -> Result<Option<Snapshot>, AppendError> {
        loop {
            let begun = {
                let mut state = slot.state.lock();
                if state.deleted || !state.durable {
                    return Ok(None);
                }
                let is_stale = |frame: &SnapshotFrame| given_up.contains(&frame.at.segment);
                let chunks = state.snapshot.chunks.iter();
                let stale: Vec<ChunkId> =
                    chunks.filter(|(_, frame)| is_stale(frame)).map(|(chunk, _)| *chunk).collect();
                let fresh = !state.dirty
                    && !state.queue.has_changed_chunks()
                    && !state.snapshot.head.is_empty()
                    && !state.snapshot.head.iter().any(is_stale)
                    && stale.is_empty();
                if fresh {
                    return Ok(Some(state.snapshot.clone()));
                }
                let state = &mut *state;
                state.dirty = false;
                let head = state.queue.begin_snapshot(state.snapshot.chunks.keys().copied(), &stale);
                Begun { at: self.log.next_position(), head }
            };
            let mut taken = Vec::new();
            let outcome = self.write_begun(slot, &begun, &mut taken);
            if let Ok(Outcome::Written(snapshot)) = outcome {
                return Ok(Some(snapshot));
            }
            {
                let mut state = slot.state.lock();
                state.queue.abandon_snapshot(&taken);
                state.dirty = true;
            }
            outcome?;
        }
    }

    /// Writes a snapshot that was begun; `taken` gets the chunks that the queue gave for it.
    fn write_begun(
        &self,
        slot: &Arc<Slot>,
        begun: &Begun,
        taken: &mut Vec<ChunkId>,
    ) -> Result<Outcome, AppendError> {
        let mut written: Vec<(ChunkId, Option<SnapshotFrame>)> = Vec::new();
        loop {
            let slice = slot.state.lock().queue.next_chunks(SLICE_CHUNKS, SLICE_MESSAGES);
            let Some(slice) = slice else { return Ok(Outcome::Cancelled) };
            taken.extend(slice.chunks.iter().map(|(chunk, _)| *chunk));
            for (chunk, bytes) in slice.chunks {
                let frame = if bytes.is_empty() { None } else { Some(self.write_frame(slot.id, &bytes)?) };
                written.push((chunk, frame));
            }
            if !slice.more {
                break;
            }
        }
        let head = self.write_parts(slot.id, &begun.head)?;
        let mut state = slot.state.lock();
        let snapshot = &mut state.snapshot;
        snapshot.at = begun.at;
        snapshot.head = head;
        snapshot.form = SnapshotForm::Chunks;
        for (chunk, frame) in written {
            match frame {
                Some(frame) => snapshot.chunks.insert(chunk, frame),
                None => snapshot.chunks.remove(&chunk),
            };
        }
        Ok(Outcome::Written(snapshot.clone()))
    }

    /// Writes bytes of a snapshot in parts, and says where they are.
    pub(crate) fn write_parts(
        &self,
        queue: QueueId,
        bytes: &[u8],
    ) -> Result<Vec<SnapshotFrame>, AppendError> {
        let part_bytes = PART_BYTES.min(self.options.segment_bytes as usize / 4);
        bytes.chunks(part_bytes).map(|part| self.write_frame(queue, part)).collect()
    }

    fn write_frame(&self, queue: QueueId, payload: &[u8]) -> Result<SnapshotFrame, AppendError> {
        let entry = EntryRef { queue, kind: EntryKind::Snapshot, spans: &[], payload };
        let appended = self.log.append(&[entry], Urgency::Lazy, Claim::Reserved)?;
        Ok(SnapshotFrame { at: appended.at, bytes: self.keeper.note_own(&appended) })
    }

    /// Segments of which little is alive: messages, or snapshots that are still in use.
    pub(crate) fn sparse_segments(&self) -> Vec<SegmentUsage> {
        let mut snapshots: BTreeMap<SegmentId, u64> = BTreeMap::new();
        let mut add = |snapshot: &Snapshot| {
            for frame in snapshot.frames() {
                *snapshots.entry(frame.at.segment).or_default() += frame.bytes;
            }
        };
        add(&self.topology_snapshot());
        for slot in self.catalog.all() {
            add(&slot.state.lock().snapshot);
        }
        let is_sparse = |segment: &SegmentUsage| {
            let live = segment.live_bytes + snapshots.get(&segment.id).copied().unwrap_or(0);
            segment.sealed && live * SPARSE < segment.bytes.max(segment.file_bytes)
        };
        self.log.segments().into_iter().filter(is_sparse).collect()
    }
}
