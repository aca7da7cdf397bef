//! A set of offsets that come and go in any order, in few bytes each however they are strewn: two bytes in a block with few
//! of them, a bit for each offset in a block with many.

use std::collections::BTreeMap;

/// Offsets that share a block: what is left of an offset fits into two bytes.
const BLOCK_OFFSETS: u64 = 1 << 16;
/// From this many on a block takes less as bits.
const FEW_MAX: usize = 4096;
const WORDS: usize = (BLOCK_OFFSETS / 64) as usize;

/// The set: see the file.
#[derive(Clone, Debug, Default)]
pub(super) struct OffsetBlocks {
    /// None is empty.
    blocks: BTreeMap<u64, Block>,
    count: u64,
}

#[derive(Clone, Debug)]
enum Block {
    /// By rising offset.
    Few(Vec<u16>),
    Many {
        bits: Box<[u64; WORDS]>,
        count: u32,
    },
}

const fn split(offset: u64) -> (u64, u16) {
    (offset / BLOCK_OFFSETS, (offset % BLOCK_OFFSETS) as u16)
}

impl OffsetBlocks {
    pub(super) const fn len(&self) -> u64 {
        self.count
    }

    pub(super) fn contains(&self, offset: u64) -> bool {
        let (number, rest) = split(offset);
        self.blocks.get(&number).is_some_and(|block| block.contains(rest))
    }

    /// Adds an offset. `false` if it was there.
    pub(super) fn insert(&mut self, offset: u64) -> bool {
        let (number, rest) = split(offset);
        let is_new = self.blocks.entry(number).or_insert_with(|| Block::Few(Vec::new())).insert(rest);
        self.count += u64::from(is_new);
        is_new
    }

    /// Takes an offset out. `false` if it was not there.
    pub(super) fn remove(&mut self, offset: u64) -> bool {
        let (number, rest) = split(offset);
        let Some(block) = self.blocks.get_mut(&number) else { return false };
        let was_there = block.remove(rest);
        self.count -= u64::from(was_there);
        if block.is_empty() {
            self.blocks.remove(&number);
        }
        was_there
    }

    /// The lowest that is not below this one.
    pub(super) fn next_from(&self, offset: u64) -> Option<u64> {
        let (number, rest) = split(offset);
        self.blocks.range(number..).find_map(|(block_number, block)| {
            let from = if *block_number == number { rest } else { 0 };
            block.next_from(from).map(|rest| block_number * BLOCK_OFFSETS + u64::from(rest))
        })
    }

    /// The highest.
    pub(super) fn last(&self) -> Option<u64> {
        let (number, block) = self.blocks.last_key_value()?;
        Some(number * BLOCK_OFFSETS + u64::from(block.last()?))
    }

    /// All of them, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let offset = self.next_from(next?)?;
            next = offset.checked_add(1);
            Some(offset)
        })
    }

    /// First offset and length of every range, ascending.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut offsets = self.iter().peekable();
        std::iter::from_fn(move || {
            let first = offsets.next()?;
            let mut len = 1;
            while offsets.next_if_eq(&(first + len)).is_some() {
                len += 1;
            }
            Some((first, len))
        })
    }
}

impl Block {
    fn contains(&self, rest: u16) -> bool {
        match self {
            Self::Few(few) => few.binary_search(&rest).is_ok(),
            Self::Many { bits, .. } => bits[usize::from(rest / 64)] >> (rest % 64) & 1 == 1,
        }
    }

    fn insert(&mut self, rest: u16) -> bool {
        match self {
            Self::Few(few) => {
                // Nearly always at the end.
                let at = match few.last() {
                    Some(last) if *last >= rest => match few.binary_search(&rest) {
                        Ok(_) => return false,
                        Err(at) => at,
                    },
                    _ => few.len(),
                };
                few.insert(at, rest);
                if few.len() > FEW_MAX {
                    let mut bits = Box::new([0u64; WORDS]);
                    few.iter().for_each(|rest| bits[usize::from(rest / 64)] |= 1 << (rest % 64));
                    *self = Self::Many { bits, count: few.len() as u32 };
                }
                true
            }
            Self::Many { bits, count } => {
                let word = &mut bits[usize::from(rest / 64)];
                let is_new = *word >> (rest % 64) & 1 == 0;
                *word |= 1 << (rest % 64);
                *count += u32::from(is_new);
                is_new
            }
        }
    }

    fn remove(&mut self, rest: u16) -> bool {
        match self {
            Self::Few(few) => few.binary_search(&rest).map(|at| few.remove(at)).is_ok(),
            Self::Many { bits, count } => {
                let word = &mut bits[usize::from(rest / 64)];
                let was_there = *word >> (rest % 64) & 1 == 1;
                *word &= !(1 << (rest % 64));
                *count -= u32::from(was_there);
                was_there
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.is_empty(),
            Self::Many { count, .. } => *count == 0,
        }
    }

    fn next_from(&self, rest: u16) -> Option<u16> {
        match self {
            Self::Few(few) => few.get(few.partition_point(|one| *one < rest)).copied(),
            Self::Many { bits, .. } => {
                let word = usize::from(rest / 64);
                let first = bits[word] >> (rest % 64) << (rest % 64);
                let words =
                    std::iter::once((word, first)).chain(bits.iter().copied().enumerate().skip(word + 1));
                words.filter(|(_, bits)| *bits != 0).map(|(at, bits)| bit(at, bits.trailing_zeros())).next()
            }
        }
    }

    fn last(&self) -> Option<u16> {
        match self {
            Self::Few(few) => few.last().copied(),
            Self::Many { bits, .. } => {
                let words = bits.iter().copied().enumerate().rev();
                let mut words = words.filter(|(_, bits)| *bits != 0);
                words.next().map(|(at, bits)| bit(at, 63 - bits.leading_zeros()))
            }
        }
    }
}

const fn bit(word: usize, bit: u32) -> u16 {
    (word * 64) as u16 + bit as u16
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_is_a_set_with_few_and_with_many() {
        let mut rng = fastrand::Rng::with_seed(11);
        let (mut set, mut model) = (OffsetBlocks::default(), BTreeSet::new());
        // Dense in the first block, sparse in the others.
        let any = |rng: &mut fastrand::Rng| {
            if rng.bool() { rng.u64(..9_000) } else { rng.u64(..5 * BLOCK_OFFSETS) }
        };
        for round in 0..60_000 {
            let offset = any(&mut rng);
            if rng.u32(..10) < if round < 40_000 { 7 } else { 2 } {
                assert_eq!(set.insert(offset), model.insert(offset));
            } else {
                assert_eq!(set.remove(offset), model.remove(&offset));
            }
            let (probe, from) = (any(&mut rng), any(&mut rng));
            assert_eq!(set.contains(probe), model.contains(&probe));
            assert_eq!(set.next_from(from), model.range(from..).next().copied());
            if round % 5_000 == 0 {
                assert_eq!((set.len(), set.last()), (model.len() as u64, model.last().copied()));
                assert_eq!(set.iter().collect::<BTreeSet<_>>(), model);
                let in_ranges: Vec<u64> = set.ranges().flat_map(|(first, len)| first..first + len).collect();
                assert_eq!(in_ranges, model.iter().copied().collect::<Vec<_>>());
            }
        }
        for offset in model {
            assert!(set.remove(offset));
        }
        assert!(set.blocks.is_empty() && set.len() == 0, "nothing is left");
    }
}
