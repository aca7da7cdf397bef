//! What a load came to.

use super::load::Sample;
use super::options::ThroughputOptions;
use crate::chart::{Axis, Chart, Curve, Scale};
use crate::options::QueueType;
use crate::percentiles::{Micros, Percentiles};
use crate::process::Used;
use crate::report::{Figures, Report, mib, rate, thousands};
use crate::tally::Totals;

/// What was found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Throughput {
    /// What was asked for.
    pub options: ThroughputOptions,
    /// How long was measured, after the warm-up.
    pub seconds: f64,
    /// Messages handed to TCP in a second.
    pub published_per_second: f64,
    /// Messages confirmed in a second, if confirms were asked for.
    pub confirmed_per_second: Option<f64>,
    /// Messages received in a second.
    pub consumed_per_second: f64,
    /// Messages published and not consumed when measuring ended, and what of it had come up since it began.
    pub backlog: u64,
    /// How much of the backlog had come up while measuring.
    pub backlog_grown: i64,
    /// From the first message to the last, warm-up and end included.
    pub totals: Totals,
    /// Messages that had not been consumed when everything was stopped.
    pub left: u64,
    /// Messages that came twice.
    pub redelivered: u64,
    /// From the write of a message to its confirm, warm-up and end included.
    pub confirm_time: Option<Percentiles>,
    /// Processor time and memory.
    pub used: Used,
    /// The counters over time.
    pub samples: Vec<Sample>,
}

impl Throughput {
    /// What counts: messages that got through, or those published where nobody consumes.
    #[must_use]
    pub fn headline(&self) -> f64 {
        match (self.options.consumers, self.confirmed_per_second) {
            (0, Some(confirmed)) => confirmed,
            (0, None) => self.published_per_second,
            _ => self.consumed_per_second,
        }
    }

    /// The differences between samples, as messages a second over time.
    fn curve(&self, name: &str, counter: fn(&Totals) -> u64) -> Curve {
        let point = |pair: &[Sample]| {
            let count = counter(&pair[1].totals) - counter(&pair[0].totals);
            let seconds = pair[1].seconds - pair[0].seconds;
            (pair[1].seconds, count as f64 / seconds.max(1e-6))
        };
        Curve { name: name.to_owned(), points: self.samples.windows(2).map(point).collect() }
    }
}

impl Report for Throughput {
    fn title(&self) -> String {
        let options = &self.options;
        let kind = options.load.kind();
        let queues = match (options.fan_out, options.load.queue_type) {
            (true, _) => "a fanout exchange".to_owned(),
            (false, QueueType::Classic) => counted(options.queues, "queue"),
            (false, QueueType::Quorum) => counted(options.queues, "quorum queue"),
        };
        format!(
            "{} → {queues} → {}, {} bytes, {kind}",
            counted(options.publishers, "publisher"),
            counted(options.consumers, "consumer"),
            options.load.size
        )
    }

    fn figures(&self) -> Figures {
        let messages = (self.headline() * self.seconds).max(1.0);
        let mut figures = Figures::default();
        if self.options.consumers > 0 {
            figures.add("consumed", rate(self.consumed_per_second));
        }
        figures.add_some("confirmed", self.confirmed_per_second.map(rate));
        figures.add("published", rate(self.published_per_second));
        figures.add_some(
            "confirm time",
            self.confirm_time.map(|times| format!("mean {}, {times}", Micros(times.mean_us))),
        );
        figures.add(
            "backlog at the end",
            format!("{} ({} while measuring)", thousands(self.backlog as f64), signed(self.backlog_grown)),
        );
        figures.add(
            "all in all",
            format!(
                "{} published, {} consumed, {} left, {} redelivered",
                thousands(self.totals.published as f64),
                thousands(self.totals.consumed as f64),
                thousands(self.left as f64),
                thousands(self.redelivered as f64)
            ),
        );
        figures.add("measured", format!("{:.1} s after {:?}", self.seconds, self.options.warmup));
        let usage = |seconds: f64| {
            format!(
                "{:.0} % of a core, {:.0} ns a message",
                seconds / self.seconds * 100.0,
                seconds * 1e9 / messages
            )
        };
        figures.add("load's processor", usage(self.used.load_processor_seconds));
        figures.add_some("broker's processor", self.used.broker_processor_seconds.map(usage));
        figures.add_some("broker's memory", self.used.broker_resident_bytes.map(mib));
        figures
    }

    fn charts(&self) -> Vec<Chart> {
        let mut curves = vec![self.curve("published", |totals| totals.published)];
        if self.options.load.has_confirms() {
            curves.push(self.curve("confirmed", |totals| totals.confirmed));
        }
        if self.options.consumers > 0 {
            curves.push(self.curve("consumed", |totals| totals.consumed));
        }
        vec![Chart {
            title: "Messages a second".into(),
            x: Axis::new("seconds", Scale::Linear),
            y: Axis::new("messages a second", Scale::Linear),
            curves,
        }]
    }
}

/// So many of something.
fn counted(count: u16, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn signed(number: i64) -> String {
    if number < 0 { thousands(number as f64) } else { format!("+{}", thousands(number as f64)) }
}
