//! All lanes of a queue: messages that wait in order, by priority. One lane is in `lane.rs`.

use std::collections::VecDeque;
use std::ops::Range;

use nexo_types::{Millis, Offset, Priority, Timestamp};

use super::entry::MessageEntry;
use super::lane::{Amount, Lane, PAGE_MESSAGES, PageRequest, PagedOut, Resident, Stretch, resident_cost};
use crate::offsets::OffsetSet;

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
        lane.blocks.push(&entry);
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
        lane.blocks.remove(&entry);
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
    /// first paged stretch of their lane; anything else is an answer to a question no longer asked, and ignored:
    /// `false` comes back.
    pub(crate) fn page_in(
        &mut self,
        request: &PageRequest,
        entries: Vec<MessageEntry>,
        now: Timestamp,
    ) -> bool {
        let Some(index) = self.lane_index(request.lane) else { return false };
        let lane = &mut self.lanes[index];
        let asked = |stretch: &Stretch| matches!(stretch, Stretch::Paged(run) if run.offsets.first() == request.offsets.first());
        let Some(at) = lane.stretches.iter().position(asked) else { return false };
        let Stretch::Paged(run) = &mut lane.stretches[at] else { return false };
        // While the page was read, messages may have come in and gone, and the rest been paged out again.
        if !run.begins_with(entries.iter().map(|entry| entry.offset)) {
            return false;
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
        true
    }

    /// What must come into memory before the next message can be delivered, or soon after: a page is asked for while the last
    /// one is still being delivered. The lanes whose turn is next come with it: messages of all priorities lie side by side
    /// in the log, and to read them once for each would take long. `readable` says which of the first messages of a page can
    /// be read together with the pages before it, if any; it need not look at all of them.
    pub(crate) fn wanted_pages(
        &self,
        mut readable: impl FnMut(&mut dyn Iterator<Item = (u64, u64)>) -> OffsetSet,
    ) -> Vec<PageRequest> {
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
            let Some(run) = run else { continue };
            let most = room.messages_of(run.mean_bytes()).min(LANE_MESSAGES_MAX);
            // The first is needed in any case.
            let most = if pages.is_empty() { most.max(PAGE_MESSAGES) } else { most };
            if most == 0 {
                break;
            }
            let offsets = readable(&mut run.first_ranges(most));
            let messages = offsets.len();
            if messages > 0 {
                room.take(Amount { messages, bytes: messages * run.mean_bytes() });
                pages.push(PageRequest { lane: lane.priority, offsets });
            }
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
                // It may be joined with what is before it.
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
        for lane in &self.lanes {
            let blocks = lane.blocks.messages();
            assert_eq!(blocks, lane.durable(), "durable messages of {:?} are in blocks", lane.priority);
        }
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

    /// Lane, bytes and ranges of offsets of every paged stretch.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Priority, u64, Vec<Range<u64>>)> + '_ {
        self.lanes.iter().flat_map(|lane| {
            lane.stretches.iter().filter_map(|stretch| match stretch {
                Stretch::Paged(run) => {
                    let ranges = run.offsets.ranges().map(|(first, len)| first..first + len).collect();
                    Some((lane.priority, run.bytes, ranges))
                }
                Stretch::Resident(_) => None,
            })
        })
    }

    /// Durable messages from `start` on and before `end`, in memory or not, by lane.
    pub(super) fn durable_in(&self, start: Offset, end: Offset, found: &mut Vec<(Priority, Offset)>) {
        for lane in &self.lanes {
            let before = found.len();
            lane.stretches.iter().for_each(|stretch| stretch.durable_in(start, end, lane.priority, found));
            debug_assert!(found[before..].is_sorted_by_key(|(_, offset)| *offset), "a lane is in order");
        }
    }

    /// Those of these durable messages that are in the lane, in memory or not.
    pub(super) fn durable_among(&self, priority: Priority, offsets: &OffsetSet) -> OffsetSet {
        let mut found = OffsetSet::default();
        if let Some(index) = self.lane_index(priority) {
            self.lanes[index].stretches.iter().for_each(|stretch| stretch.durable_among(offsets, &mut found));
        }
        found
    }

    pub(super) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// The lane to which so many messages of so many bytes are added. They are not in memory.
    pub(super) fn lane_for(&mut self, priority: Priority, messages: u64, bytes: u64) -> &mut Lane {
        let index = self.lane_or_new(priority);
        self.mark(priority);
        self.count += messages;
        self.bytes += bytes;
        self.lanes[index].count += messages;
        &mut self.lanes[index]
    }

    /// All lanes were read back from a snapshot.
    pub(super) fn note_restored(&mut self) {
        self.paged_expiry = self.earliest_paged_expiry();
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

    pub(super) fn lane_index(&self, priority: Priority) -> Option<usize> {
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
                self.lanes.insert(index, Lane::new(priority));
                index
            }
        }
    }

    /// Index of the highest lane that has messages.
    pub(super) fn top(&self) -> Option<usize> {
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
