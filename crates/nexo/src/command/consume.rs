//! `nexo consume`: a worker. It runs a command for each message, or prints each, and says what became of it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use nexo_grpc::proto::{self, subscribe_response::Event};
use tokio::time::MissedTickBehavior;

use super::consumer::Consumer;
use super::execute::Program;
use super::queue::get_queue;
use crate::cli::Shared;
use crate::signals::Signals;
use crate::units::Span;

/// Credit of a consumer that only prints: enough to keep the stream full.
const PRINT_CREDIT: u32 = 1000;

const EXAMPLES: &str = "\
The command gets the body on its standard input and NEXO_QUEUE, NEXO_ID, NEXO_ATTEMPT,
NEXO_PRIORITY, NEXO_RECEIPT and NEXO_HEADER_<NAME> in its environment. Exit code 0 acknowledges the
message, any other returns it. While the command runs, the lease is extended. Ctrl-C lets running
commands finish; a second one does not.

Examples:
  nexo consume mail                                  print and acknowledge
  nexo consume mail --exec 'sendmail -t' --jobs 4
  nexo consume images --count 100 -- convert - out.png";

/// Run a command for each message, or print each
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConsumeArgs {
    /// The queue
    queue: String,
    /// A line for the shell, run for each message
    #[arg(long, value_name = "LINE", conflicts_with = "command")]
    exec: Option<OsString>,
    /// Commands that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,
    /// Messages that may be here at the same time [default: as many as jobs; 1000 when printing]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    credit: Option<u32>,
    /// End after this many messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Lease the messages for this long, instead of what the queue says
    #[arg(long, value_name = "TIME")]
    visibility: Option<Span>,
    /// A program and its arguments, run for each message without a shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl ConsumeArgs {
    pub(crate) async fn run(self, shared: &Shared) -> anyhow::Result<ExitCode> {
        let client = shared.server.connect().await?;
        let config = get_queue(&client, &self.queue).await?.config.unwrap_or_default();
        let visibility_ms = self.visibility.map_or(config.visibility_ms(), Span::millis).max(1);
        let program = self.program();
        let credit = match (self.credit, &program) {
            (Some(credit), _) => credit,
            (None, Some(_)) => self.jobs,
            (None, None) => PRINT_CREDIT,
        };
        let start = proto::SubscribeStart {
            queue: self.queue.clone(),
            visibility_ms: self.visibility.map(Span::millis),
            keep_leases: false,
        };
        let mut consumer = Consumer::subscribe(&client, start, program, self.jobs, shared.output).await?;
        consumer.two_phase = config.receipt_timeout_ms() > 0;
        consumer.visibility_ms = visibility_ms;
        consumer.left = self.count;
        consumer.ask(credit.into()).await?;
        consume(consumer, Signals::new()?).await
    }

    fn program(&self) -> Option<Program> {
        match &self.exec {
            Some(line) => Some(Program::Shell(line.clone())),
            None if self.command.is_empty() => None,
            None => Some(Program::Direct(self.command.clone())),
        }
    }
}

/// Works until enough is done, someone asks for an end, or the broker ends the subscription.
async fn consume(mut consumer: Consumer, mut signals: Signals) -> anyhow::Result<ExitCode> {
    // A third of the lease: one extension may be late, and one lost, before the message is gone.
    let mut leases = tokio::time::interval(Duration::from_millis((consumer.visibility_ms / 3).max(1)));
    leases.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !consumer.is_done() {
        consumer.start_jobs();
        tokio::select! {
            event = consumer.replies.message() => match consumer.next_event(event)? {
                Event::Started(_) => {}
                Event::Messages(batch) => consumer.take(batch.messages).await?,
                Event::Settled(reply) => consumer.settled(&reply)?,
            },
            Some(end) = consumer.jobs.join_next(), if !consumer.jobs.is_empty() => consumer.job_ended(end?).await?,
            _ = leases.tick() => consumer.extend().await?,
            (_, code) = signals.next() => {
                if consumer.stopping {
                    consumer.jobs.shutdown().await;
                    return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
                }
                consumer.stop();
            }
        }
    }
    consumer.close().await;
    Ok(ExitCode::SUCCESS)
}
