//! Copying the last living messages out of a nearly empty segment to the end of the log. That is no record of their queue: the
//! queue is as it was, and only where its messages lie has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use nexo_core::batch;
use nexo_core::offsets::OffsetSet;
use nexo_core::record::Record;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{Offset, Priority, SegmentId, Timestamp};

use crate::fetch::Read;
use crate::journal::{Encoded, ProposeError};
use crate::queue_cell::{CellState, QueueCell};
use crate::shared::Shared;

/// Offsets among which messages are looked for under one hold of a queue's lock.
const PART_OFFSETS: u64 = 4096;
/// Messages read at a time.
const COPY_BATCH: usize = 1000;
/// Bytes copied under one hold of a queue's lock.
const COPY_BYTES: usize = 1024 * 1024;
/// Pages read to get at one damaged message in the middle of a backlog.
const DAMAGED_PAGES_MAX: usize = 64;

/// A message as it is stored: its offset, when it was pushed, its stored form.
type Stored = (Offset, Timestamp, Bytes);

impl Shared {
    /// Copies what a queue has in a segment to the end of the log, as far as it can be read.
    pub(crate) fn copy_forward(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        segment: SegmentId,
    ) -> Result<(), ProposeError> {
        let mut from = Offset(0);
        loop {
            let (end, messages) = {
                let state = cell.state.lock();
                let Some(part) = state.placement.next_part(segment, from, PART_OFFSETS) else {
                    return Ok(());
                };
                (Offset(part.end), state.alive_in(segment, Offset(part.start), Offset(part.end)))
            };
            for some in messages.chunks(COPY_BATCH) {
                self.copy_some(cell, segment, some)?;
            }
            from = end;
        }
    }

    fn copy_some(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        segment: SegmentId,
        messages: &[(Priority, Offset)],
    ) -> Result<(), ProposeError> {
        let places = BTreeMap::from([(segment, messages.to_vec())]);
        let Read { found, damaged, gone, .. } = self.read_places(cell.id, &places);
        let lanes: BTreeMap<Offset, Priority> = messages.iter().map(|(lane, at)| (*at, *lane)).collect();
        let mut found = found.into_iter().map(|(offset, (at, payload))| (offset, at, payload)).peekable();
        while found.peek().is_some() {
            let mut bytes = 0;
            let mut part: Vec<Stored> = Vec::new();
            while let Some(message) = found.next_if(|_| bytes < COPY_BYTES) {
                bytes += message.2.len();
                part.push(message);
            }
            let mut state = cell.state.lock();
            if state.deleted {
                return Ok(());
            }
            // What was read without the lock may have left, or may have been moved, meanwhile.
            let wanted = part.iter().filter_map(|(offset, ..)| Some((*lanes.get(offset)?, *offset)));
            let there = state.still_in(segment, wanted);
            part.retain(|(offset, ..)| there.contains(*offset));
            self.append_copies(&mut state, &part)?;
        }
        for offset in damaged.into_iter().chain(gone) {
            self.drop_if_damaged(cell, offset);
        }
        Ok(())
    }

    fn append_copies(&self, state: &mut CellState, messages: &[Stored]) -> Result<(), ProposeError> {
        for batch in batch::relocate(messages) {
            let record = Record::Messages(batch.clone());
            let entry = Encoded::new(state.queue.id(), &record);
            let appended = self.journal.write_local(
                &[entry.as_entry()],
                Urgency::Lazy,
                Claim::Reserved,
                Patience::Wait,
            )?;
            self.maintenance.note_own(&appended);
            state.dirty = true;
            let log = &self.log;
            state.placement.relocate(&batch, appended.at, |segment, bytes| log.account(segment, bytes));
        }
        Ok(())
    }

    /// A message that waits in order and cannot be copied because it is damaged leaves the queue when it is read. It is read
    /// now, with what is before it, so that the segment can go. One that is not in order is read when its time comes.
    fn drop_if_damaged(self: &Arc<Self>, cell: &Arc<QueueCell>, offset: Offset) {
        for _ in 0..DAMAGED_PAGES_MAX {
            let page = cell.state.lock().queue.find_ready(offset).flatten();
            let Some(page) = page else { return };
            if let Err(error) = self.load_now(cell, &page) {
                tracing::warn!(queue = %cell.name.in_full(), %error, "a page cannot be read now");
                return;
            }
        }
    }
}

impl CellState {
    /// Messages from `start` on and before `end` that lie in a segment, by offset.
    pub(crate) fn alive_in(&self, segment: SegmentId, start: Offset, end: Offset) -> Vec<(Priority, Offset)> {
        if self.deleted {
            return Vec::new();
        }
        let mut alive = self.queue.loose_in(start, end);
        alive.extend(self.queue.in_lanes(start, end));
        alive.retain(|(_, offset)| self.placement.segment_of(*offset) == segment);
        alive.sort_unstable_by_key(|(_, offset)| *offset);
        alive
    }

    /// Those of these messages that are in the queue and lie in a segment.
    fn still_in(&self, segment: SegmentId, messages: impl Iterator<Item = (Priority, Offset)>) -> OffsetSet {
        let mut lanes: BTreeMap<Priority, Vec<Offset>> = BTreeMap::new();
        for (lane, offset) in messages {
            lanes.entry(lane).or_default().push(offset);
        }
        let there = lanes.into_iter().flat_map(|(lane, offsets)| {
            let offsets: OffsetSet = offsets.into_iter().collect();
            self.queue.durable_among(lane, &offsets).iter().collect::<Vec<_>>()
        });
        there.filter(|offset| self.placement.segment_of(*offset) == segment).collect()
    }
}
