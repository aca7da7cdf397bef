//! `nexo jobs ask`, `answer` and `leave`: what a waiter does.

use std::process::ExitCode;

use anyhow::bail;
use nexo_grpc::client::Client;
use nexo_grpc::proto::{self, JobAsked, JobOutcome};
use serde_json::json;

use super::json_input;
use crate::connect::Asked;
use crate::output::{Format, Printer, note};
use crate::units::Span;
use crate::view::answer_value;

const EXAMPLES: &str = "\
Prints the number of the job and how it was found: created, joined, joined_running, cached, or known if
this waiter asked before. With --wait it prints the answer. Without a waiter the job is done in the
background. A filter is an expression over item, and lets items of the result through.

Examples:
  nexo jobs ask deals phones --waiter ann --class pro --due-in 10m
  nexo jobs ask deals phones --waiter ben --filter 'item.price < 100' --reply-to answers
  nexo jobs ask deals phones --waiter eve --wait 30s
  nexo jobs ask deals tablets --type prefetch --payload '{\"pages\": [1]}' --cost 3";

/// Ask for work: join the job of a key, or make one
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct AskArgs {
    /// The job queue
    queue: String,
    /// What it is about: two requests with the same key are one job
    #[arg(value_name = "KEY")]
    job_key: String,
    /// What kind of work it is
    #[arg(long = "type", value_name = "TYPE", default_value = "job")]
    kind: String,
    /// What its worker is told: JSON; - reads it from standard input
    #[arg(
        long,
        value_name = "JSON",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    payload: String,
    /// The tokens that it costs, in place of what the job queue says
    #[arg(long, value_name = "N")]
    cost: Option<u64>,
    /// When it is too late, from now
    #[arg(long, value_name = "TIME")]
    deadline_in: Option<Span>,
    /// Who waits for the answer: a name of your own
    #[arg(long, value_name = "ID")]
    waiter: Option<String>,
    /// For whom it waits
    #[arg(long, value_name = "USER", requires = "waiter", default_value = "", hide_default_value = true)]
    for_user: String,
    /// Its class, one of the job queue's
    #[arg(long, value_name = "CLASS", requires = "waiter", default_value = "", hide_default_value = true)]
    class: String,
    /// When it needs the answer, from now
    #[arg(long, value_name = "TIME", requires = "waiter")]
    due_in: Option<Span>,
    /// Which items of the result it wants: an expression over item
    #[arg(long, value_name = "EXPR", requires = "waiter", default_value = "", hide_default_value = true)]
    filter: String,
    /// A queue that the answer goes to as a message
    #[arg(long, value_name = "QUEUE", requires = "waiter", default_value = "", hide_default_value = true)]
    reply_to: String,
    /// Wait this long for the answer, and print it
    #[arg(long, value_name = "TIME", requires = "waiter", default_value = "0s", hide_default_value = true)]
    wait: Span,
}

/// The answer to a waiter
#[derive(Debug, clap::Args)]
pub(super) struct AnswerArgs {
    /// The job queue
    queue: String,
    /// The waiter
    waiter: String,
    /// Wait this long for it
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: Span,
}

/// Wait no more for an answer
#[derive(Debug, clap::Args)]
pub(super) struct LeaveArgs {
    /// The job queue
    queue: String,
    /// The waiter
    waiter: String,
}

impl AskArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let what = format!("ask '{}' for '{}'", self.queue, self.job_key);
        let waits = self.wait.millis() > 0;
        let waiter = self.waiter.map(|id| proto::JobWaiter {
            id,
            user: self.for_user,
            class: self.class,
            due: self.due_in.map(|span| proto::job_waiter::Due::DueInMs(span.millis())),
            filter: self.filter,
            reply_to: self.reply_to,
        });
        let deadline =
            self.deadline_in.map(|span| proto::ask_job_request::Deadline::DeadlineInMs(span.millis()));
        let request = proto::AskJobRequest {
            queue: self.queue,
            r#type: self.kind,
            key: self.job_key,
            payload: json_input(self.payload)?,
            cost: self.cost,
            deadline,
            waiter,
            wait_ms: self.wait.millis(),
            vhost: client.vhost(),
        };
        let reply = client.jobs().ask(request).await.asked(what)?.into_inner();
        let (job, state) = (reply.job.to_string(), asked(reply.state()));
        match reply.answer {
            Some(answer) => print_answer(out, &answer),
            None => {
                out.show(&json!({ "job": job, "state": state }), format_args!("{job} {state}"))?;
                if waits {
                    note("there is no answer yet; 'nexo jobs answer' asks for it again");
                    return Ok(ExitCode::FAILURE);
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl AnswerArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let what = format!("answer to '{}' of '{}'", self.waiter, self.queue);
        let request = proto::JobAnswerRequest {
            queue: self.queue,
            waiter: self.waiter,
            wait_ms: self.wait.millis(),
            vhost: client.vhost(),
        };
        match client.jobs().answer(request).await.asked(what.clone())?.into_inner().answer {
            Some(answer) => print_answer(out, &answer),
            None => bail!("{what}: the job is not finished; --wait waits for it"),
        }
    }
}

impl LeaveArgs {
    pub(super) async fn run(self, client: &Client, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let Self { queue, waiter } = self;
        let what = format!("leave '{queue}' as '{waiter}'");
        let value = json!({ "queue": queue, "waiter": waiter, "left": true });
        let text = format!("'{waiter}' waits no more");
        let request = proto::LeaveJobRequest { queue, waiter, vhost: client.vhost() };
        client.jobs().leave(request).await.asked(what)?;
        out.show(&value, text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The result for people and programs; exit code 1 if the job was not done.
fn print_answer(out: &mut Printer, answer: &proto::JobAnswer) -> anyhow::Result<ExitCode> {
    let is_done = answer.outcome() == JobOutcome::Done;
    match out.format {
        Format::Json => out.json(&answer_value(answer))?,
        Format::Text if is_done => out.bytes(&answer.result)?,
        Format::Text => {}
    }
    if out.format == Format::Text && (!is_done || !answer.error.is_empty()) {
        let status = answer_value(answer)["status"].as_str().unwrap_or_default().to_owned();
        let reason = if answer.error.is_empty() { String::new() } else { format!(": {}", answer.error) };
        note(crate::plain::plain(&format!("job {} {status}{reason}", answer.job)));
    }
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const fn asked(state: JobAsked) -> &'static str {
    match state {
        JobAsked::Unspecified => "unknown",
        JobAsked::Created => "created",
        JobAsked::Joined => "joined",
        JobAsked::JoinedRunning => "joined_running",
        JobAsked::Cached => "cached",
        JobAsked::Known => "known",
    }
}
