//! Publishers beside consumers, without confirms to hold them back: what gets in, and what gets out at the same time.
//! With one of each, a broker whose publishers starve its consumers looks fast.

use std::fmt::Write;

use anyhow::Context;
use serde_json::Value;

use super::contender::Contender;
use crate::spread::{Spread, thousands};

/// One line of the table; all are of transient messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// What is done, in words.
    pub(super) work: &'static str,
    /// Arguments of `nexo bench throughput`.
    pub(super) args: &'static [&'static str],
}

/// Every line.
pub(super) const FLOWS: &[Flow] = &[
    Flow { work: "1 → 1, auto-ack", args: &[] },
    Flow { work: "1 → 1, ack 100", args: &["--ack", "100"] },
    Flow { work: "4 → 4, one queue, auto-ack", args: &["--publishers", "4", "--consumers", "4"] },
    Flow {
        work: "4 → 4, one queue, ack 100",
        args: &["--publishers", "4", "--consumers", "4", "--ack", "100"],
    },
    Flow {
        work: "10 → 10, ten queues, auto-ack",
        args: &["--publishers", "10", "--consumers", "10", "--queues", "10"],
    },
    Flow {
        work: "20 → 20, 20 queues, ack 10",
        args: &["--publishers", "20", "--consumers", "20", "--queues", "20", "--ack", "10"],
    },
    Flow { work: "100 → 1, ack 100", args: &["--publishers", "100", "--ack", "100"] },
    Flow {
        work: "1 → 1 that sleeps 10 ms after each message, ack 1",
        args: &["--consumer-pause", "10ms", "--ack", "1"],
    },
    Flow { work: "1 → 1, 1 MiB, auto-ack", args: &["--size", "1048576"] },
];

impl Flow {
    /// Brokers that keep messages in memory only.
    pub(super) fn is_for(contender: Contender) -> bool {
        matches!(contender, Contender::Nexo | Contender::RabbitClassic)
    }
}

/// Both ends of a flow, repetition by repetition.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    pub(super) published: Spread,
    pub(super) consumed: Spread,
    /// Memory of the broker at the end of measuring, the most of all repetitions.
    resident_bytes_max: f64,
}

impl Ends {
    /// Adds what a report of `nexo bench throughput` has.
    pub(super) fn add(&mut self, report: &Value) -> anyhow::Result<()> {
        let number = |pointer: &str| {
            let number = report.pointer(pointer).and_then(Value::as_f64);
            number.with_context(|| format!("the report has no {pointer}"))
        };
        let (published, consumed) = (number("/published_per_second")?, number("/consumed_per_second")?);
        self.published.add(published);
        self.consumed.add(consumed);
        let resident = number("/used/broker_resident_bytes").unwrap_or(0.0);
        self.resident_bytes_max = self.resident_bytes_max.max(resident);
        Ok(())
    }

    /// `published → consumed`, medians with their spread, and the memory.
    fn show(&self) -> String {
        let rates = |spread: &Spread| spread.show_with(thousands);
        format!(
            "{} → {}, {:.0} MB",
            rates(&self.published),
            rates(&self.consumed),
            self.resident_bytes_max / 1e6
        )
    }
}

/// The table.
pub(super) fn put_table<'a>(
    out: &mut String,
    contenders: &[Contender],
    get: impl Fn(&Flow, Contender) -> Option<&'a Ends>,
) {
    let _ =
        write!(out, "\n| transient, without confirms, 16 B: msg/s published → consumed, memory at most |");
    for contender in contenders {
        let _ = write!(out, " {contender} |");
    }
    let _ = writeln!(out, "\n|---|{}", "---|".repeat(contenders.len()));
    for flow in FLOWS {
        let _ = write!(out, "| {} |", flow.work);
        for contender in contenders {
            let shown = get(flow, *contender).map_or("–".to_owned(), Ends::show);
            let _ = write!(out, " {shown} |");
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_ends_stand_in_the_table() {
        let mut ends = Ends::default();
        for (published, consumed, memory) in
            [(3000.0, 1000.0, 5e6), (5000.0, 2000.0, 9e6), (4000.0, 1500.0, 7e6)]
        {
            let report = json!({
                "published_per_second": published,
                "consumed_per_second": consumed,
                "used": {"broker_resident_bytes": memory},
            });
            ends.add(&report).unwrap();
        }
        assert!(ends.add(&json!({"published_per_second": 1.0})).is_err());
        let mut out = String::new();
        let contenders = [Contender::Nexo, Contender::RabbitClassic];
        put_table(&mut out, &contenders, |flow, contender| {
            (flow == &FLOWS[1] && contender == Contender::Nexo).then_some(&ends)
        });
        let line = out.lines().find(|line| line.starts_with("| 1 → 1, ack 100 |")).unwrap();
        assert_eq!(line, "| 1 → 1, ack 100 | 4,000 (3,000–5,000) → 1,500 (1,000–2,000), 9 MB | – |");
        assert_eq!(out.lines().count(), 3 + FLOWS.len(), "an empty line and two of the head come first");
    }
}
