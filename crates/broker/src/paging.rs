//! Bringing messages back from the log: pages of a backlog. (Single messages: `fetch.rs`.) Everything here may wait for the
//! disk and runs on a worker thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nexo_core::batch::{BatchItem, MessageBatch};
use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{Handed, MessageEntry, PageRequest, ReturnCause, SettleMode};
use nexo_core::record::Pick;
use nexo_log::{Claim, FrameRef, Patience, ReadError, Urgency};
use nexo_types::{Millis, Offset, Position, Priority, QueueId, SegmentId, Timestamp};

use crate::commit::Confirm;
use crate::fetch::Retry;
use crate::frame_batches::batches_of;
use crate::journal::Standing;
use crate::mailbox::Mailbox;
use crate::placement::{PlacedPage, PlacedPages};
use crate::queue_cell::{CellState, QueueCell};
use crate::request::Settle;
use crate::shared::Shared;
use crate::stored::Stored;

/// A page ends when this much has been read, however few messages that is.
const PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Where pages of several lanes are read together, up to this many times as much is read: what is wanted lies among much that
/// is not …
const SCAN_FACTOR_MAX: usize = 16;
/// … and the pages together end when this much of what was read is wanted.
const PAGES_BYTES: usize = 4 * PAGE_BYTES;
/// Frames read at first; twice as many each time until the page is full.
const FRAMES_AT_FIRST: usize = 16;

impl Shared {
    /// Reads pages and gives them to their queue.
    pub(crate) fn load_pages(self: &Arc<Self>, cell: &Arc<QueueCell>, pages: &PlacedPages) {
        // The index of the segment.
        let index = Position { segment: pages.segment, byte: 0 };
        let PagesRead { entries: read, frames, unreadable } = match read_pages(self.stored(), cell.id, pages)
        {
            Ok(read) => read,
            Err(error) => {
                self.wait_for_disk(cell, self.note_unreadable(index, &error.to_string()));
                return;
            }
        };
        self.unreadable.clear(index);
        for at in frames {
            self.unreadable.clear(at);
        }
        let delays = unreadable.iter().map(|(at, error)| self.note_unreadable(*at, &error.to_string()));
        if let Some(delay) = delays.max()
            && read.iter().all(Vec::is_empty)
        {
            self.wait_for_disk(cell, delay);
            return;
        }
        if self.keeps_damaged() && self.is_any_lost(cell, pages.segment, &read) {
            self.wait_for_disk(cell, self.note_unreadable(index, "messages are damaged"));
            return;
        }
        // A queue that was deleted meanwhile has no use for it. One lane at a time, so that nobody waits long for the lock.
        let last = pages.requests.len() - 1;
        for (at, (request, entries)) in pages.requests.iter().zip(read).enumerate() {
            let _ = self.with(cell, |state, _| {
                state.paging = at < last;
                state.page_arrived = true;
                self.take_page(state, pages.segment, request, entries);
            });
        }
    }

    /// Whether the log should have given back more than it did.
    fn is_any_lost(&self, cell: &QueueCell, segment: SegmentId, read: &[Vec<MessageEntry>]) -> bool {
        let state = cell.state.lock();
        let mut lost = read.iter().flatten().filter(|entry| entry.payload.is_none());
        lost.any(|entry| state.placement.segment_of(entry.offset) == segment)
    }

    /// Has a queue ask for nothing until maintenance says that it may.
    fn wait_for_disk(&self, cell: &Arc<QueueCell>, delay: Millis) {
        self.unreadable.postpone(cell.id, delay);
        self.maintenance.note_stuck(cell);
        // Whoever takes what is there must not wait for what may never be.
        for mailbox in cell.state.lock().mailboxes.0.values() {
            mailbox.stir();
        }
    }

    /// Gives a page that was read from a segment to its queue; messages that the log could not give back are dropped, and
    /// that is reported. But if one of these has been copied forward meanwhile, the page must be asked for again.
    pub(crate) fn take_page(
        &self,
        state: &mut CellState,
        segment: SegmentId,
        request: &PageRequest,
        entries: Vec<MessageEntry>,
    ) {
        let lost: OffsetSet =
            entries.iter().filter(|entry| entry.payload.is_none()).map(|entry| entry.offset).collect();
        if lost.iter().any(|offset| state.placement.segment_of(offset) != segment) {
            return;
        }
        if !lost.is_empty() && self.keeps_damaged() {
            // Others have them. The page is asked for again.
            return;
        }
        if state.queue.page_in(request, entries, self.clock.now()) && !lost.is_empty() {
            self.drop_damaged(state, &[Pick { lane: request.lane, offsets: lost }]);
        }
    }

    /// Counts messages that are lost to damage.
    pub(crate) fn note_damaged(&self, count: u64) {
        self.damaged_messages.fetch_add(count, Ordering::Relaxed);
    }

    /// What damage was found since the start, in words, if any.
    pub(crate) fn damage_reason(&self) -> Option<String> {
        let segments = || self.log.segments().into_iter().map(|segment| segment.id);
        let unreadable = self.unreadable.reason(|id| segments().any(|segment| segment == id));
        match (self.found_damage(), unreadable) {
            (Some(damage), Some(unreadable)) => Some(format!("{unreadable}; {damage}")),
            (damage, unreadable) => damage.or(unreadable),
        }
    }

    fn found_damage(&self) -> Option<String> {
        let (places, first) = self.log.damage()?;
        let lost = self.damaged_messages.load(Ordering::Relaxed);
        let more = if self.damaged_uncounted { ", and how many more cannot be told" } else { "" };
        Some(format!(
            "the log is damaged in {places} {}, and {lost} {} known to be lost{more}; the first is {first}",
            if places == 1 { "place" } else { "places" },
            if lost == 1 { "message is" } else { "messages are" },
        ))
    }

    /// Whether what cannot be found in the log is damaged. A leader that was deposed a moment ago has messages in memory whose frames
    /// do not count any more: all of that is about to be thrown away.
    fn is_damage(&self) -> bool {
        self.journal.standing() == Standing::Serving
    }

    fn drop_damaged(&self, state: &mut CellState, picks: &[Pick]) {
        if !self.is_damage() {
            return;
        }
        let Some(record) = state.queue.decide_drop_damaged(self.clock.now(), picks) else { return };
        let count: u64 = picks.iter().map(|pick| pick.offsets.len()).sum();
        tracing::error!(
            queue = %state.queue.name().in_full(),
            count,
            "messages are damaged on disk and are dropped; the segment is kept as it is"
        );
        let urgency = self.urgency(state, Confirm::Lazily);
        match self.commit(state, &[record], urgency, Claim::Reserved, Patience::Wait) {
            Ok(_) => self.note_damaged(count),
            Err(error) => {
                tracing::error!(queue = %state.queue.name().in_full(), %error, "damaged messages cannot be dropped now");
            }
        }
    }

    /// Reads the first messages of a page, as far as they lie side by side, and says which page that is.
    pub(crate) fn read_page(
        &self,
        cell: &QueueCell,
        request: &PageRequest,
    ) -> Result<(PlacedPage, Vec<MessageEntry>), ReadError> {
        let page = cell.state.lock().placement.place(request);
        let entries = read_page(self.stored(), cell.id, &page)?;
        Ok((page, entries))
    }

    /// Reads the messages of a batch that waits in a mailbox. What is damaged leaves the queue; what cannot be read now
    /// goes back to its place, and the consumer gets another chance.
    pub(crate) fn read_delivery(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        mailbox: &Mailbox,
        number: u64,
        mut messages: Vec<Handed>,
    ) {
        let cold = messages.iter().filter(|message| message.payload.is_none());
        let cold: Vec<(Priority, Offset)> = cold.map(|message| (message.priority, message.offset)).collect();
        let mut read = self.fetch(cell, cold, Retry::AtOnce);
        let read_now: BTreeSet<Offset> = read.found.keys().copied().collect();
        for message in messages.iter_mut().filter(|message| message.payload.is_none()) {
            if let Some(payload) = read.found.remove(&message.offset) {
                message.complete(payload);
            }
        }
        let attempts: BTreeMap<Offset, u32> = messages.iter().map(|m| (m.offset, m.attempts)).collect();
        // Those that were in memory when they were handed out have left the queue already.
        let cold = messages.iter().filter(|message| read_now.contains(&message.offset));
        let cold: Vec<(Offset, u32)> = cold.map(|message| (message.offset, message.attempts)).collect();
        let handed = messages.len();
        messages.retain(|message| message.payload.is_some());
        let missing = handed - messages.len();
        let settles = mailbox.settle() == SettleMode::Automatic;
        if !settles && missing == 0 {
            mailbox.fill(number, messages);
            return;
        }
        // Under the lock, so that what is settled here has not been given back, and is not.
        let _ = self.with(cell, |state, now| {
            if mailbox.fill(number, messages) && settles {
                let verdict = state.queue.decide_ack(now, &cold);
                let committed = self.commit_verdict(state, &verdict.records, verdict.durable, Confirm::Lazily);
                if let Err(error) = committed {
                    tracing::debug!(queue = %cell.name.in_full(), %error, "messages that were delivered leave the queue later");
                    state.unsettled.keep(&cold, Settle::Ack, None);
                    self.maintenance.note_stuck(cell);
                }
            }
            let back: Vec<(Offset, u32)> =
                read.unreadable.iter().filter_map(|offset| Some((*offset, *attempts.get(offset)?))).collect();
            state.queue.give_back_credit(mailbox.consumer(), missing as u32);
            self.settle_damaged(state, now, &read.damaged);
            let (_, plan) = state.queue.decide_return(now, &back, ReturnCause::Unreadable(read.retry_after));
            // Nothing dies of that.
            if let Err(error) = self.commit_verdict(state, &plan.records, plan.durable, Confirm::Lazily) {
                tracing::debug!(queue = %cell.name.in_full(), %error, "messages that cannot be read come back later");
                state.unsettled.keep(&back, Settle::Undelivered, None);
                self.maintenance.note_stuck(cell);
            }
        });
    }

    fn settle_damaged(&self, state: &mut CellState, now: Timestamp, damaged: &[Offset]) {
        debug_assert!(damaged.is_empty() || !self.keeps_damaged(), "others have them");
        if !self.is_damage() {
            return;
        }
        let records = state.queue.decide_settle_damaged(now, damaged);
        if records.is_empty() {
            return;
        }
        tracing::error!(queue = %state.queue.name().in_full(), count = damaged.len(), "messages are damaged on disk and are dropped");
        let count = damaged.len() as u64;
        match self.commit(state, &records, Urgency::Lazy, Claim::Reserved, Patience::Wait) {
            Ok(_) => self.note_damaged(count),
            Err(error) => {
                tracing::error!(queue = %state.queue.name().in_full(), %error, "damaged messages cannot be dropped now");
            }
        }
    }
}

/// The first messages of a page, without a gap: those that fit, at least one. What is damaged comes back as lost.
///
/// # Errors
/// If the log cannot be read now.
pub(crate) fn read_page(
    log: Stored<'_>,
    queue: QueueId,
    page: &PlacedPage,
) -> Result<Vec<MessageEntry>, ReadError> {
    let mut pages = read_pages(log, queue, &page.clone().into())?;
    let entries: Vec<MessageEntry> = pages.entries.into_iter().flatten().collect();
    match pages.unreadable.pop() {
        Some((_, error)) if entries.is_empty() => Err(error),
        Some(_) | None => Ok(entries),
    }
}

/// Pages as far as they could be read.
struct PagesRead {
    /// Of each lane, without a gap.
    entries: Vec<Vec<MessageEntry>>,
    /// Frames that were read.
    frames: Vec<Position>,
    /// Frames that the disk does not give back now. No page goes beyond them.
    unreadable: Vec<(Position, ReadError)>,
}

impl PagesRead {
    fn all_lost(requests: &[PageRequest]) -> Self {
        Self { entries: all_lost(requests), frames: Vec::new(), unreadable: Vec::new() }
    }
}

/// As [`read_page`], for pages of several lanes of one segment. Every frame in which one of them has messages is read once for
/// all, in the order of offsets.
fn read_pages(log: Stored<'_>, queue: QueueId, pages: &PlacedPages) -> Result<PagesRead, ReadError> {
    let PlacedPages { segment, requests } = pages;
    let segment = *segment;
    let mut lanes: Vec<LanePage<'_>> = Vec::with_capacity(requests.len());
    for request in requests {
        match LanePage::new(log, queue, segment, request) {
            Ok(lane) => lanes.push(lane),
            // The segment is not there. If its messages have been copied forward meanwhile, whoever takes the page knows;
            // otherwise they are lost.
            Err(ReadError::Retired { .. } | ReadError::NoFrame { .. }) => {
                return Ok(PagesRead::all_lost(requests));
            }
            Err(error) => return Err(error),
        }
    }
    let frames = frames_of_all(&lanes);
    let mut read: Vec<u32> = Vec::new();
    let mut unreadable: Vec<(Position, ReadError)> = Vec::new();
    let (mut bytes, mut step) = (0, FRAMES_AT_FIRST);
    // Behind what cannot be read there is nothing to look for: a page has no gaps.
    while unreadable.is_empty()
        && read.len() < frames.len()
        && bytes < PAGE_BYTES * lanes.len().min(SCAN_FACTOR_MAX)
        && lanes.iter().map(|lane| lane.bytes).sum::<usize>() < PAGES_BYTES
    {
        let starts = frames[read.len()..(read.len() + step).min(frames.len())].to_vec();
        match read_part(log, queue, segment, starts.clone(), &mut lanes, &mut unreadable) {
            Ok(part) => bytes += part,
            Err(ReadError::Retired { .. }) => return Ok(PagesRead::all_lost(requests)),
            Err(error) => return Err(error),
        }
        read.extend(starts);
        step *= 2;
    }
    read.retain(|byte| !unreadable.iter().any(|(at, _)| at.byte == *byte));
    read.sort_unstable();
    Ok(PagesRead {
        frames: read.iter().map(|byte| Position { segment, byte: *byte }).collect(),
        entries: lanes.into_iter().map(|lane| lane.into_entries(&read)).collect(),
        unreadable,
    })
}

/// Where the frames begin that hold messages of the lanes, by the first of those messages. But the first lane comes first with
/// some: consumers wait for it, and what others have before it may be much, or unreadable.
fn frames_of_all(lanes: &[LanePage<'_>]) -> Vec<u32> {
    let mut starts: Vec<u32> = match lanes {
        [first, ..] => first.frames.iter().map(|frame| frame.byte).collect(),
        [] => Vec::new(),
    };
    if lanes.len() == 1 {
        return starts;
    }
    starts.truncate(FRAMES_AT_FIRST);
    let early: BTreeSet<u32> = starts.iter().copied().collect();
    let mut frames: Vec<(u32, Offset)> =
        lanes.iter().flat_map(|lane| lane.frames.iter().map(|frame| (frame.byte, frame.first))).collect();
    frames.sort_unstable();
    frames.dedup_by_key(|(byte, _)| *byte);
    // Nearly sorted already: what lies later in the log was pushed later, unless it was copied.
    frames.sort_by_key(|(_, first)| *first);
    starts.extend(frames.into_iter().map(|(byte, _)| byte).filter(|byte| !early.contains(byte)));
    starts
}

fn all_lost(requests: &[PageRequest]) -> Vec<Vec<MessageEntry>> {
    let lost = |request: &PageRequest| {
        request.offsets.iter().map(|offset| MessageEntry::lost(offset, request.lane)).collect()
    };
    requests.iter().map(lost).collect()
}

/// A page of one lane while it is read.
struct LanePage<'a> {
    request: &'a PageRequest,
    /// Those that hold messages of it, by the first of them.
    frames: Vec<FrameRef>,
    found: Vec<MessageEntry>,
    /// Their stored forms.
    bytes: usize,
}

impl<'a> LanePage<'a> {
    fn new(
        log: Stored<'_>,
        queue: QueueId,
        segment: SegmentId,
        request: &'a PageRequest,
    ) -> Result<Self, ReadError> {
        let mut frames = Vec::new();
        if let (Some(first), Some(last)) = (request.offsets.first(), request.offsets.last()) {
            frames = log.frames_of(segment, queue, request.lane, first..=last)?;
            frames.sort_unstable_by_key(|frame| frame.first);
        }
        Ok(Self { request, frames, found: Vec::new(), bytes: 0 })
    }

    /// The messages of the frames that were read, up to the first that was not: what lies behind is for another page.
    fn into_entries(mut self, read: &[u32]) -> Vec<MessageEntry> {
        let unread = self.frames.iter().find(|frame| read.binary_search(&frame.byte).is_err());
        let complete = unread.map_or(Offset(u64::MAX), |frame| frame.first);
        // A message that was copied forward within its segment is found twice, and the later one is as good.
        self.found.sort_by_key(|entry| entry.offset);
        let mut found = self.found.into_iter().peekable();
        let mut entries = Vec::with_capacity(found.len());
        for offset in self.request.offsets.iter().take_while(|offset| *offset < complete) {
            let mut entry = None;
            while let Some(one) = found.next_if(|one| one.offset <= offset) {
                entry = Some(one).filter(|one| one.offset == offset);
            }
            entries.push(entry.unwrap_or_else(|| MessageEntry::lost(offset, self.request.lane)));
        }
        entries
    }
}

fn read_part(
    log: Stored<'_>,
    queue: QueueId,
    segment: SegmentId,
    mut starts: Vec<u32>,
    lanes: &mut [LanePage<'_>],
    unreadable: &mut Vec<(Position, ReadError)>,
) -> Result<usize, ReadError> {
    starts.sort_unstable();
    starts.dedup();
    let mut bytes = 0;
    for (frame, byte) in log.log.read_frames(segment, &starts).into_iter().zip(starts) {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error @ ReadError::Io { .. }) => {
                unreadable.push((Position { segment, byte }, error));
                continue;
            }
            Err(error @ ReadError::Damaged { .. }) => {
                tracing::error!(%error, "a frame of the log is damaged");
                continue;
            }
            Err(error) => return Err(error),
        };
        for batch in batches_of(&frame, queue) {
            bytes += batch.stored_len();
            take_wanted(&batch, lanes);
        }
    }
    Ok(bytes)
}

/// Takes the wanted messages out of a batch. If they are few, they are copied: a message must not keep many others in
/// memory that nobody asked for.
fn take_wanted(batch: &MessageBatch, lanes: &mut [LanePage<'_>]) {
    // The lane is one byte to look at; the set of offsets is a search.
    let mut lane_of = [None::<u8>; 256];
    for (at, lane) in (0..=u8::MAX).zip(lanes.iter()) {
        lane_of[usize::from(lane.request.lane.0)] = Some(at);
    }
    let mut wanted: Vec<(usize, &BatchItem)> = Vec::new();
    for item in batch.items() {
        if let Some(lane) = lane_of[usize::from(batch.priority(item).0)].map(usize::from)
            && lanes[lane].request.offsets.contains(item.offset)
        {
            wanted.push((lane, item));
        }
    }
    let is_sparse = wanted.len() < batch.items().len() / 2;
    for (lane, item) in wanted {
        let Ok(mut entry) = MessageEntry::from_batch(batch, item) else { continue };
        if is_sparse {
            entry.copy_payload();
        }
        lanes[lane].bytes += entry.payload.as_ref().map_or(0, Bytes::len);
        lanes[lane].found.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use nexo_core::config::QueueConfig;
    use nexo_core::message::NewMessage;
    use nexo_log::disk::MemoryDisk;
    use nexo_types::{Priority, QueueName};

    use super::*;
    use crate::broker::Broker;
    use crate::options::BrokerOptions;

    #[tokio::test]
    async fn lanes_whose_messages_lie_in_different_frames_are_read_together() {
        const LANES: u64 = 4;
        const EACH: u64 = 10;
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), BrokerOptions::new("memory")).unwrap();
        let name = QueueName::new("q").unwrap();
        broker.create_queue(&name, QueueConfig::default()).await.unwrap();
        for offset in 0..LANES * EACH {
            let message = NewMessage { priority: Priority((offset % LANES) as u8), ..NewMessage::new("x") };
            broker.push(&name, vec![message]).await.unwrap();
        }
        let cell = broker.shared.catalog.get(&name).unwrap();
        let segment = cell.state.lock().placement.segment_of(Offset(0));
        let request = |lane: u64| PageRequest {
            lane: Priority(lane as u8),
            offsets: (0..EACH).map(|index| Offset(index * LANES + lane)).collect(),
        };
        let requests: Vec<PageRequest> = (0..LANES).rev().map(request).collect();
        let pages = PlacedPages { segment, requests: requests.clone() };
        let read = read_pages(broker.shared.stored(), cell.id, &pages).unwrap();
        for (request, entries) in requests.iter().zip(&read.entries) {
            let offsets: OffsetSet = entries.iter().map(|entry| entry.offset).collect();
            assert_eq!(offsets, request.offsets);
            assert!(entries.iter().all(|entry| entry.priority == request.lane && entry.payload.is_some()));
        }
    }

    #[tokio::test]
    async fn the_lane_whose_turn_it_is_comes_however_much_lies_before_it() {
        let broker = Broker::open_on(Arc::new(MemoryDisk::new()), BrokerOptions::new("memory")).unwrap();
        let name = QueueName::new("q").unwrap();
        broker.create_queue(&name, QueueConfig::default()).await.unwrap();
        let low = 2 * PAGES_BYTES as u64 / (1 << 20);
        for offset in 0..=low {
            let (priority, body) = if offset < low { (0, vec![1; 1 << 20]) } else { (9, vec![2; 10]) };
            let message = NewMessage { priority: Priority(priority), ..NewMessage::new(body) };
            broker.push(&name, vec![message]).await.unwrap();
        }
        let cell = broker.shared.catalog.get(&name).unwrap();
        let segment = broker.shared.log.segments()[0].id;
        let request = |lane, offsets: OffsetSet| PageRequest { lane: Priority(lane), offsets };
        let requests =
            vec![request(9, [Offset(low)].into_iter().collect()), request(0, (0..low).map(Offset).collect())];
        let read = read_pages(broker.shared.stored(), cell.id, &PlacedPages { segment, requests }).unwrap();
        assert_eq!(read.entries[0].len(), 1, "consumers wait for this one");
        let others = read.entries[1].len() as u64;
        assert!((1..low).contains(&others), "{others} of {low}: as many as there is room for");
    }
}
