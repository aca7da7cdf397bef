//! What a load at a fixed rate came to.

use hdrhistogram::Histogram;

use super::{LatencyOptions, Measured};
use crate::chart::{Axis, Chart, Curve, Scale};
use crate::percentiles::{Percentiles, curve};
use crate::process::Used;
use crate::report::{Figures, Report, mib, thousands};
use crate::schedule::Schedule;
use crate::tally::Totals;

/// What was found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Latency {
    /// What was asked for.
    pub options: LatencyOptions,
    /// Messages that were due at once.
    pub burst: u64,
    /// From the moment a message was due to its delivery.
    pub deliver_time: Option<Percentiles>,
    /// From the moment a message was due to its confirm.
    pub confirm_time: Option<Percentiles>,
    /// How late messages were sent.
    pub sent_late: Option<Percentiles>,
    /// From the first message to the last, warm-up and end included.
    pub totals: Totals,
    /// Processor time and memory.
    pub used: Used,
    /// Percentiles and microseconds, from publish to delivery.
    pub deliver_curve: Vec<(f64, f64)>,
    /// The same to the confirm.
    pub confirm_curve: Vec<(f64, f64)>,
}

impl Latency {
    pub(super) fn new(options: &LatencyOptions, schedule: Schedule, measured: &Measured, used: Used) -> Self {
        let confirms = measured.paced.confirm_nanos.as_ref();
        let points = |nanos: &Histogram<u64>| curve(nanos);
        Self {
            options: options.clone(),
            burst: schedule.burst,
            deliver_time: Percentiles::of_nanos(&measured.deliver_nanos),
            confirm_time: confirms.and_then(Percentiles::of_nanos),
            sent_late: Percentiles::of_nanos(&measured.paced.late_nanos),
            totals: measured.totals,
            used,
            deliver_curve: points(&measured.deliver_nanos),
            confirm_curve: confirms.map(points).unwrap_or_default(),
        }
    }
}

impl Report for Latency {
    fn title(&self) -> String {
        let kind = self.options.load.kind();
        let rate = thousands(f64::from(self.options.rate));
        format!("{rate} messages a second of {} bytes, {kind}", self.options.load.size)
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures
            .add_some("publish → deliver", self.deliver_time)
            .add_some("publish → confirm", self.confirm_time)
            .add_some("sent late by", self.sent_late);
        if self.burst > 1 {
            figures.add("due at once", format!("{} messages", self.burst));
        }
        let Totals { published, consumed, .. } = self.totals;
        figures.add(
            "all in all",
            format!("{} published, {} consumed", thousands(published as f64), thousands(consumed as f64)),
        );
        let seconds = (self.options.warmup + self.options.duration).as_secs_f64();
        let share = |used: f64| format!("{:.0} % of a core", used / seconds * 100.0);
        figures
            .add("load's processor", share(self.used.load_processor_seconds))
            .add_some("broker's processor", self.used.broker_processor_seconds.map(share))
            .add_some("broker's memory", self.used.broker_resident_bytes.map(mib));
        figures
    }

    fn charts(&self) -> Vec<Chart> {
        let mut curves =
            vec![Curve { name: "publish → deliver".into(), points: self.deliver_curve.clone() }];
        if !self.confirm_curve.is_empty() {
            curves.push(Curve { name: "publish → confirm".into(), points: self.confirm_curve.clone() });
        }
        vec![Chart {
            title: "Latency by percentile".into(),
            x: Axis::new("percentile", Scale::Nines),
            y: Axis::new("microseconds", Scale::Logarithmic),
            curves,
        }]
    }
}
