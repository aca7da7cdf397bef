//! Messages of one priority that wait in order, most of them not in memory.
//!
//! A lane is a row of *stretches*: either resident (entries in memory) or paged (the set of offsets, a few bytes however
//! many there are). Messages join at the back and leave at the front; a long lane is
//! resident at both ends and paged between.

use std::collections::VecDeque;

use nexo_types::{Offset, Priority, Timestamp};

use super::blocks::Blocks;
use super::entry::MessageEntry;
use super::run::Run;
use crate::offsets::OffsetSet;

/// A stretch in memory is closed when it has this many messages (few in tests, so that they meet paging) …
const STRETCH_MESSAGES_MAX: usize = if cfg!(test) { 4 } else { 4096 };
/// … or this many bytes, so that large messages do not make large stretches.
const STRETCH_BYTES_MAX: u64 = 1024 * 1024;
/// Up to this many messages a stretch gets room for a few more at a time: most queues have few, and room that doubles would
/// be half of what they take.
const SMALL_STRETCH_MESSAGES: usize = 16;
/// For how many more it gets room then.
const SMALL_STEP: usize = 2;
/// Messages asked for at a time when a paged stretch is needed again.
pub(super) const PAGE_MESSAGES: u64 = if cfg!(test) { 3 } else { 4096 };

/// Part of a paged stretch that is needed in memory: see [`super::Queue::page_in`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The lane.
    pub lane: Priority,
    /// Which messages. The answer may hold fewer, but must begin with the first.
    pub offsets: OffsetSet,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) priority: Priority,
    pub(super) stretches: VecDeque<Stretch>,
    pub(super) count: u64,
    pub(super) blocks: Blocks,
}

#[derive(Debug)]
pub(super) enum Stretch {
    Resident(Resident),
    /// Boxed, because most queues have no run, and one stretch at most.
    Paged(Box<Run>),
}

#[derive(Debug, Default)]
pub(super) struct Resident {
    pub(super) entries: VecDeque<MessageEntry>,
    pub(super) bytes: u64,
}

/// So many messages, and so many bytes that they are stored in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Amount {
    pub(super) const fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }

    /// Whether it is more than the other in one way.
    pub(super) const fn exceeds(self, other: Self) -> bool {
        self.messages > other.messages || self.bytes > other.bytes
    }

    /// One part of so many.
    pub(super) const fn part(self, parts: u64) -> Self {
        Self { messages: self.messages / parts, bytes: self.bytes / parts }
    }

    /// Takes so much away. `false` if it was not more.
    pub(super) const fn take(&mut self, other: Self) -> bool {
        self.messages = self.messages.saturating_sub(other.messages);
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.messages > 0 && self.bytes > 0
    }

    /// How many messages of this size there is room for.
    pub(super) fn messages_of(self, bytes: u64) -> u64 {
        self.messages.min(self.bytes / bytes.max(1))
    }
}

/// Stands in where a stretch has no entries in memory.
pub(super) static EMPTY: VecDeque<MessageEntry> = VecDeque::new();

/// What a resident message costs in memory, near enough: its entry and its bytes.
pub(super) fn resident_cost(entry: &MessageEntry) -> u64 {
    size_of::<MessageEntry>() as u64 + entry.cached_bytes() + entry.cached_overhead_bytes()
}

/// What has left memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PagedOut {
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// For how many messages there was room.
    pub(super) room: usize,
    /// The earliest end of a life among it.
    pub(super) expires_at: Timestamp,
}

impl PagedOut {
    /// Memory that this has freed, near enough.
    pub(super) const fn freed_bytes(&self) -> u64 {
        self.bytes + (self.room as u64 - self.count) * size_of::<MessageEntry>() as u64
    }
}

impl Lane {
    pub(super) fn new(priority: Priority) -> Self {
        Self { priority, stretches: VecDeque::new(), count: 0, blocks: Blocks::default() }
    }

    /// Turns the resident stretch at `at` into a run, unless a transient message is in it.
    pub(super) fn page_out(&mut self, at: usize) -> PagedOut {
        let mut out = PagedOut { count: 0, bytes: 0, room: 0, expires_at: Timestamp::MAX };
        let Stretch::Resident(resident) = &self.stretches[at] else { return out };
        if resident.entries.is_empty() || !resident.entries.iter().all(MessageEntry::is_durable) {
            return out;
        }
        out.room = resident.entries.capacity();
        let mut run = Run::default();
        for entry in &resident.entries {
            out.count += 1;
            out.bytes += resident_cost(entry);
            run.push(entry);
        }
        out.expires_at = run.expires_at;
        self.stretches[at] = Stretch::Paged(Box::new(run));
        if at + 1 < self.stretches.len() {
            self.merge_with_previous(at + 1);
        }
        self.merge_with_previous(at);
        out
    }

    /// For how many messages there is room in memory.
    pub(super) fn room(&self) -> usize {
        let room = self.stretches.iter().map(|stretch| match stretch {
            Stretch::Resident(resident) => resident.entries.capacity(),
            Stretch::Paged(_) => 0,
        });
        room.sum()
    }

    /// Puts a stretch in. Most lanes have one or two, and room for no more.
    pub(super) fn insert(&mut self, at: usize, stretch: Stretch) {
        if self.stretches.len() == self.stretches.capacity() && self.stretches.len() < 2 {
            self.stretches.reserve_exact(1);
        }
        self.stretches.insert(at, stretch);
    }

    /// The first messages that are not in memory, and what is before them.
    pub(super) fn first_run(&self) -> (Amount, Option<&Run>) {
        let mut resident = Amount::default();
        for stretch in &self.stretches {
            match stretch {
                Stretch::Resident(part) => {
                    resident.add(Amount { messages: part.entries.len() as u64, bytes: part.bytes });
                }
                Stretch::Paged(run) => return (resident, Some(run)),
            }
        }
        (resident, None)
    }

    /// Puts in messages that have come into memory, as stretches of the usual size. Gives back for how many messages they
    /// have room.
    pub(super) fn insert_resident(&mut self, at: usize, entries: Vec<MessageEntry>) -> usize {
        let mut stretches: Vec<Resident> = Vec::new();
        let mut entries = entries.into_iter();
        while entries.len() > 0 {
            let mut part = VecDeque::with_capacity(entries.len().min(STRETCH_MESSAGES_MAX));
            part.extend(entries.by_ref().take(STRETCH_MESSAGES_MAX));
            let bytes = part.iter().map(|entry: &MessageEntry| u64::from(entry.stored_bytes)).sum();
            stretches.push(Resident { entries: part, bytes });
        }
        let room = stretches.iter().map(|stretch| stretch.entries.capacity()).sum();
        for stretch in stretches.into_iter().rev() {
            self.insert(at, Stretch::Resident(stretch));
        }
        room
    }

    /// How many messages its stretches hold.
    pub(super) fn messages(&self) -> u64 {
        let messages = self.stretches.iter().map(|stretch| match stretch {
            Stretch::Resident(resident) => resident.entries.len() as u64,
            Stretch::Paged(run) => run.offsets.len(),
        });
        messages.sum()
    }

    /// How many of them are durable. For tests; it looks at every entry.
    pub(super) fn durable(&self) -> u64 {
        let durable = self.stretches.iter().map(|stretch| match stretch {
            Stretch::Resident(resident) => {
                resident.entries.iter().filter(|entry| entry.is_durable()).count() as u64
            }
            Stretch::Paged(run) => run.offsets.len(),
        });
        durable.sum()
    }

    fn merge_with_previous(&mut self, at: usize) {
        let Some(before) = at.checked_sub(1) else { return };
        let mergeable = matches!(
            (&self.stretches[before], &self.stretches[at]),
            (Stretch::Paged(a), Stretch::Paged(b)) if a.may_take(b)
        );
        if mergeable
            && let Some(Stretch::Paged(later)) = self.stretches.remove(at)
            && let Stretch::Paged(earlier) = &mut self.stretches[before]
        {
            earlier.take(&later);
        }
    }

    /// Removes a stretch that has run empty, but keeps the memory of the only one. Gives back for how many messages it has
    /// room then.
    pub(super) fn tidy(&mut self, at: usize) -> usize {
        let Stretch::Resident(resident) = &self.stretches[at] else { return 0 };
        if self.stretches.len() > 1 && resident.entries.is_empty() {
            self.stretches.remove(at);
            return 0;
        }
        resident.entries.capacity()
    }
}

impl Resident {
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= STRETCH_MESSAGES_MAX || self.bytes >= STRETCH_BYTES_MAX
    }

    pub(super) fn push_back(&mut self, entry: MessageEntry) {
        debug_assert!(
            self.entries.back().is_none_or(|last| last.offset < entry.offset),
            "a lane is in order"
        );
        self.bytes += u64::from(entry.stored_bytes);
        if self.entries.len() == self.entries.capacity() {
            self.grow();
        }
        self.entries.push_back(entry);
    }

    #[cold]
    fn grow(&mut self) {
        if self.entries.len() < SMALL_STRETCH_MESSAGES {
            self.entries.reserve_exact(SMALL_STEP);
        }
    }

    /// Gives up room that messages have left, if that is more than half. Gives back for how many messages it was.
    pub(super) fn trim(&mut self) -> usize {
        let room = self.entries.capacity();
        if room > 2 * self.entries.len() {
            self.entries.shrink_to_fit();
        }
        room - self.entries.capacity()
    }

    pub(super) fn find(&self, offset: Offset) -> Option<usize> {
        // Nearly always the first.
        if self.entries.front()?.offset == offset {
            return Some(0);
        }
        self.entries.binary_search_by_key(&offset, |entry| entry.offset).ok()
    }

    pub(super) fn remove(&mut self, offset: Offset) -> Option<MessageEntry> {
        let at = self.find(offset)?;
        let entry = if at == 0 { self.entries.pop_front() } else { self.entries.remove(at) }?;
        self.bytes -= u64::from(entry.stored_bytes);
        if self.entries.is_empty() && self.entries.capacity() > STRETCH_MESSAGES_MAX * 2 {
            self.entries = VecDeque::new();
        }
        Some(entry)
    }
}

impl Stretch {
    /// Adds durable messages from `start` on and before `end`.
    pub(super) fn durable_in(
        &self,
        start: Offset,
        end: Offset,
        lane: Priority,
        found: &mut Vec<(Priority, Offset)>,
    ) {
        match self {
            Self::Resident(resident) => {
                let from = resident.entries.partition_point(|entry| entry.offset < start);
                let entries = resident.entries.range(from..).take_while(|entry| entry.offset < end);
                found.extend(entries.filter(|e| e.is_durable()).map(|entry| (lane, entry.offset)));
            }
            Self::Paged(run) if run.overlaps(start, end) => {
                let after = start.0.checked_sub(1).map(Offset);
                found.extend(run.after(after).take_while(|at| *at < end).map(|offset| (lane, offset)));
            }
            Self::Paged(_) => {}
        }
    }

    /// Adds those of these messages that are here and durable.
    pub(super) fn durable_among(&self, offsets: &OffsetSet, found: &mut OffsetSet) {
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else { return };
        match self {
            Self::Resident(resident) => {
                let from = resident.entries.partition_point(|entry| entry.offset < first);
                let entries = resident.entries.range(from..).take_while(|entry| entry.offset <= last);
                let here = entries.filter(|entry| entry.is_durable() && offsets.contains(entry.offset));
                here.for_each(|entry| found.push(entry.offset));
            }
            Self::Paged(run) if run.overlaps(first, last.next()) => run.offsets.intersection(offsets, found),
            Self::Paged(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::lanes::{Front, Lanes, READ_TOGETHER};
    use crate::queue::run::RUN_MESSAGES_MAX;

    fn entry(offset: u64) -> MessageEntry {
        MessageEntry::lost(Offset(offset), Priority(0))
    }

    #[test]
    fn a_stretch_of_few_messages_has_room_for_hardly_more() {
        let mut resident = Resident::default();
        for offset in 0..SMALL_STRETCH_MESSAGES as u64 {
            resident.push_back(entry(offset));
            let spare = resident.entries.capacity() - resident.entries.len();
            assert!(spare < SMALL_STEP, "{spare} places unused with {} messages", offset + 1);
        }
        // Room for many doubles, so that a message is not moved again and again.
        resident.push_back(entry(100));
        assert!(resident.entries.capacity() >= 2 * SMALL_STRETCH_MESSAGES);
    }

    #[test]
    fn a_queue_in_use_has_room_for_one_lane_of_one_stretch() {
        let mut lanes = Lanes::default();
        lanes.push_back(entry(0));
        assert_eq!(lanes.room(), (1, 1));
        assert_eq!(size_of::<Stretch>(), size_of::<Resident>(), "a run is behind a pointer");
    }

    #[test]
    fn an_empty_stretch_keeps_its_room_until_memory_is_short() {
        let mut lanes = Lanes::default();
        lanes.push_back(entry(0));
        lanes.remove(Priority(0), Offset(0)).unwrap().unwrap();
        assert!(lanes.entry_room() > 0);
        assert_eq!(lanes.memory_bytes(), (lanes.entry_room() * size_of::<MessageEntry>()) as u64);
        lanes.check_invariants();
        lanes.push_back(entry(1));
        lanes.check_invariants();
        lanes.remove(Priority(0), Offset(1)).unwrap().unwrap();
        lanes.page_out(u64::MAX, Front::PagedOut);
        assert_eq!((lanes.entry_room(), lanes.memory_bytes()), (0, 0));
        lanes.check_invariants();
    }

    #[test]
    fn room_that_no_message_uses_any_more_counts_as_memory() {
        let mut lanes = Lanes::default();
        for offset in 0..4 {
            lanes.push_back(entry(offset));
        }
        let full = lanes.memory_bytes();
        for offset in 0..3 {
            lanes.remove(Priority(0), Offset(offset)).unwrap().unwrap();
            lanes.check_invariants();
        }
        let room = (lanes.entry_room() * size_of::<MessageEntry>()) as u64;
        assert_eq!((lanes.memory_bytes(), room), (full, full), "the stretch is as large as before");
        assert_eq!(lanes.page_out(u64::MAX, Front::Kept), full / 4 * 3, "consumers get the last one next");
        assert_eq!((lanes.memory_bytes(), lanes.resident_len()), (full / 4, 1));
        lanes.check_invariants();
        assert_eq!(lanes.page_out(u64::MAX, Front::PagedOut), full / 4);
        assert_eq!(lanes.memory_bytes(), 0);
        lanes.check_invariants();
        let page = lanes.wanted_pages(|ranges| OffsetSet::from_ranges(ranges)).remove(0);
        assert!(lanes.page_in(&page, vec![entry(3)], Timestamp(0)));
        assert_eq!(lanes.memory_bytes(), full / 4, "what is read back gets no more room than it needs");
        lanes.check_invariants();
    }

    #[test]
    fn what_is_delivered_last_leaves_memory_first() {
        let mut lanes = Lanes::default();
        let of = |priority: u8, offset: u64| MessageEntry { priority: Priority(priority), ..entry(offset) };
        let (lanes_count, each) = (4, 3);
        for offset in 0..lanes_count * each {
            lanes.push_back(of((offset % lanes_count) as u8, offset));
        }
        let full = lanes.memory_bytes();
        let freed = lanes.page_out(full / 3, Front::Kept);
        assert_eq!(full - freed, lanes.memory_bytes());
        assert!(
            (full / 3..full / 3 * 2).contains(&freed),
            "a third was asked for, and a lane goes as a whole"
        );
        let paged: Vec<u8> = lanes.runs().map(|(lane, ..)| lane.0).collect();
        assert_eq!(paged, [1, 0], "the most urgent are still there");
        lanes.page_out(u64::MAX, Front::Kept);
        assert_eq!(lanes.resident_len(), each, "consumers get the first lane next");
        lanes.page_out(u64::MAX, Front::PagedOut);
        assert_eq!(lanes.resident_len(), 0);
    }

    #[test]
    fn lanes_are_read_back_together_as_far_as_messages_may_be() {
        let mut lanes = Lanes::default();
        for offset in 0..256 * PAGE_MESSAGES {
            lanes.push_back(MessageEntry { priority: Priority((offset % 256) as u8), ..entry(offset) });
        }
        lanes.page_out(u64::MAX, Front::PagedOut);
        let pages = lanes.wanted_pages(|ranges| OffsetSet::from_ranges(ranges));
        let asked: u64 = pages.iter().map(|page| page.offsets.len()).sum();
        assert_eq!(asked, READ_TOGETHER.messages);
        let order: Vec<u8> = pages.iter().map(|page| page.lane.0).collect();
        let first: Vec<u8> = (0..=255).rev().take(pages.len()).collect();
        assert_eq!(order, first, "those whose turn is next");
    }

    #[test]
    fn lanes_are_read_together_as_far_as_they_can_be() {
        let mut lanes = Lanes::default();
        for offset in 0..32 {
            lanes.push_back(MessageEntry { priority: Priority((offset % 8) as u8), ..entry(offset) });
        }
        lanes.page_out(u64::MAX, Front::PagedOut);
        // The first sixteen lie in one place, the others in another.
        let read = |lanes: &mut Lanes| {
            let mut place = None;
            let pages = lanes.wanted_pages(|ranges| {
                let offsets = OffsetSet::from_ranges(ranges);
                let first = offsets.first().unwrap().0 / 16;
                let place = *place.get_or_insert(first);
                offsets.iter().take_while(|offset| offset.0 / 16 == place).collect()
            });
            for page in &pages {
                let entries =
                    page.offsets.iter().map(|offset| MessageEntry { priority: page.lane, ..entry(offset.0) });
                assert!(lanes.page_in(page, entries.collect(), Timestamp(0)));
            }
            pages.iter().map(|page| (page.offsets.first().unwrap().0 / 16, page.lane.0)).collect::<Vec<_>>()
        };
        let of = |place, lanes: &[u8]| lanes.iter().map(|lane| (place, *lane)).collect::<Vec<_>>();
        assert_eq!(read(&mut lanes), of(0, &[7, 6, 5, 4, 3, 2, 1, 0]), "two messages each");
        assert_eq!(
            read(&mut lanes),
            of(1, &[7, 6, 5, 4, 3, 2]),
            "those and what is there are all there is room for"
        );
        assert_eq!(read(&mut lanes), [], "enough is ahead");
    }

    #[test]
    fn large_messages_are_not_read_far_ahead() {
        let mut lanes = Lanes::default();
        for offset in 0..40 {
            let priority = Priority((offset % 2) as u8);
            lanes.push_back(MessageEntry { priority, stored_bytes: 2 << 20, ..entry(offset) });
        }
        lanes.page_out(u64::MAX, Front::PagedOut);
        let mut rounds = 0;
        loop {
            let pages = lanes.wanted_pages(|ranges| OffsetSet::from_ranges(ranges));
            if pages.is_empty() {
                break;
            }
            for page in &pages {
                let of_page = |offset: Offset| MessageEntry {
                    priority: page.lane,
                    stored_bytes: 2 << 20,
                    ..entry(offset.0)
                };
                assert!(lanes.page_in(page, page.offsets.iter().map(of_page).collect(), Timestamp(0)));
            }
            rounds += 1;
            assert!(rounds < 10, "it would read all of it");
        }
        assert!(
            lanes.resident_len() * (2 << 20) <= READ_TOGETHER.bytes + 2 * (2 << 20),
            "{}",
            lanes.resident_len()
        );
        lanes.check_invariants();
    }

    #[test]
    fn stretches_that_are_paged_out_one_by_one_become_one_run() {
        let mut lanes = Lanes::default();
        for offset in 0..4 * STRETCH_MESSAGES_MAX as u64 {
            lanes.push_back(entry(offset));
        }
        lanes.page_out(u64::MAX, Front::PagedOut);
        assert_eq!(lanes.runs().count(), 1);
        let page = lanes.wanted_pages(|ranges| OffsetSet::from_ranges(ranges)).remove(0);
        let entries = page.offsets.iter().map(|offset| entry(offset.0)).collect();
        assert!(lanes.page_in(&page, entries, Timestamp(0)));
        lanes.page_out(u64::MAX, Front::PagedOut);
        assert_eq!(lanes.runs().count(), 1, "what came back and went again too");
        lanes.check_invariants();
    }

    #[test]
    fn a_run_has_a_bound() {
        let mut lanes = Lanes::default();
        let count = 10 * RUN_MESSAGES_MAX;
        for offset in 0..count {
            lanes.push_back(entry(offset));
        }
        lanes.page_out(u64::MAX, Front::PagedOut);
        let runs = lanes.runs().count() as u64 * RUN_MESSAGES_MAX;
        assert!((count..count + 2 * RUN_MESSAGES_MAX).contains(&runs), "they are as full as may be");
        lanes.check_invariants();
    }
}
