//! The bindings that lead to one destination.

use std::collections::BTreeSet;

use nexo_types::ExchangeName;

/// A binding's source, and its order there.
pub(super) type Place = (ExchangeName, u64);

/// Places, sorted. Most queues are bound once, and a tree for that one would be most of what their bindings take.
#[derive(Clone, Debug, Default)]
pub(super) enum Places {
    #[default]
    None,
    One(Place),
    Many(BTreeSet<Place>),
}

impl Places {
    pub(super) fn insert(&mut self, place: Place) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(place),
            Self::One(held) if held == place => Self::One(held),
            Self::One(held) => Self::Many(BTreeSet::from([held, place])),
            Self::Many(mut held) => {
                held.insert(place);
                Self::Many(held)
            }
        };
    }

    pub(super) fn remove(&mut self, place: &Place) {
        match self {
            Self::None => {}
            Self::One(held) => {
                if held == place {
                    *self = Self::None;
                }
            }
            Self::Many(held) => {
                held.remove(place);
                if held.len() == 1 {
                    *self = held.pop_first().map_or(Self::None, Self::One);
                }
            }
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(place) => (Some(place), None),
            Self::Many(places) => (None, Some(places)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_are_a_set(steps in prop::collection::vec((any::<bool>(), 0u64..4), 0..40)) {
            let source = ExchangeName::new("x").unwrap();
            let (mut places, mut model) = (Places::default(), BTreeSet::new());
            for (adds, order) in steps {
                let place = (source.clone(), order);
                if adds {
                    places.insert(place.clone());
                    model.insert(place);
                } else {
                    places.remove(&place);
                    model.remove(&place);
                }
                prop_assert!(places.iter().eq(&model));
                prop_assert_eq!(places.is_empty(), model.is_empty());
            }
        }
    }
}
