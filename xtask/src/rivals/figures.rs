//! What was measured, repetition by repetition, and what it comes to.

use std::collections::BTreeMap;

use super::contender::Contender;
use super::flow::{Ends, Flow};
use super::scenario::{SCENARIOS, Scenario};
use crate::spread::{Spread, Unit};

/// All measurements.
#[derive(Debug, Default)]
pub(super) struct Figures {
    found: BTreeMap<(&'static str, Contender), Spread>,
    flows: BTreeMap<(&'static str, Contender), Ends>,
    /// The disk's own time for a small append with a sync.
    pub(super) disk: Spread,
    /// Memory for what is idle.
    pub(super) idle: BTreeMap<Contender, String>,
}

impl Figures {
    pub(super) fn add(&mut self, scenario: &Scenario, contender: Contender, figure: f64) {
        self.found.entry((scenario.work, contender)).or_default().add(figure);
    }

    pub(super) fn add_disk(&mut self, micros: f64) {
        self.disk.add(micros);
    }

    pub(super) fn add_idle(&mut self, contender: Contender, text: String) {
        self.idle.insert(contender, text);
    }

    pub(super) fn get(&self, scenario: &Scenario, contender: Contender) -> Option<&Spread> {
        self.found.get(&(scenario.work, contender))
    }

    /// Both ends of a flow, to add to.
    pub(super) fn flow_mut(&mut self, flow: &Flow, contender: Contender) -> &mut Ends {
        self.flows.entry((flow.work, contender)).or_default()
    }

    pub(super) fn flow(&self, flow: &Flow, contender: Contender) -> Option<&Ends> {
        self.flows.get(&(flow.work, contender))
    }

    /// Half of what somebody reached at the first scenario, for a scenario whose rate is that.
    pub(super) fn half_of_maximum(&self, scenario: &Scenario, otherwise: f64) -> f64 {
        let maximum = scenario.half_of.and_then(|whose| self.get(&SCENARIOS[0], whose)?.median());
        (maximum.unwrap_or(2.0 * otherwise) / 2.0).max(1.0)
    }

    /// How many times better Nexo is than another.
    pub(super) fn ratio(&self, scenario: &Scenario, rival: Contender) -> Option<f64> {
        let nexo = self.get(scenario, Contender::Nexo)?.median()?;
        let other = self.get(scenario, rival)?.median()?;
        Some(match scenario.unit {
            Unit::PerSecond => nexo / other,
            Unit::Micros => other / nexo,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_is_good_whatever_the_unit() {
        let mut figures = Figures::default();
        let rate = &SCENARIOS[0];
        figures.add(rate, Contender::Nexo, 300.0);
        figures.add(rate, Contender::RabbitClassic, 100.0);
        assert_eq!(figures.ratio(rate, Contender::RabbitClassic), Some(3.0));
        let time = SCENARIOS.iter().find(|scenario| scenario.unit == Unit::Micros).unwrap();
        figures.add(time, Contender::Nexo, 100.0);
        figures.add(time, Contender::RabbitQuorum, 300.0);
        assert_eq!(figures.ratio(time, Contender::RabbitQuorum), Some(3.0));
        assert_eq!(figures.ratio(time, Contender::RabbitClassic), None);
    }

    #[test]
    fn a_rate_is_half_of_what_was_reached() {
        let mut figures = Figures::default();
        let half =
            SCENARIOS.iter().find(|scenario| scenario.half_of == Some(Contender::RabbitClassic)).unwrap();
        assert_eq!(figures.half_of_maximum(half, 500.0), 500.0);
        figures.add(&SCENARIOS[0], Contender::RabbitClassic, 80_000.0);
        assert_eq!(figures.half_of_maximum(half, 500.0), 40_000.0);
    }
}
