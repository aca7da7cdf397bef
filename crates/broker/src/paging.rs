//! Bringing messages back from the log: pages of a backlog, and single messages whose bytes were let go.
//! Everything here may wait for the disk and runs on a worker thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use nexo_core::batch::MessageBatch;
use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{Entry, Handed, PageRequest};
use nexo_core::record::{Leave, Pick, Record};
use nexo_log::{EntryKind, Frame, FrameRef, Log, ReadError};
use nexo_types::{Offset, Position, QueueId};

use crate::mailbox::Mailbox;
use crate::shared::{Confirm, Shared};
use crate::slot::{Slot, SlotState};

/// A page ends when this much has been read, however few messages that is.
const PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Frames read at first; twice as many each time until the page is full.
const FRAMES_AT_FIRST: usize = 16;

impl Shared {
    /// Reads a page and gives it to its queue.
    pub(crate) fn load_page(self: &Arc<Self>, slot: &Arc<Slot>, request: &PageRequest) {
        let read = self.read_page(slot.id, request);
        if let Err(error) = &read {
            tracing::error!(queue = %slot.name, %error, "messages cannot be read from the log; trying again");
            // The queue goes on asking for nothing until the keeper says that it may.
            self.keeper.note_stuck(slot);
            return;
        }
        // A queue that was deleted meanwhile has no use for it.
        let _ = self.with(slot, |state, _| {
            state.paging = false;
            state.page_arrived = true;
            self.take_page(state, request, read.unwrap_or_default());
        });
    }

    /// Gives a page to its queue; messages that the log could not give back are dropped, and that is reported.
    pub(crate) fn take_page(&self, state: &mut SlotState, request: &PageRequest, entries: Vec<Entry>) {
        let lost: OffsetSet =
            entries.iter().filter(|entry| entry.payload.is_none()).map(|entry| entry.offset).collect();
        if state.queue.page_in(request, entries) && !lost.is_empty() {
            self.drop_damaged(state, vec![Pick { lane: request.lane, offsets: lost }]);
        }
    }

    fn drop_damaged(&self, state: &mut SlotState, picks: Vec<Pick>) {
        let count: u64 = picks.iter().map(|pick| pick.offsets.len()).sum();
        tracing::error!(
            queue = %state.queue.name(),
            count,
            "messages are damaged on disk and are dropped; the segment is kept as it is"
        );
        let record = Record::Drop { picks, why: Leave::Damaged, at: self.clock.now() };
        let urgency = self.urgency(state, Confirm::Lazily);
        if let Err(error) = self.commit(state, &[record], urgency, nexo_log::Claim::Reserved) {
            tracing::error!(queue = %state.queue.name(), %error, "damaged messages cannot be dropped now");
        }
    }

    pub(crate) fn read_page(&self, queue: QueueId, request: &PageRequest) -> Result<Vec<Entry>, ReadError> {
        read_page(&self.log, queue, request)
    }

    /// Reads the messages of a batch that waits in a mailbox. Those that cannot be read leave the queue.
    pub(crate) fn read_delivery(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        mailbox: &Mailbox,
        number: u64,
        mut messages: Vec<Handed>,
    ) {
        let wanted = messages.iter().filter(|message| message.payload.is_none());
        let wanted: Vec<(Offset, Position)> = wanted.map(|message| (message.offset, message.at)).collect();
        let mut read = self.read_payloads(slot.id, &wanted);
        let mut lost = Vec::new();
        messages.retain_mut(|message| {
            if message.payload.is_none() {
                message.payload = read.remove(&message.offset);
            }
            if message.payload.is_none() {
                lost.push(message.offset);
            }
            message.payload.is_some()
        });
        mailbox.fill(number, messages);
        if !lost.is_empty() {
            let _ = self.with(slot, |state, now| {
                tracing::error!(queue = %slot.name, count = lost.len(), "messages are damaged on disk and are dropped");
                let record = Record::Settle { offsets: lost.into_iter().collect(), why: Leave::Damaged, at: now };
                if let Err(error) =
                    self.commit(state, &[record], nexo_log::Urgency::Lazy, nexo_log::Claim::Reserved)
                {
                    tracing::error!(queue = %slot.name, %error, "damaged messages cannot be dropped now");
                }
            });
        }
    }

    /// The stored forms of messages, by where they lie. Messages that cannot be read are missing.
    pub(crate) fn read_payloads(
        &self,
        queue: QueueId,
        wanted: &[(Offset, Position)],
    ) -> BTreeMap<Offset, Bytes> {
        let mut by_segment: BTreeMap<_, BTreeMap<u32, Vec<Offset>>> = BTreeMap::new();
        for (offset, at) in wanted {
            by_segment.entry(at.segment).or_default().entry(at.byte).or_default().push(*offset);
        }
        let mut read = BTreeMap::new();
        for (segment, frames) in by_segment {
            let starts: Vec<u32> = frames.keys().copied().collect();
            for (frame, offsets) in self.log.read_frames(segment, &starts).into_iter().zip(frames.values()) {
                match frame {
                    Ok(frame) => pick_payloads(&frame, queue, offsets, &mut read),
                    Err(error) => tracing::error!(%error, "messages cannot be read from the log"),
                }
            }
        }
        read
    }
}

/// The first messages of a page, without a gap: those that fit, at least one. What is damaged comes back as lost.
///
/// # Errors
/// If the log cannot be read now.
pub(crate) fn read_page(log: &Log, queue: QueueId, request: &PageRequest) -> Result<Vec<Entry>, ReadError> {
    let (Some(first), Some(last)) = (request.offsets.first(), request.offsets.last()) else {
        return Ok(Vec::new());
    };
    let mut frames = log.frames_of(request.segment, queue, request.lane, first..=last, usize::MAX)?;
    frames.sort_unstable_by_key(|frame| frame.first);
    let mut found = BTreeMap::new();
    let mut bytes = 0;
    let mut read = 0;
    let mut step = FRAMES_AT_FIRST;
    while read < frames.len() && bytes < PAGE_BYTES {
        let part = &frames[read..(read + step).min(frames.len())];
        bytes += read_part(log, queue, request, part, &mut found)?;
        read += part.len();
        step *= 2;
    }
    // What lies in frames that were not read yet is for another page.
    let complete = frames.get(read).map_or(Offset(u64::MAX), |frame| frame.first);
    let lost_at = Position { segment: request.segment, byte: 0 };
    let wanted = request.offsets.iter().take_while(|offset| *offset < complete);
    let entry = |offset| found.remove(&offset).unwrap_or_else(|| Entry::lost(offset, request.lane, lost_at));
    Ok(wanted.map(entry).collect())
}

fn read_part(
    log: &Log,
    queue: QueueId,
    request: &PageRequest,
    frames: &[FrameRef],
    found: &mut BTreeMap<Offset, Entry>,
) -> Result<usize, ReadError> {
    let mut starts: Vec<u32> = frames.iter().map(|frame| frame.byte).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut bytes = 0;
    for frame in log.read_frames(request.segment, &starts) {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error @ ReadError::Damaged { .. }) => {
                tracing::error!(%error, "a frame of the log is damaged");
                continue;
            }
            Err(error) => return Err(error),
        };
        for batch in batches_of(&frame, queue) {
            bytes += batch.bytes().len();
            for item in batch.items().iter().filter(|item| request.offsets.contains(item.offset)) {
                if let Ok(entry) = Entry::from_batch(&batch, item, frame.at) {
                    found.insert(item.offset, entry);
                }
            }
        }
    }
    Ok(bytes)
}

fn pick_payloads(frame: &Frame, queue: QueueId, offsets: &[Offset], read: &mut BTreeMap<Offset, Bytes>) {
    for batch in batches_of(frame, queue) {
        for item in offsets.iter().filter_map(|offset| batch.find(*offset)) {
            // Copied, so that one message does not keep a whole read buffer.
            read.insert(item.offset, Bytes::copy_from_slice(&batch.payload(item)));
        }
    }
}

/// The message batches of one queue in a frame.
fn batches_of(frame: &Frame, queue: QueueId) -> impl Iterator<Item = MessageBatch> + '_ {
    frame
        .entries
        .iter()
        .filter(move |entry| entry.queue == queue && entry.kind == EntryKind::Messages)
        .filter_map(|entry| match MessageBatch::decode(entry.payload.clone()) {
            Ok(batch) => Some(batch),
            Err(error) => {
                tracing::error!(at = %frame.at, %error, "a batch of messages cannot be read");
                None
            }
        })
}
