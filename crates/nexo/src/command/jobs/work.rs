//! `nexo jobs take`, `complete`, `fail`, `return` and `extend`: what a worker does.

use std::process::ExitCode;

use nexo_grpc::client::Client;
use nexo_grpc::proto;
use serde_json::json;

use super::budget::ReportArgs;
use super::json_input;
use crate::cli::at_least_one;
use crate::connect::Asked;
use crate::output::{Format, Printer};
use crate::units::Span;
use crate::view::{moment, taken_table, taken_value};

const TAKE_EXAMPLES: &str = "\
A job that was taken must be completed, failed or returned with its receipt before its lease ends;
otherwise it is tried again.

Examples:
  nexo jobs take deals --wait 30s
  nexo jobs take deals --worker crawler-7 --max 10 --lease 5m --output json";

const COMPLETE_EXAMPLES: &str = "\
Examples:
  nexo jobs complete 0-1 '[{\"price\": 80}]'
  crawl phones | nexo jobs complete 0-1 - --used 4 --left 12 --refill-in 30s";

/// Take jobs to work on, the most urgent first
#[derive(Debug, clap::Args)]
#[command(after_help = TAKE_EXAMPLES)]
pub(super) struct TakeArgs {
    /// The job queue
    queue: String,
    /// What this worker is called
    #[arg(long, value_name = "NAME", default_value = "nexo")]
    worker: String,
    /// Take at most this many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one())]
    max: u64,
    /// Wait this long for the first
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: Span,
    /// How long the jobs are this worker's, instead of what the job queue says
    #[arg(long, value_name = "TIME")]
    lease: Option<Span>,
}

/// Say that a job is done
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETE_EXAMPLES)]
pub(super) struct CompleteArgs {
    /// The receipt, as 'nexo jobs take' shows it
    receipt: String,
    /// The result: JSON; - reads it from standard input
    #[arg(allow_hyphen_values = true)]
    result: String,
    /// The tokens that the work used, if not its cost
    #[arg(long, value_name = "N")]
    used: Option<u64>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Say that a job could not be done
#[derive(Debug, clap::Args)]
pub(super) struct FailArgs {
    /// The receipt, as 'nexo jobs take' shows it
    receipt: String,
    /// Why not
    error: String,
    /// It will never succeed: tell those who wait now
    #[arg(long)]
    no_retry: bool,
    /// The tokens that the work used, if not its cost
    #[arg(long, value_name = "N")]
    used: Option<u64>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Give a job back untouched; it keeps its place
#[derive(Debug, clap::Args)]
pub(super) struct ReturnArgs {
    /// The receipt, as 'nexo jobs take' shows it
    receipt: String,
}

/// Ask for more time, and tell how far the work is
#[derive(Debug, clap::Args)]
pub(super) struct ExtendArgs {
    /// The receipt, as 'nexo jobs take' shows it
    receipt: String,
    /// How long from now, instead of what the job queue says
    #[arg(long, value_name = "TIME")]
    lease: Option<Span>,
    /// How far it is: JSON
    #[arg(long, value_name = "JSON")]
    progress: Option<String>,
}

impl TakeArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let what = format!("take from '{}'", self.queue);
        let request = proto::TakeJobsRequest {
            queue: self.queue,
            worker: self.worker,
            max: u32::try_from(self.max).unwrap_or(u32::MAX),
            wait_ms: self.wait.millis(),
            lease_ms: self.lease.map(Span::millis),
            vhost: client.vhost(),
        };
        let jobs = client.jobs().take(request).await.asked(what)?.into_inner().jobs;
        match out.format {
            Format::Json => jobs.iter().try_for_each(|job| out.json(&taken_value(job)))?,
            Format::Text if jobs.is_empty() => {}
            Format::Text => out.line(taken_table(&jobs))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl CompleteArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let (what, receipt) = (format!("complete '{}'", self.receipt), self.receipt.clone());
        let request = proto::CompleteJobRequest {
            receipt: self.receipt,
            result: json_input(self.result)?,
            used: self.used,
            report: Some(self.report.to_proto()),
            vhost: client.vhost(),
        };
        client.jobs().complete(request).await.asked(what)?;
        out.show(&json!({ "receipt": receipt, "outcome": "done" }), format_args!("{receipt} done"))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl FailArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let (what, receipt) = (format!("fail '{}'", self.receipt), self.receipt.clone());
        let request = proto::FailJobRequest {
            receipt: self.receipt,
            error: self.error,
            no_retry: self.no_retry,
            used: self.used,
            report: Some(self.report.to_proto()),
            vhost: client.vhost(),
        };
        let retry = client.jobs().fail(request).await.asked(what)?.into_inner().retry_at_ms;
        match retry {
            Some(at) => out.show(
                &json!({ "receipt": receipt, "outcome": "retried", "retry_at_ms": at }),
                format_args!("{receipt} failed, and is tried again from {} on", moment(at)),
            )?,
            None => out.show(
                &json!({ "receipt": receipt, "outcome": "failed" }),
                format_args!("{receipt} failed for good"),
            )?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ReturnArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let receipt = self.receipt;
        let request = proto::GiveBackJobRequest { receipt: receipt.clone(), vhost: client.vhost() };
        client.jobs().give_back(request).await.asked(format!("return '{receipt}'"))?;
        out.show(&json!({ "receipt": receipt, "outcome": "returned" }), format_args!("{receipt} returned"))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl ExtendArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let receipt = self.receipt;
        let request = proto::ExtendJobRequest {
            receipt: receipt.clone(),
            lease_ms: self.lease.map(Span::millis),
            progress: self.progress.map(Into::into),
            vhost: client.vhost(),
        };
        let reply = client.jobs().extend(request).await.asked(format!("extend '{receipt}'"))?;
        let until = reply.into_inner().lease_until_ms;
        out.show(
            &json!({ "receipt": receipt, "lease_until_ms": until }),
            format_args!("{receipt} held until {}", moment(until)),
        )?;
        Ok(ExitCode::SUCCESS)
    }
}
