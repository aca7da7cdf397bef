//! How often messages are taken out of memory while there are too many.
//!
//! To do it, every queue is locked once. Where what is left cannot leave memory, that would be in vain each time.

use std::time::{Duration, Instant};

/// Whether messages should be taken out of memory is not worth asking more often than this: fast publishers add ten
/// megabytes meanwhile.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// A round with many queues takes long, and the pause after it so many times as long.
const PAUSE_ROUNDS: u32 = 10;
/// After a round that freed little, the next one is not before this, unless much has been added …
const FRUITLESS_PAUSE: Duration = Duration::from_secs(2);
/// … namely one part in this many of what messages may take. Less than that freed is little.
const MUCH_PART: u64 = 16;

/// What the last round left.
#[derive(Debug, Default)]
pub(crate) struct PageOutPace {
    fruitless: Option<Fruitless>,
}

/// The last round freed little.
#[derive(Debug)]
struct Fruitless {
    until: Instant,
    /// Memory of messages after it.
    left_bytes: u64,
}

impl PageOutPace {
    /// Whether a round is worth its cost. `bytes` is what messages take now, `max` what they may take.
    pub(crate) fn is_time(&self, now: Instant, bytes: u64, max: u64) -> bool {
        self.fruitless
            .as_ref()
            .is_none_or(|last| now >= last.until || bytes >= last.left_bytes.saturating_add(max / MUCH_PART))
    }

    /// How long to wait after a round that took so long.
    pub(crate) fn pause_after(round: Duration) -> Duration {
        (round * PAUSE_ROUNDS).max(PAUSE_MIN)
    }

    /// A round has been made.
    pub(crate) fn note(&mut self, now: Instant, before: u64, after: u64, max: u64) {
        let is_little = before.saturating_sub(after) < max / MUCH_PART;
        self.fruitless = is_little.then(|| Fruitless { until: now + FRUITLESS_PAUSE, left_bytes: after });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 1600;

    #[test]
    fn rounds_that_free_much_follow_each_other() {
        let mut pace = PageOutPace::default();
        let now = Instant::now();
        assert!(pace.is_time(now, 2000, MAX));
        pace.note(now, 2000, 1000, MAX);
        assert!(pace.is_time(now, 1700, MAX));
    }

    #[test]
    fn rounds_take_a_small_part_of_the_time() {
        assert_eq!(PageOutPace::pause_after(Duration::ZERO), PAUSE_MIN);
        let long = Duration::from_millis(30);
        assert_eq!(PageOutPace::pause_after(long), PAUSE_ROUNDS * long);
    }

    #[test]
    fn after_a_round_in_vain_there_is_a_pause_unless_much_is_added() {
        let mut pace = PageOutPace::default();
        let now = Instant::now();
        pace.note(now, 2000, 1950, MAX);
        assert!(!pace.is_time(now, 1950, MAX));
        assert!(!pace.is_time(now, 2049, MAX));
        assert!(pace.is_time(now, 2050, MAX), "much has been added");
        assert!(pace.is_time(now + FRUITLESS_PAUSE, 1950, MAX), "it may be different by now");
        pace.note(now, 2050, 1800, MAX);
        assert!(pace.is_time(now, 1801, MAX), "that freed much");
    }
}
