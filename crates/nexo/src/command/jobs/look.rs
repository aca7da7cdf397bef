//! `nexo jobs result`, `pending`, `show`, `tokens` and `cancel`: what an operator looks at.

use std::process::ExitCode;

use anyhow::{Context, bail};
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use serde_json::json;

use super::now_ms;
use crate::connect::Asked;
use crate::output::{Format, Printer, note};
use crate::units::Span;
use crate::view::{job_figures, job_value, pending_table, use_table, use_value};

/// The result that is cached under a key
#[derive(Debug, clap::Args)]
pub(super) struct ResultArgs {
    /// The job queue
    queue: String,
    /// The key
    #[arg(value_name = "KEY")]
    job_key: String,
}

/// Pending jobs in the order in which they are taken
#[derive(Debug, clap::Args)]
pub(super) struct PendingArgs {
    /// The job queue
    queue: String,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
}

/// One job
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// Its number; a receipt will do
    #[arg(value_name = "JOB")]
    job: JobNumber,
    /// Show its result too, which may be large
    #[arg(long)]
    with_result: bool,
}

/// Cancel a job; all who wait for it are told
#[derive(Debug, clap::Args)]
pub(super) struct CancelArgs {
    /// Its number; a receipt will do
    #[arg(value_name = "JOB")]
    job: JobNumber,
}

const TOKENS_EXAMPLES: &str = "\
Examples:
  nexo jobs tokens --since 1h
  nexo jobs tokens --of api --since 2d --until 1d --max 1000 --output json";

/// What tokens were used for, the latest first
#[derive(Debug, clap::Args)]
#[command(after_help = TOKENS_EXAMPLES)]
pub(super) struct TokensArgs {
    /// Only those of this budget
    #[arg(long, value_name = "BUDGET", default_value = "", hide_default_value = true)]
    of: String,
    /// From so long ago on
    #[arg(long, value_name = "TIME")]
    since: Option<Span>,
    /// Up to so long ago
    #[arg(long, value_name = "TIME")]
    until: Option<Span>,
    /// At most this many, up to 1000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    max: u32,
}

/// The number of a job, alone or with an attempt behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct JobNumber(u64);

impl std::str::FromStr for JobNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A receipt is a version, the job and a count.
        let unversioned =
            text.strip_prefix('v').and_then(|rest| rest.split_once('-')).map_or(text, |(_, rest)| rest);
        let number = unversioned.split_once('-').map_or(unversioned, |(number, _)| number);
        number
            .parse()
            .map(Self)
            .map_err(|_| format!("'{text}' is not the number of a job; 'nexo jobs pending' shows some"))
    }
}

impl ResultArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let what = format!("result of '{}' in '{}'", self.job_key, self.queue);
        let request = proto::JobResultRequest { queue: self.queue, key: self.job_key, vhost: client.vhost() };
        let found = client.jobs().result(request).await.asked(what.clone())?.into_inner().cached;
        let Some(cached) = found else { bail!("{what}: none is cached") };
        match out.format {
            Format::Json => {
                let result: serde_json::Value = serde_json::from_slice(&cached.result).unwrap_or_default();
                out.json(&json!({ "result": result, "at_ms": cached.at_ms, "until_ms": cached.until_ms }))?;
            }
            Format::Text => out.bytes(&cached.result)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl PendingArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let what = format!("pending jobs of '{}'", self.queue);
        let request = proto::PendingJobsRequest { queue: self.queue, max: self.max, vhost: client.vhost() };
        let reply = client.jobs().pending(request).await.asked(what)?.into_inner();
        match out.format {
            Format::Json => reply.jobs.iter().try_for_each(|job| out.json(&job_value(job)))?,
            Format::Text if reply.jobs.is_empty() => note("no job is pending"),
            Format::Text => {
                out.line(pending_table(&reply.jobs, now_ms()))?;
                let more = reply.total.saturating_sub(reply.jobs.len() as u64);
                if more > 0 {
                    out.flush()?;
                    note(format_args!("and {more} more"));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ShowArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let job = self.job.0;
        let request = proto::GetJobRequest { job, with_result: self.with_result, vhost: client.vhost() };
        let reply = client.jobs().get_job(request).await.asked(format!("show job {job}"))?;
        let job = reply.into_inner().job.context("the broker sent no job")?;
        out.show(&job_value(&job), job_figures(&job))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl CancelArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let job = self.job.0;
        let request = proto::CancelJobRequest { job, vhost: client.vhost() };
        client.jobs().cancel(request).await.asked(format!("cancel job {job}"))?;
        let value = json!({ "job": job.to_string(), "outcome": "cancelled" });
        out.show(&value, format_args!("{job} cancelled"))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl TokensArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let now = now_ms();
        let ago = |span: Span| now.saturating_sub(span.millis());
        let request = proto::TokenLogRequest {
            budget: self.of,
            since_ms: self.since.map_or(0, ago),
            until_ms: self.until.map_or(0, ago),
            max: self.max,
            vhost: client.vhost(),
        };
        let reply = client.jobs().token_log(request).await.asked("tokens")?.into_inner();
        match out.format {
            Format::Json => reply.uses.iter().try_for_each(|used| out.json(&use_value(used)))?,
            Format::Text if reply.uses.is_empty() => note("no tokens were used in this time"),
            Format::Text => out.line(use_table(&reply.uses))?,
        }
        if reply.more && out.format == Format::Text {
            out.flush()?;
            note("there are more in this time; --max shows up to 1000, --until goes further back");
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_by_its_number_or_its_receipt() {
        assert_eq!("42".parse(), Ok(JobNumber(42)));
        assert_eq!("42-3".parse(), Ok(JobNumber(42)));
        assert_eq!("v1-42-3".parse(), Ok(JobNumber(42)));
        assert!("x".parse::<JobNumber>().is_err() && "".parse::<JobNumber>().is_err());
    }
}
