//! How long a message takes from the moment it should have been published to its delivery, at a fixed rate.

mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;

pub use report::Latency;

use crate::options::LoadOptions;
use crate::percentiles;
use crate::process::Usage;
use crate::progress::{Progress, Verdict, Watch};
use crate::protocol::Protocol;
use crate::schedule::Schedule;
use crate::span;
use crate::tally::{Tally, Totals};
use crate::threads::joined;
use crate::work::Paced;

/// How often progress is shown.
const TICK: Duration = Duration::from_millis(100);
/// How long the last messages may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Options of `latency`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct LatencyOptions {
    /// What messages look like and how they are taken care of.
    #[command(flatten)]
    pub load: LoadOptions,
    /// Messages a second
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rate: u32,
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub duration: Duration,
    /// How long to run before measuring begins
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub warmup: Duration,
}

/// What the threads measured, in nanoseconds.
struct Measured {
    paced: Paced,
    deliver_nanos: Histogram<u64>,
    totals: Totals,
}

/// Runs the load.
///
/// # Errors
/// If the broker cannot be reached, refuses what it is asked, or hangs.
pub fn run(options: &LatencyOptions, watch: Watch<'_>) -> anyhow::Result<Latency> {
    let protocol = options.load.url.protocol();
    let schedule = Schedule::new(options.rate);
    let window = u64::from(options.load.confirm);
    ensure!(
        options.load.size >= 8,
        "a message of {} bytes cannot tell its time; it takes 8",
        options.load.size
    );
    ensure!(
        window == 0 || window >= schedule.burst,
        "at {} messages a second {} are sent at once; --confirm {window} is too small a window",
        options.rate,
        schedule.burst
    );
    let queue = format!("b{}-latency", std::process::id());
    let declared = protocol.declare(std::slice::from_ref(&queue), None, &options.load.settings())?;
    let before = Usage::now(options.load.broker_pid)?;
    let measured = measure(protocol, &queue, schedule, options, watch);
    let used = Usage::now(options.load.broker_pid)?.since(&before)?;
    let deleted = declared.delete().context("cannot delete what was declared for the load");
    let measured = measured?;
    deleted?;
    Ok(Latency::new(options, schedule, &measured, used))
}

fn measure(
    protocol: &dyn Protocol,
    queue: &str,
    schedule: Schedule,
    options: &LatencyOptions,
    watch: Watch<'_>,
) -> anyhow::Result<Measured> {
    let tallies = [Arc::<Tally>::default(), Arc::<Tally>::default()];
    let (shape, window) = (options.load.shape(queue), options.load.confirm);
    let publisher = protocol.paced(&shape, window, schedule, Arc::clone(&tallies[0]))?;
    let wants = options.load.wants(vec![queue.to_owned()]);
    let consumer = protocol.consumer(&wants, Arc::clone(&tallies[1]))?;
    let stops = [Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default()];
    let (began, warmup) = (Instant::now(), options.warmup);

    let consuming = {
        let stop = Arc::clone(&stops[1]);
        std::thread::spawn(move || {
            let mut times = DeliveryTimes { began, warmup, nanos: percentiles::nanos() };
            consumer.run(&stop, Some(&mut |body, now| times.note(body, now)))?;
            anyhow::Ok(times.nanos)
        })
    };
    let publishing = {
        let stop = Arc::clone(&stops[0]);
        std::thread::spawn(move || publisher.run(began, warmup, &stop))
    };
    let total = options.warmup + options.duration;
    while began.elapsed() < total && !publishing.is_finished() && !consuming.is_finished() {
        std::thread::sleep(TICK.min(total.saturating_sub(began.elapsed())));
        let progress = Progress { elapsed: began.elapsed(), total, totals: Totals::of(&tallies) };
        if watch(&progress) == Verdict::Enough {
            break;
        }
    }
    stops[0].store(true, Ordering::Relaxed);
    let paced = joined(publishing, "the publisher");
    let patience = Instant::now() + PATIENCE;
    let missing = || tallies[1].consumed.get() < tallies[0].published.get();
    while paced.is_ok() && missing() && !consuming.is_finished() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    stops[1].store(true, Ordering::Relaxed);
    let deliver_nanos = joined(consuming, "the consumer")?;
    Ok(Measured { paced: paced?, deliver_nanos, totals: Totals::of(&tallies) })
}

/// Takes the time of each message from its body.
struct DeliveryTimes {
    began: Instant,
    warmup: Duration,
    nanos: Histogram<u64>,
}

impl DeliveryTimes {
    fn note(&mut self, body: &[u8], now: Instant) {
        let Some(mark) = body.first_chunk::<8>() else { return };
        let due = Duration::from_nanos(u64::from_be_bytes(*mark));
        if due >= self.warmup {
            let took = now.saturating_duration_since(self.began).saturating_sub(due);
            percentiles::note(&mut self.nanos, took, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_from_when_a_message_was_due() {
        let began = Instant::now();
        let warmup = Duration::from_millis(100);
        let mut times = DeliveryTimes { began, warmup, nanos: percentiles::nanos() };
        let mark = |millis: u64| Duration::from_millis(millis).as_nanos() as u64;
        // Sent late because of a stall, and still counted from when it was due.
        times.note(&mark(150).to_be_bytes(), began + Duration::from_millis(190));
        assert_eq!(times.nanos.len(), 1);
        assert!((39_900_000..=40_100_000).contains(&times.nanos.max()), "{}", times.nanos.max());
    }

    #[test]
    fn what_was_due_in_the_warm_up_does_not_count() {
        let began = Instant::now();
        let mut times = DeliveryTimes { began, warmup: Duration::from_secs(1), nanos: percentiles::nanos() };
        times.note(&0u64.to_be_bytes(), began + Duration::from_secs(5));
        times.note(b"short", began);
        assert_eq!(times.nanos.len(), 0);
    }
}
