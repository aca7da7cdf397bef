//! What is asked of `nexo bench` for each scenario, and the figure in its report.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use super::contender::{Contender, Running};
use super::flow::Flow;
use super::scenario::Scenario;
use crate::load::Bench;
use crate::spread::thousands;

/// How much longer than it is measured a flow may take: to begin, to drain, and for what is left to be deleted.
const FLOW_PATIENCE: Duration = Duration::from_secs(40);

/// The load, for so long each time.
pub(super) struct Load {
    bench: Bench,
    seconds: u32,
}

impl Load {
    pub(super) const fn new(bench: Bench, seconds: u32) -> Self {
        Self { bench, seconds }
    }

    pub(super) fn nexo(&self) -> &Path {
        self.bench.nexo()
    }

    /// The figure of one scenario.
    pub(super) fn run(
        &self,
        scenario: &Scenario,
        contender: Contender,
        broker: &Running,
        rate: f64,
    ) -> anyhow::Result<f64> {
        let rate = format!("{rate:.0}");
        let mut args: Vec<&str> =
            scenario.args.iter().map(|arg| if *arg == "RATE" { rate.as_str() } else { arg }).collect();
        let seconds = format!("{}s", self.seconds);
        match scenario.args.first() {
            // What is left over is deleted with its queue.
            Some(&"throughput") => args.extend(["--duration", &seconds, "--warmup", "1s", "--drain", "1s"]),
            Some(&"latency") => args.extend(["--duration", &seconds, "--warmup", "1s"]),
            _ => {}
        }
        if contender == Contender::RabbitQuorum {
            args.extend(["--queue-type", "quorum"]);
        }
        let report = self.bench(&args, broker)?;
        report
            .pointer(scenario.figure)
            .and_then(Value::as_f64)
            .with_context(|| format!("the report has no {}: {report}", scenario.figure))
    }

    /// The report of one flow.
    pub(super) fn flow(&self, flow: &Flow, broker: &Running) -> anyhow::Result<Value> {
        let seconds = format!("{}s", self.seconds);
        let times = ["--duration", &seconds, "--warmup", "1s", "--drain", "1s"];
        let (args, pid) = ([&["throughput"], flow.args, &times[..]].concat(), broker.pid.to_string());
        // A rival that is out of memory may stop reading from publishers, and then they never end.
        let limit = FLOW_PATIENCE + Duration::from_secs(u64::from(self.seconds));
        self.bench.report_within(&[&args[..], &["--url", &broker.url, "--broker-pid", &pid]].concat(), limit)
    }

    /// Runs a load against a broker and gives back its report.
    pub(super) fn bench(&self, args: &[&str], broker: &Running) -> anyhow::Result<Value> {
        self.bench_at(args, &broker.url, broker)
    }

    /// The same at another of its addresses.
    pub(super) fn bench_at(&self, args: &[&str], url: &str, broker: &Running) -> anyhow::Result<Value> {
        let pid = broker.pid.to_string();
        self.bench.report(&[args, &["--url", url, "--broker-pid", &pid]].concat())
    }

    /// The disk's own time for a small append with a sync, at the median.
    pub(super) fn disk_micros(&self) -> anyhow::Result<f64> {
        self.bench.disk_micros()
    }

    /// The machine, one line each.
    pub(super) fn machine(&self) -> Vec<String> {
        self.bench.machine()
    }

    /// Memory for connections and queues that do nothing.
    pub(super) fn idle(&self, broker: &Running, connections: u32, queues: u32) -> anyhow::Result<String> {
        let (connections_text, queues_text) = (connections.to_string(), queues.to_string());
        let hold = ["churn", "--hold", "3s", "--connections", &connections_text, "--queues", &queues_text];
        let report = self.bench(&hold, broker)?;
        let megabytes = |pointer: &str| {
            let bytes = report.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
            format!("{:.1} MB", bytes / 1e6)
        };
        Ok(format!(
            "{} for {} connections, {} for {} queues",
            megabytes("/held/connections_bytes"),
            thousands(f64::from(connections)),
            megabytes("/held/queues_bytes"),
            thousands(f64::from(queues))
        ))
    }

    /// A backlog, as a table.
    pub(super) fn backlog(&self, broker: &Running, count: u64) -> anyhow::Result<String> {
        let count_text = count.to_string();
        let data = broker.data().map(|dir| dir.display().to_string()).unwrap_or_default();
        let report = self.bench(
            &[
                "backlog",
                "--count",
                &count_text,
                "--persistent",
                "--confirm",
                "10000",
                "--ack",
                "100",
                "--broker-data",
                &data,
            ],
            broker,
        )?;
        let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let machine: String = self.machine().iter().map(|line| format!("- {line}\n")).collect();
        Ok(format!(
            "{machine}\n| a backlog of {} persistent messages of 16 bytes | measured | goal |\n|---|---|---|\n\
             | filled | {} msg/s | – |\n\
             | memory with all of them waiting | {:.0} MB resident | under 256 MB |\n\
             | on disk | {:.1} bytes a message | – |\n\
             | drained | {} msg/s, {:.0} % of a short queue's {} msg/s | 80 % |\n",
            thousands(count as f64),
            thousands(number("/filled_per_second")),
            number("/full_resident_bytes") / 1e6,
            number("/disk_bytes_per_message"),
            thousands(number("/drained_per_second")),
            number("/drain_ratio") * 100.0,
            thousands(number("/short_queue_per_second")),
        ))
    }
}
