//! Priorities and delays together. Half of the work is about time: messages with mixed delays must come when they are due,
//! not before, and little after. The other half is about order: when all of them wait, the most urgent come first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;

use crate::chart::{Axis, Chart, Curve, Scale};
use crate::options::Target;
use crate::percentiles::{self, Percentiles, curve};
use crate::protocol::Protocol;
use crate::report::{Figures, Report, thousands};
use crate::span;
use crate::tally::Tally;
use crate::threads::outcome;
use crate::work::{Ack, Delayed, Wants, mixed};

/// How many priorities there are.
const PRIORITIES: u16 = 256;
/// Shortest delay: long enough that it has not passed before the message has arrived.
const DELAY_MIN: Duration = Duration::from_millis(200);
/// How long nothing may come before it is said that messages are missing.
const PATIENCE: Duration = Duration::from_secs(30);

/// Options of `mixed`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct MixedOptions {
    /// The broker: amqp://user:password@host:port/vhost, with x-delayed-message exchanges; or http://host:port for
    /// Nexo's native API
    #[arg(long, value_name = "URL", default_value = "amqp://guest:guest@127.0.0.1:5672/%2F")]
    pub url: Target,
    /// How many messages, twice
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub count: u64,
    /// Over which time their delays are spread
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub spread: Duration,
    /// How long after the last delay the order is looked at
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub settle: Duration,
}

/// What was found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Mixed {
    /// What was asked for.
    pub options: MixedOptions,
    /// Messages that came back with their delays, and those that came back by their priorities.
    pub consumed: [u64; 2],
    /// How long after its delay a message came.
    pub late: Option<Percentiles>,
    /// Messages that came before their delay had passed.
    pub early: u64,
    /// Messages that came after a less urgent one although both had waited.
    pub out_of_order: u64,
    /// Percentiles and microseconds of lateness.
    pub late_curve: Vec<(f64, f64)>,
}

/// Runs the load.
///
/// # Errors
/// If the broker cannot be reached, refuses what it is asked, hangs, or loses a message.
pub fn run(options: &MixedOptions) -> anyhow::Result<Mixed> {
    let protocol = options.url.protocol();
    let queue = format!("b{}-mixed", std::process::id());
    let declared = protocol.declare_delayed(&queue)?;
    let outcome = measure(protocol, &queue, options);
    let deleted = declared.delete().context("cannot delete what was declared for the load");
    let found = outcome?;
    deleted?;
    Ok(found)
}

fn measure(protocol: &dyn Protocol, queue: &str, options: &MixedOptions) -> anyhow::Result<Mixed> {
    let mut lateness = Lateness { began: Instant::now(), nanos: percentiles::nanos(), early: 0 };
    let began = lateness.began;
    let on_time = consume_while(
        protocol,
        queue,
        options,
        |body, now| lateness.note(body, now),
        || publish(protocol, queue, began, options),
    )?;

    publish(protocol, queue, began, options)?;
    std::thread::sleep(DELAY_MIN + options.spread + options.settle);
    let mut order = Order::default();
    let in_order = consume_while(protocol, queue, options, |body, _| order.note(body), || Ok(()))?;

    Ok(Mixed {
        options: options.clone(),
        consumed: [on_time, in_order],
        late: Percentiles::of_nanos(&lateness.nanos),
        early: lateness.early,
        out_of_order: order.wrong,
        late_curve: curve(&lateness.nanos),
    })
}

/// Publishes everything. Bodies say when a message is due and how urgent it is.
fn publish(
    protocol: &dyn Protocol,
    queue: &str,
    began: Instant,
    options: &MixedOptions,
) -> anyhow::Result<()> {
    let spread = options.spread.as_millis() as u64;
    let mut messages = (0..options.count).map(|index| {
        // Due in another order than they are published in, and unrelated to how urgent they are.
        let delay = DELAY_MIN
            + Duration::from_millis(index.wrapping_mul(7_919) % options.count * spread / options.count);
        let priority = mixed(index as usize, PRIORITIES);
        let due = began.elapsed() + delay;
        let mut body = (due.as_nanos() as u64).to_be_bytes().to_vec();
        body.push(priority);
        Delayed { delay, priority, body }
    });
    protocol.publish_delayed(queue, &mut messages)
}

/// Consumes as many messages as are published, showing each, while `work` is done.
fn consume_while(
    protocol: &dyn Protocol,
    queue: &str,
    options: &MixedOptions,
    mut look: impl FnMut(&[u8], Instant) + Send,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let (tally, stop) = (Arc::<Tally>::default(), AtomicBool::new(false));
    let wants = Wants {
        queues: vec![queue.to_owned()],
        ack: Ack::Auto,
        prefetch: 0,
        batch: 1,
        pause: Duration::ZERO,
    };
    let consumer = protocol.consumer(&wants, Arc::clone(&tally))?;
    let consumed = std::thread::scope(|scope| {
        let consuming = scope.spawn(|| consumer.run(&stop, Some(&mut look)));
        let worked = work();
        let mut seen = (0, Instant::now());
        while worked.is_ok() && tally.consumed.get() < options.count && !consuming.is_finished() {
            if tally.consumed.get() > seen.0 {
                seen = (tally.consumed.get(), Instant::now());
            } else if seen.1.elapsed() > PATIENCE {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        let consumed = outcome(consuming.join(), "the consumer");
        worked?;
        anyhow::Ok(consumed?.consumed)
    })?;
    ensure!(consumed == options.count, "{consumed} of {} messages came back", options.count);
    Ok(consumed)
}

/// How late messages are.
struct Lateness {
    began: Instant,
    nanos: Histogram<u64>,
    early: u64,
}

impl Lateness {
    fn note(&mut self, body: &[u8], now: Instant) {
        let Some(due) = body.first_chunk::<8>() else { return };
        let due = Duration::from_nanos(u64::from_be_bytes(*due));
        match now.saturating_duration_since(self.began).checked_sub(due) {
            Some(late) => percentiles::note(&mut self.nanos, late, 1),
            None => self.early += 1,
        }
    }
}

/// Whether messages come by priority.
#[derive(Default)]
struct Order {
    last: Option<u8>,
    wrong: u64,
}

impl Order {
    fn note(&mut self, body: &[u8]) {
        let priority = body.get(8).copied();
        if self.last.is_some() && priority > self.last {
            self.wrong += 1;
        }
        self.last = priority;
    }
}

impl Report for Mixed {
    fn title(&self) -> String {
        let count = thousands(self.options.count as f64);
        format!("{count} messages with priorities 0-255 and delays over {:?}, twice", self.options.spread)
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures
            .add_some("late by", self.late)
            .add("early", thousands(self.early as f64))
            .add("out of order", thousands(self.out_of_order as f64))
            .add(
                "came back",
                self.consumed.map(|count| thousands(count as f64)).join(" by their delays, ")
                    + " by priority",
            );
        figures
    }

    fn charts(&self) -> Vec<Chart> {
        vec![Chart {
            title: "Lateness by percentile".into(),
            x: Axis::new("percentile", Scale::Nines),
            y: Axis::new("microseconds", Scale::Logarithmic),
            curves: vec![Curve { name: "after the delay".into(), points: self.late_curve.clone() }],
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_by_priority() {
        let mut order = Order::default();
        for priority in [255, 255, 7, 3, 9, 2] {
            order.note(&[0, 0, 0, 0, 0, 0, 0, 0, priority]);
        }
        assert_eq!(order.wrong, 1);
    }

    #[test]
    fn early_is_told_from_late() {
        let began = Instant::now();
        let mut lateness = Lateness { began, nanos: percentiles::nanos(), early: 0 };
        let due = (Duration::from_millis(100).as_nanos() as u64).to_be_bytes();
        lateness.note(&due, began + Duration::from_millis(99));
        lateness.note(&due, began + Duration::from_millis(101));
        assert_eq!((lateness.early, lateness.nanos.len()), (1, 1));
    }
}
