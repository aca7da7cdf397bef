//! A distribution of times in the few numbers that people compare.

use std::fmt;

use hdrhistogram::Histogram;

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Percentiles {
    /// How many were measured.
    pub count: u64,
    /// The mean.
    pub mean_us: f64,
    /// Half of them are shorter.
    pub p50_us: f64,
    /// Nine of ten are shorter.
    pub p90_us: f64,
    /// All but one of a hundred are shorter.
    pub p99_us: f64,
    /// All but one of a thousand are shorter.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Percentiles {
    /// Those of a histogram of nanoseconds; `None` if nothing was measured.
    #[must_use]
    pub fn of_nanos(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        (!histogram.is_empty()).then(|| Self {
            count: histogram.len(),
            mean_us: histogram.mean() / 1000.0,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max() as f64 / 1000.0,
        })
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50_us, p90_us, p99_us, p999_us, max_us, .. } = *self;
        write!(
            f,
            "p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
            Micros(p50_us),
            Micros(p90_us),
            Micros(p99_us),
            Micros(p999_us),
            Micros(max_us)
        )
    }
}

/// A time in the unit that it is best read in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Micros(pub(crate) f64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us < 1000.0 => write!(f, "{us:.0} µs"),
            us if us < 1_000_000.0 => write!(f, "{:.2} ms", us / 1000.0),
            us => write!(f, "{:.2} s", us / 1_000_000.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_histogram() {
        let mut histogram = Histogram::new(3).unwrap();
        for micros in 1..=1000u64 {
            histogram.record(micros * 1000).unwrap();
        }
        let percentiles = Percentiles::of_nanos(&histogram).unwrap();
        assert_eq!(percentiles.count, 1000);
        let near = |found: f64, expected: f64| (found - expected).abs() <= expected / 500.0;
        assert!(near(percentiles.p50_us, 500.0) && near(percentiles.p99_us, 990.0), "{percentiles:?}");
        assert!(near(percentiles.mean_us, 500.5) && near(percentiles.max_us, 1000.0), "{percentiles:?}");
    }

    #[test]
    fn nothing_measured_has_no_percentiles() {
        assert_eq!(Percentiles::of_nanos(&Histogram::new(3).unwrap()), None);
    }

    #[test]
    fn a_time_is_shown_in_a_unit_that_fits() {
        let shown = [12.4, 1234.0, 2_500_000.0].map(|us| Micros(us).to_string());
        assert_eq!(shown, ["12 µs", "1.23 ms", "2.50 s"]);
    }
}
