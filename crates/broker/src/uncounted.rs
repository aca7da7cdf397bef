//! Memory that nobody counts: what the allocator keeps, the program itself, tasks of connections. It is the difference between
//! what the system says that the process takes and what is counted, and messages may take so much less.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is less than before counts by one part in this many at a time: a peak may come again.
const DECAY: u64 = 32;

/// What was found when the system was asked last.
#[derive(Debug)]
pub(crate) struct UncountedMemory {
    /// `None` if the process is not the broker's alone.
    resident_bytes: Option<fn() -> Option<u64>>,
    bytes: AtomicU64,
    began: Instant,
    /// When to ask again at the earliest, in microseconds since it began.
    next_look: AtomicU64,
}

impl UncountedMemory {
    pub(crate) fn new(resident_bytes: Option<fn() -> Option<u64>>) -> Self {
        let (bytes, next_look) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { resident_bytes, bytes, began: Instant::now(), next_look }
    }

    /// As of the last look.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Looks, if the last look was so long ago. `counted` is what is counted now. Gives back what the process takes, if the system was asked.
    pub(crate) fn look(&self, every: Duration, counted: impl FnOnce() -> u64) -> Option<u64> {
        let resident_bytes = self.resident_bytes?;
        let now = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let due = self.next_look.load(Ordering::Relaxed);
        let next = now.saturating_add(every.as_micros() as u64);
        let is_mine = now >= due
            && self.next_look.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // Where the system does not say, for want of a descriptor for example, what it said before holds.
        let resident_bytes = is_mine.then(resident_bytes)??;
        self.note(resident_bytes.saturating_sub(counted()));
        Some(resident_bytes)
    }

    fn note(&self, found: u64) {
        let before = self.bytes();
        let bytes = if found < before { before - (before - found).div_ceil(DECAY) } else { found };
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(5);

    #[test]
    fn what_is_not_counted_grows_at_once_and_shrinks_slowly() {
        let uncounted = UncountedMemory::new(Some(|| Some(1_000)));
        assert_eq!(uncounted.look(EVERY, || 900), Some(1_000));
        assert_eq!(uncounted.bytes(), 100);
        assert_eq!(uncounted.look(EVERY, || panic!("the system is not asked so soon again")), None);
        uncounted.note(180);
        assert_eq!(uncounted.bytes(), 180);
        uncounted.note(100);
        assert_eq!(uncounted.bytes(), 177);
        for _ in 0..1_000 {
            uncounted.note(100);
        }
        assert_eq!(uncounted.bytes(), 100);
    }

    #[test]
    fn a_process_that_is_not_the_brokers_alone_is_not_looked_at() {
        let uncounted = UncountedMemory::new(None);
        assert_eq!(uncounted.look(EVERY, || panic!("nobody asked")), None);
        assert_eq!(uncounted.bytes(), 0);
    }
}
