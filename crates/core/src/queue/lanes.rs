//! All lanes of a queue: messages that wait in order, by priority. One lane is in `lane.rs`.

use std::collections::VecDeque;
use std::ops::Range;

use nexo_types::{Millis, Offset, Priority, SegmentId, Timestamp};

use super::entry::MessageEntry;
use super::lane::{
    Amount, Lane, PAGE_MESSAGES, PageRequest, PagedOut, Resident, Run, Stretch, resident_cost,
};
use crate::offsets::{OffsetSet, PackedOffsets};
use crate::wire::{Reader, WireError, Writer};

/// What may be in memory of the lanes whose turn is next, where several are read back together. The more, the less often the
/// log is read that holds all of them side by side.
pub(super) const READ_TOGETHER: Amount =
    Amount { messages: if cfg!(test) { 24 } else { 128 * 1024 }, bytes: 16 << 20 };
/// The same of a queue that has only one lane. A page ends by itself after some bytes.
const READ_ALONE: Amount = Amount { messages: PAGE_MESSAGES, bytes: u64::MAX };
/// The most that is read of one lane at a time: they are taken in under one hold of the queue's lock.
const LANE_MESSAGES_MAX: u64 = 4 * PAGE_MESSAGES;
/// A run whose messages end their lives in no order is looked into again after this.
const EXPIRY_RECHECK: Millis = Millis::from_secs(10);

/// All lanes of a queue.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// Highest priority first. A lane that has run empty stays, for the next message of its priority.
    lanes: Vec<Lane>,
    /// A bit for each priority that has messages.
    occupied: [u64; 4],
    count: u64,
    bytes: u64,
    resident_bytes: u64,
    resident: u64,
    /// For how many messages there is room in memory, used or not.
    entry_room: usize,
    /// No message that is not in memory ends its life before this, as far as is known without reading them.
    paged_expiry: Option<Timestamp>,
}

/// What becomes of the messages that are next, when memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// They stay: to read them back at once would only cost more.
    Kept,
    PagedOut,
}

/// Where a reader of the lanes has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    lane: usize,
    stretch: usize,
    entry: usize,
}

/// What a reader finds.
#[derive(Debug)]
pub(crate) enum Waiting<'a> {
    Here(&'a MessageEntry),
    /// The next message is not in memory.
    Paged(Priority, Offset),
}

impl Waiting<'_> {
    pub(crate) const fn priority(&self) -> Priority {
        match self {
            Self::Here(entry) => entry.priority,
            Self::Paged(priority, _) => *priority,
        }
    }

    pub(crate) const fn offset(&self) -> Offset {
        match self {
            Self::Here(entry) => entry.offset,
            Self::Paged(_, offset) => *offset,
        }
    }
}

impl Lanes {
    pub(crate) fn push_back(&mut self, entry: MessageEntry) {
        let index = self.lane_or_new(entry.priority);
        self.count += 1;
        self.bytes += u64::from(entry.stored_bytes);
        self.resident_bytes += resident_cost(&entry);
        self.resident += 1;
        self.mark(entry.priority);
        let lane = &mut self.lanes[index];
        lane.count += 1;
        match lane.stretches.back_mut() {
            Some(Stretch::Resident(resident)) if !resident.is_full() => {
                let before = resident.entries.capacity();
                resident.push_back(entry);
                self.entry_room += resident.entries.capacity() - before;
            }
            _ => {
                let mut resident = Resident::default();
                resident.push_back(entry);
                self.entry_room += resident.entries.capacity();
                lane.insert(lane.stretches.len(), Stretch::Resident(resident));
                // The stretch that was filled before this one lies in the middle now, unless it is the front.
                let middle = lane.stretches.len().saturating_sub(2);
                if middle > 0 {
                    let out = lane.page_out(middle);
                    self.note_paged_out(out);
                }
            }
        }
    }

    /// Takes a message out, wherever in its lane it is.
    ///
    /// # Errors
    /// If it is in a paged stretch: then the front of that stretch is what is needed.
    pub(crate) fn remove(
        &mut self,
        priority: Priority,
        offset: Offset,
    ) -> Result<Option<MessageEntry>, PageRequest> {
        let Some(index) = self.lane_index(priority) else { return Ok(None) };
        let lane = &mut self.lanes[index];
        let mut found = None;
        for (at, stretch) in lane.stretches.iter_mut().enumerate() {
            match stretch {
                Stretch::Resident(resident) => {
                    let room = resident.entries.capacity();
                    if let Some(entry) = resident.remove(offset) {
                        found = Some((at, room, entry));
                        break;
                    }
                    if resident.entries.back().is_some_and(|last| last.offset > offset) {
                        return Ok(None);
                    }
                }
                Stretch::Paged(run) => {
                    if run.contains(offset) {
                        return Err(run.request(priority, PAGE_MESSAGES));
                    }
                }
            }
        }
        let Some((at, room, entry)) = found else { return Ok(None) };
        lane.count -= 1;
        self.entry_room -= room - lane.tidy(at);
        if lane.count == 0 {
            self.unmark(priority);
        }
        self.count -= 1;
        self.bytes -= u64::from(entry.stored_bytes);
        self.resident_bytes -= resident_cost(&entry);
        self.resident -= 1;
        Ok(Some(entry))
    }

    /// Whether a resident message is there.
    pub(crate) fn get(&self, priority: Priority, offset: Offset) -> Option<&MessageEntry> {
        let lane = &self.lanes[self.lane_index(priority)?];
        lane.stretches.iter().find_map(|stretch| match stretch {
            Stretch::Resident(resident) => resident.find(offset).map(|at| &resident.entries[at]),
            Stretch::Paged(_) => None,
        })
    }

    /// The lane that holds this message, in memory or not.
    pub(crate) fn lane_of(&self, offset: Offset) -> Option<Priority> {
        let holds = |stretch: &Stretch| match stretch {
            Stretch::Resident(resident) => resident.find(offset).is_some(),
            Stretch::Paged(run) => run.contains(offset),
        };
        self.lanes.iter().find(|lane| lane.stretches.iter().any(holds)).map(|lane| lane.priority)
    }

    /// The front of the paged stretch that holds this message, if one does.
    pub(crate) fn page_for(&self, priority: Priority, offset: Offset) -> Option<PageRequest> {
        let lane = &self.lanes[self.lane_index(priority)?];
        lane.stretches.iter().find_map(|stretch| match stretch {
            Stretch::Paged(run) if run.contains(offset) => Some(run.request(priority, PAGE_MESSAGES)),
            _ => None,
        })
    }

    /// Puts messages that were paged out in front of the rest of their stretch. They must be the first of the
    /// first paged stretch of their lane; anything else is an answer to a question no longer asked, and ignored.
    /// Gives back how many bytes of the run turned out not to be there, if it was asked for.
    pub(crate) fn page_in(
        &mut self,
        request: &PageRequest,
        entries: Vec<MessageEntry>,
        now: Timestamp,
    ) -> Option<u64> {
        let index = self.lane_index(request.lane)?;
        let lane = &mut self.lanes[index];
        let at = lane.stretches.iter().position(|stretch| {
            matches!(stretch, Stretch::Paged(run)
                if run.segment == request.segment && run.offsets.first() == request.offsets.first())
        })?;
        let Stretch::Paged(run) = &mut lane.stretches[at] else { return None };
        // While the page was read, messages may have come in and gone, and the rest been paged out again.
        if !run.begins_with(entries.iter().map(|entry| entry.offset)) {
            return None;
        }
        run.offsets.take_front(entries.len() as u64);
        // What is left of the run was pushed later; with equal lifetimes it also ends later.
        if let Some(last) = entries.last().filter(|_| run.expires_at != Timestamp::MAX) {
            run.expires_at = run.expires_at.max(last.expires_at.min(now.plus(EXPIRY_RECHECK)));
        }
        let bytes: u64 = entries.iter().map(|e| u64::from(e.stored_bytes)).sum();
        // A lost message has no size of its own any more, so the last page takes what the run has left.
        let claimed = if run.offsets.is_empty() { run.bytes } else { bytes.min(run.bytes) };
        run.bytes -= claimed;
        self.bytes = self.bytes - claimed + bytes;
        self.resident_bytes += entries.iter().map(resident_cost).sum::<u64>();
        self.resident += entries.len() as u64;
        if run.offsets.is_empty() {
            lane.stretches.remove(at);
        }
        self.entry_room += lane.insert_resident(at, entries);
        if self.paged_expiry.is_some() {
            self.paged_expiry = self.earliest_paged_expiry();
        }
        Some(claimed.saturating_sub(bytes))
    }

    /// Points paged messages at another segment, if they are the front of a run. Gives back where they lay and
    /// how many bytes that frees.
    ///
    /// # Errors
    /// If they are paged, but in the middle of a run: then the front of that run is needed in memory.
    pub(crate) fn relocate_run(
        &mut self,
        priority: Priority,
        offsets: &OffsetSet,
        bytes: u64,
        segment: SegmentId,
    ) -> Result<Option<(SegmentId, u64)>, PageRequest> {
        let (Some(index), Some(first)) = (self.lane_index(priority), offsets.first()) else {
            return Ok(None);
        };
        let lane = &mut self.lanes[index];
        let Some(at) = lane
            .stretches
            .iter()
            .position(|stretch| matches!(stretch, Stretch::Paged(run) if run.contains(first)))
        else {
            return Ok(None);
        };
        let Stretch::Paged(run) = &mut lane.stretches[at] else { return Ok(None) };
        if !run.begins_with(offsets.iter()) {
            return Err(run.request(priority, PAGE_MESSAGES));
        }
        let old = run.segment;
        run.offsets.take_front(offsets.len());
        let emptied = run.offsets.is_empty();
        let freed = if emptied { run.bytes } else { bytes.min(run.bytes) };
        run.bytes -= freed;
        self.bytes = self.bytes - freed + bytes;
        let mut packed = PackedOffsets::default();
        for offset in offsets.iter() {
            packed.push(offset);
        }
        let moved = Box::new(Run { segment, offsets: packed, bytes, expires_at: run.expires_at });
        if emptied {
            lane.stretches[at] = Stretch::Paged(moved);
        } else {
            lane.insert(at, Stretch::Paged(moved));
        }
        lane.merge_with_previous(at);
        Ok(Some((old, freed)))
    }

    /// The entry of a message that is in memory, to change it in its place.
    pub(crate) fn get_mut(&mut self, priority: Priority, offset: Offset) -> Option<&mut MessageEntry> {
        let index = self.lane_index(priority)?;
        self.lanes[index].stretches.iter_mut().find_map(|stretch| match stretch {
            Stretch::Resident(resident) => {
                let at = resident.find(offset)?;
                resident.entries.get_mut(at)
            }
            Stretch::Paged(_) => None,
        })
    }

    /// What must come into memory before the next message can be delivered, or soon after: a page is asked for while the last
    /// one is still being delivered. The lanes whose turn is next come with it: messages of all priorities lie side by side
    /// in the log, and to read them once for each would take long.
    pub(crate) fn wanted_pages(&self) -> Vec<PageRequest> {
        let mut pages: Vec<PageRequest> = Vec::new();
        let Some(top) = self.top().filter(|_| self.resident < self.count) else { return pages };
        let several = self.occupied.iter().map(|bits| bits.count_ones()).sum::<u32>() > 1;
        let mut room = if several { READ_TOGETHER } else { READ_ALONE };
        let ahead_max = room.part(if several { 4 } else { 2 });
        let mut ahead = Amount::default();
        for lane in self.lanes[top..].iter().filter(|lane| lane.count > 0) {
            let (resident, run) = lane.first_run();
            if pages.is_empty() {
                ahead.add(resident);
                if ahead.exceeds(ahead_max) {
                    break;
                }
            }
            // What waits in memory already counts: however many lanes there are, no more comes than there is room for.
            if several && !room.take(resident) && !pages.is_empty() {
                break;
            }
            let segment = pages.first().map(|first| first.segment);
            let Some(run) = run.filter(|run| segment.is_none_or(|segment| run.segment == segment)) else {
                continue;
            };
            let most = room.messages_of(run.mean_bytes()).min(LANE_MESSAGES_MAX);
            // The first is needed in any case.
            let most = if pages.is_empty() { most.max(PAGE_MESSAGES) } else { most };
            if most == 0 {
                break;
            }
            let request = run.request(lane.priority, most);
            let messages = request.offsets.len();
            room.take(Amount { messages, bytes: messages * run.mean_bytes() });
            pages.push(request);
        }
        pages
    }

    /// The first page in the order of delivery.
    pub(crate) fn first_page(&self) -> Option<PageRequest> {
        self.lanes.iter().find_map(|lane| {
            lane.stretches.iter().find_map(|stretch| match stretch {
                Stretch::Paged(run) => Some(run.request(lane.priority, PAGE_MESSAGES)),
                Stretch::Resident(_) => None,
            })
        })
    }

    /// The page that holds the message evicted first: the front of the last lane.
    pub(crate) fn lowest_page(&self) -> Option<PageRequest> {
        let lane = self.lanes.iter().rev().find(|lane| lane.count > 0)?;
        lane.stretches.iter().find_map(|stretch| match stretch {
            Stretch::Paged(run) => Some(run.request(lane.priority, PAGE_MESSAGES)),
            Stretch::Resident(_) => None,
        })
    }

    /// The front of the first paged stretch of this segment, for copying it forward.
    pub(crate) fn page_in_segment(&self, segment: SegmentId) -> Option<PageRequest> {
        self.lanes.iter().find_map(|lane| {
            lane.stretches.iter().find_map(|stretch| match stretch {
                Stretch::Paged(run) if run.segment == segment => {
                    Some(run.request(lane.priority, PAGE_MESSAGES))
                }
                _ => None,
            })
        })
    }

    /// Pages out until this much memory is free or nothing is left that can be: what is delivered last goes first. Gives
    /// back how much memory that freed.
    pub(crate) fn page_out(&mut self, bytes: u64, front: Front) -> u64 {
        let mut freed = 0;
        let kept = self.top().filter(|_| front == Front::Kept);
        for index in (0..self.lanes.len()).rev() {
            let lane = &self.lanes[index];
            let is_front =
                kept == Some(index) && matches!(lane.stretches.front(), Some(Stretch::Resident(_)));
            for at in (usize::from(is_front)..lane.stretches.len()).rev() {
                if freed >= bytes {
                    return freed;
                }
                let lane = &mut self.lanes[index];
                if let Stretch::Resident(resident) = &mut lane.stretches[at]
                    && resident.entries.is_empty()
                {
                    // Room that is kept for the next messages.
                    self.entry_room -= resident.entries.capacity();
                    freed += (resident.entries.capacity() * size_of::<MessageEntry>()) as u64;
                    resident.entries = VecDeque::new();
                }
                // This may split it by segment, and join the first part with what is before it.
                let out = lane.page_out(at);
                if out.count == 0
                    && let Stretch::Resident(resident) = &mut lane.stretches[at]
                {
                    // It stays, but not all of its room must.
                    let room = resident.trim();
                    self.entry_room -= room;
                    freed += (room * size_of::<MessageEntry>()) as u64;
                }
                freed += out.freed_bytes();
                self.note_paged_out(out);
            }
            if is_front
                && freed < bytes
                && let Some(Stretch::Resident(resident)) = self.lanes[index].stretches.front_mut()
            {
                let room = resident.trim();
                self.entry_room -= room;
                freed += (room * size_of::<MessageEntry>()) as u64;
            }
        }
        freed
    }

    fn note_paged_out(&mut self, out: PagedOut) {
        self.resident_bytes -= out.bytes;
        self.resident -= out.count;
        self.entry_room -= out.room;
        if out.expires_at != Timestamp::MAX {
            self.paged_expiry = Some(self.paged_expiry.map_or(out.expires_at, |at| at.min(out.expires_at)));
        }
    }

    fn earliest_paged_expiry(&self) -> Option<Timestamp> {
        let runs = self.lanes.iter().flat_map(|lane| &lane.stretches).filter_map(|stretch| match stretch {
            Stretch::Paged(run) => Some(run.expires_at),
            Stretch::Resident(_) => None,
        });
        runs.min().filter(|at| *at != Timestamp::MAX)
    }

    /// When a message that is not in memory may end its life.
    pub(crate) const fn paged_expiry(&self) -> Option<Timestamp> {
        self.paged_expiry
    }

    /// The page that may hold messages whose life has ended.
    pub(crate) fn expired_page(&self, now: Timestamp) -> Option<PageRequest> {
        self.paged_expiry.filter(|at| *at <= now)?;
        self.lanes.iter().find_map(|lane| {
            lane.stretches.iter().find_map(|stretch| match stretch {
                Stretch::Paged(run) if run.expires_at <= now => {
                    Some(run.request(lane.priority, PAGE_MESSAGES))
                }
                _ => None,
            })
        })
    }

    /// Messages in memory.
    pub(crate) const fn resident_len(&self) -> u64 {
        self.resident
    }

    pub(crate) const fn len(&self) -> u64 {
        self.count
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory taken, near enough: by messages, and by room for more. Where many queues have few messages each, there is
    /// more room than messages.
    pub(crate) const fn memory_bytes(&self) -> u64 {
        let unused = self.entry_room as u64 - self.resident;
        self.resident_bytes + unused * size_of::<MessageEntry>() as u64
    }

    /// Checks that it is as it should be. For tests; it looks at every stretch.
    pub(crate) fn check_invariants(&self) {
        let room: usize = self.lanes.iter().map(Lane::room).sum();
        assert_eq!(room, self.entry_room, "room for messages is counted");
        let resident: u64 = self.resident().map(resident_cost).sum();
        assert_eq!((resident, self.resident().count() as u64), (self.resident_bytes, self.resident));
        let counts = self.lanes.iter().map(|lane| (lane.priority, lane.count, lane.messages()));
        for (priority, count, messages) in counts {
            assert_eq!(count, messages, "{priority:?}");
            let (word, bit) = (usize::from(priority.0 / 64), priority.0 % 64);
            assert_eq!(self.occupied[word] >> bit & 1 == 1, count > 0, "{priority:?}");
        }
        assert_eq!(self.lanes.iter().map(|lane| lane.count).sum::<u64>(), self.count);
    }

    /// Where reading in the order of delivery begins.
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { lane: self.top().unwrap_or(self.lanes.len()), stretch: 0, entry: 0 }
    }

    /// Where reading in the order of delivery goes on behind this message, which may be gone.
    pub(crate) fn seek(&self, after: Option<(Priority, Offset)>) -> Cursor {
        let Some((priority, offset)) = after else { return self.cursor() };
        let lane = self.lanes.partition_point(|lane| lane.priority > priority);
        let next_lane = |lane| Cursor { lane, stretch: 0, entry: 0 };
        let Some(found) = self.lanes.get(lane).filter(|found| found.priority == priority) else {
            return next_lane(lane);
        };
        for (stretch, part) in found.stretches.iter().enumerate() {
            match part {
                Stretch::Resident(resident) => {
                    let entry = resident.entries.partition_point(|entry| entry.offset <= offset);
                    if entry < resident.entries.len() {
                        return Cursor { lane, stretch, entry };
                    }
                }
                Stretch::Paged(run) => {
                    if run.after(Some(offset)).next().is_some() {
                        return Cursor { lane, stretch, entry: 0 };
                    }
                }
            }
        }
        next_lane(lane + 1)
    }

    /// The messages behind `after` of the paged stretch at the cursor, at most `max`.
    pub(crate) fn page_at(
        &self,
        cursor: Cursor,
        after: Option<(Priority, Offset)>,
        max: usize,
    ) -> Option<PageRequest> {
        let lane = self.lanes.get(cursor.lane)?;
        let Stretch::Paged(run) = lane.stretches.get(cursor.stretch)? else { return None };
        let after = after.filter(|(priority, _)| *priority == lane.priority).map(|(_, offset)| offset);
        let offsets = run.after(after).take(max).collect();
        Some(PageRequest { lane: lane.priority, segment: run.segment, offsets })
    }

    /// Moves the cursor past the message it is at.
    pub(crate) const fn step(cursor: &mut Cursor) {
        cursor.entry += 1;
    }

    /// What is at the cursor, which moves to the next occupied place if its own has been read.
    pub(crate) fn at(&self, cursor: &mut Cursor) -> Option<Waiting<'_>> {
        loop {
            let lane = self.lanes.get(cursor.lane)?;
            match lane.stretches.get(cursor.stretch) {
                Some(Stretch::Resident(resident)) => match resident.entries.get(cursor.entry) {
                    Some(entry) => return Some(Waiting::Here(entry)),
                    None => *cursor = Cursor { stretch: cursor.stretch + 1, entry: 0, ..*cursor },
                },
                Some(Stretch::Paged(run)) => {
                    let first = run.offsets.first().expect("a run has offsets");
                    return Some(Waiting::Paged(lane.priority, first));
                }
                None => *cursor = Cursor { lane: cursor.lane + 1, stretch: 0, entry: 0 },
            }
        }
    }

    /// Where reading one lane begins, if it has messages.
    pub(crate) fn lane_cursor(&self, priority: Priority) -> Cursor {
        let lane = self.lane_index(priority).filter(|index| self.lanes[*index].count > 0);
        Cursor { lane: lane.unwrap_or(self.lanes.len()), stretch: 0, entry: 0 }
    }

    /// Priorities that have messages, lowest first.
    pub(crate) fn priorities_ascending(&self) -> impl Iterator<Item = Priority> + '_ {
        self.lanes.iter().rev().filter(|lane| lane.count > 0).map(|lane| lane.priority)
    }

    /// Every resident message.
    pub(crate) fn resident(&self) -> impl Iterator<Item = &MessageEntry> + Clone {
        self.lanes.iter().flat_map(|lane| lane.stretches.iter()).flat_map(|stretch| match stretch {
            Stretch::Resident(resident) => resident.entries.range(..),
            Stretch::Paged(_) => super::lane::EMPTY.range(..),
        })
    }

    /// When the first message of each lane was pushed, where that is known without reading the log.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.lanes
            .iter()
            .filter_map(|lane| match lane.stretches.front()? {
                Stretch::Resident(resident) => resident.entries.front().map(|entry| entry.enqueued_at),
                Stretch::Paged(_) => None,
            })
            .min()
    }

    /// Segment, lane and ranges of offsets of every paged stretch.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Priority, SegmentId, u64, Vec<Range<u64>>)> + '_ {
        self.lanes.iter().flat_map(|lane| {
            lane.stretches.iter().filter_map(|stretch| match stretch {
                Stretch::Paged(run) => {
                    let ranges = run.offsets.ranges().map(|(first, len)| first..first + len).collect();
                    Some((lane.priority, run.segment, run.bytes, ranges))
                }
                Stretch::Resident(_) => None,
            })
        })
    }

    /// Stored bytes by segment: what each segment holds for this queue's lanes.
    pub(crate) fn bytes_by_segment(&self, mut note: impl FnMut(SegmentId, u64)) {
        for stretch in self.lanes.iter().flat_map(|lane| &lane.stretches) {
            match stretch {
                Stretch::Resident(resident) => {
                    for entry in resident.entries.iter().filter(|entry| entry.is_durable()) {
                        note(entry.at.segment, entry.stored_bytes.into());
                    }
                }
                Stretch::Paged(run) => note(run.segment, run.bytes),
            }
        }
    }

    /// Writes all durable messages down as runs. Resident ones need no more: the log has the rest.
    pub(crate) fn encode(&self, out: &mut Writer) {
        let mut runs: Vec<(Priority, Run)> = Vec::new();
        for lane in &self.lanes {
            let start = runs.len();
            let mut add = |segment: SegmentId, first: u64, len: u64, bytes: u64, expires_at: Timestamp| {
                if !matches!(runs.get(start..), Some([.., (_, run)]) if run.segment == segment) {
                    runs.push((lane.priority, Run::new(segment)));
                }
                if let Some((_, run)) = runs.last_mut() {
                    run.offsets.push_range(first, len);
                    run.bytes += bytes;
                    run.expires_at = run.expires_at.min(expires_at);
                }
            };
            for stretch in &lane.stretches {
                match stretch {
                    Stretch::Resident(resident) => {
                        for entry in resident.entries.iter().filter(|entry| entry.is_durable()) {
                            add(
                                entry.at.segment,
                                entry.offset.0,
                                1,
                                entry.stored_bytes.into(),
                                entry.expires_at,
                            );
                        }
                    }
                    Stretch::Paged(run) => {
                        let mut bytes = run.bytes;
                        for (first, len) in run.offsets.ranges() {
                            add(run.segment, first, len, std::mem::take(&mut bytes), run.expires_at);
                        }
                    }
                }
            }
        }
        out.u64(runs.len() as u64);
        for (priority, run) in runs {
            out.u8(priority.0);
            out.u64(run.segment.0.into());
            out.u64(run.bytes);
            out.u64(run.expires_at.0);
            run.offsets.encode(out);
        }
    }

    /// Reads back what [`Self::encode`] wrote; everything is paged.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut lanes = Self::default();
        for _ in 0..input.u64()? {
            let priority = Priority(input.u8()?);
            let segment = SegmentId(input.u32()?);
            let bytes = input.u64()?;
            let expires_at = Timestamp(input.u64()?);
            let offsets = PackedOffsets::decode(input)?;
            if offsets.is_empty() {
                return Err(WireError::Range);
            }
            let index = lanes.lane_or_new(priority);
            lanes.mark(priority);
            lanes.count += offsets.len();
            lanes.bytes += bytes;
            lanes.lanes[index].count += offsets.len();
            let lane = &mut lanes.lanes[index];
            let run = Box::new(Run { segment, offsets, bytes, expires_at });
            lane.insert(lane.stretches.len(), Stretch::Paged(run));
        }
        lanes.paged_expiry = lanes.earliest_paged_expiry();
        Ok(lanes)
    }

    /// For how many lanes, and stretches in the first of them, there is room.
    #[cfg(test)]
    pub(super) fn room(&self) -> (usize, usize) {
        (self.lanes.capacity(), self.lanes.first().map_or(0, |lane| lane.stretches.capacity()))
    }

    /// For how many messages there is room.
    #[cfg(test)]
    pub(super) fn entry_room(&self) -> usize {
        self.lanes.iter().map(Lane::room).sum()
    }

    fn lane_index(&self, priority: Priority) -> Option<usize> {
        // Most queues have one lane.
        if let [lane] = self.lanes.as_slice() {
            return (lane.priority == priority).then_some(0);
        }
        self.lanes.binary_search_by(|lane| priority.cmp(&lane.priority)).ok()
    }

    fn lane_or_new(&mut self, priority: Priority) -> usize {
        match self.lanes.binary_search_by(|lane| priority.cmp(&lane.priority)) {
            Ok(index) => index,
            Err(index) => {
                if self.lanes.is_empty() {
                    // Most queues have one.
                    self.lanes.reserve_exact(1);
                }
                self.lanes.insert(index, Lane { priority, stretches: VecDeque::new(), count: 0 });
                index
            }
        }
    }

    /// Index of the highest lane that has messages.
    fn top(&self) -> Option<usize> {
        let (word, bits) = self.occupied.iter().enumerate().rev().find(|(_, bits)| **bits != 0)?;
        let priority = word * 64 + 63 - bits.leading_zeros() as usize;
        self.lane_index(Priority(priority as u8))
    }

    fn mark(&mut self, priority: Priority) {
        self.occupied[usize::from(priority.0 / 64)] |= 1 << (priority.0 % 64);
    }

    fn unmark(&mut self, priority: Priority) {
        self.occupied[usize::from(priority.0 / 64)] &= !(1 << (priority.0 % 64));
    }
}
