//! What the other modes of this program measure, in the way that once showed something: latency under half of what is
//! possible, and the same work again and again.

use std::time::Duration;

use super::Found;
use super::target::Target;
use crate::backlog::{self, BacklogOptions};
use crate::latency::{self, LatencyOptions};
use crate::options::{self, LoadOptions, QueueType};
use crate::progress::{Progress, Verdict};
use crate::report::{rate, thousands};
use crate::throughput::{self, ThroughputOptions};
use crate::work::Ack;

/// Latency at half of the broker's own maximum, transient messages of 16 bytes.
pub(super) fn half(target: &Target) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let load = load(target);
    let throughput = ThroughputOptions::new(load.clone(), target.time(Duration::from_secs(5)));
    let maximum = throughput::run(&throughput, &mut go_on)?.consumed_per_second;
    let options = LatencyOptions {
        load,
        rate: (maximum / 2.0).clamp(1.0, 10_000_000.0) as u32,
        duration: target.time(Duration::from_secs(10)),
        warmup: Duration::from_secs(1),
    };
    let latency = latency::run(&options, &mut go_on)?;
    found.add("maximum", rate(maximum)).add(
        "publish to deliver at half of it",
        latency.deliver_time.map_or("–".to_owned(), |t| t.to_string()),
    );
    Ok(found)
}

/// A queue with 256 priorities, filled and drained ten times.
pub(super) fn priorities(target: &Target) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let options = BacklogOptions {
        load: LoadOptions {
            persistent: true,
            confirm: 1_000,
            ack: Ack::Every(100),
            priorities: Some(256),
            ..load(target)
        },
        count: target.count(1_000_000),
        broker_data: None,
        rest: Duration::from_secs(1),
        short: Duration::ZERO,
    };
    let mut rates = Vec::new();
    for _ in 0..10 {
        rates.push(backlog::run(&options, &mut go_on)?.drained_per_second);
    }
    found.add("drained, msg/s", rates.iter().map(|rate| thousands(*rate)).collect::<Vec<_>>().join(", "));
    let slowest = slowest_part(&rates);
    found
        .add("the slowest run", format!("{:.0} % of the fastest", 100.0 * slowest))
        .number("slowest_part", slowest);
    Ok(found)
}

/// The least of some rates as a part of the most.
fn slowest_part(rates: &[f64]) -> f64 {
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(f64::EPSILON, f64::max);
    least / most
}

pub(super) fn go_on(_: &Progress) -> Verdict {
    Verdict::GoOn
}

/// As `nexo bench` has it without options.
pub(super) fn load(target: &Target) -> LoadOptions {
    LoadOptions {
        url: options::Target::Amqp(target.amqp.clone()),
        size: 16,
        persistent: false,
        confirm: 0,
        ack: Ack::Auto,
        prefetch: 1_000,
        consumer_pause: Duration::ZERO,
        queue_type: QueueType::Classic,
        priorities: None,
        queue_argument: Vec::new(),
        batch: 1,
        broker_pid: Some(target.pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_equal_runs_is_as_fast_as_the_fastest() {
        assert_eq!(slowest_part(&[3.0, 3.0]), 1.0);
        assert_eq!(slowest_part(&[1.0, 5.0, 2.0]), 0.2);
    }
}
