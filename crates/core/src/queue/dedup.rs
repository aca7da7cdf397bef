//! Which deduplication ids a queue has seen lately.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use nexo_types::{DedupId, Offset, Timestamp};

use crate::message::DedupScope;
use crate::rare::Empty;

/// Ids with the message they came with, until their window ends.
#[derive(Debug, Default)]
pub(crate) struct Dedup {
    /// A tree, because ids are chosen by clients: they could make a hash table slow.
    seen: BTreeMap<DedupId, (Timestamp, Offset)>,
    /// In the order of arrival, which is that of the offsets, and the order of ending unless the window was changed.
    order: VecDeque<(Timestamp, DedupId, Offset)>,
}

impl Empty for Dedup {
    const EMPTY: &'static Self = &Self { seen: BTreeMap::new(), order: VecDeque::new() };
}

impl Dedup {
    /// The message that brought this id, if its window has not ended.
    pub(crate) fn find(&self, id: &DedupId, scope: DedupScope, now: Timestamp) -> Option<Offset> {
        let alive = |(until, offset): &(Timestamp, Offset)| (*until > now).then_some(*offset);
        find_in(&self.seen, id, scope, alive)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
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

/// The first of these ids that is the same in this scope, and of which `wanted` has something to say.
pub(crate) fn find_in<K: std::borrow::Borrow<DedupId> + Ord, V, T>(
    ids: &BTreeMap<K, V>,
    id: &DedupId,
    scope: DedupScope,
    wanted: impl Fn(&V) -> Option<T>,
) -> Option<T> {
    if let Some(found) = ids.get(id).and_then(&wanted) {
        return Some(found);
    }
    let stem = match scope {
        DedupScope::Id => return None,
        DedupScope::Stem => stem(id.as_str()),
    };
    // All ids with this stem follow each other, except that others with the same beginning may lie between: `a`, `a!`, `a b`.
    // So the search begins at the space that ends the stem.
    if let Some(found) = DedupId::new(stem).ok().and_then(|id| wanted(ids.get(&id)?)) {
        return Some(found);
    }
    let first = DedupId::new(&format!("{stem} ")).ok()?;
    let below = ids.range::<DedupId, _>((Bound::Included(&first), Bound::Unbounded));
    let same = below.take_while(|(id, _)| id.borrow().as_str().starts_with(first.as_str()));
    same.into_iter().find_map(|(_, value)| wanted(value))
}

fn stem(id: &str) -> &str {
    id.split(' ').next().unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_within_a_group_is_found_by_itself_or_by_its_stem() {
        let id = |text: &str| DedupId::new(text).unwrap();
        let mut dedup = Dedup::default();
        dedup.insert(id("a g1"), Offset(1), Timestamp(10));
        dedup.insert(id("a!"), Offset(2), Timestamp(10));
        dedup.insert(id("b"), Offset(3), Timestamp(10));
        dedup.insert(id("c g1"), Offset(4), Timestamp(5));
        dedup.insert(id("c g2"), Offset(5), Timestamp(10));
        let find = |text: &str, scope| dedup.find(&id(text), scope, Timestamp(7));
        assert_eq!(find("a g1", DedupScope::Id), Some(Offset(1)));
        assert_eq!(find("a g2", DedupScope::Id), None);
        assert_eq!(find("a g2", DedupScope::Stem), Some(Offset(1)));
        assert_eq!(find("b g2", DedupScope::Stem), Some(Offset(3)), "an id without a group is of all groups");
        assert_eq!(find("c g3", DedupScope::Stem), Some(Offset(5)), "the window of the first has ended");
        assert_eq!(find("! g1", DedupScope::Stem), None);
    }

    #[test]
    fn an_id_is_remembered_until_its_window_ends() {
        let id = DedupId::new("a").unwrap();
        let mut dedup = Dedup::default();
        dedup.insert(id.clone(), Offset(1), Timestamp(10));
        assert_eq!(dedup.find(&id, DedupScope::Id, Timestamp(9)), Some(Offset(1)));
        assert_eq!(dedup.find(&id, DedupScope::Id, Timestamp(10)), None);
        dedup.insert(id.clone(), Offset(2), Timestamp(20));
        assert_eq!(dedup.ended(Timestamp(15)), Some(Offset(1)));
        dedup.forget_first();
        assert_eq!(dedup.find(&id, DedupScope::Id, Timestamp(15)), Some(Offset(2)));
        assert_eq!(dedup.ended(Timestamp(15)), None);
        assert_eq!(dedup.ended(Timestamp(20)), Some(Offset(2)));
        dedup.forget_first();
        assert_eq!(dedup.iter().count(), 0);
        assert_eq!(dedup.next_deadline(), None);
    }
}
