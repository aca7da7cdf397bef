//! `nexo bench`: puts a broker under load and prints what came of it. The loads are in `nexo-bench`; here they are
//! started, watched and shown.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;
use comfy_table::CellAlignment;
use indicatif::ProgressBar;
use nexo_bench::throughput::{self, Progress, ThroughputOptions};
use nexo_bench::{Report, Sink};

use crate::cli::Shared;
use crate::output::{Printer, note};
use crate::progress;
use crate::view::columns;

const EXAMPLES: &str = "\
Client and broker share the machine; the load is made to cost as little as it can.

Examples:
  nexo bench throughput                                         transient, as fast as it goes
  nexo bench throughput --persistent --confirm 1000 --ack 100   safe, with 1000 on their way
  nexo bench throughput --publishers 4 --consumers 4 --queues 4
  nexo bench sink                                               a server that only parses, to load in its place";

/// Put a broker under load and measure it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Messages a second from publishers through queues to consumers
    Throughput(ThroughputOptions),
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
    pub(crate) async fn run(self, shared: &Shared) -> anyhow::Result<ExitCode> {
        // Loads use threads of their own with blocking sockets; the runtime only waits for them.
        let format = shared.output;
        let running = tokio::task::spawn_blocking(move || {
            let mut out = Printer::new(format);
            match self.what {
                What::Throughput(options) => {
                    let bar = progress::bar(None, "throughput");
                    let found = throughput::run(&options, &mut |progress| show(&bar, progress));
                    bar.finish_and_clear();
                    print(&mut out, &found?)
                }
                What::Sink(args) => args.run(&mut out),
            }
        });
        running.await.context("the load panicked")??;
        Ok(ExitCode::SUCCESS)
    }
}

fn show(bar: &ProgressBar, progress: &Progress) {
    bar.set_position(progress.totals.consumed.max(progress.totals.confirmed).max(progress.totals.published));
}

/// The figures as a table, or all of the report as JSON.
fn print<R: Report>(out: &mut Printer, report: &R) -> anyhow::Result<()> {
    let mut table = columns(&["", report.title().as_str()]);
    if let Some(values) = table.column_mut(1) {
        values.set_cell_alignment(CellAlignment::Left);
    }
    for (name, value) in report.figures().iter() {
        table.add_row([name, value]);
    }
    out.show(report, &table)?;
    out.flush()?;
    Ok(())
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
