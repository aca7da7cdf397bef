//! The order in which the pending jobs of one queue are served: by score, and of the same score by age. It is not durable. Who
//! hands out makes it from the jobs, and keeps it current: a change of a job only notes that its score is to be found again.
//!
//! Jobs are apart by what they cost, so that the first that can be paid is found without looking at those that cannot.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::ops::Bound;

use nexo_types::Timestamp;

use super::numbers::Numbers;
use super::score::{Score, Standing};

/// The order.
#[derive(Debug, Default)]
pub(super) struct Order {
    by_cost: BTreeMap<u64, Ranks>,
    len: usize,
    /// When scores may change, and whose. One that does not fit its job's standing any more is passed over. A tree and not a
    /// heap: scores that change together mostly change together again, so what is noted lies next to what was.
    changes: BTreeSet<(Timestamp, u64)>,
    /// Jobs whose score is to be found, the first noted first. One may be noted several times.
    unscored: VecDeque<u64>,
    /// Jobs that may be handed out from a moment on.
    delayed: BTreeSet<(Timestamp, u64)>,
}

/// Jobs of one cost: by score, and of one score by age. Few scores have many jobs.
#[derive(Debug, Default)]
struct Ranks(BTreeMap<Score, Numbers>);

impl Ranks {
    fn insert(&mut self, score: Score, number: u64) -> bool {
        self.0.entry(score).or_default().insert(number)
    }

    fn remove(&mut self, score: Score, number: u64) -> bool {
        let Some(jobs) = self.0.get_mut(&score) else { return false };
        let is_removed = jobs.remove(number);
        if jobs.first().is_none() {
            self.0.remove(&score);
        }
        is_removed
    }

    fn first(&self) -> Option<(Score, u64)> {
        let (score, jobs) = self.0.first_key_value()?;
        Some((*score, jobs.first()?))
    }

    fn iter(&self) -> impl Iterator<Item = (Score, u64)> + '_ {
        self.0.iter().flat_map(|(score, jobs)| jobs.iter().map(|number| (*score, number)))
    }
}

impl Order {
    /// How many jobs could be handed out.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Notes that a job's score is to be found.
    pub(super) fn rescore(&mut self, number: u64) {
        // A request changes its job several times.
        if self.unscored.back() != Some(&number) {
            self.unscored.push_back(number);
        }
    }

    /// How many notes there are that a score is to be found.
    pub(super) fn unscored(&self) -> usize {
        self.unscored.len()
    }

    /// Drops those notes.
    pub(super) fn forget_unscored(&mut self) {
        self.unscored = VecDeque::new();
    }

    pub(super) fn delay(&mut self, until: Timestamp, number: u64) {
        self.delayed.insert((until, number));
    }

    pub(super) fn undelay(&mut self, until: Timestamp, number: u64) {
        self.delayed.remove(&(until, number));
    }

    /// A job whose score is to be found now: it is not known, or its delay is over. It is handed out here once for each reason.
    pub(super) fn next_unscored(&mut self, now: Timestamp) -> Option<u64> {
        if let Some(number) = self.unscored.pop_front() {
            if self.unscored.is_empty() && self.unscored.capacity() > 1024 {
                self.unscored = VecDeque::new();
            }
            return Some(number);
        }
        let (_, number) = self.delayed.first().copied().filter(|(until, _)| *until <= now)?;
        self.delayed.pop_first();
        Some(number)
    }

    /// A job whose score may have changed by now, and the moment at which its standing was to end. If that does not fit any
    /// more, this is about an earlier one. It can be handed out, or it would have no standing.
    pub(super) fn next_changed(&mut self, now: Timestamp) -> Option<(Timestamp, u64)> {
        let first = self.changes.first().copied().filter(|(at, _)| *at <= now)?;
        self.changes.pop_first();
        Some(first)
    }

    /// When a job is next to be looked at, if ever.
    pub(super) fn next_change(&self) -> Option<Timestamp> {
        if !self.unscored.is_empty() {
            return Some(Timestamp(0));
        }
        let delayed = self.delayed.first().map(|(until, _)| *until);
        let changes = self.changes.first().map(|(at, _)| *at);
        delayed.into_iter().chain(changes).min()
    }

    /// When the next delay ends. Who waits for a job need not know of scores that change.
    pub(super) fn next_delayed(&self) -> Option<Timestamp> {
        self.delayed.first().map(|(until, _)| *until)
    }

    pub(super) fn insert(&mut self, number: u64, cost: u64, standing: Standing) {
        if self.by_cost.entry(cost).or_default().insert(standing.score, number) {
            self.len += 1;
        }
        self.note_change(number, standing);
    }

    pub(super) fn remove(&mut self, number: u64, cost: u64, standing: Standing) {
        if let Some(jobs) = self.by_cost.get_mut(&cost) {
            if jobs.remove(standing.score, number) {
                self.len -= 1;
            }
            if jobs.0.is_empty() {
                self.by_cost.remove(&cost);
            }
        }
        if self.len == 0 {
            // Whatever is there fits no job any more.
            self.changes = BTreeSet::new();
        }
    }

    /// Has a job that stays in the order stand elsewhere.
    pub(super) fn stand(&mut self, number: u64, cost: u64, before: Standing, standing: Standing) {
        if before.score != standing.score
            && let Some(jobs) = self.by_cost.get_mut(&cost)
        {
            jobs.remove(before.score, number);
            jobs.insert(standing.score, number);
        }
        self.note_change(number, standing);
    }

    fn note_change(&mut self, number: u64, standing: Standing) {
        if standing.until != Timestamp::MAX {
            self.changes.insert((standing.until, number));
        }
    }

    /// The first of all.
    pub(super) fn first(&self) -> Option<(Score, u64)> {
        self.by_cost.values().filter_map(Ranks::first).min()
    }

    /// The first of those that cost at most so much.
    pub(super) fn first_within(&self, cost: u64) -> Option<(Score, u64)> {
        self.by_cost.range(..=cost).filter_map(|(_, jobs)| jobs.first()).min()
    }

    /// Jobs that cost more, the dearest first.
    pub(super) fn above(&self, cost: u64) -> impl Iterator<Item = u64> + '_ {
        let dear = self.by_cost.range((Bound::Excluded(cost), Bound::Unbounded)).rev();
        dear.flat_map(|(_, jobs)| jobs.iter().map(|(_, number)| number))
    }

    /// The least that a job costs.
    pub(super) fn least_cost(&self) -> Option<u64> {
        self.by_cost.keys().next().copied()
    }

    /// The first jobs, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Score, u64)> + '_ {
        let mut heads: BinaryHeap<Reverse<((Score, u64), usize)>> = BinaryHeap::new();
        let mut rows: Vec<_> = self.by_cost.values().map(Ranks::iter).collect();
        for (row, jobs) in rows.iter_mut().enumerate() {
            heads.extend(jobs.next().map(|job| Reverse((job, row))));
        }
        std::iter::from_fn(move || {
            let Reverse((job, row)) = heads.pop()?;
            heads.extend(rows[row].next().map(|next| Reverse((next, row))));
            Some(job)
        })
    }
}
