//! Which deduplication ids a queue has seen lately.

use std::collections::{BTreeMap, VecDeque};

use nexo_types::{DedupId, Offset, Timestamp};

/// Ids with the message they came with, until their window ends.
#[derive(Debug, Default)]
pub(crate) struct Dedup {
    /// A tree, because ids are chosen by clients: they could make a hash table slow.
    seen: BTreeMap<DedupId, (Timestamp, Offset)>,
    /// In the order of arrival, which is that of the offsets, and the order of ending unless the window was changed.
    order: VecDeque<(Timestamp, DedupId, Offset)>,
}

impl Dedup {
    /// The message that brought this id, if its window has not ended.
    pub(crate) fn find(&self, id: &DedupId, now: Timestamp) -> Option<Offset> {
        self.seen.get(id).filter(|(until, _)| *until > now).map(|(_, offset)| *offset)
    }

    pub(crate) fn insert(&mut self, id: DedupId, offset: Offset, until: Timestamp) {
        self.order.push_back((until, id.clone(), offset));
        self.seen.insert(id, (until, offset));
    }

    /// The message whose id can be forgotten next, if its window has ended by `now`.
    pub(crate) fn ended(&self, now: Timestamp) -> Option<Offset> {
        self.order.front().filter(|(until, ..)| *until <= now).map(|(_, _, offset)| *offset)
    }

    /// Forgets the id that came first.
    pub(crate) fn forget_first(&mut self) {
        let Some((_, id, offset)) = self.order.pop_front() else { return };
        // A later message may have brought the same id again, with a later end.
        if self.seen.get(&id).is_some_and(|(_, held)| *held == offset) {
            self.seen.remove(&id);
        }
    }

    /// When the next id can be forgotten.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.order.front().map(|(until, ..)| *until)
    }

    /// Every id that is remembered, in the order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&DedupId, Timestamp, Offset)> {
        self.current(0)
    }

    /// Those that came with messages of these offsets.
    pub(crate) fn range(
        &self,
        start: Offset,
        end: Offset,
    ) -> impl Iterator<Item = (&DedupId, Timestamp, Offset)> {
        let first = self.order.partition_point(|(_, _, offset)| *offset < start);
        self.current(first).take_while(move |(_, _, offset)| *offset < end)
    }

    fn current(&self, from: usize) -> impl Iterator<Item = (&DedupId, Timestamp, Offset)> {
        self.order.range(from..).filter_map(|(until, id, offset)| {
            let (_, held) = self.seen.get(id)?;
            (held == offset).then_some((id, *until, *offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_remembered_until_its_window_ends() {
        let id = DedupId::new("a").unwrap();
        let mut dedup = Dedup::default();
        dedup.insert(id.clone(), Offset(1), Timestamp(10));
        assert_eq!(dedup.find(&id, Timestamp(9)), Some(Offset(1)));
        assert_eq!(dedup.find(&id, Timestamp(10)), None);
        dedup.insert(id.clone(), Offset(2), Timestamp(20));
        assert_eq!(dedup.ended(Timestamp(15)), Some(Offset(1)));
        dedup.forget_first();
        assert_eq!(dedup.find(&id, Timestamp(15)), Some(Offset(2)));
        assert_eq!(dedup.ended(Timestamp(15)), None);
        assert_eq!(dedup.ended(Timestamp(20)), Some(Offset(2)));
        dedup.forget_first();
        assert_eq!(dedup.iter().count(), 0);
        assert_eq!(dedup.next_deadline(), None);
    }
}
