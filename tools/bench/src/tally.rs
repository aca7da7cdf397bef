//! What the threads of a load have done so far, for whoever watches. Each thread counts for itself, on a cache line
//! of its own, once per write or read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of one thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    pub(crate) published: Counter,
    pub(crate) confirmed: Counter,
    pub(crate) consumed: Counter,
}

/// Counters for one more thread.
pub(crate) fn add_tally(tallies: &mut Vec<Arc<Tally>>) -> Arc<Tally> {
    let tally = Arc::<Tally>::default();
    tallies.push(Arc::clone(&tally));
    tally
}

/// A number that one thread sets and others read now and then.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn set(&self, value: u64) {
        // Nothing else hangs on it, and only one thread writes it.
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The sums over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Messages handed to the operating system by publishers.
    pub published: u64,
    /// Messages that the broker confirmed.
    pub confirmed: u64,
    /// Messages that consumers received.
    pub consumed: u64,
}

impl Totals {
    pub(crate) fn of(tallies: &[Arc<Tally>]) -> Self {
        let sum = |counter: fn(&Tally) -> &Counter| tallies.iter().map(|tally| counter(tally).get()).sum();
        Self {
            published: sum(|tally| &tally.published),
            confirmed: sum(|tally| &tally.confirmed),
            consumed: sum(|tally| &tally.consumed),
        }
    }
}
