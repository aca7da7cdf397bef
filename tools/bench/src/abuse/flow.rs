//! Publishers without confirms beside consumers: what is consumed must keep up with what is published, whatever their
//! number, and a consumer that is slow by itself must not hold publishers up.

use std::time::Duration;

use super::Found;
use super::pace::{go_on, load};
use super::target::Target;
use crate::report::rate;
use crate::throughput::{self, Throughput, ThroughputOptions};
use crate::work::Ack;

/// How long is measured.
const MEASURED: Duration = Duration::from_secs(5);
/// How long is waited before that, and how much longer for each publisher: the system holds some megabytes for each that the
/// broker has not read, and what goes there has been published but could not be consumed.
const WARM_UP: Duration = Duration::from_secs(1);
const WARM_UP_EACH: Duration = Duration::from_millis(40);
/// What a consumer that is slow by itself does after each message.
const PAUSE: Duration = Duration::from_millis(10);

/// Who publishes and consumes, all transient messages of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) publishers: u16,
    pub(super) consumers: u16,
    pub(super) queues: u16,
    pub(super) ack: Ack,
}

/// One publisher and one consumer, then so many on the same broker.
pub(super) fn even(target: &Target, shape: Shape) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let one = Shape { publishers: 1, consumers: 1, queues: 1, ack: shape.ack };
    let alone = run(target, one, Duration::ZERO)?;
    let many = run(target, shape, Duration::ZERO)?;
    found
        .add("1 → 1", flow(&alone))
        .add(&format!("{} → {}", shape.publishers, shape.consumers), flow(&many))
        .number("consumed_part", part(many.consumed_per_second, many.published_per_second))
        .number("of_one_to_one", part(many.consumed_per_second, alone.consumed_per_second));
    Ok(found)
}

/// One publisher and nobody else, then with a consumer that sleeps.
pub(super) fn sleeper(target: &Target) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let shape = Shape { publishers: 1, consumers: 0, queues: 1, ack: Ack::Every(1) };
    let alone = run(target, shape, Duration::ZERO)?;
    let beside = run(target, Shape { consumers: 1, ..shape }, PAUSE)?;
    found
        .add("published without a consumer", rate(alone.published_per_second))
        .add("published → consumed with one that sleeps", flow(&beside))
        .number("published_part", part(beside.published_per_second, alone.published_per_second));
    Ok(found)
}

fn run(target: &Target, shape: Shape, consumer_pause: Duration) -> anyhow::Result<Throughput> {
    let mut load = load(target);
    (load.ack, load.consumer_pause) = (shape.ack, consumer_pause);
    let options = ThroughputOptions {
        publishers: shape.publishers,
        consumers: shape.consumers,
        queues: shape.queues,
        // What is left over is deleted with its queue.
        drain: Duration::from_secs(1),
        warmup: target.time(WARM_UP + WARM_UP_EACH * u32::from(shape.publishers)),
        ..ThroughputOptions::new(load, target.time(MEASURED))
    };
    throughput::run(&options, &mut go_on)
}

fn flow(measured: &Throughput) -> String {
    format!("{} → {}", rate(measured.published_per_second), rate(measured.consumed_per_second))
}

/// Nothing of nothing is no part at all: a load that did not run meets no goal.
fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_did_not_run_has_no_part() {
        assert_eq!(part(0.0, 0.0), 0.0);
        assert_eq!(part(3.0, 4.0), 0.75);
    }
}
