//! `nexo produce`: random messages at a rate, to see a queue move.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use bytes::Bytes;
use nexo_grpc::proto;
use serde_json::json;

use crate::cli::{ServerArgs, at_least_one};
use crate::output::Printer;
use crate::progress;
use crate::push_pipe::PushPipe;
use crate::units::{Rate, Span};

/// Messages in one request at full speed.
const BATCH_MAX: u64 = 500;
/// How often messages are sent that have come due. Short enough to look even.
const TICK: Duration = Duration::from_millis(5);
/// Longest text: this is a toy, not a way to fill a disk in a hurry.
const SIZE_MAX: i64 = 1024 * 1024;

const EXAMPLES: &str = "\
Runs until --count, --for or Ctrl-C ends it, then prints a summary.

Examples:
  nexo produce mail --rate 100/s --for 10s
  nexo produce mail --count 1000000
  nexo produce mail --rate 5000/s --size 1000 --output json";

/// Push random messages at a rate: a load to play with
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProduceArgs {
    /// The queue
    queue: String,
    /// How many in a time, like 100/s; 0 is as fast as possible
    #[arg(long, value_name = "RATE", default_value = "0", value_parser = parse_rate)]
    rate: Pace,
    /// End after this many messages
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    count: Option<u64>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", allow_hyphen_values = true)]
    duration: Option<Span>,
    /// Characters in each message
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=SIZE_MAX))]
    size: u32,
}

/// How fast.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pace {
    Full,
    At(Rate),
}

/// How far a run has come.
struct Run {
    began: Instant,
    pace: Pace,
    count: Option<u64>,
    until: Option<Instant>,
    sent: u64,
    confirmed: u64,
    stopped: bool,
}

impl ProduceArgs {
    pub(crate) async fn run(self, shared: &ServerArgs) -> anyhow::Result<ExitCode> {
        let client = shared.connect().await?;
        let mut pipe = PushPipe::open(&client, &self.queue).await?;
        let bar = progress::bar(self.count, "producing");
        let mut run = Run::new(self.rate, self.count, self.duration);
        let mut ticks = tokio::time::interval(TICK);
        let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
        loop {
            let due = run.due(Instant::now());
            if run.is_over(Instant::now()) {
                pipe.finish();
                if !pipe.is_waiting() {
                    break;
                }
            } else if due > 0 && pipe.has_room() {
                let messages = (0..due).map(|_| random_message(self.size)).collect();
                pipe.send(messages).await?;
                run.sent += due;
                continue;
            }
            tokio::select! {
                outcomes = pipe.confirmed(), if pipe.is_waiting() => {
                    for outcome in outcomes? {
                        outcome.map_err(|reason| anyhow!("push to '{}': {reason}", self.queue))?;
                        run.confirmed += 1;
                    }
                    bar.set_position(run.confirmed);
                }
                _ = ticks.tick(), if !run.is_over(Instant::now()) => {}
                _ = &mut interrupted, if !run.stopped => run.stopped = true,
            }
        }
        bar.finish_and_clear();
        run.print(&self.queue, shared)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    fn new(pace: Pace, count: Option<u64>, duration: Option<Span>) -> Self {
        let began = Instant::now();
        // A time beyond what the clock can hold is no end.
        let until = duration.and_then(|duration| began.checked_add(duration.0.as_duration()));
        Self { began, pace, count, until, sent: 0, confirmed: 0, stopped: false }
    }

    /// How many messages should be sent at this moment, in one batch.
    fn due(&self, now: Instant) -> u64 {
        let behind = match self.pace {
            Pace::Full => BATCH_MAX,
            Pace::At(rate) => {
                let elapsed = now.saturating_duration_since(self.began).as_secs_f64();
                ((elapsed * rate.per_second()) as u64).saturating_sub(self.sent)
            }
        };
        let left = self.count.map_or(u64::MAX, |count| count.saturating_sub(self.sent));
        behind.min(left).min(BATCH_MAX)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.stopped
            || self.count.is_some_and(|count| self.sent >= count)
            || self.until.is_some_and(|until| now >= until)
    }

    fn print(&self, queue: &str, shared: &ServerArgs) -> anyhow::Result<()> {
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = self.confirmed as f64 / seconds.max(1e-9);
        let mut out = Printer::new(shared.output);
        out.show(
            &json!({ "queue": queue, "messages": self.confirmed, "seconds": seconds, "per_second": rate }),
            format_args!(
                "pushed {} messages to '{queue}' in {seconds:.2} s: {rate:.0} a second, each durable",
                self.confirmed
            ),
        )?;
        out.flush()?;
        Ok(())
    }
}

fn random_message(size: u32) -> proto::NewMessage {
    let text: String = (0..size).map(|_| fastrand::alphanumeric()).collect();
    proto::NewMessage { body: Bytes::from(text), ..proto::NewMessage::default() }
}

fn parse_rate(text: &str) -> Result<Pace, String> {
    match text {
        "0" => Ok(Pace::Full),
        text => match text.parse::<Rate>()? {
            Rate { count: 0, .. } => Ok(Pace::Full),
            rate => Ok(Pace::At(rate)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_full_speed() {
        assert_eq!(parse_rate("0"), Ok(Pace::Full));
        assert_eq!(parse_rate("0/s"), Ok(Pace::Full));
        assert!(matches!(parse_rate("100/s"), Ok(Pace::At(_))));
        assert!(parse_rate("100").is_err());
    }

    #[test]
    fn what_is_due_follows_the_rate_and_ends_with_the_count() {
        let mut run = Run::new(parse_rate("100/s").unwrap(), Some(30), None);
        assert_eq!(run.due(run.began), 0);
        assert_eq!(run.due(run.began + Duration::from_millis(200)), 20);
        run.sent = 20;
        assert_eq!(run.due(run.began + Duration::from_secs(60)), 10);
        run.sent = 30;
        assert!(run.is_over(run.began));
    }

    #[test]
    fn texts_have_the_size_that_was_asked_for() {
        assert_eq!(random_message(15).body.len(), 15);
    }
}
