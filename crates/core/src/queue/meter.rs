//! How fast things happen, lately. For people to look at; the rules never depend on it.

use nexo_types::{Millis, Timestamp};

const SECONDS: usize = 5;

/// Counts events in the last whole seconds. Every queue has some, so the numbers are small.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    /// Counts by second; the one that is running included.
    counts: [u32; SECONDS + 1],
    /// The second that is running.
    second: u32,
}

impl Meter {
    pub(crate) const EMPTY: Self = Self { counts: [0; SECONDS + 1], second: 0 };

    pub(crate) fn add(&mut self, now: Timestamp, count: u64) {
        self.turn(now);
        let running = &mut self.counts[self.second as usize % (SECONDS + 1)];
        *running = running.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Events a second over the last five whole seconds.
    pub(crate) fn rate(&self, now: Timestamp) -> f64 {
        let mut then = self.clone();
        then.turn(now);
        let running = then.second as usize % (SECONDS + 1);
        let whole = then.counts.iter().enumerate().filter(|(i, _)| *i != running);
        let sum: u64 = whole.map(|(_, count)| u64::from(*count)).sum();
        sum as f64 / SECONDS as f64
    }

    fn turn(&mut self, now: Timestamp) {
        let second = u32::try_from(now.0 / 1000).unwrap_or(u32::MAX);
        for passed in 0..second.saturating_sub(self.second).min(SECONDS as u32 + 1) {
            self.counts[(second - passed) as usize % (SECONDS + 1)] = 0;
        }
        self.second = self.second.max(second);
    }
}

/// How long messages waited, lately: each delivery moves the average a little.
#[derive(Clone, Debug, Default)]
pub(crate) struct Average {
    value_ms: f64,
    seen: bool,
}

impl Average {
    pub(crate) const EMPTY: Self = Self { value_ms: 0.0, seen: false };

    pub(crate) fn add(&mut self, sample: Millis) {
        let sample = sample.0 as f64;
        self.value_ms = if self.seen { self.value_ms + (sample - self.value_ms) * 0.01 } else { sample };
        self.seen = true;
    }

    pub(crate) const fn value_ms(&self) -> f64 {
        self.value_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_over_the_last_five_whole_seconds() {
        let mut meter = Meter::default();
        for second in 100..105 {
            meter.add(Timestamp(second * 1000 + 300), 10);
        }
        meter.add(Timestamp(105_100), 999);
        assert!((meter.rate(Timestamp(105_200)) - 10.0).abs() < 1e-9);
        // By then seconds 104 to 108 count: 10 and 999.
        assert!((meter.rate(Timestamp(109_200)) - 1009.0 / 5.0).abs() < 1e-9);
        assert!(meter.rate(Timestamp(200_000)).abs() < 1e-9);
    }
}
