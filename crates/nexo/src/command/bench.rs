//! `nexo bench`: puts a broker under load and prints what came of it. The loads are in `nexo-bench`; here they are
//! started, watched and shown.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;
use comfy_table::CellAlignment;
use nexo_bench::abuse::{self, AbuseOptions};
use nexo_bench::backlog::{self, BacklogOptions};
use nexo_bench::churn::{self, ChurnOptions};
use nexo_bench::disk::{self, DiskOptions};
use nexo_bench::failover::{self, FailoverOptions};
use nexo_bench::jobs::{self, JobsOptions};
use nexo_bench::latency::{self, LatencyOptions};
use nexo_bench::mixed::{self, MixedOptions};
use nexo_bench::probe::{self, ProbeOptions};
use nexo_bench::throughput::{self, ThroughputOptions};
use nexo_bench::waiting::{self, WaitingOptions};
use nexo_bench::{Report, Sink, Verdict, Watch, html};

use crate::cli::ServerArgs;
use crate::output::{Printer, note};
use crate::progress;
use crate::signals::Signals;
use crate::view::columns;

const EXAMPLES: &str = "\
The broker is named by --url; --server is for the other commands. Load and broker share the machine, so the
load is made to cost as little as it can. What it declares, it deletes; Ctrl-C ends a run early, with a report.

Examples:
  nexo bench throughput                                        transient, as fast as it goes
  nexo bench throughput --persistent --confirm 1000 --ack 100  safe, with 1000 on their way
  nexo bench throughput --publishers 4 --consumers 4 --queues 4
  nexo bench latency --rate 2000 --persistent --confirm 1000 --html latency.html
  nexo bench backlog --count 10000000 --persistent
  nexo bench churn --hold 60s --connections 1000
  nexo bench mixed --url http://127.0.0.1:7654                 over the native API
  nexo bench throughput --url sqs://127.0.0.1:9324 --size 1024 --publishers 8 --consumers 8
  nexo bench waiting --url sqs://127.0.0.1:9324                2000 receives of SQS that wait
  nexo bench probe                                             one client's confirms while others do their worst
  nexo bench failover --url URL --pid PID --url URL --pid PID  a leader is killed under one publisher
  nexo bench jobs --broker-pid 1234                            a million pending jobs
  nexo bench disk --data-dir ./nexo-data                       what the disk itself takes
  nexo bench sink                                              a server that only parses";

/// Put a broker under load and measure it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Also write the report to this file, as a page with charts
    #[arg(long, global = true, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Messages a second from publishers through queues to consumers
    Throughput(ThroughputOptions),
    /// Time from publish to deliver and to confirm, at a fixed rate
    Latency(LatencyOptions),
    /// Fill a queue, look at what it costs, and drain it
    Backlog(BacklogOptions),
    /// Connections, channels, queues and bindings that come and go, or that are held
    Churn(ChurnOptions),
    /// Priorities and delays together: how late, and in which order
    Mixed(MixedOptions),
    /// Receives of SQS that wait: what they cost, and how soon a message wakes one
    Waiting(WaitingOptions),
    /// One persistent message every 20 ms, and how long its confirm takes
    Probe(ProbeOptions),
    /// Kill the leader of a cluster: the longest time that a publisher is not confirmed
    Failover(FailoverOptions),
    /// A million pending jobs: what they take, and how long asking and working take beside them
    Jobs(JobsOptions),
    /// Loads that look for stalls and for memory without a bound; they leave their queues behind
    Abuse(AbuseOptions),
    /// The disk's own time for a small append with fdatasync, to compare with
    Disk(DiskOptions),
    /// Be a server that only parses and counts: what the load could reach at most
    Sink(SinkArgs),
}

#[derive(Debug, clap::Args)]
struct SinkArgs {
    /// Where to listen
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5672")]
    listen: String,
}

impl BenchArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut shown = Shown { out: Printer::new(shared.output), html: self.html };
        let enough = Arc::<AtomicBool>::default();
        if self.what.can_end_early() {
            let mut signals = Signals::new().context("cannot wait for signals")?;
            let enough = Arc::clone(&enough);
            tokio::spawn(async move {
                signals.next().await;
                enough.store(true, Ordering::Relaxed);
                signals.force_next();
            });
        }
        // Loads use threads of their own with blocking sockets; the runtime only waits for them, and for signals.
        let running = tokio::task::spawn_blocking(move || self.what.run(&mut shown, &enough));
        running.await.context("the load panicked")??;
        Ok(ExitCode::SUCCESS)
    }
}

impl What {
    /// Whether it can be asked to end and still has something to tell. The others end as any process does.
    fn can_end_early(&self) -> bool {
        match self {
            Self::Throughput(_) | Self::Latency(_) | Self::Backlog(_) | Self::Waiting(_) | Self::Probe(_) => {
                true
            }
            Self::Churn(_)
            | Self::Mixed(_)
            | Self::Failover(_)
            | Self::Jobs(_)
            | Self::Abuse(_)
            | Self::Disk(_)
            | Self::Sink(_) => false,
        }
    }

    fn run(self, shown: &mut Shown, enough: &AtomicBool) -> anyhow::Result<()> {
        match self {
            Self::Throughput(options) => {
                shown.show(&watched("throughput", enough, |watch| throughput::run(&options, watch))?)
            }
            Self::Latency(options) => {
                shown.show(&watched("latency", enough, |watch| latency::run(&options, watch))?)
            }
            Self::Backlog(options) => {
                shown.show(&watched("backlog", enough, |watch| backlog::run(&options, watch))?)
            }
            Self::Churn(options) => shown.show(&churn::run(&options)?),
            Self::Mixed(options) => shown.show(&mixed::run(&options)?),
            Self::Waiting(options) => {
                shown.show(&watched("waiting", enough, |watch| waiting::run(&options, watch))?)
            }
            Self::Probe(options) => {
                shown.show(&watched("probe", enough, |watch| probe::run(&options, watch))?)
            }
            Self::Failover(options) => shown.show(&failover::run(&options)?),
            Self::Jobs(options) => shown.show(&watched("jobs", enough, |watch| jobs::run(&options, watch))?),
            Self::Abuse(options) => shown.show(&abuse::run(&options)?),
            Self::Disk(options) => shown.show(&disk::run(&options)?),
            Self::Sink(args) => args.run(&mut shown.out),
        }
    }
}

/// Runs a load with a line that shows how far it is, until somebody has had enough.
fn watched<T>(
    what: &'static str,
    enough: &AtomicBool,
    run: impl FnOnce(Watch<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let bar = progress::bar(None, what);
    let found = run(&mut |progress| {
        let totals = progress.totals;
        bar.set_position(totals.consumed.max(totals.confirmed).max(totals.published));
        if enough.load(Ordering::Relaxed) { Verdict::Enough } else { Verdict::GoOn }
    });
    bar.finish_and_clear();
    found
}

/// Where a report goes.
struct Shown {
    out: Printer,
    html: Option<PathBuf>,
}

impl Shown {
    /// The figures as a table, or all of the report as JSON; and a page, if one was asked for.
    fn show<R: Report>(&mut self, report: &R) -> anyhow::Result<()> {
        let mut table = columns(&["", report.title().as_str()]);
        if let Some(values) = table.column_mut(1) {
            values.set_cell_alignment(CellAlignment::Left);
        }
        for (name, value) in report.figures().iter() {
            table.add_row([name, value]);
        }
        self.out.show(report, &table)?;
        self.out.flush()?;
        if let Some(path) = &self.html {
            let asked = serde_json::to_value(report)?.get("options").cloned().unwrap_or_default();
            let page = html::page(report, &serde_json::to_string_pretty(&asked)?);
            std::fs::write(path, page).with_context(|| format!("cannot write '{}'", path.display()))?;
        }
        Ok(())
    }
}

impl SinkArgs {
    /// Serves until the process is ended; says once a second how much came, if anything did.
    fn run(self, out: &mut Printer) -> anyhow::Result<()> {
        let sink = Sink::bind(&self.listen)?;
        out.line(format_args!("ready amqp={}", sink.address()?))?;
        out.flush()?;
        let received = sink.received();
        std::thread::spawn(move || {
            let mut before = 0;
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let now = received.load(Ordering::Relaxed);
                if now > before {
                    note(format_args!("{} messages in a second, {now} so far", now - before));
                }
                before = now;
            }
        });
        sink.serve()
    }
}
