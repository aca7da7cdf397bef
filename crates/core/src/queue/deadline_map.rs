//! A map from offsets to what has one, in order, that also knows what is due.
//!
//! It is a row of *chunks*, each a short sorted row of items. A chunk has the offsets from its start up to the start of the
//! next one. Most items are added behind all others, which fills one chunk after the other, and many are removed at the
//! front, which empties one after the other. Memory is in proportion to what is in the map: a chunk grows and shrinks by
//! itself, and a sparse one is merged with its neighbour. Adding or removing an item moves items of one chunk, or of two
//! that are merged. The row of chunks itself has a few bytes for each of them.
//!
//! There is no entry for each deadline. A chunk knows a moment before which nothing in it is due, and an index has these
//! moments. When the first item of a chunk leaves, that moment may be too early. Then it is corrected when it comes: that
//! costs one look at the chunk.

use std::collections::{BTreeSet, VecDeque};

use nexo_types::{Offset, Timestamp};

/// Items in a chunk: few enough that moving half of them is nothing, and enough that what a chunk takes besides is
/// little. A power of two, because containers double. (Few in tests, so that they meet several chunks.)
const CHUNK_ITEMS_MAX: usize = if cfg!(test) { 8 } else { 128 };
/// A chunk between others that has no more than this is merged with one of them, if both are no more than the second together.
const SPARSE_ITEMS: usize = CHUNK_ITEMS_MAX / 4;
const MERGED_ITEMS_MAX: usize = CHUNK_ITEMS_MAX / 4 * 3;
/// The least room that a chunk is made with.
const CHUNK_ROOM_MIN: usize = 4;
/// What a chunk takes besides its items: its place in the row and in the index.
const CHUNK_BYTES: usize = 96;

/// Something with an offset and a deadline.
pub(super) trait Scheduled {
    /// Where it stands in the map. It must not change.
    fn offset(&self) -> Offset;
    /// When it is due; [`Timestamp::MAX`] for never.
    fn deadline(&self) -> Timestamp;
    /// Memory that it takes elsewhere and that nobody else counts.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// The map: see the file.
#[derive(Debug)]
pub(super) struct DeadlineMap<V> {
    /// By their starts. None is empty, unless it is the only one.
    chunks: VecDeque<Chunk<V>>,
    /// For each chunk in which something may become due: when at the earliest, and its start.
    by_deadline: BTreeSet<(Timestamp, Offset)>,
    len: usize,
    /// Items that the chunks have room for.
    room: usize,
    /// What the items take elsewhere.
    heap_bytes: usize,
    /// The room of a full chunk that ran empty, for the next one. A busy map needs one for every few items.
    spare: VecDeque<V>,
    /// The chunk that was changed last. The next look is most often into the same.
    last: usize,
}

#[derive(Debug)]
struct Chunk<V> {
    /// Offsets from this one up to the start of the next chunk belong here.
    start: Offset,
    /// Nothing here is due before this.
    earliest: Timestamp,
    items: VecDeque<V>,
}

impl<V> Default for DeadlineMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> DeadlineMap<V> {
    pub(super) const fn new() -> Self {
        Self {
            chunks: VecDeque::new(),
            by_deadline: BTreeSet::new(),
            len: 0,
            room: 0,
            heap_bytes: 0,
            spare: VecDeque::new(),
            last: 0,
        }
    }
}

impl<V: Scheduled> DeadlineMap<V> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory taken, near enough: also by room that is kept for later.
    pub(super) fn memory_bytes(&self) -> u64 {
        let room = self.room + self.spare.capacity();
        (room * size_of::<V>() + self.chunks.len() * CHUNK_BYTES + self.heap_bytes) as u64
    }

    pub(super) fn contains(&self, offset: Offset) -> bool {
        self.get(offset).is_some()
    }

    pub(super) fn get(&self, offset: Offset) -> Option<&V> {
        let chunk = &self.chunks[self.chunk_of(offset)?];
        chunk.items.get(find(&chunk.items, offset).ok()?)
    }

    /// Changes an item, perhaps its deadline.
    pub(super) fn update<R>(&mut self, offset: Offset, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let index = self.chunk_of(offset)?;
        self.last = index;
        let items = &mut self.chunks[index].items;
        let at = find(items, offset).ok()?;
        let item = &mut items[at];
        let heap_bytes = item.heap_bytes();
        let result = change(item);
        debug_assert_eq!(item.offset(), offset, "an item keeps its offset");
        self.heap_bytes = self.heap_bytes - heap_bytes + item.heap_bytes();
        let deadline = item.deadline();
        self.lower_earliest(index, deadline);
        Some(result)
    }

    /// Adds an item in the place of the one that has its offset, and says whether there was none.
    pub(super) fn insert(&mut self, item: V) -> bool {
        let (offset, deadline) = (item.offset(), item.deadline());
        self.heap_bytes += item.heap_bytes();
        let index = self.chunk_with_room(offset);
        let items = &mut self.chunks[index].items;
        let room = items.capacity();
        let is_new = match items.back() {
            // Nearly always.
            Some(last) if last.offset() < offset => {
                items.push_back(item);
                true
            }
            _ => match find(items, offset) {
                Ok(at) => {
                    self.heap_bytes -= items[at].heap_bytes();
                    items[at] = item;
                    false
                }
                Err(at) => {
                    items.insert(at, item);
                    true
                }
            },
        };
        self.room = self.room - room + items.capacity();
        self.len += usize::from(is_new);
        self.lower_earliest(index, deadline);
        is_new
    }

    #[inline]
    pub(super) fn remove(&mut self, offset: Offset) -> Option<V> {
        let index = self.chunk_of(offset)?;
        self.last = index;
        let items = &mut self.chunks[index].items;
        let at = find(items, offset).ok()?;
        self.len -= 1;
        self.heap_bytes -= items[at].heap_bytes();
        let removed = if at == 0 { items.pop_front() } else { items.remove(at) };
        if items.len() <= SPARSE_ITEMS {
            self.tidy(index);
        }
        removed
    }

    /// All items by offset.
    pub(super) fn iter(&self) -> impl Iterator<Item = &V> + Clone {
        self.chunks.iter().flat_map(|chunk| chunk.items.iter())
    }

    /// Items from this offset on, up to that one, which is not included.
    pub(super) fn range(&self, start: Offset, end: Offset) -> impl Iterator<Item = &V> + Clone {
        let first = self.chunks.partition_point(|chunk| chunk.start <= start).saturating_sub(1);
        let chunks = self.chunks.range(first..).take_while(move |chunk| chunk.start < end);
        chunks.flat_map(move |chunk| {
            let place = |offset| find(&chunk.items, offset).unwrap_or_else(|place| place);
            let from = place(start);
            chunk.items.range(from..place(end).max(from))
        })
    }

    /// Nothing is due before this. It may be that nothing is due at this moment either.
    pub(super) fn earliest(&self) -> Option<Timestamp> {
        self.by_deadline.first().map(|(earliest, _)| *earliest)
    }

    /// What is due by `now`, at most `max`, in no order.
    pub(super) fn due(&self, now: Timestamp, max: usize) -> Vec<Offset> {
        let places = self.by_deadline.range(..=(now, Offset(u64::MAX)));
        let chunks = places.filter_map(|(_, start)| self.chunks.get(self.chunk_of(*start)?));
        let due = chunks.flat_map(|chunk| &chunk.items).filter(|item| item.deadline() <= now);
        due.take(max).map(Scheduled::offset).collect()
    }

    /// Corrects [`Self::earliest`], until it is after `now` or something is due.
    pub(super) fn tighten(&mut self, now: Timestamp) {
        while let Some((_, start)) = self.by_deadline.first().filter(|(earliest, _)| *earliest <= now)
            && let Some(index) = self.chunk_of(*start)
            && let earliest = self.chunks[index].items.iter().map(V::deadline).min().unwrap_or(Timestamp::MAX)
            && earliest > now
        {
            self.set_earliest(index, earliest);
        }
    }

    /// Takes out some of what is due by `now`, at most `max`, by offset. Nothing: nothing is due.
    pub(super) fn take_due(&mut self, now: Timestamp, max: usize) -> Vec<V> {
        let mut taken = Vec::new();
        while taken.is_empty()
            && let Some((_, start)) = self.by_deadline.first().filter(|(earliest, _)| *earliest <= now)
            && let Some(index) = self.chunk_of(*start)
        {
            let items = &mut self.chunks[index].items;
            let mut earliest = Timestamp::MAX;
            // From the back: where all are due, none has to be moved.
            for at in (0..items.len()).rev() {
                let deadline = items[at].deadline();
                if deadline <= now && taken.len() < max {
                    taken.extend(items.remove(at));
                } else {
                    earliest = earliest.min(deadline);
                }
            }
            self.len -= taken.len();
            self.heap_bytes -= taken.iter().map(V::heap_bytes).sum::<usize>();
            self.set_earliest(index, earliest);
            self.tidy(index);
            if max == 0 {
                break;
            }
        }
        taken.reverse();
        taken
    }

    /// Has items that take memory elsewhere take less of it. They keep their offsets and deadlines.
    pub(super) fn shrink_items(&mut self, mut shrink: impl FnMut(&mut V)) {
        if self.heap_bytes == 0 {
            return;
        }
        for item in self.chunks.iter_mut().flat_map(|chunk| &mut chunk.items) {
            let before = item.heap_bytes();
            if before > 0 {
                shrink(item);
                self.heap_bytes = self.heap_bytes - before + item.heap_bytes();
            }
        }
    }

    /// Lets go of room that is kept for later.
    pub(super) fn trim(&mut self) {
        self.spare = VecDeque::new();
        if self.is_empty() {
            *self = Self::new();
        }
    }

    /// The chunk to which an offset belongs. None does if it is before all of them.
    #[inline]
    fn chunk_of(&self, offset: Offset) -> Option<usize> {
        let last = self.last;
        if self.chunks.get(last).is_some_and(|chunk| chunk.start <= offset)
            && self.chunks.get(last + 1).is_none_or(|next| offset < next.start)
        {
            return Some(last);
        }
        self.chunks.partition_point(|chunk| chunk.start <= offset).checked_sub(1)
    }

    /// The same, and there is room in it for one more item.
    fn chunk_with_room(&mut self, offset: Offset) -> usize {
        let index = self.chunk_of(offset).unwrap_or(0);
        self.last = index;
        let Some(chunk) = self.chunks.get_mut(index) else {
            self.add_chunk(0, offset);
            return 0;
        };
        if chunk.items.len() < CHUNK_ITEMS_MAX {
            if chunk.items.is_empty() || offset < chunk.start {
                let before = std::mem::replace(&mut chunk.start, offset);
                if self.by_deadline.remove(&(chunk.earliest, before)) {
                    self.by_deadline.insert((chunk.earliest, offset));
                }
            }
            return index;
        }
        if offset < chunk.start {
            self.add_chunk(index, offset);
            return index;
        }
        if chunk.items.back().is_some_and(|item| item.offset() < offset) {
            self.add_chunk(index + 1, offset);
            return index + 1;
        }
        self.split(index);
        if self.chunks[index + 1].start <= offset { index + 1 } else { index }
    }

    fn add_chunk(&mut self, index: usize, start: Offset) {
        let mut items = std::mem::take(&mut self.spare);
        if items.capacity() == 0 {
            // In proportion to what there is, so that a large map does not make each chunk in many steps.
            let room = (self.len / 8).next_power_of_two().clamp(CHUNK_ROOM_MIN, CHUNK_ITEMS_MAX);
            items = VecDeque::with_capacity(room);
        }
        self.room += items.capacity();
        self.chunks.insert(index, Chunk { start, earliest: Timestamp::MAX, items });
        self.last = index;
    }

    /// Makes two chunks of a full one.
    fn split(&mut self, index: usize) {
        let chunk = &mut self.chunks[index];
        let items = chunk.items.split_off(CHUNK_ITEMS_MAX / 2);
        let earliest = chunk.earliest;
        let Some(start) = items.front().map(V::offset) else { return };
        self.room += items.capacity();
        self.chunks.insert(index + 1, Chunk { start, earliest: Timestamp::MAX, items });
        self.set_earliest(index + 1, earliest);
    }

    /// After something was removed from a chunk.
    fn tidy(&mut self, index: usize) {
        let items = &self.chunks[index].items;
        if items.is_empty() {
            self.set_earliest(index, Timestamp::MAX);
            if self.chunks.len() > 1 {
                self.drop_chunk(index);
            }
            return;
        }
        // The first is running empty, and the last is filling: they are best left alone.
        if items.len() > SPARSE_ITEMS || index == 0 || index + 1 == self.chunks.len() {
            return;
        }
        let len = items.len();
        let fits = |other: usize| self.chunks[other].items.len() + len <= MERGED_ITEMS_MAX;
        if fits(index + 1) {
            self.merge(index);
        } else if fits(index - 1) {
            self.merge(index - 1);
        } else {
            let items = &mut self.chunks[index].items;
            let room = items.capacity();
            if items.len() <= room / 4 && room > CHUNK_ROOM_MIN {
                items.shrink_to((items.len() * 2).next_power_of_two().max(CHUNK_ROOM_MIN));
                self.room = self.room - room + items.capacity();
            }
        }
    }

    /// Makes one chunk of this one and the next.
    fn merge(&mut self, index: usize) {
        let earliest = self.chunks[index + 1].earliest;
        self.set_earliest(index + 1, Timestamp::MAX);
        let Some(mut next) = self.chunks.remove(index + 1) else { return };
        let items = &mut self.chunks[index].items;
        self.room -= next.items.capacity() + items.capacity();
        let len = items.len() + next.items.len();
        items.reserve_exact(len.next_power_of_two() - items.len());
        items.append(&mut next.items);
        self.room += items.capacity();
        self.lower_earliest(index, earliest);
    }

    /// Removes a chunk in which nothing is left.
    fn drop_chunk(&mut self, index: usize) {
        let Some(chunk) = self.chunks.remove(index) else { return };
        self.room -= chunk.items.capacity();
        if chunk.items.capacity() == CHUNK_ITEMS_MAX {
            self.spare = chunk.items;
        }
        if self.last > index {
            self.last -= 1;
        }
    }

    #[inline]
    fn lower_earliest(&mut self, index: usize, deadline: Timestamp) {
        if deadline < self.chunks[index].earliest {
            self.set_earliest(index, deadline);
        }
    }

    fn set_earliest(&mut self, index: usize, earliest: Timestamp) {
        let chunk = &mut self.chunks[index];
        let before = std::mem::replace(&mut chunk.earliest, earliest);
        if before == earliest {
            return;
        }
        if before != Timestamp::MAX {
            self.by_deadline.remove(&(before, chunk.start));
        }
        if earliest != Timestamp::MAX {
            self.by_deadline.insert((earliest, chunk.start));
        }
    }

    /// Checks that it is as it should be. For tests; it looks at every item.
    pub(super) fn check_invariants(&self) {
        let items = || self.chunks.iter().flat_map(|chunk| &chunk.items);
        assert_eq!(items().count(), self.len, "items are counted");
        assert_eq!(items().map(V::heap_bytes).sum::<usize>(), self.heap_bytes, "what they take is counted");
        let room: usize = self.chunks.iter().map(|chunk| chunk.items.capacity()).sum();
        assert_eq!(room, self.room, "their room is counted");
        assert!(items().map(V::offset).is_sorted_by(|a, b| a < b), "they are in order");
        let starts = self.chunks.iter().map(|chunk| chunk.start);
        assert!(starts.is_sorted_by(|a, b| a < b), "chunks are in order");
        let indexed = self.chunks.iter().filter(|chunk| chunk.earliest != Timestamp::MAX);
        let indexed: BTreeSet<_> = indexed.map(|chunk| (chunk.earliest, chunk.start)).collect();
        assert_eq!(indexed, self.by_deadline, "the index has each chunk once");
        let alone = self.chunks.len() == 1;
        for (index, chunk) in self.chunks.iter().enumerate() {
            assert!(alone || !chunk.items.is_empty(), "no chunk is empty");
            assert!(chunk.items.capacity() <= CHUNK_ITEMS_MAX, "no chunk has more room than it may fill");
            let next = self.chunks.get(index + 1).map_or(Offset(u64::MAX), |next| next.start);
            for item in &chunk.items {
                assert!((chunk.start..next).contains(&item.offset()), "an item is in its chunk");
                assert!(chunk.earliest <= item.deadline(), "nothing is due earlier than the chunk says");
            }
        }
    }
}

/// Where the item with this offset is, or where it would have to be.
#[inline]
fn find<V: Scheduled>(items: &VecDeque<V>, offset: Offset) -> Result<usize, usize> {
    let Some(first) = items.front().map(V::offset) else { return Err(0) };
    let Some(distance) = offset.0.checked_sub(first.0) else { return Err(0) };
    // It is no further from the first than its offset says, and just there if no offset between is missing.
    let furthest = usize::try_from(distance).unwrap_or(usize::MAX).min(items.len() - 1);
    if items[furthest].offset() == offset { Ok(furthest) } else { search(items, offset, furthest) }
}

/// The same, where offsets are missing. It is behind the first item and not behind `furthest`, unless that is the last.
#[inline(never)]
fn search<V: Scheduled>(items: &VecDeque<V>, offset: Offset, furthest: usize) -> Result<usize, usize> {
    if items[furthest].offset() < offset {
        return Err(furthest + 1);
    }
    let (mut low, mut high) = (1, furthest);
    while low < high {
        let middle = low.midpoint(high);
        if items[middle].offset() < offset {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if items[low].offset() == offset { Ok(low) } else { Err(low) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Item {
        offset: u64,
        deadline: u64,
        heap_bytes: usize,
    }

    impl Scheduled for Item {
        fn offset(&self) -> Offset {
            Offset(self.offset)
        }

        fn deadline(&self) -> Timestamp {
            Timestamp(self.deadline)
        }

        fn heap_bytes(&self) -> usize {
            self.heap_bytes
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// Behind all others.
        Append(u64),
        Insert(u64, u64),
        Remove(u64),
        /// So many from the front.
        RemoveFirst(usize),
        Reschedule(u64, u64),
        Look(u64, usize),
        Take(u64, usize),
        Trim,
    }

    fn deadline() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0u64..50, 1 => Just(u64::MAX)]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => deadline().prop_map(Op::Append),
            6 => (0u64..120, deadline()).prop_map(|(offset, deadline)| Op::Insert(offset, deadline)),
            8 => (0u64..120).prop_map(Op::Remove),
            1 => (0usize..20).prop_map(Op::RemoveFirst),
            3 => (0u64..120, deadline()).prop_map(|(offset, deadline)| Op::Reschedule(offset, deadline)),
            1 => (0u64..60, 0usize..12).prop_map(|(now, max)| Op::Look(now, max)),
            1 => (0u64..20, 0usize..12).prop_map(|(now, max)| Op::Take(now, max)),
            1 => Just(Op::Trim),
        ]
    }

    #[derive(Default)]
    struct Pair {
        map: DeadlineMap<Item>,
        model: BTreeMap<u64, Item>,
    }

    impl Pair {
        fn insert(&mut self, offset: u64, deadline: u64) {
            let item = Item { offset, deadline, heap_bytes: offset as usize % 3 };
            assert_eq!(self.map.insert(item.clone()), self.model.insert(offset, item).is_none());
        }

        fn remove(&mut self, offset: u64) {
            assert_eq!(self.map.remove(Offset(offset)), self.model.remove(&offset));
        }

        fn due(&self, now: u64) -> usize {
            self.model.values().filter(|item| item.deadline <= now).count()
        }

        fn step(&mut self, op: &Op) {
            match *op {
                Op::Append(deadline) => {
                    let next = self.model.last_key_value().map_or(0, |(last, _)| last + 1);
                    self.insert(next, deadline);
                }
                Op::Insert(offset, deadline) => self.insert(offset, deadline),
                Op::Remove(offset) => self.remove(offset),
                Op::RemoveFirst(count) => {
                    let first: Vec<u64> = self.model.keys().copied().take(count).collect();
                    first.into_iter().for_each(|offset| self.remove(offset));
                }
                Op::Reschedule(offset, deadline) => {
                    let changed = self.map.update(Offset(offset), |item| item.deadline = deadline);
                    let item = self.model.get_mut(&offset).map(|item| item.deadline = deadline);
                    assert_eq!(changed, item);
                }
                Op::Look(now, max) => {
                    let found = self.map.due(Timestamp(now), max);
                    assert_eq!(found.len(), self.due(now).min(max), "all are found, or as many as may be");
                    for offset in &found {
                        assert!(self.model[&offset.0].deadline <= now, "{offset} is not due at {now}");
                    }
                    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len(), "none twice");
                    self.map.tighten(Timestamp(now));
                    let is_late = self.map.earliest().is_some_and(|earliest| earliest.0 <= now);
                    assert_eq!(is_late, self.due(now) > 0, "it is right when it has been corrected");
                }
                Op::Take(now, max) => {
                    let due = self.due(now);
                    let taken = self.map.take_due(Timestamp(now), max);
                    assert_eq!(taken.is_empty(), due.min(max) == 0, "some are taken if there are any");
                    assert!(taken.is_sorted_by_key(Item::offset) && taken.len() <= max);
                    for item in taken {
                        assert!(item.deadline <= now);
                        assert_eq!(self.model.remove(&item.offset), Some(item));
                    }
                }
                Op::Trim => self.map.trim(),
            }
        }

        fn check(&self) {
            self.map.check_invariants();
            assert!(self.map.iter().eq(self.model.values()));
            assert_eq!(self.map.len(), self.model.len());
            assert_eq!(self.map.is_empty(), self.model.is_empty());
            let earliest = self.model.values().map(|item| item.deadline).min();
            assert!(self.map.earliest().is_none_or(|at| Some(at.0) <= earliest || self.model.is_empty()));
            for offset in 0..130 {
                assert_eq!(self.map.get(Offset(offset)), self.model.get(&offset));
                assert_eq!(self.map.contains(Offset(offset)), self.model.contains_key(&offset));
                let end = offset + offset % 40;
                let range = self.map.range(Offset(offset), Offset(end));
                assert!(range.eq(self.model.range(offset..end).map(|(_, item)| item)), "{offset}..{end}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn it_is_an_ordered_map_that_finds_what_is_due(ops in prop::collection::vec(op(), 1..200)) {
            let mut pair = Pair::default();
            for op in &ops {
                pair.step(op);
                pair.check();
            }
        }
    }

    #[test]
    fn memory_is_in_proportion_to_what_is_left() {
        let mut pair = Pair::default();
        for offset in 0..10_000 {
            pair.insert(offset, offset + 1);
        }
        let full = pair.map.memory_bytes();
        assert!(pair.map.room < 10_000 + 2 * CHUNK_ITEMS_MAX, "chunks are full: {}", pair.map.room);
        // What is left lies far apart.
        for offset in (0..10_000).filter(|offset| offset % 10 != 0) {
            pair.remove(offset);
        }
        pair.map.check_invariants();
        assert!(pair.map.room <= 3 * pair.map.len(), "room for {}", pair.map.room);
        assert!(pair.map.memory_bytes() < full / 3, "{} of {full}", pair.map.memory_bytes());
        for offset in (0..10_000).step_by(10) {
            pair.remove(offset);
        }
        assert_eq!(pair.map.chunks.len(), 1, "one chunk is kept for the next item");
        let kept = pair.map.room + pair.map.spare.capacity();
        assert!(kept >= CHUNK_ITEMS_MAX, "room for {kept}");
        assert_eq!(pair.map.memory_bytes(), (kept * size_of::<Item>() + CHUNK_BYTES) as u64, "it is counted");
        pair.map.trim();
        assert_eq!(pair.map.chunks.capacity(), 0);
        assert_eq!(pair.map.memory_bytes(), 0);
    }

    #[test]
    fn items_that_take_less_memory_elsewhere_are_counted_so() {
        let mut map = DeadlineMap::new();
        for offset in 0..50 {
            map.insert(Item { offset, deadline: offset + 1, heap_bytes: (offset % 3) as usize * 100 });
        }
        map.shrink_items(|item| item.heap_bytes = if item.offset % 2 == 0 { 0 } else { 7 });
        map.check_invariants();
        map.shrink_items(|item| item.heap_bytes = 0);
        assert_eq!(map.heap_bytes, 0);
        map.shrink_items(|_| panic!("nothing is left to shrink"));
        map.check_invariants();
    }

    #[test]
    fn a_moment_that_came_too_early_comes_once() {
        let mut pair = Pair::default();
        pair.insert(1, 10);
        pair.insert(2, 20);
        pair.remove(1);
        assert_eq!(pair.map.earliest(), Some(Timestamp(10)), "not looked for when it is removed");
        assert_eq!(pair.map.due(Timestamp(10), 9), []);
        pair.map.tighten(Timestamp(10));
        assert_eq!(pair.map.earliest(), Some(Timestamp(20)));
        pair.map.tighten(Timestamp(30));
        assert_eq!(pair.map.earliest(), Some(Timestamp(20)), "something is due");
        assert_eq!(pair.map.due(Timestamp(20), 9), [Offset(2)]);
        assert_eq!(pair.map.due(Timestamp(20), 9), [Offset(2)], "a look takes nothing out");
    }
}
