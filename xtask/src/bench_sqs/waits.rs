//! What receives that wait came to, over all repetitions.

use anyhow::Context;
use serde_json::Value;

use crate::spread::{Spread, Unit, thousands};

/// What is asked for at each number of queues.
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub(super) queues: u32,
    median: Spread,
    p99: Spread,
    /// Seconds that the broker's processor was used while nothing came, and out of how many; the worst of all.
    processor: (f64, f64),
    memory_bytes: f64,
    /// Messages, and those of them that woke exactly one receiver.
    messages: f64,
    woke_one: f64,
    /// Receivers that got an answer for no reason, or a message of another queue.
    wrong: f64,
}

impl Waits {
    pub(super) fn at(queues: u32) -> Self {
        Self { queues, ..Self::default() }
    }

    /// Adds what one run of `nexo bench waiting` reports.
    pub(super) fn add(&mut self, report: &Value) -> anyhow::Result<()> {
        let number = |pointer: &str| {
            let found = report.pointer(pointer).and_then(Value::as_f64);
            found.with_context(|| format!("the report has no {pointer}: {report}"))
        };
        self.median.add(number("/wake_time/p50_us")?);
        self.p99.add(number("/wake_time/p99_us")?);
        let used = number("/rest_used/broker_processor_seconds")?;
        if used >= self.processor.0 {
            self.processor = (used, number("/rest_seconds")?);
        }
        self.memory_bytes = self.memory_bytes.max(number("/rest_used/broker_resident_bytes")?);
        self.messages += number("/messages")?;
        self.woke_one += number("/woken/one")?;
        self.wrong += number("/strayed")? + number("/false_alarms")?;
        Ok(())
    }

    /// Names, and what is to be reached; [`Self::values`] has the values in the same order.
    pub(super) const ROWS: [(&'static str, &'static str); 5] = [
        ("processor time of the broker while nothing comes, at most", "nothing measurable"),
        ("memory of the broker, at most", "–"),
        ("from send to wake, median", "–"),
        ("from send to wake, p99", "under 5 ms"),
        ("messages that woke exactly one receiver", "all"),
    ];

    pub(super) fn values(&self) -> [String; 5] {
        let (used, seconds) = self.processor;
        let wrong = if self.wrong > 0.0 {
            format!(", {} receivers woken wrongly", thousands(self.wrong))
        } else {
            String::new()
        };
        [
            format!("{:.0} ms in {seconds:.0} s", used * 1000.0),
            format!("{:.0} MB", self.memory_bytes / 1e6),
            self.median.show(Unit::Micros),
            self.p99.show(Unit::Micros),
            format!("{} of {}{wrong}", thousands(self.woke_one), thousands(self.messages)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(processor: f64, woke_one: u64, false_alarms: u64) -> Value {
        json!({
            "wake_time": {"p50_us": 300.0, "p99_us": 2000.0},
            "rest_used": {"broker_processor_seconds": processor, "broker_resident_bytes": 50_000_000},
            "rest_seconds": 5.0, "messages": 1000, "woken": {"one": woke_one}, "strayed": 0,
            "false_alarms": false_alarms,
        })
    }

    #[test]
    fn the_worst_repetition_is_told_and_messages_are_added_up() {
        let mut waits = Waits::at(1);
        waits.add(&report(0.01, 1000, 0)).unwrap();
        waits.add(&report(0.0, 999, 2)).unwrap();
        let expected = [
            "10 ms in 5 s",
            "50 MB",
            "300 µs (300 µs–300 µs)",
            "2.00 ms (2.00 ms–2.00 ms)",
            "1,999 of 2,000, 2 receivers woken wrongly",
        ];
        assert_eq!(waits.values(), expected);
    }

    #[test]
    fn a_figure_that_is_missing_is_named() {
        let error = Waits::at(1).add(&json!({})).unwrap_err();
        assert_eq!(error.to_string(), "the report has no /wake_time/p50_us: {}");
    }
}
