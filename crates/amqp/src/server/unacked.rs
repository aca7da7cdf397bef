//! What a channel has delivered and its client has not settled, by delivery tag.
//!
//! Most are settled in order, so they stand in a row: the tag finds the place by search, and one that is settled out of
//! order leaves a gap until the row is tidied.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use nexo_broker::Settle;
use nexo_types::Offset;

use super::settle::BySource;
use super::source::Source;

/// A delivered message.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) tag: u64,
    pub(super) source: Arc<Source>,
    pub(super) offset: Offset,
    pub(super) attempt: u32,
    pub(super) since: Instant,
}

/// All of them, oldest first. Dropping it gives them back to their queues.
#[derive(Debug, Default)]
pub(super) struct Unacked {
    row: VecDeque<(u64, Option<Held>)>,
    held: usize,
}

impl Unacked {
    pub(super) fn push(&mut self, held: Held) {
        self.row.push_back((held.tag, Some(held)));
        self.held += 1;
    }

    /// Takes out one.
    pub(super) fn take(&mut self, tag: u64) -> Option<Held> {
        if self.row.front().is_some_and(|(first, _)| *first == tag) {
            let held = self.row.pop_front()?.1;
            self.held -= 1;
            self.tidy();
            return held;
        }
        let at = self.row.binary_search_by_key(&tag, |(tag, _)| *tag).ok()?;
        let held = self.row[at].1.take()?;
        self.held -= 1;
        self.tidy();
        Some(held)
    }

    /// The last one that is meant by all up to this one, which must be there itself; tag 0 means all there are.
    pub(super) fn last_up_to(&self, tag: u64) -> Option<u64> {
        if tag == 0 {
            return Some(self.row.back().map_or(0, |(last, _)| *last));
        }
        let at = self.row.binary_search_by_key(&tag, |(tag, _)| *tag).ok()?;
        self.row[at].1.as_ref().map(|held| held.tag)
    }

    /// Takes out those up to `last`, but no more than `max` of them: there may be millions. Says whether more are left.
    pub(super) fn take_some_up_to(&mut self, last: u64, max: usize) -> (Vec<Held>, bool) {
        let end = self.row.partition_point(|(tag, _)| *tag <= last);
        let count = end.min(max);
        let taken: Vec<Held> = self.row.drain(..count).filter_map(|(_, held)| held).collect();
        self.held -= taken.len();
        // Not while more are taken out, which would look at all of them each time.
        if count == end {
            self.tidy();
        }
        (taken, count < end)
    }

    /// Puts messages back that were taken out: their settling was undone.
    pub(super) fn put_back(&mut self, held: Vec<Held>) {
        self.held += held.len();
        let mut row: Vec<(u64, Option<Held>)> =
            self.row.drain(..).filter(|(_, held)| held.is_some()).collect();
        row.extend(held.into_iter().map(|held| (held.tag, Some(held))));
        row.sort_by_key(|(tag, _)| *tag);
        self.row = row.into();
    }

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.held
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.row.iter().filter_map(|(_, held)| held.as_ref())
    }

    fn tidy(&mut self) {
        while self.row.front().is_some_and(|(_, held)| held.is_none()) {
            self.row.pop_front();
        }
        if self.row.len() > 64 && self.held < self.row.len() / 2 {
            self.row.retain(|(_, held)| held.is_some());
        }
    }
}

impl Drop for Unacked {
    fn drop(&mut self) {
        let mut groups = BySource::default();
        for held in self.iter() {
            groups.add(held);
        }
        groups.settle_eventually(Settle::Requeue);
    }
}
