//! Sets of offsets, kept as ranges: what is acknowledged, delivered or waiting is nearly always a range.

use nexo_types::{Offset, varint};

use crate::wire::{Reader, WireError, Writer};

/// Offsets in ascending order, as ranges in memory. For records and for work in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffsetSet {
    /// First offset and length, ascending, neither touching nor overlapping.
    ranges: Vec<(u64, u64)>,
    count: u64,
}

impl OffsetSet {
    /// The set of just this offset.
    #[must_use]
    pub fn one(offset: Offset) -> Self {
        Self { ranges: vec![(offset.0, 1)], count: 1 }
    }

    /// The set of these ranges, each a first offset and a length, ascending.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut set = Self::default();
        for (first, len) in ranges {
            set.push_range(first, len);
        }
        set
    }

    /// Adds an offset above all that are in the set.
    ///
    /// # Panics
    /// In debug builds, if the offset is not above the others.
    pub fn push(&mut self, offset: Offset) {
        self.push_range(offset.0, 1);
    }

    /// Adds `len` offsets from `first` on, all above those that are in the set.
    ///
    /// # Panics
    /// In debug builds, if they are not above the others.
    pub fn push_range(&mut self, first: u64, len: u64) {
        self.count += len;
        if let Some((start, held)) = self.ranges.last_mut() {
            debug_assert!(first >= *start + *held, "offsets must be added in ascending order");
            if first == *start + *held {
                *held += len;
                return;
            }
        }
        self.ranges.push((first, len));
    }

    /// How many offsets it holds.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The lowest offset.
    #[must_use]
    pub fn first(&self) -> Option<Offset> {
        self.ranges.first().map(|&(first, _)| Offset(first))
    }

    /// The highest offset.
    #[must_use]
    pub fn last(&self) -> Option<Offset> {
        self.ranges.last().map(|&(first, len)| Offset(first + len - 1))
    }

    /// Whether it holds `offset`.
    #[must_use]
    pub fn contains(&self, offset: Offset) -> bool {
        let after = self.ranges.partition_point(|&(first, _)| first <= offset.0);
        after > 0 && {
            let (first, len) = self.ranges[after - 1];
            offset.0 < first + len
        }
    }

    /// First offset and length of every range, ascending. They do not touch.
    #[must_use]
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Every offset, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Offset> + '_ {
        self.ranges.iter().flat_map(|&(first, len)| (first..first + len).map(Offset))
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.ranges.len() as u64);
        let mut end = 0;
        for &(first, len) in &self.ranges {
            out.u64(first - end);
            out.u64(len);
            end = first + len;
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut set = Self::default();
        let mut end = 0u64;
        for _ in 0..input.u64()? {
            let first = end.checked_add(input.u64()?).ok_or(WireError::Range)?;
            let len = input.u64()?;
            end = first.checked_add(len).ok_or(WireError::Range)?;
            if len == 0 {
                return Err(WireError::Range);
            }
            set.push_range(first, len);
        }
        Ok(set)
    }
}

impl FromIterator<Offset> for OffsetSet {
    /// Takes offsets in any order.
    fn from_iter<I: IntoIterator<Item = Offset>>(offsets: I) -> Self {
        let mut all: Vec<Offset> = offsets.into_iter().collect();
        if !all.is_sorted() {
            all.sort_unstable();
        }
        all.dedup();
        let mut set = Self::default();
        for offset in all {
            set.push(offset);
        }
        set
    }
}

/// Offsets in ascending order, packed to a few bytes a range: taken from the front, added to at the back.
/// For backlogs, where a range in memory for every message would be most of the cost of waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedOffsets {
    /// Alternately a gap and a length, as varints, from `packed_from` on.
    packed: Vec<u8>,
    packed_from: usize,
    /// End of the range before the first packed one.
    packed_end: u64,
    /// Taken out of `packed`, not yet used up.
    front: Option<(u64, u64)>,
    /// Not yet packed, because it may still grow.
    back: Option<(u64, u64)>,
    /// End of the last packed range.
    back_end: u64,
    count: u64,
}

impl PackedOffsets {
    pub(crate) const fn len(&self) -> u64 {
        self.count
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn push(&mut self, offset: Offset) {
        self.push_range(offset.0, 1);
    }

    pub(crate) fn push_range(&mut self, first: u64, len: u64) {
        self.count += len;
        match &mut self.back {
            Some((start, held)) if *start + *held == first => *held += len,
            Some((start, held)) => {
                debug_assert!(first > *start + *held, "offsets must be added in ascending order");
                let (start, held) = (*start, *held);
                varint::put(&mut self.packed, start - self.back_end);
                varint::put(&mut self.packed, held);
                self.back_end = start + held;
                self.back = Some((first, len));
            }
            None => self.back = Some((first, len)),
        }
    }

    pub(crate) fn first(&self) -> Option<Offset> {
        self.ranges().next().map(|(first, _)| Offset(first))
    }

    pub(crate) fn last(&self) -> Option<Offset> {
        // Only what was taken off the front can be all that is left.
        let (first, len) = self.back.or_else(|| self.ranges().last())?;
        Some(Offset(first + len - 1))
    }

    /// Those of a set that are here too, which must be above all that are in `found`.
    pub(crate) fn intersection(&self, other: &OffsetSet, found: &mut OffsetSet) {
        let mut others = other.ranges.iter().copied().peekable();
        for (first, len) in self.ranges() {
            let end = first + len;
            while let Some((start, held)) = others.peek().copied().filter(|(start, _)| *start < end) {
                let (from, to) = (first.max(start), end.min(start + held));
                if from < to {
                    found.push_range(from, to - from);
                }
                if start + held > end {
                    break;
                }
                others.next();
            }
        }
    }

    /// Takes up to `max` offsets off the front.
    pub(crate) fn take_front(&mut self, max: u64) -> OffsetSet {
        let mut taken = OffsetSet::default();
        while taken.len() < max {
            let Some((first, len)) = self.next_range() else { break };
            let part = len.min(max - taken.len());
            taken.push_range(first, part);
            self.count -= part;
            if part < len {
                self.front = Some((first + part, len - part));
            }
        }
        if self.packed_from > 4096 && self.packed_from * 2 > self.packed.len() {
            self.packed.drain(..self.packed_from);
            self.packed_from = 0;
        }
        taken
    }

    fn next_range(&mut self) -> Option<(u64, u64)> {
        if let Some(front) = self.front.take() {
            return Some(front);
        }
        let mut rest = &self.packed[self.packed_from..];
        if rest.is_empty() {
            return self.back.take();
        }
        let range = unpack(&mut rest, &mut self.packed_end);
        self.packed_from = self.packed.len() - rest.len();
        Some(range)
    }

    /// First offset and length of every range, ascending.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut rest = &self.packed[self.packed_from..];
        let mut end = self.packed_end;
        let packed =
            std::iter::from_fn(
                move || if rest.is_empty() { None } else { Some(unpack(&mut rest, &mut end)) },
            );
        self.front.into_iter().chain(packed).chain(self.back)
    }
}

fn unpack(rest: &mut &[u8], end: &mut u64) -> (u64, u64) {
    let gap = varint::take(rest).expect("packed offsets are whole pairs");
    let len = varint::take(rest).expect("packed offsets are whole pairs");
    let first = *end + gap;
    *end = first + len;
    (first, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_become_one_range() {
        let set: OffsetSet = [3, 1, 2, 9].map(Offset).into_iter().collect();
        assert_eq!(set.ranges, [(1, 3), (9, 1)]);
        assert!(set.contains(Offset(3)) && !set.contains(Offset(4)) && set.contains(Offset(9)));
        assert_eq!((set.first(), set.last(), set.len()), (Some(Offset(1)), Some(Offset(9)), 4));
    }

    proptest! {
        #[test]
        fn packed_offsets_behave_as_a_queue_of_offsets(
            steps in prop::collection::vec((1u64..5, 1u64..4, 0u64..6), 1..60)
        ) {
            let mut packed = PackedOffsets::default();
            let mut model = std::collections::VecDeque::new();
            let mut next = 0;
            for (gap, len, take) in steps {
                next += gap;
                for _ in 0..len {
                    packed.push(Offset(next));
                    model.push_back(Offset(next));
                    next += 1;
                }
                let taken = packed.take_front(take);
                let expected: Vec<Offset> = (0..take).map_while(|_| model.pop_front()).collect();
                prop_assert_eq!(taken.iter().collect::<Vec<_>>(), expected);
                prop_assert_eq!(packed.len(), model.len() as u64);
                prop_assert_eq!(packed.first(), model.front().copied());
                prop_assert_eq!(packed.last(), model.back().copied());
                let every_third: OffsetSet = (0..next + 3).step_by(3).map(Offset).collect();
                let mut found = OffsetSet::default();
                packed.intersection(&every_third, &mut found);
                let expected: Vec<Offset> = model.iter().copied().filter(|one| one.0 % 3 == 0).collect();
                prop_assert_eq!(found.iter().collect::<Vec<_>>(), expected);
                prop_assert_eq!(packed.ranges().collect::<Vec<_>>(), OffsetSet::from_iter(model.iter().copied()).ranges);
            }
        }
    }
}
