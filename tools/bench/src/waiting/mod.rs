//! Very many receives of SQS that wait: what they cost while nothing comes, and how soon a message wakes one of them, and
//! only one.

mod hall;
mod ledger;
mod report;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

pub use ledger::Woken;
pub use report::Waiting;

use crate::process::{self, Usage, Used};
use crate::progress::{Progress, Verdict, Watch};
use crate::protocol::Declared;
use crate::schedule::Schedule;
use crate::span;
use crate::sqs::SqsUrl;
use crate::tally::Totals;
use hall::Hall;

/// How often progress is shown.
const TICK: Duration = Duration::from_millis(100);
/// How long the broker may take to come to rest when everybody waits.
const SETTLE: Duration = Duration::from_secs(1);
/// How long the last messages may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to look for somebody who was woken as well.
const LINGER: Duration = Duration::from_millis(300);

/// Options of `waiting`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct WaitingOptions {
    /// The SQS API: sqs://host:port
    #[arg(long, value_name = "URL", default_value = "sqs://127.0.0.1:9324")]
    pub url: SqsUrl,
    /// Receivers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub receivers: u32,
    /// Queues, shared out among the receivers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub queues: u32,
    /// Messages to send
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub count: u32,
    /// Messages a second
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
    /// Seconds that a receive waits before it must begin anew; AWS and others allow 20
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub wait: u16,
    /// How long everybody waits for nothing, while the broker's processor time is looked at
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub rest: Duration,
    /// The broker's process, for its processor time and memory
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
}

/// What it took to wait for nothing.
#[derive(Clone, Copy, Debug)]
struct Rested {
    time: Duration,
    used: Used,
}

/// Runs the load.
///
/// # Errors
/// If the broker cannot be reached, refuses what it is asked, or ends a connection.
pub fn run(options: &WaitingOptions, watch: Watch<'_>) -> anyhow::Result<Waiting> {
    ensure!(
        options.queues <= options.receivers,
        "{} queues have no receiver each; --receivers is {}",
        options.queues,
        options.receivers
    );
    process::allow_many_files();
    let run = std::process::id();
    let names: Vec<String> = (0..options.queues).map(|n| format!("b{run}-waiting-{n}")).collect();
    let queues = options.url.create_queues(&names)?;
    let outcome = Hall::open(options, &queues.addresses).and_then(|hall| measure(hall, options, watch));
    let deleted = Box::new(queues).delete().context("cannot delete what was declared for the load");
    let found = outcome?;
    deleted?;
    Ok(found)
}

fn measure(mut hall: Hall, options: &WaitingOptions, watch: Watch<'_>) -> anyhow::Result<Waiting> {
    let mut watched = Watched::new(options, watch);
    watched.run(&mut hall, Instant::now() + SETTLE)?;
    let (began, before) = (Instant::now(), Usage::now(options.broker_pid)?);
    watched.run(&mut hall, began + options.rest)?;
    let used = Usage::now(options.broker_pid)?.since(&before)?;
    let rested = Rested { time: began.elapsed(), used };

    let schedule = Schedule::new(options.rate);
    let before = Usage::now(options.broker_pid)?;
    let began = hall.begin();
    for index in 0..u64::from(options.count) {
        let due = schedule.due(index);
        watched.run(&mut hall, began + due)?;
        if watched.verdict == Verdict::Enough {
            break;
        }
        hall.send(due)?;
    }
    let used = Usage::now(options.broker_pid)?.since(&before)?;
    let end = Instant::now() + PATIENCE;
    while hall.ledger.sums().none > 0 && Instant::now() < end {
        hall.run_until(Instant::now() + TICK)?;
    }
    hall.run_until(Instant::now() + LINGER)?;
    Ok(Waiting::new(options, &hall, rested, used))
}

/// Whoever watches, and what they said last.
struct Watched<'a> {
    watch: Watch<'a>,
    began: Instant,
    total: Duration,
    next: Instant,
    verdict: Verdict,
}

impl<'a> Watched<'a> {
    fn new(options: &WaitingOptions, watch: Watch<'a>) -> Self {
        let sending = Schedule::new(options.rate).due(u64::from(options.count));
        let now = Instant::now();
        let total = SETTLE + options.rest + sending;
        Self { watch, began: now, total, next: now, verdict: Verdict::GoOn }
    }

    /// Lets things happen until that moment, or until it is enough.
    fn run(&mut self, hall: &mut Hall, moment: Instant) -> anyhow::Result<()> {
        while self.verdict == Verdict::GoOn && Instant::now() < moment {
            hall.run_until(moment.min(self.next))?;
            if Instant::now() >= self.next {
                self.next = Instant::now() + TICK;
                let progress = self.progress(hall);
                self.verdict = (self.watch)(&progress);
            }
        }
        Ok(())
    }

    fn progress(&self, hall: &Hall) -> Progress {
        let (published, consumed) = (hall.ledger.sent(), hall.ledger.wake_nanos.len());
        let totals = Totals { published, confirmed: hall.send_nanos.len(), consumed };
        Progress { elapsed: self.began.elapsed(), total: self.total, totals }
    }
}
