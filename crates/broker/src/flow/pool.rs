//! What is known about all queues together.
//!
//! Of one queue among hundreds, too few messages are handed out while it is watched to tell whether its publishers hold
//! consumers up; of all of them together there are enough.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::EPOCH;

/// What the flows of all queues tell each other.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Until when publishers are known to hold consumers up, in nanoseconds of [`EPOCH`].
    held_up_until: AtomicU64,
    /// When one that is to stop last pushed.
    pushed_at: AtomicU64,
}

impl Pool {
    pub(super) fn note_held_up(&self, until: Instant) {
        self.held_up_until.fetch_max(nanos(until), Ordering::Relaxed);
    }

    pub(super) fn held_up_until(&self, now: Instant) -> Option<Instant> {
        let until = *EPOCH + Duration::from_nanos(self.held_up_until.load(Ordering::Relaxed));
        (now < until).then_some(until)
    }

    pub(super) fn note_push(&self, now: Instant) {
        self.pushed_at.store(nanos(now), Ordering::Relaxed);
    }

    /// Whether a publisher that is to stop has pushed since.
    pub(super) fn has_pushed_since(&self, then: Instant) -> bool {
        self.pushed_at.load(Ordering::Relaxed) > nanos(then)
    }
}

fn nanos(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*EPOCH).as_nanos()).unwrap_or(u64::MAX)
}
