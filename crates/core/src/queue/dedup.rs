//! Which deduplication ids a queue has seen lately.

use std::collections::{BTreeMap, VecDeque};

use nexo_types::{DedupId, Offset, Timestamp};

use crate::wire::{Reader, WireError, Writer};

/// Ids with the message they came with, until their window ends.
#[derive(Debug, Default)]
pub(crate) struct Dedup {
    /// A tree, because ids are chosen by clients: they could make a hash table slow.
    seen: BTreeMap<DedupId, (Timestamp, Offset)>,
    /// In the order of arrival, which is the order of ending unless the window was changed.
    order: VecDeque<(Timestamp, DedupId)>,
}

impl Dedup {
    /// The message that brought this id, if its window has not ended.
    pub(crate) fn find(&self, id: &DedupId, now: Timestamp) -> Option<Offset> {
        self.seen.get(id).filter(|(until, _)| *until > now).map(|(_, offset)| *offset)
    }

    pub(crate) fn insert(&mut self, id: DedupId, offset: Offset, until: Timestamp) {
        self.order.push_back((until, id.clone()));
        self.seen.insert(id, (until, offset));
    }

    /// Forgets what has ended by `now`.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        while let Some((until, _)) = self.order.front()
            && *until <= now
            && let Some((until, id)) = self.order.pop_front()
        {
            // A later message may have brought the same id again, with a later end.
            if self.seen.get(&id).is_some_and(|(held, _)| *held == until) {
                self.seen.remove(&id);
            }
        }
    }

    /// When the next id can be forgotten.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.order.front().map(|(until, _)| *until)
    }

    /// Every id that is remembered, in the order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&DedupId, Timestamp, Offset)> {
        self.order.iter().filter_map(|(until, id)| {
            let (held, offset) = self.seen.get(id)?;
            (held == until).then_some((id, *until, *offset))
        })
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u64(self.seen.len() as u64);
        for (id, until, offset) in self.iter() {
            out.text(id.as_str());
            out.u64(until.0);
            out.u64(offset.0);
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut dedup = Self::default();
        for _ in 0..input.u64()? {
            let id = DedupId::new(input.text()?).map_err(|_| WireError::BadName)?;
            let until = Timestamp(input.u64()?);
            dedup.insert(id, Offset(input.u64()?), until);
        }
        Ok(dedup)
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
        dedup.forget(Timestamp(15));
        assert_eq!(dedup.find(&id, Timestamp(15)), Some(Offset(2)));
        dedup.forget(Timestamp(20));
        assert_eq!(dedup.iter().count(), 0);
        assert_eq!(dedup.next_deadline(), None);
    }
}
