//! `nexo consume`: a worker. It runs a command for each message, or prints each, and says what became of it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use nexo_grpc::proto::{self, subscribe_response::Event};
use tokio::time::MissedTickBehavior;

use super::consumer::{Consumer, Link, Terms};
use super::execute::Program;
use super::queue::get_queue;
use crate::cli::{ServerArgs, at_least_one};
use crate::connect::{Asked, is_lost, said};
use crate::output::note;
use crate::signals::Signals;
use crate::units::Span;

/// Credit of a consumer that only prints: enough to keep the stream full.
const PRINT_CREDIT: u32 = 1000;
/// The first wait before a lost broker is tried again; each is twice the one before.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// The longest wait.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
The command gets the body on its standard input and NEXO_QUEUE, NEXO_ID, NEXO_ATTEMPT,
NEXO_PRIORITY, NEXO_RECEIPT and NEXO_HEADER_<NAME> in its environment. Exit code 0 acknowledges the
message, any other returns it. While the command runs, the lease is extended. Ctrl-C lets running
commands finish; a second one does not. If the broker goes away, it is tried again until it is back.

Without a command each message is acknowledged once whoever reads the output has read it; what nobody
read goes back to the queue.

Examples:
  nexo consume mail                                  print and acknowledge
  nexo consume mail | head -5                        five of them
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
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    count: Option<u64>,
    /// Lease the messages for this long, instead of what the queue says
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    visibility: Option<Span>,
    /// A program and its arguments, run for each message without a shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl ConsumeArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new()?;
        let client = shared.connect().await?;
        let queue = get_queue(&client, "consume", &self.queue).await?;
        let config = queue.config.unwrap_or_default();
        let dead_letters = queue.dead_letters.and_then(|dead| dead.target);
        let program = self.program();
        let credit = match (self.credit, &program) {
            (Some(credit), _) => credit,
            (None, Some(_)) => self.jobs,
            (None, None) => PRINT_CREDIT,
        };
        let terms = Terms {
            queue: self.queue.clone(),
            visibility_ms: self.visibility.map(Span::millis),
            lease_ms: self.visibility.map_or(config.visibility_ms(), Span::millis).max(1),
            attempts_max: config.max_attempts.filter(|max| *max > 0),
            drops_dead: matches!(dead_letters, Some(proto::dead_letter_target::Target::None(_))),
            two_phase: config.receipt_timeout_ms() > 0,
            credit: credit.into(),
            jobs_max: usize::try_from(self.jobs).unwrap_or(usize::MAX),
        };
        let mut consumer = Consumer::new(terms, program, shared.output, self.count);
        let mut link = Link::open(&client, consumer.start()).await?;
        let mut tries = 0;
        loop {
            consumer.begin(&link).await;
            match consume(&mut consumer, &mut link, &mut signals, &mut tries).await? {
                End::Done => break,
                End::Interrupted(code) => return Ok(code),
                End::Lost(reason) => {
                    note(format_args!("nexo: consume '{}': {reason}; trying again", self.queue))
                }
            }
            consumer.lost();
            link = match reconnect(shared, &mut consumer, &mut signals, &mut tries).await? {
                Some(link) => link,
                None => anyhow::bail!("consume '{}': ended without a connection to the broker", self.queue),
            };
        }
        link.close().await;
        consumer.outcome()
    }

    fn program(&self) -> Option<Program> {
        match &self.exec {
            Some(line) => Some(Program::Shell(line.clone())),
            None if self.command.is_empty() => None,
            None => Some(Program::Direct(self.command.clone())),
        }
    }
}

/// Why there is nothing more to do on a connection.
enum End {
    /// Enough is done.
    Done,
    /// Somebody asked for an end a second time.
    Interrupted(ExitCode),
    /// The broker is gone, for now.
    Lost(String),
}

/// Works until enough is done, someone asks for an end, or the broker is gone.
async fn consume(
    consumer: &mut Consumer,
    link: &mut Link,
    signals: &mut Signals,
    tries: &mut u32,
) -> anyhow::Result<End> {
    // A third of the lease: one extension may be late, and one lost, before the message is gone.
    let mut leases = tokio::time::interval(Duration::from_millis((consumer.terms.lease_ms / 3).max(1)));
    leases.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !consumer.is_done() {
        consumer.start_work();
        tokio::select! {
            // Whoever asked for an end before a command ended gets no other one started. Nothing of this is always ready: a
            // command ends for each message that is here, and those are no more than the credit.
            biased;
            (_, code) = signals.next() => {
                if consumer.stopping {
                    consumer.give_up().await;
                    return Ok(End::Interrupted(ExitCode::from(u8::try_from(code).unwrap_or(1))));
                }
                consumer.stop(link).await;
                if consumer.runs_commands() {
                    note(format_args!(
                        "nexo: consume '{}': waiting for what still runs; a second signal ends it",
                        consumer.terms.queue,
                    ));
                }
            }
            _ = leases.tick() => consumer.extend(link).await,
            Some(end) = consumer.work.join_next(), if !consumer.work.is_empty() => {
                consumer.work_ended(link, end?).await?;
            }
            reply = link.replies.message() => match reply {
                Ok(Some(proto::SubscribeResponse { event: Some(event) })) => match event {
                    Event::Started(_) => {
                        if *tries > 0 {
                            note(format_args!("nexo: consume '{}': connected again", consumer.terms.queue));
                        }
                        *tries = 0;
                    }
                    Event::Messages(batch) => consumer.take(link, batch.messages).await,
                    Event::Settled(reply) => consumer.settled(&reply)?,
                },
                Ok(Some(proto::SubscribeResponse { event: None })) => {}
                // A broker that stops ends its streams without a word.
                Ok(None) => return Ok(End::Lost("the broker ended the subscription".into())),
                Err(status) if is_lost(&status) => return Ok(End::Lost(said(&status))),
                Err(status) => return Err(status).asked(format!("consume '{}'", consumer.terms.queue)),
            },
        }
    }
    Ok(End::Done)
}

/// Tries to reach the broker again, with longer and longer waits. Commands go on running. `None` if someone asked for an
/// end meanwhile, and then what runs has ended.
async fn reconnect(
    shared: &ServerArgs,
    consumer: &mut Consumer,
    signals: &mut Signals,
    tries: &mut u32,
) -> anyhow::Result<Option<Link>> {
    loop {
        let wait = backoff(*tries, fastrand::f64());
        *tries = tries.saturating_add(1);
        let attempt = async {
            tokio::time::sleep(wait).await;
            let client = shared.connect().await.ok()?;
            Link::open(&client, consumer.start()).await.ok()
        };
        let interrupted = tokio::select! {
            link = attempt => match link {
                Some(link) => return Ok(Some(link)),
                None => false,
            },
            _ = signals.next() => true,
        };
        if interrupted {
            tokio::select! {
                () = consumer.finish_work() => {}
                _ = signals.next() => consumer.give_up().await,
            }
            return Ok(None);
        }
    }
}

/// How long to wait after so many attempts. `chance` is from 0 to 1: many workers that lost one broker must not all come
/// back in the same moment.
fn backoff(tries: u32, chance: f64) -> Duration {
    let longest = BACKOFF_FIRST.saturating_mul(1 << tries.min(16)).min(BACKOFF_MAX);
    longest.mul_f64(0.5 + chance / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_are_spread() {
        let longest: Vec<Duration> = (0..20).map(|tries| backoff(tries, 1.0)).collect();
        assert_eq!(longest[..3], [100, 200, 400].map(Duration::from_millis));
        assert!(longest.is_sorted());
        for tries in [7, 16, 17, 64, u32::MAX] {
            assert_eq!(backoff(tries, 1.0), BACKOFF_MAX, "after {tries} attempts");
        }
        assert_eq!(backoff(0, 0.0), BACKOFF_FIRST / 2, "at least half of it");
        assert!(backoff(3, 0.3) < backoff(3, 0.6), "workers come back at different times");
    }
}
