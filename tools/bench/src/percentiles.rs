//! A distribution of times in the few numbers that people compare.

use std::fmt;
use std::time::Duration;

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

/// The longest time that is told apart from longer ones.
const LONGEST: Duration = Duration::from_secs(3600);

/// An empty histogram for nanoseconds, to three digits.
pub(crate) fn nanos() -> Histogram<u64> {
    let longest =
        u64::try_from(LONGEST.as_nanos()).expect("an hour has fewer nanoseconds than a u64 can count");
    Histogram::new_with_bounds(1, longest, 3).expect("the bounds are constants that were tried")
}

/// Adds a time.
pub(crate) fn note(nanos: &mut Histogram<u64>, time: Duration, count: u64) {
    nanos.saturating_record_n(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), count);
}

/// Percentiles and their times in microseconds, dense towards the end, for a chart.
pub(crate) fn curve(nanos: &Histogram<u64>) -> Vec<(f64, f64)> {
    if nanos.is_empty() {
        return Vec::new();
    }
    let mut points = Vec::new();
    // Ten points for each further nine, as far as there are enough values to tell.
    let mut left = 1.0_f64;
    while left * nanos.len() as f64 >= 1.0 {
        let quantile = 1.0 - left;
        points.push((quantile * 100.0, nanos.value_at_quantile(quantile) as f64 / 1000.0));
        left *= 0.1_f64.powf(0.1);
    }
    points
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
        let mut histogram = nanos();
        for micros in 1..=1000u64 {
            note(&mut histogram, Duration::from_micros(micros), 1);
        }
        let percentiles = Percentiles::of_nanos(&histogram).unwrap();
        assert_eq!(percentiles.count, 1000);
        let near = |found: f64, expected: f64| (found - expected).abs() <= expected / 500.0;
        assert!(near(percentiles.p50_us, 500.0) && near(percentiles.p99_us, 990.0), "{percentiles:?}");
        assert!(near(percentiles.mean_us, 500.5) && near(percentiles.max_us, 1000.0), "{percentiles:?}");
    }

    #[test]
    fn a_curve_goes_as_far_as_the_values_tell() {
        let mut histogram = nanos();
        for micros in 1..=1000u64 {
            note(&mut histogram, Duration::from_micros(micros), 1);
        }
        let points = curve(&histogram);
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        let last = points.last().unwrap().0;
        assert!((99.8..100.0).contains(&last), "{last}");
    }

    #[test]
    fn nothing_measured_has_no_percentiles() {
        assert_eq!(Percentiles::of_nanos(&nanos()), None);
    }

    #[test]
    fn a_time_is_shown_in_a_unit_that_fits() {
        let shown = [12.4, 1234.0, 2_500_000.0].map(|us| Micros(us).to_string());
        assert_eq!(shown, ["12 µs", "1.23 ms", "2.50 s"]);
    }
}
