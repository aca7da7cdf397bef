//! A set of the numbers of jobs. Of a million pending jobs most have one of a few dozen scores, and each of them comes to another
//! score every minute: a large set is a compressed bitmap, which the processor's caches hold where a tree does not fit. But a
//! queue may give every job a score of its own: a small set is a short list, at a few bytes for each number.

use roaring::RoaringTreemap;

/// A list that is longer becomes a bitmap.
const FEW: usize = 32;

/// The set.
#[derive(Debug)]
pub(super) enum Numbers {
    /// Sorted.
    Few(Vec<u64>),
    Many(Box<RoaringTreemap>),
}

impl Default for Numbers {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Numbers {
    /// Whether it was not in it.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        match self {
            Self::Few(numbers) => {
                let Err(at) = numbers.binary_search(&number) else { return false };
                numbers.insert(at, number);
                if numbers.len() > FEW {
                    *self = Self::Many(Box::new(numbers.iter().copied().collect()));
                }
                true
            }
            Self::Many(numbers) => numbers.insert(number),
        }
    }

    /// Whether it was in it.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        match self {
            Self::Few(numbers) => {
                let Ok(at) = numbers.binary_search(&number) else { return false };
                numbers.remove(at);
                true
            }
            Self::Many(numbers) => numbers.remove(number),
        }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Few(numbers) => numbers.len() as u64,
            Self::Many(numbers) => numbers.len(),
        }
    }

    pub(super) fn first(&self) -> Option<u64> {
        match self {
            Self::Few(numbers) => numbers.first().copied(),
            Self::Many(numbers) => numbers.min(),
        }
    }

    /// In their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let (few, many) = match self {
            Self::Few(numbers) => (Some(numbers.iter().copied()), None),
            Self::Many(numbers) => (None, Some(numbers.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Numbers lie close together, as those of one queue do, and far apart.
        #[test]
        fn it_is_a_set_however_many_there_are(
            changes in prop::collection::vec((any::<bool>(), prop_oneof![0..100_u64, 65_500..65_600_u64, any::<u64>()]), 0..400)
        ) {
            let (mut numbers, mut model) = (Numbers::default(), BTreeSet::new());
            for (comes, number) in changes {
                if comes {
                    prop_assert_eq!(numbers.insert(number), model.insert(number));
                } else {
                    prop_assert_eq!(numbers.remove(number), model.remove(&number));
                }
                prop_assert_eq!(numbers.first(), model.first().copied());
                prop_assert_eq!(numbers.len(), model.len() as u64);
            }
            prop_assert!(numbers.iter().eq(model.iter().copied()));
        }
    }

    #[test]
    fn a_set_that_was_large_is_empty_again() {
        let mut numbers = Numbers::default();
        assert!((0..1000).all(|number| numbers.insert(number)));
        assert!(matches!(numbers, Numbers::Many(_)));
        assert!((0..1000).all(|number| numbers.remove(number)));
        assert_eq!((numbers.first(), numbers.iter().count()), (None, 0));
    }
}
