//! How many jobs of one type or of one key are pending, and how old the oldest is. Nobody looks at a million jobs for that: of each
//! type it is known which jobs are pending, at a few bits for a job; those of a key are found by the index of keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use nexo_types::{Millis, Timestamp, limits};

use super::numbers::Numbers;
use super::queue::JobQueue;

/// Pending jobs of one type, or of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingOf {
    /// How many.
    pub jobs: u64,
    /// How long the oldest has waited.
    pub oldest_age: Option<Millis>,
}

/// The numbers of pending jobs by type. A type without any is not in it.
#[derive(Debug, Default)]
pub(super) struct PendingKinds {
    of: BTreeMap<Arc<str>, Numbers>,
    name_bytes: u64,
}

impl PendingKinds {
    /// Does nothing if it is in it.
    pub(super) fn insert(&mut self, kind: &str, number: u64) {
        if let Some(numbers) = self.of.get_mut(kind) {
            numbers.insert(number);
            return;
        }
        let mut numbers = Numbers::default();
        numbers.insert(number);
        self.name_bytes += kind.len() as u64;
        self.of.insert(kind.into(), numbers);
    }

    /// Does nothing if it is not in it.
    pub(super) fn remove(&mut self, kind: &str, number: u64) {
        let Some(numbers) = self.of.get_mut(kind) else { return };
        numbers.remove(number);
        if numbers.first().is_none() {
            self.of.remove(kind);
            self.name_bytes -= kind.len() as u64;
        }
    }

    /// What it takes in memory, about. The numbers are part of what a job takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        /// A place in the tree, a shared text and a short list.
        const KIND_BYTES: u64 = 160;
        self.of.len() as u64 * KIND_BYTES + self.name_bytes
    }

    pub(super) fn outline(&self) -> BTreeMap<Arc<str>, Vec<u64>> {
        self.of.iter().map(|(kind, numbers)| (Arc::clone(kind), numbers.iter().collect())).collect()
    }
}

impl JobQueue {
    /// Pending jobs of a type.
    #[must_use]
    pub fn pending_of_kind(&self, kind: &str, now: Timestamp) -> PendingOf {
        let Some(numbers) = self.pending_kinds.of.get(kind) else { return PendingOf::default() };
        // Numbers count up: the lowest is the oldest.
        let oldest = numbers.first().and_then(|number| self.jobs.get(number));
        PendingOf { jobs: numbers.len(), oldest_age: oldest.map(|job| now.since(job.created_at)) }
    }

    /// Pending jobs of the keys that are asked for one after the other. Whoever asks holds the lock of all jobs, so only so many
    /// jobs are looked at for all of them together; nothing is said of a key that has more than what is left.
    pub fn pending_of_keys(&self, now: Timestamp) -> impl FnMut(&str) -> Option<PendingOf> {
        let mut left = limits::JOB_KEYS_LOOK_MAX;
        move |key| {
            let max = left.min(limits::JOB_KEY_LOOK_MAX);
            let mut looked = 0;
            let mut pending = PendingOf::default();
            for (_, job) in self.of_key(key).take(max + 1) {
                looked += 1;
                if job.is_pending() {
                    pending.jobs += 1;
                    pending.oldest_age = pending.oldest_age.max(Some(now.since(job.created_at)));
                }
            }
            left = left.saturating_sub(looked);
            (looked <= max).then_some(pending)
        }
    }
}
