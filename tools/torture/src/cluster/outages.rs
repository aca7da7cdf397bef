//! How long nothing was confirmed after each fault: the longest time between two confirms of any clients, from the fault to the next.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::plan::Fault;
use crate::clock::Micros;

/// What was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outages(BTreeMap<Fault, Vec<Micros>>);

impl Outages {
    pub(super) fn add(&mut self, fault: Fault, silence: Micros) {
        self.0.entry(fault).or_default().push(silence);
    }

    /// Whether service was back in time: for 99 of 100 faults, and for the worst.
    pub(crate) fn are_within(&self, p99: Duration, max: Duration) -> bool {
        let mut all: Vec<Micros> = self.0.values().flatten().copied().collect();
        all.sort_unstable();
        let is_within = |part, bound| Duration::from_micros(quantile(&all, part)) <= bound;
        is_within(0.99, p99) && is_within(1.0, max)
    }

    /// How many faults there were.
    pub(crate) fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

impl fmt::Display for Outages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>34}  {:>5}  {:>7}  {:>7}  {:>7}",
            "ms without a confirm", "times", "p50", "p99", "max"
        )?;
        for (fault, spans) in &self.0 {
            row(f, &fault.to_string(), spans.clone())?;
        }
        row(f, "all", self.0.values().flatten().copied().collect())
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, mut spans: Vec<Micros>) -> fmt::Result {
    spans.sort_unstable();
    let [p50, p99, max] =
        [0.5, 0.99, 1.0].map(|part| Duration::from_micros(quantile(&spans, part)).as_millis());
    writeln!(f, "{name:>34}  {:>5}  {p50:>7}  {p99:>7}  {max:>7}", spans.len())
}

/// The smallest that this part is not above; 0 of none.
fn quantile(sorted: &[Micros], part: f64) -> Micros {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let spans: Vec<Micros> = (1..=200).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|part| quantile(&spans, part)), [100, 198, 200]);
        assert_eq!(quantile(&[7], 0.5), 7);
        assert_eq!(quantile(&[], 0.5), 0);
    }

    #[test]
    fn one_in_a_hundred_may_take_longer_but_none_too_long() {
        let mut outages = Outages::default();
        (0..99).for_each(|_| outages.add(Fault::KillLeader, 1_500_000));
        outages.add(Fault::CutLeader, 4_000_000);
        let within = |p99, max| outages.are_within(Duration::from_secs(p99), Duration::from_secs(max));
        assert!(within(2, 5) && !within(1, 5) && !within(2, 3));
    }
}
