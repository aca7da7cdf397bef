//! Messages that are ready, but not at the tail of a lane: they came back, their delay ended, or they are the head of their
//! group. In the order of delivery: by priority, then by offset.

use std::cmp::Reverse;
use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

use nexo_types::{Offset, Priority};

use super::compact::{CompactEntry, Ready};
use super::deadline_map::DeadlineMap;
use super::entry::MessageEntry;

/// The messages: see the file.
#[derive(Debug, Default)]
pub(super) struct Returned {
    /// None is empty.
    lanes: BTreeMap<Reverse<Priority>, DeadlineMap<Ready>>,
    len: usize,
}

impl Returned {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.lanes.values().map(DeadlineMap::memory_bytes).sum()
    }

    pub(super) fn insert(&mut self, entry: MessageEntry) {
        let lane = self.lanes.entry(Reverse(entry.priority)).or_default();
        self.len += usize::from(lane.insert(Ready(entry.into())));
    }

    pub(super) fn remove(&mut self, priority: Priority, offset: Offset) -> Option<MessageEntry> {
        let btree_map::Entry::Occupied(mut lane) = self.lanes.entry(Reverse(priority)) else { return None };
        let Ready(entry) = lane.get_mut().remove(offset)?;
        self.len -= 1;
        if lane.get().is_empty() {
            lane.remove();
        }
        Some(entry.into_entry())
    }

    pub(super) fn get(&self, priority: Priority, offset: Offset) -> Option<&CompactEntry> {
        self.lanes.get(&Reverse(priority))?.get(offset).map(|ready| &ready.0)
    }

    pub(super) fn contains(&self, priority: Priority, offset: Offset) -> bool {
        self.get(priority, offset).is_some()
    }

    /// The message with this offset, whatever its priority.
    pub(super) fn find(&self, offset: Offset) -> Option<&CompactEntry> {
        self.lanes.values().find_map(|lane| lane.get(offset)).map(|ready| &ready.0)
    }

    /// All of them in the order of delivery.
    pub(super) fn iter(&self) -> impl Iterator<Item = &CompactEntry> + Clone {
        self.lanes.values().flat_map(DeadlineMap::iter).map(|ready| &ready.0)
    }

    /// Those behind this one in the order of delivery, or all.
    pub(super) fn after(&self, after: Option<(Priority, Offset)>) -> impl Iterator<Item = &CompactEntry> {
        let same = after.and_then(|(priority, offset)| {
            let lane = self.lanes.get(&Reverse(priority))?;
            Some(lane.range(offset.next(), Offset(u64::MAX)))
        });
        let from = after.map_or(Bound::Unbounded, |(priority, _)| Bound::Excluded(Reverse(priority)));
        let others = self.lanes.range((from, Bound::Unbounded)).flat_map(|(_, lane)| lane.iter());
        same.into_iter().flatten().chain(others).map(|ready| &ready.0)
    }

    /// Those of one priority, by offset.
    pub(super) fn of_priority(&self, priority: Priority) -> impl Iterator<Item = &CompactEntry> {
        self.lanes.get(&Reverse(priority)).into_iter().flat_map(DeadlineMap::iter).map(|ready| &ready.0)
    }

    /// Those of these offsets, whatever their priority.
    pub(super) fn range(&self, start: Offset, end: Offset) -> impl Iterator<Item = &CompactEntry> {
        self.lanes.values().flat_map(move |lane| lane.range(start, end)).map(|ready| &ready.0)
    }

    /// Priorities that have messages, highest first.
    pub(super) fn priorities(&self) -> impl Iterator<Item = Priority> + '_ {
        self.lanes.keys().map(|Reverse(priority)| *priority)
    }

    /// As [`DeadlineMap::shrink_items`].
    pub(super) fn shrink_items(&mut self, mut shrink: impl FnMut(&mut CompactEntry)) {
        self.lanes.values_mut().for_each(|lane| lane.shrink_items(|ready| shrink(&mut ready.0)));
    }

    /// Lets go of room that is kept for later.
    pub(super) fn trim(&mut self) {
        self.lanes.values_mut().for_each(DeadlineMap::trim);
    }

    pub(super) fn check_invariants(&self) {
        assert_eq!(self.iter().count(), self.len, "messages that came back are counted");
        for (Reverse(priority), lane) in &self.lanes {
            lane.check_invariants();
            assert!(!lane.is_empty(), "a lane without messages is gone");
            assert!(lane.iter().all(|ready| ready.0.priority() == *priority), "each is in its lane");
        }
    }
}
