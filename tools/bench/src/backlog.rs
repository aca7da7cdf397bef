//! A queue that nobody reads for a long time, and then somebody does: how fast it fills, what it costs while it waits,
//! and how fast it is drained compared with a queue that is always short.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::options::LoadOptions;
use crate::process;
use crate::progress::{Progress, Verdict, Watch};
use crate::protocol::Protocol;
use crate::report::{Figures, Report, mib, rate, thousands};
use crate::span;
use crate::tally::{Tally, Totals};
use crate::threads::joined;
use crate::throughput::{self, ThroughputOptions};

/// How often progress is shown.
const TICK: Duration = Duration::from_millis(100);
/// How long nothing may come while draining before it is said that messages are missing.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `backlog`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct BacklogOptions {
    /// What messages look like and how they are taken care of.
    #[command(flatten)]
    pub load: LoadOptions,
    /// How many messages wait
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// The broker's data folder, for what a message takes on disk
    #[arg(long, value_name = "DIR")]
    pub broker_data: Option<PathBuf>,
    /// How long the broker is left alone between filling and draining, before its memory is looked at
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub rest: Duration,
    /// How long a short queue is measured to compare with; 0s for not at all
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub short: Duration,
}

/// What was found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Backlog {
    /// What was asked for.
    pub options: BacklogOptions,
    /// Messages published in a second, up to the last one.
    pub filled_per_second: f64,
    /// Messages consumed in a second, from the first to the last.
    pub drained_per_second: f64,
    /// Messages consumed in a second from a queue that is filled at the same time.
    pub short_queue_per_second: Option<f64>,
    /// How fast the long queue is compared with the short one.
    pub drain_ratio: Option<f64>,
    /// Messages that were consumed.
    pub consumed: u64,
    /// Memory of the broker before anything was published.
    pub empty_resident_bytes: Option<u64>,
    /// Memory of the broker with everything waiting.
    pub full_resident_bytes: Option<u64>,
    /// What a waiting message takes on disk.
    pub disk_bytes_per_message: Option<f64>,
}

/// Runs the load.
///
/// # Errors
/// If the broker cannot be reached, refuses what it is asked, hangs or loses a message.
pub fn run(options: &BacklogOptions, watch: Watch<'_>) -> anyhow::Result<Backlog> {
    let protocol = options.load.url.protocol();
    let queue = format!("b{}-backlog", std::process::id());
    let declared = protocol.declare(std::slice::from_ref(&queue), None, &options.load.settings())?;
    let outcome = fill_and_drain(protocol, &queue, options, watch);
    let deleted = declared.delete().context("cannot delete what was declared for the load");
    let mut found = outcome?;
    deleted?;
    // Only now, so that the broker was empty before.
    let short_queue_per_second = short_queue(options, watch)?;
    found.short_queue_per_second = short_queue_per_second;
    let compared = short_queue_per_second.filter(|short| *short > 0.0);
    found.drain_ratio = compared.map(|short| found.drained_per_second / short);
    Ok(found)
}

fn short_queue(options: &BacklogOptions, watch: Watch<'_>) -> anyhow::Result<Option<f64>> {
    if options.short.is_zero() {
        return Ok(None);
    }
    let short = ThroughputOptions::new(options.load.clone(), options.short);
    Ok(Some(throughput::run(&short, watch)?.consumed_per_second))
}

fn fill_and_drain(
    protocol: &dyn Protocol,
    queue: &str,
    options: &BacklogOptions,
    watch: Watch<'_>,
) -> anyhow::Result<Backlog> {
    let resident = || options.load.broker_pid.map(process::resident_bytes).transpose();
    let on_disk = || options.broker_data.as_deref().map(process::disk_bytes).transpose();
    let (empty_resident_bytes, empty_disk) = (resident()?, on_disk()?);
    let filled = fill(protocol, queue, options, watch)?;
    std::thread::sleep(options.rest);
    let (full_resident_bytes, full_disk) = (resident()?, on_disk()?);
    let (consumed, drained) = drain(protocol, queue, options, watch)?;
    let per_message = |(empty, full): (u64, u64)| full.saturating_sub(empty) as f64 / options.count as f64;
    Ok(Backlog {
        options: options.clone(),
        filled_per_second: options.count as f64 / filled.as_secs_f64(),
        drained_per_second: consumed as f64 / drained.as_secs_f64(),
        short_queue_per_second: None,
        drain_ratio: None,
        consumed,
        empty_resident_bytes,
        full_resident_bytes,
        disk_bytes_per_message: empty_disk.zip(full_disk).map(per_message),
    })
}

/// Publishes everything; gives back how long it took until the broker had seen the last.
fn fill(
    protocol: &dyn Protocol,
    queue: &str,
    options: &BacklogOptions,
    watch: Watch<'_>,
) -> anyhow::Result<Duration> {
    let (shapes, mut tallies) = ([options.load.shape(queue)], Vec::new());
    let (window, limit) = (options.load.confirm, Some(options.count));
    let publishers = protocol.publishers(&shapes, window, limit, &mut tallies)?;
    let began = Instant::now();
    for publisher in publishers {
        let stop = Arc::<AtomicBool>::default();
        let filling = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || publisher.run(&stop))
        };
        while !filling.is_finished() {
            std::thread::sleep(TICK);
            if watch(&progress(began, &tallies)) == Verdict::Enough {
                stop.store(true, Ordering::Relaxed);
            }
        }
        joined(filling, "the publisher")?;
        ensure!(!stop.load(Ordering::Relaxed), "interrupted while the queue was filled");
    }
    Ok(began.elapsed())
}

/// Consumes everything; gives back how many that was and how long it took.
fn drain(
    protocol: &dyn Protocol,
    queue: &str,
    options: &BacklogOptions,
    watch: Watch<'_>,
) -> anyhow::Result<(u64, Duration)> {
    let (tally, stop, count) = (Arc::<Tally>::default(), Arc::<AtomicBool>::default(), options.count);
    let wants = options.load.wants(vec![queue.to_owned()]);
    let began = Instant::now();
    let consumer = protocol.consumer(&wants, Arc::clone(&tally))?;
    let draining = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || consumer.run(&stop, None))
    };
    let mut seen = (0, Instant::now());
    let mut verdict = Verdict::GoOn;
    while tally.consumed.get() < count
        && verdict == Verdict::GoOn
        && !draining.is_finished()
        && seen.1.elapsed() < PATIENCE
    {
        std::thread::sleep(Duration::from_millis(2));
        if tally.consumed.get() > seen.0 {
            seen = (tally.consumed.get(), Instant::now());
            verdict = watch(&progress(began, std::slice::from_ref(&tally)));
        }
    }
    // Before the connection is ended in order, which is no part of draining.
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let consumed = joined(draining, "the consumer")?.consumed;
    ensure!(verdict == Verdict::GoOn, "interrupted while the queue was drained");
    ensure!(
        consumed == count,
        "{consumed} of {count} messages came back; nothing more came for {PATIENCE:?}"
    );
    Ok((consumed, took))
}

fn progress(began: Instant, tallies: &[Arc<Tally>]) -> Progress {
    Progress { elapsed: began.elapsed(), total: Duration::ZERO, totals: Totals::of(tallies) }
}

impl Report for Backlog {
    fn title(&self) -> String {
        let kind = self.options.load.kind();
        let count = thousands(self.options.count as f64);
        format!("a backlog of {count} messages of {} bytes, {kind}", self.options.load.size)
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures
            .add("drained", rate(self.drained_per_second))
            .add_some("a short queue", self.short_queue_per_second.map(rate))
            .add_some("drained compared", self.drain_ratio.map(|ratio| format!("{:.0} %", ratio * 100.0)))
            .add("filled", rate(self.filled_per_second))
            .add("came back", thousands(self.consumed as f64))
            .add_some("broker's memory, empty", self.empty_resident_bytes.map(mib))
            .add_some("broker's memory, full", self.full_resident_bytes.map(mib))
            .add_some(
                "on disk",
                self.disk_bytes_per_message.map(|bytes| format!("{bytes:.1} bytes a message")),
            );
        figures
    }
}
