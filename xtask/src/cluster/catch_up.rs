//! What a node that was away costs: one that comes back after a minute to a cluster in which ten million messages wait, and one
//! that comes back with nothing. Beside both somebody publishes and consumes 2,000 messages a second, and tells how long they take.

use std::fmt::Write;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::nodes::NexoNodes;
use crate::load::Bench;
use crate::page::put_machine;
use crate::spread::{Spread, Unit};

/// What is measured: less of it to see that it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) messages: u64,
    /// For how long a node is away.
    pub(super) away: Duration,
    /// How often the load beside is measured while nothing happens.
    pub(super) quiet_runs: u32,
}

impl Size {
    pub(super) const FULL: Self = Self { messages: 10_000_000, away: Duration::from_secs(60), quiet_runs: 4 };
    pub(super) const QUICK: Self = Self { messages: 300_000, away: Duration::from_secs(5), quiet_runs: 1 };
}

const BODY_BYTES: &str = "100";
/// How long anything may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long each measurement of the load takes.
const RUN: &str = "4s";

/// Fills a queue and keeps it full until it is dropped.
struct Filler(Child);

impl Filler {
    fn start(bench: &Bench, url: &str, messages: u64) -> anyhow::Result<Self> {
        let count = messages.to_string();
        let child = Command::new(bench.nexo())
            .args(["bench", "backlog", "--url", url, "--persistent", "--confirm", "10000"])
            .args(["--size", BODY_BYTES, "--count", &count, "--short", "0s", "--rest", "7200s"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Ok(Self(child.context("cannot start nexo bench")?))
    }

    fn wait_until_full(&mut self, nodes: &NexoNodes, messages: u64) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        while nodes.messages()? < messages {
            ensure!(self.0.try_wait()?.is_none(), "the load that fills the queue has ended");
            ensure!(Instant::now() < end, "the queue does not fill");
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long messages take at 2,000 a second, at the 99th percentile, in microseconds.
fn p99(bench: &Bench, url: &str) -> anyhow::Result<f64> {
    let args =
        ["latency", "--url", url, "--rate", "2000", "--persistent", "--duration", RUN, "--warmup", "1s"];
    let report = bench.report_within(&args, PATIENCE)?;
    report.pointer("/deliver_time/p99_us").and_then(Value::as_f64).context("the report has no p99")
}

/// The same again and again, while something goes on that is done by the other.
fn p99_during<T>(
    bench: &Bench,
    url: &str,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Spread, T)> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| -> anyhow::Result<Spread> {
            let mut spread = Spread::default();
            while !is_done.load(Ordering::Acquire) {
                spread.add(p99(bench, url)?);
            }
            Ok(spread)
        });
        let worked = work();
        is_done.store(true, Ordering::Release);
        let spread = measuring.join().map_err(|_| anyhow::anyhow!("the load has panicked"))??;
        Ok((spread, worked?))
    })
}

/// Measures, and gives back what was found as Markdown.
pub(super) fn measure(bench: &Bench, size: Size) -> anyhow::Result<String> {
    let mut nodes = NexoNodes::start(bench.nexo(), 3)?;
    let url = nodes.nodes()?.first().context("there are nodes")?.url.clone();
    let began = Instant::now();
    let mut filler = Filler::start(bench, &url, size.messages)?;
    filler.wait_until_full(&nodes, size.messages)?;
    eprintln!("  {} messages wait after {:?}", size.messages, began.elapsed());
    nodes.wait_until_in_step(PATIENCE)?;
    let mut quiet = Spread::default();
    for _ in 0..size.quiet_runs {
        quiet.add(p99(bench, &url)?);
    }
    eprintln!("  p99 with all nodes: {}", quiet.show(Unit::Micros));
    let node = nodes.follower();
    nodes.kill(node);
    let (away, ()) = p99_during(bench, &url, || {
        std::thread::sleep(size.away);
        Ok(())
    })?;
    eprintln!("  p99 with one away: {}", away.show(Unit::Micros));
    let (coming_back, back_after) = p99_during(bench, &url, || {
        let began = Instant::now();
        nodes.start_again(node)?;
        nodes.wait_until_in_step(PATIENCE)?;
        Ok(began.elapsed())
    })?;
    eprintln!("  back in step after {back_after:?}; p99 meanwhile {}", coming_back.show(Unit::Micros));
    nodes.kill(node);
    nodes.wipe(node)?;
    let sent_before = nodes.state_bytes_sent()?;
    let (wiped, (all_after, bytes)) = p99_during(bench, &url, || {
        let began = Instant::now();
        nodes.start_again(node)?;
        nodes.wait_until_in_step(PATIENCE)?;
        Ok((began.elapsed(), nodes.state_bytes_sent()? - sent_before))
    })?;
    let rate = bytes as f64 / 1e6 / all_after.as_secs_f64();
    eprintln!(
        "  {} MB in {all_after:?}: {rate:.0} MB/s; p99 {}",
        bytes / 1_000_000,
        wiped.show(Unit::Micros)
    );
    let mut out = String::new();
    put_machine(&mut out, &bench.machine());
    let _ = writeln!(
        out,
        "- three nodes on one machine and one disk, {} messages of {BODY_BYTES} bytes waiting; beside it 2,000 messages a second, \
         measured for {RUN} at a time, again and again\n",
        size.messages
    );
    let _ = writeln!(
        out,
        "| what | measured | p99 publish → deliver beside it: median (least–most) | goal |\n|---|---|---|---|"
    );
    let mut row = |what: String, measured: String, p99: &Spread, goal: &str| {
        let _ = writeln!(out, "| {what} | {measured} | {} | {goal} |", p99.show(Unit::Micros));
    };
    row("all nodes are there".into(), "–".into(), &quiet, "–");
    row(format!("one is away for {} s", size.away.as_secs()), "–".into(), &away, "–");
    row(
        "it is started again".into(),
        format!("in step after {:.1} s", back_after.as_secs_f64()),
        &coming_back,
        "30 s",
    );
    row(
        "it is removed, and comes back with an empty disk".into(),
        format!("in step after {:.1} s, {} MB: {rate:.0} MB/s", all_after.as_secs_f64(), bytes / 1_000_000),
        &wiped,
        "over 100 MB/s, p99 at most 3 × that of the first line",
    );
    Ok(out)
}
