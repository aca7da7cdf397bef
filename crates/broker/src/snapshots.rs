//! Writing snapshots for a checkpoint: what has changed since the last one, a bounded slice under each hold of a queue's
//! lock, and the log without it.
//!
//! A snapshot of a queue is its state at one position of the log, which is noted under the queue's lock: its records
//! before that are in it, those behind are not. `nexo_core` keeps it so while the queue goes on: see there,
//! `queue/snapshot.rs`. Where its messages lie is written beside it, as of the same position. What has not changed but is there only once is written a second time: see `manifest.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use nexo_core::queue::{ChunkId, ChunkSlice};
use nexo_log::{Claim, EntryKind, EntryRef, Patience, SegmentUsage, Urgency};
use nexo_types::{Position, QueueId, SegmentId};

use crate::journal::ProposeError;
use crate::manifest::{Chunk, Demand, PlacementFrames, Snapshot, SnapshotFrame};
use crate::queue_cell::QueueCell;
use crate::shared::Shared;

/// The head of a snapshot is written in parts of at most this, so that it fits into any segment.
const PART_BYTES: usize = 1024 * 1024;
/// Chunks looked at, and messages encoded, under one hold of a queue's lock: some hundred microseconds.
pub(crate) const SLICE_CHUNKS: usize = 64;
pub(crate) const SLICE_MESSAGES: usize = 2048;
/// A segment with less than one part in this many alive is worth copying.
const SPARSE: u64 = 4;

/// A snapshot of a queue that has been begun.
struct Begun {
    at: Position,
    head: Bytes,
    placement: Vec<u8>,
    /// Nothing has changed since the last snapshot.
    same: bool,
    /// Chunks that have not, and are written again.
    again: BTreeSet<ChunkId>,
}

/// What became of one.
enum Outcome {
    Written(Snapshot),
    /// The queue was purged meanwhile: there is little left to write now.
    Cancelled,
}

/// Where the chunks of a snapshot were written; `None` for one that is not there any more.
pub(crate) type WrittenChunks = Vec<(ChunkId, Option<SnapshotFrame>)>;

/// Has a snapshot name the chunks that were written for it. `again` are those that had not changed.
pub(crate) fn note_chunks(
    snapshot: &mut Snapshot,
    written: WrittenChunks,
    again: &BTreeSet<ChunkId>,
    demand: Demand<'_>,
) {
    for (id, frame) in written {
        let before = snapshot.chunks.remove(&id).filter(|_| again.contains(&id));
        if let Some(frame) = frame {
            let copy = before.and_then(|chunk| chunk.kept(demand));
            snapshot.chunks.insert(id, Chunk { frame, copy });
        }
    }
}

impl Shared {
    /// The latest snapshot of a queue, of which is written what has changed, and what does not meet the demand. `None` if the
    /// queue does not survive a restart.
    pub(crate) fn snapshot_queue(
        &self,
        cell: &Arc<QueueCell>,
        demand: Demand<'_>,
    ) -> Result<Option<Snapshot>, ProposeError> {
        loop {
            let (mut begun, placement) = {
                let mut state = cell.state.lock();
                if state.deleted || !state.durable {
                    return Ok(None);
                }
                let state = &mut *state;
                let chunks = state.snapshot.chunks.iter();
                let again: Vec<ChunkId> = chunks
                    .filter(|(id, chunk)| !chunk.will_do(demand) && !state.queue.has_chunk_changed(**id))
                    .map(|(id, _)| *id)
                    .collect();
                let same = !state.dirty && !state.queue.has_changed_chunks();
                if same && state.snapshot.head_will_do(demand) && again.is_empty() {
                    return Ok(Some(state.snapshot.clone()));
                }
                state.dirty = false;
                let head = state.queue.begin_snapshot(state.snapshot.chunks.keys().copied(), &again);
                let again = again.into_iter().collect();
                let begun = Begun { at: self.state_position(), head, placement: Vec::new(), same, again };
                (begun, state.placement.copy())
            };
            // Where there is no message there is nothing to say.
            if !placement.is_empty() {
                begun.placement = placement.encode();
            }
            let mut taken = Vec::new();
            let outcome = self.write_begun(cell, &begun, demand, &mut taken);
            if let Ok(Outcome::Written(snapshot)) = outcome {
                return Ok(Some(snapshot));
            }
            {
                let mut state = cell.state.lock();
                state.queue.abandon_snapshot(&taken);
                state.dirty = true;
            }
            outcome?;
        }
    }

    /// Writes a snapshot that was begun; `taken` gets the chunks that the queue gave for it.
    fn write_begun(
        &self,
        cell: &Arc<QueueCell>,
        begun: &Begun,
        demand: Demand<'_>,
        taken: &mut Vec<ChunkId>,
    ) -> Result<Outcome, ProposeError> {
        let next = || cell.state.lock().queue.next_chunks(SLICE_CHUNKS, SLICE_MESSAGES);
        let Some(written) = self.write_chunks(cell.id, next, taken)? else { return Ok(Outcome::Cancelled) };
        let head = self.write_parts(cell.id, &begun.head)?;
        let frames = self.write_parts(cell.id, &begun.placement)?;
        let mut state = cell.state.lock();
        let snapshot = &mut state.snapshot;
        snapshot.at = begun.at;
        snapshot.head_copy = if begun.same { snapshot.kept_head(demand) } else { Vec::new() };
        snapshot.head = head;
        let copy = if begun.same { snapshot.kept_placement(demand) } else { Vec::new() };
        snapshot.placement = (!frames.is_empty()).then(|| Box::new(PlacementFrames { frames, copy }));
        note_chunks(snapshot, written, &begun.again, demand);
        Ok(Outcome::Written(snapshot.clone()))
    }

    /// Writes the chunks of a snapshot, which come a slice at a time, and says where each is; `taken` gets their numbers. `None`
    /// if the snapshot was cancelled meanwhile.
    pub(crate) fn write_chunks(
        &self,
        id: QueueId,
        next: impl Fn() -> Option<ChunkSlice>,
        taken: &mut Vec<ChunkId>,
    ) -> Result<Option<WrittenChunks>, ProposeError> {
        let mut written = Vec::new();
        loop {
            let Some(slice) = next() else { return Ok(None) };
            taken.extend(slice.chunks.iter().map(|(chunk, _)| *chunk));
            for (chunk, bytes) in slice.chunks {
                let frame = if bytes.is_empty() { None } else { Some(self.write_frame(id, &bytes)?) };
                written.push((chunk, frame));
            }
            if !slice.more {
                return Ok(Some(written));
            }
        }
    }

    /// Writes bytes of a snapshot in parts, and says where they are.
    pub(crate) fn write_parts(
        &self,
        queue: QueueId,
        bytes: &[u8],
    ) -> Result<Vec<SnapshotFrame>, ProposeError> {
        let part_bytes = PART_BYTES.min(self.options.segment_bytes as usize / 4);
        let parts = bytes.chunks(part_bytes).map(|part| self.write_frame(queue, part));
        let mut frames = parts.collect::<Result<Vec<_>, _>>()?;
        // Every queue keeps them, and most have one.
        frames.shrink_to_fit();
        Ok(frames)
    }

    fn write_frame(&self, queue: QueueId, payload: &[u8]) -> Result<SnapshotFrame, ProposeError> {
        let entry = EntryRef { queue, kind: EntryKind::Snapshot, spans: &[], payload };
        let written = self.journal.write_local(&[entry], Urgency::Lazy, Claim::Checkpoint, Patience::Wait)?;
        Ok(SnapshotFrame { at: written.at, bytes: self.maintenance.note_own(&written) })
    }

    /// Segments of which little is alive: messages, or snapshots that are still in use.
    pub(crate) fn sparse_segments(&self) -> Vec<SegmentUsage> {
        let mut snapshots: BTreeMap<SegmentId, u64> = BTreeMap::new();
        let mut add = |snapshot: &Snapshot| {
            for frame in snapshot.frames() {
                *snapshots.entry(frame.at.segment).or_default() += frame.bytes;
            }
        };
        for snapshot in self.machine_snapshots() {
            add(&snapshot);
        }
        for cell in self.catalog.all() {
            add(&cell.state.lock().snapshot);
        }
        let is_sparse = |segment: &SegmentUsage| {
            let live = segment.live_bytes + snapshots.get(&segment.id).copied().unwrap_or(0);
            segment.sealed && live * SPARSE < segment.bytes.max(segment.file_bytes)
        };
        self.log.segments().into_iter().filter(is_sparse).collect()
    }
}

#[cfg(test)]
mod tests {
    use nexo_core::access::{AccessRecord, UserName};
    use nexo_core::config::QueueConfig;
    use nexo_core::message::NewMessage;
    use nexo_log::disk::MemoryDisk;
    use nexo_types::QueueName;

    use super::*;
    use crate::broker::Broker;
    use crate::options::BrokerOptions;

    #[tokio::test]
    async fn a_segment_that_holds_the_users_is_not_sparse() {
        let options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("memory") };
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), options).unwrap();
        let (shared, queue) = (&broker.shared, QueueName::new("q").unwrap());
        let users = (0..2_000).map(|number| {
            let user = UserName::new(&format!("a-user-of-many-with-the-number-{number}")).unwrap();
            AccessRecord::Add { user, password: None, tags: BTreeSet::new() }
        });
        for some in users.collect::<Vec<_>>().chunks(100) {
            broker.change_access(some).await.unwrap();
        }
        broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        let writing = Arc::clone(shared);
        tokio::task::spawn_blocking(move || writing.checkpoint()).await.unwrap().unwrap();
        // Those who come behind it go again, and leave nothing that is alive.
        for _ in 0..20 {
            broker.push(&queue, vec![NewMessage::new("x".repeat(10_000))]).await.unwrap();
        }
        broker.purge(&queue).await.unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let _no_other_checkpoint = shared.maintenance.begin_checkpoint();
            let mut own: BTreeMap<SegmentId, u64> = BTreeMap::new();
            for frame in shared.access.cell().snapshot().frames() {
                *own.entry(frame.at.segment).or_default() += frame.bytes;
            }
            let holds_many = |segment: &SegmentUsage| {
                let bytes = own.get(&segment.id).copied().unwrap_or(0);
                segment.sealed && bytes * SPARSE >= segment.bytes.max(segment.file_bytes)
            };
            let holding: Vec<SegmentId> =
                shared.log.segments().into_iter().filter(holds_many).map(|segment| segment.id).collect();
            if !holding.is_empty() {
                let sparse = shared.sparse_segments();
                assert!(
                    sparse.iter().all(|segment| !holding.contains(&segment.id)),
                    "{holding:?} {sparse:?}"
                );
                break;
            }
            assert!(std::time::Instant::now() < end, "no segment with users was sealed");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        broker.shutdown().await;
    }
}
