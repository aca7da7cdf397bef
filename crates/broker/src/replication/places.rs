//! Where the frame of each entry lies in the log of this node: the entries that other nodes may still ask for, in order.

use std::collections::VecDeque;

use nexo_cluster::{EntryId, Fetch};
use nexo_types::{LogIndex, Position};

/// Where an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) id: EntryId,
    /// Where its frame starts.
    pub(super) at: Position,
    /// Where its frame ends.
    pub(super) end: Position,
}

/// The places of entries without a gap, behind a first one that is gone.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// The entry before the first.
    before: EntryId,
    places: VecDeque<Place>,
}

impl Places {
    /// None yet, behind this entry.
    pub(super) const fn behind(before: EntryId) -> Self {
        Self { before, places: VecDeque::new() }
    }

    /// The entry before the first that is here.
    pub(super) const fn before(&self) -> EntryId {
        self.before
    }

    /// The last entry.
    pub(super) fn last(&self) -> EntryId {
        self.places.back().map_or(self.before, |place| place.id)
    }

    /// Takes an entry that was appended, in place of all from its index on. Gives back where those lie: they do not count any
    /// more. `None` if it does not follow: entries between are missing.
    pub(super) fn push(&mut self, place: Place) -> Option<Vec<Position>> {
        if place.id.index > self.last().index.next() || place.id.index <= self.before.index {
            return None;
        }
        let mut replaced = Vec::new();
        while self.places.back().is_some_and(|last| last.id.index >= place.id.index) {
            replaced.extend(self.places.pop_back().map(|last| last.at));
        }
        self.places.push_back(place);
        Some(replaced)
    }

    /// Where an entry lies.
    pub(super) fn get(&self, index: LogIndex) -> Option<Place> {
        let at = index.0.checked_sub(self.before.index.0 + 1)?;
        self.places.get(usize::try_from(at).ok()?).copied()
    }

    /// The entry with this index, if it is here or was the last to go.
    pub(super) fn id_of(&self, index: LogIndex) -> Option<EntryId> {
        if index == self.before.index { Some(self.before) } else { self.get(index).map(|place| place.id) }
    }

    /// Where the entries lie that a fetch asks for: as many as fit into its bytes, but one at least.
    pub(super) fn of(&self, fetch: Fetch) -> Vec<Place> {
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut index = fetch.from;
        while index < fetch.to && bytes < fetch.bytes_max {
            let Some(place) = self.get(index) else { break };
            // A frame lies in one segment.
            bytes += place.end.byte.saturating_sub(place.at.byte) as usize;
            found.push(place);
            index = index.next();
        }
        found
    }

    /// The last entry whose frame lies before this position.
    pub(super) fn last_before(&self, at: Position) -> EntryId {
        let count = self.places.partition_point(|place| place.at < at);
        match count.checked_sub(1) {
            Some(last) => self.places[last].id,
            None => self.before,
        }
    }

    /// Entries up to this one are not asked for any more.
    pub(super) fn purge(&mut self, to: LogIndex) {
        while self.places.front().is_some_and(|first| first.id.index <= to) {
            if let Some(first) = self.places.pop_front() {
                self.before = first.id;
            }
        }
    }

    /// Where the first of them lies.
    pub(super) fn first_at(&self) -> Option<Position> {
        self.places.front().map(|place| place.at)
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.places.iter()
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::{SegmentId, Term};

    use super::*;

    fn place(term: u64, index: u64, byte: u32) -> Place {
        let at = |byte| Position { segment: SegmentId(1), byte };
        Place { id: EntryId::new(Term(term), LogIndex(index)), at: at(byte), end: at(byte + 10) }
    }

    #[test]
    fn an_entry_takes_the_place_of_all_from_its_index_on() {
        let mut places = Places::behind(EntryId::new(Term(1), LogIndex(4)));
        for (index, byte) in [(5, 100), (6, 110), (7, 130)] {
            assert_eq!(places.push(place(1, index, byte)), Some(vec![]));
        }
        assert_eq!(places.push(place(2, 9, 140)), None, "one is missing");
        assert_eq!(places.push(place(2, 4, 140)), None, "that one is gone");
        assert_eq!(places.push(place(2, 6, 140)), Some(vec![place(1, 7, 130).at, place(1, 6, 110).at]));
        assert_eq!(places.last().index, LogIndex(6));
        assert_eq!(places.get(LogIndex(6)), Some(place(2, 6, 140)));
        assert_eq!((places.get(LogIndex(4)), places.get(LogIndex(7))), (None, None));
    }

    #[test]
    fn what_is_before_a_position_is_found() {
        let mut places = Places::behind(EntryId::new(Term(1), LogIndex(4)));
        for (index, byte) in [(5, 100), (6, 110), (7, 130)] {
            places.push(place(1, index, byte)).unwrap();
        }
        let before = |byte| places.last_before(place(1, 1, byte).at).index.0;
        assert_eq!([before(50), before(100), before(101), before(130), before(500)], [4, 4, 5, 6, 7]);
        places.purge(LogIndex(6));
        assert_eq!((places.before().index, places.last().index), (LogIndex(6), LogIndex(7)));
        assert_eq!(places.iter().count(), 1);
    }
}
