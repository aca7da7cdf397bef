//! `nexo jobs watch`: the figures of a job queue, every second anew.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use nexo_grpc::client::Client;

use super::queue::get;
use crate::output::{Format, Printer};
use crate::signals::Signals;
use crate::units::Span;
use crate::view::{job_queue_figures, job_queue_value};

/// To the first line, with nothing below it.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// Figures of a job queue, every second anew
#[derive(Debug, clap::Args)]
pub(super) struct WatchArgs {
    /// The job queue
    queue: String,
    /// How often
    #[arg(long, value_name = "TIME", default_value = "1s")]
    every: Span,
    /// Stop after so many times, and not at Ctrl-C only
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

impl WatchArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new()?;
        let mut shown = 0;
        loop {
            let queue = get(client, &self.queue, 0).await?;
            if out.format == Format::Text && io::stdout().is_terminal() {
                out.raw(CLEAR)?;
            }
            out.show(&job_queue_value(&queue), job_queue_figures(&queue))?;
            out.flush()?;
            shown += 1;
            if self.count.is_some_and(|count| shown >= count) {
                return Ok(ExitCode::SUCCESS);
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(self.every.millis().max(10))) => {}
                _ = signals.next() => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}
