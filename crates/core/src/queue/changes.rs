//! What has changed since the last snapshot, and what it was like when the present one began.
//!
//! Loose messages and deduplication ids are written in *chunks*: chunk `n` has those of the offsets from
//! `n * CHUNK_OFFSETS` on. Only chunks that have changed are written again, a few under each hold of the queue's lock.
//!
//! A snapshot is the state at the one moment when it began. To keep it so, [`Queue::touch`] is called *before* anything
//! about an offset changes: while the chunk of that offset has not been written yet, it sets aside what there was.
//! What takes messages out without naming them (a purge) cancels the snapshot, and it begins anew.

use std::collections::BTreeMap;

use nexo_types::Offset;

use super::Queue;
use crate::wire::Writer;

/// Offsets that share a chunk. Part of the format on disk: a chunk is known by its number. So many are encoded in far less
/// than a millisecond, and make frames of some tens of kilobytes. (Few in tests, so that they meet several chunks.)
pub(super) const CHUNK_OFFSETS: u64 = if cfg!(test) { 4 } else { 1024 };

/// The number of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u64);

impl ChunkId {
    pub(super) const fn of(offset: Offset) -> Self {
        Self(offset.0 / CHUNK_OFFSETS)
    }

    /// The first offset of it, and the first behind it.
    #[must_use]
    pub const fn offsets(self) -> (Offset, Offset) {
        let first = self.0.saturating_mul(CHUNK_OFFSETS);
        (Offset(first), Offset(first.saturating_add(CHUNK_OFFSETS)))
    }
}

/// Which chunks have changed, and the snapshot that is being taken.
#[derive(Debug, Default)]
pub(super) struct Changes {
    changed: ChunkSet,
    /// Every chunk has, also those of which nothing is known here.
    all: bool,
    /// The chunk that was marked last; nothing more is to be done for it.
    last: Option<ChunkId>,
    snapshot: Option<Box<Ongoing>>,
}

/// A snapshot that is being taken.
#[derive(Debug, Default)]
struct Ongoing {
    /// Chunks that are not yet written.
    pending: ChunkSet,
    /// What there was of messages in pending chunks that have changed since: their items, encoded.
    before: BTreeMap<Offset, Vec<u8>>,
}

impl Changes {
    pub(super) fn any(&self) -> bool {
        self.all || !self.changed.is_empty()
    }

    pub(super) fn has(&self, chunk: ChunkId) -> bool {
        let pending = |ongoing: &Ongoing| ongoing.pending.contains(chunk);
        self.all || self.changed.contains(chunk) || self.snapshot.as_deref().is_some_and(pending)
    }

    /// Begins a snapshot of all chunks that have changed; `known` are those that were written before, `stale` those of
    /// them that must be written again.
    pub(super) fn begin(&mut self, known: impl Iterator<Item = ChunkId>, stale: &[ChunkId]) {
        self.abandon(&[]);
        self.last = None;
        let mut pending = std::mem::take(&mut self.changed);
        if std::mem::take(&mut self.all) {
            known.for_each(|chunk| pending.insert(chunk));
        }
        stale.iter().for_each(|chunk| pending.insert(*chunk));
        self.snapshot = Some(Box::new(Ongoing { pending, before: BTreeMap::new() }));
    }

    /// The next chunk to be written, with what has changed in it since the snapshot began.
    pub(super) fn next(&mut self) -> Option<(ChunkId, BTreeMap<Offset, Vec<u8>>)> {
        let snapshot = self.snapshot.as_mut()?;
        let chunk = snapshot.pending.pop_first()?;
        let mut rest = snapshot.before.split_off(&chunk.offsets().1);
        std::mem::swap(&mut rest, &mut snapshot.before);
        Some((chunk, rest))
    }

    /// Whether a snapshot is being taken.
    pub(super) const fn is_ongoing(&self) -> bool {
        self.snapshot.is_some()
    }

    pub(super) fn has_pending(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| !snapshot.pending.is_empty())
    }

    pub(super) fn end(&mut self) {
        self.snapshot = None;
    }

    /// The snapshot comes to nothing: its chunks, and those that were taken for it already, have still changed.
    pub(super) fn abandon(&mut self, taken: &[ChunkId]) {
        if let Some(snapshot) = self.snapshot.take() {
            snapshot.pending.iter().for_each(|chunk| self.changed.insert(chunk));
        }
        taken.iter().for_each(|chunk| self.changed.insert(*chunk));
    }

    /// Everything may have changed.
    pub(super) fn change_all(&mut self) {
        self.abandon(&[]);
        self.all = true;
    }
}

impl Queue {
    /// To be called before anything changes that a chunk says of this offset.
    #[inline]
    pub(super) fn touch(&mut self, offset: Offset) {
        let chunk = ChunkId::of(offset);
        if self.changes.last != Some(chunk) {
            self.mark(chunk, offset);
        }
    }

    fn mark(&mut self, chunk: ChunkId, offset: Offset) {
        self.changes.changed.insert(chunk);
        let pending = |ongoing: &Ongoing| ongoing.pending.contains(chunk);
        if !self.changes.snapshot.as_deref().is_some_and(pending) {
            self.changes.last = Some(chunk);
            return;
        }
        if self.changes.snapshot.as_ref().is_some_and(|ongoing| !ongoing.before.contains_key(&offset)) {
            let mut out = Writer::default();
            self.encode_items_of(offset, &mut out);
            if let Some(ongoing) = &mut self.changes.snapshot {
                ongoing.before.insert(offset, out.into_vec());
            }
        }
    }
}

/// Chunks as ranges: those that change together mostly lie side by side.
#[derive(Debug, Default)]
pub(crate) struct ChunkSet {
    /// First and one behind the last of each range. Ranges do not touch.
    ranges: BTreeMap<u64, u64>,
}

impl ChunkSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn contains(&self, chunk: ChunkId) -> bool {
        self.ranges.range(..=chunk.0).next_back().is_some_and(|(_, end)| chunk.0 < *end)
    }

    pub(crate) fn insert(&mut self, chunk: ChunkId) {
        let (mut start, mut end) = (chunk.0, chunk.0.saturating_add(1));
        if let Some((before, before_end)) = self.ranges.range(..=chunk.0).next_back() {
            if chunk.0 < *before_end {
                return;
            }
            if *before_end == chunk.0 {
                start = *before;
            }
        }
        if let Some(behind_end) = self.ranges.remove(&end) {
            end = behind_end;
        }
        self.ranges.insert(start, end);
    }

    pub(crate) fn pop_first(&mut self) -> Option<ChunkId> {
        let (start, end) = self.ranges.pop_first()?;
        if start + 1 < end {
            self.ranges.insert(start + 1, end);
        }
        Some(ChunkId(start))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.ranges.iter().flat_map(|(start, end)| *start..*end).map(ChunkId)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_chunks_is_a_set(numbers in prop::collection::vec(0u64..40, 0..60), taken in 0usize..20) {
            let mut set = ChunkSet::default();
            let mut model = BTreeSet::new();
            for number in numbers {
                set.insert(ChunkId(number));
                model.insert(ChunkId(number));
            }
            for _ in 0..taken {
                prop_assert_eq!(set.pop_first(), model.pop_first());
            }
            prop_assert_eq!(set.iter().collect::<BTreeSet<_>>(), model.clone());
            prop_assert_eq!(set.is_empty(), model.is_empty());
            for number in 0..41 {
                prop_assert_eq!(set.contains(ChunkId(number)), model.contains(&ChunkId(number)));
            }
            let ends: Vec<(u64, u64)> = set.ranges.iter().map(|(start, end)| (*start, *end)).collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "neighbours are one range");
        }
    }
}
