//! `nexo jobs`: job queues, budgets, asking for work and doing it.

mod ask;
mod budget;
mod look;
mod queue;
mod settings;
mod watch;
mod work;

use std::io::Read;
use std::process::ExitCode;

use anyhow::Context;
use bytes::Bytes;
use clap::Subcommand;

use crate::cli::ServerArgs;
use crate::output::Printer;

const EXAMPLES: &str = "\
Many ask for work under a key; it is done once, and each who waits gets its own answer. Workers take
the most urgent job first, when the budget of tokens can pay for it.

Examples:
  nexo jobs budget set api --initial 20 --refill 5/1m
  nexo jobs queue set deals --budget api --cost 'search=size(payload.pages)'
  nexo jobs ask deals phones --payload '{\"pages\": [1, 2]}' --waiter ann --filter 'item.price < 100'
  nexo jobs take deals --wait 10s
  nexo jobs complete 0-1 '[{\"price\": 80}]'
  nexo jobs answer deals ann
  nexo jobs pending deals";

/// Job queues: work that many ask for and that is done once, most urgent first
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    command: JobsCommand,
}

#[derive(Debug, Subcommand)]
enum JobsCommand {
    /// Make, change, look at and delete job queues
    Queue(queue::JobQueueArgs),
    /// Make, change, look at and delete budgets of tokens
    Budget(budget::BudgetArgs),
    /// Ask for work: join the job of a key, or make one
    Ask(Box<ask::AskArgs>),
    /// Take jobs to work on, the most urgent first
    Take(work::TakeArgs),
    /// Say that a job is done
    Complete(work::CompleteArgs),
    /// Say that a job could not be done
    Fail(work::FailArgs),
    /// Give a job back untouched; it keeps its place
    Return(work::ReturnArgs),
    /// Ask for more time, and tell how far the work is
    Extend(work::ExtendArgs),
    /// Cancel a job; all who wait for it are told
    Cancel(look::CancelArgs),
    /// Wait no more for an answer
    Leave(ask::LeaveArgs),
    /// The answer to a waiter
    Answer(ask::AnswerArgs),
    /// The result that is cached under a key
    Result(look::ResultArgs),
    /// Pending jobs in the order in which they are taken
    Pending(look::PendingArgs),
    /// One job
    Show(look::ShowArgs),
    /// What tokens were used for, the latest first
    Tokens(look::TokensArgs),
    /// Figures of a job queue, every second anew
    Watch(watch::WatchArgs),
}

impl JobsArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let client = shared.connect().await?;
        let mut out = Printer::new(shared.output);
        let code = match self.command {
            JobsCommand::Queue(args) => args.run(&client, &mut out).await?,
            JobsCommand::Budget(args) => args.run(&client, &mut out).await?,
            JobsCommand::Ask(args) => args.run(&client, &mut out).await?,
            JobsCommand::Take(args) => args.run(&client, &mut out).await?,
            JobsCommand::Complete(args) => args.run(&client, &mut out).await?,
            JobsCommand::Fail(args) => args.run(&client, &mut out).await?,
            JobsCommand::Return(args) => args.run(&client, &mut out).await?,
            JobsCommand::Extend(args) => args.run(&client, &mut out).await?,
            JobsCommand::Cancel(args) => args.run(&client, &mut out).await?,
            JobsCommand::Leave(args) => args.run(&client, &mut out).await?,
            JobsCommand::Answer(args) => args.run(&client, &mut out).await?,
            JobsCommand::Result(args) => args.run(&client, &mut out).await?,
            JobsCommand::Pending(args) => args.run(&client, &mut out).await?,
            JobsCommand::Show(args) => args.run(&client, &mut out).await?,
            JobsCommand::Tokens(args) => args.run(&client, &mut out).await?,
            JobsCommand::Watch(args) => args.run(&client, &mut out).await?,
        };
        out.flush()?;
        Ok(code)
    }
}

/// JSON as it was typed; `-` is what standard input has.
fn json_input(text: String) -> anyhow::Result<Bytes> {
    if text != "-" {
        return Ok(text.into());
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes.into())
}

/// Now, in milliseconds since 1970, by this machine's clock.
fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}
