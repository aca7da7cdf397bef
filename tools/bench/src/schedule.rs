//! When messages are due. A load at a fixed rate sends by this plan however the broker fares, and a message that had to
//! wait for another counts from the moment it was due: a stall is felt by all that it holds up.

use std::time::{Duration, Instant};

/// Bursts never come closer together than this: sleeping exactly for less would take a core of its own.
const INTERVAL_MIN: Duration = Duration::from_micros(100);

/// How long before a message is due sleeping ends and spinning begins, because a sleep is not that exact.
pub(crate) const SPIN: Duration = Duration::from_micros(30);

/// Sleeps, then spins, until the moment has come.
pub(crate) fn sleep_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        match left {
            Duration::ZERO => return,
            _ if left > SPIN => std::thread::sleep(left - SPIN),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Bursts of equal size at equal distances; one message each where the rate allows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Schedule {
    /// Messages that are due at once.
    pub(crate) burst: u64,
    nanos_per_burst: f64,
}

impl Schedule {
    /// Messages at this rate a second.
    pub(crate) fn new(rate: u32) -> Self {
        let rate = f64::from(rate.max(1));
        let burst = (rate * INTERVAL_MIN.as_secs_f64()).ceil().max(1.0);
        Self { burst: burst as u64, nanos_per_burst: burst * 1e9 / rate }
    }

    /// When burst number `index` is due, from the beginning. Counted from the beginning each time, so that errors do not
    /// add up.
    pub(crate) fn due(&self, index: u64) -> Duration {
        Duration::from_nanos((index as f64 * self.nanos_per_burst) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_rate_sends_one_at_a_time() {
        let schedule = Schedule::new(2_000);
        assert_eq!(schedule.burst, 1);
        assert_eq!(schedule.due(0), Duration::ZERO);
        assert_eq!(schedule.due(1), Duration::from_micros(500));
        assert_eq!(schedule.due(7_200_000), Duration::from_secs(3600));
    }

    #[test]
    fn a_high_rate_sends_bursts() {
        let schedule = Schedule::new(1_000_000);
        assert_eq!(schedule.burst, 100);
        assert_eq!(schedule.due(10_000), Duration::from_secs(1));
    }

    #[test]
    fn every_rate_is_kept() {
        for rate in [1, 3, 9_999, 10_000, 10_001, 123_456, 5_000_000] {
            let schedule = Schedule::new(rate);
            let bursts = 3_600.0 * f64::from(rate) / schedule.burst as f64;
            let off = schedule.due(bursts as u64).as_secs_f64() - 3_600.0;
            assert!(off.abs() <= 1.0, "{rate} a second is off by {off} s in an hour");
            assert!(schedule.due(1) >= INTERVAL_MIN, "{rate}");
        }
    }
}
