//! The books of job queues: who asked for what, who worked when, what was paid, and what must not be.
//!
//! Pure, as the ledger: moments come in as arguments, and whoever does something says so *before* it is sent. Why the rules are
//! fair to the broker:
//!
//! - *Waiters* (`waiters`). A request that was answered is durable, and so is what the broker says of it. One that was not is
//!   repeated with the same id until it is, so in the end every waiter is known. An answer names its job; all waiters of a job
//!   have the answers that follow from one end of it, which a worker must have sent.
//! - *Runs* (`runs`). A job was handed out before its worker reads of it, and is held for certain from then until the worker says
//!   anything that ends it, or its lease does. So two that hold the same key in one moment both have it from the broker. Leases
//!   are durable: they do not end with a connection or the broker's life.
//! - *Tokens* (`tokens`). What is left, reserved and used is what the budget began with and what has come since, whatever happens.
//!   A worker that completes a job after its lease is paid although its tokens may be with others by then: that, and nothing else,
//!   may take a budget below nothing.

mod answer;
mod runs;
#[cfg(test)]
mod tests;
mod tokens;
mod waiters;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;

use super::setup::Kind;
use crate::clock::Micros;
use crate::ledger::{Violation, What};
use runs::Run;
use tokens::Tokens;
use waiters::Waiter;

pub(crate) use answer::{Filter, items, reason};
pub(crate) use runs::{Hold, Word};
pub(crate) use tokens::Look;
pub(crate) use waiters::{Request, Via};

/// The broker's clock and ours may differ by this much: each begins with the wall clock of its own start.
pub(crate) const MARGIN: Micros = 50_000;

/// Somebody who waits, over all repetitions of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

/// A worker's hold of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunId(pub(super) u64);

/// A job, by the broker's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct JobNumber(pub(super) u64);

/// How a job ended, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With the result of this run.
    Done(RunId),
    /// This run has said that it cannot be done.
    GivenUp(RunId),
}

/// What is known of a job.
#[derive(Clone, Copy, Debug)]
struct Job {
    kind: Kind,
    end: Option<End>,
}

/// What happened, in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) jobs: u64,
    pub(crate) waiters: u64,
    /// Waiters that have their answer.
    pub(crate) answered: u64,
    /// Of these, by a message.
    pub(crate) messages: u64,
    pub(crate) messages_again: u64,
    pub(crate) handed_out: u64,
    /// Workers that were never heard of again.
    pub(crate) deaths: u64,
    pub(crate) failures: u64,
    pub(crate) given_up: u64,
    pub(crate) given_back: u64,
    pub(crate) extended: u64,
    /// Jobs that were completed when their lease was over, or perhaps.
    pub(crate) late: u64,
    /// Words that came too late to count.
    pub(crate) stale: u64,
    /// Looks at a budget that could not pay for every job.
    pub(crate) broke: u64,
}

/// The figures of one job queue, by the broker or by the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) created: u64,
    /// Created, joined or served from the cache: all waiters.
    pub(crate) waiters: u64,
    pub(crate) answered: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
}

/// The books.
#[derive(Debug, Default)]
pub(crate) struct Books {
    waiters: Vec<Waiter>,
    /// Those who have not got what they asked for.
    open: BTreeSet<WaiterId>,
    /// The last that were answered.
    recent: VecDeque<WaiterId>,
    jobs: HashMap<JobNumber, Job>,
    runs: Vec<Run>,
    /// Runs that nobody has ended yet, by their key.
    held: BTreeMap<(Kind, u8), Vec<RunId>>,
    /// Jobs said to be completed, without an answer so far.
    completing: BTreeSet<RunId>,
    tokens: Tokens,
    totals: Totals,
    found: Vec<Violation>,
}

impl Books {
    /// What was found to be wrong since the last time.
    pub(crate) fn take_found(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.found)
    }

    pub(crate) const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// What the broker should count for a queue when nothing is under way.
    pub(crate) fn figures(&self, kind: Kind) -> Figures {
        let jobs = || self.jobs.values().filter(|job| job.kind == kind);
        let waiters = self.waiters.iter().filter(|waiter| waiter.request.kind == kind && waiter.is_confirmed);
        let waiters = waiters.count() as u64;
        Figures {
            created: jobs().count() as u64,
            waiters,
            answered: waiters,
            done: jobs().filter(|job| matches!(job.end, Some(End::Done(_)))).count() as u64,
            failed: jobs().filter(|job| matches!(job.end, Some(End::GivenUp(_)))).count() as u64,
        }
    }

    /// Reports something that was seen elsewhere.
    pub(crate) fn report(&mut self, what: What, fact: impl Into<String>) {
        self.found.push(Violation::new(what, fact));
    }

    /// A job ended like this, as a worker or a waiter was told.
    fn ended(&mut self, number: JobNumber, end: End, said_by: &dyn fmt::Display) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        match job.end {
            None => job.end = Some(end),
            Some(before) if before == end => {}
            Some(before) => {
                let fact = format!(
                    "{said_by} was told of {number} that it ended as {end}; it had ended as {before}"
                );
                self.report(What::AnsweredTwice, fact);
            }
        }
    }

    /// Notes a job that somebody was told of.
    fn saw_job(&mut self, number: JobNumber, kind: Kind) {
        if self
            .jobs
            .insert(number, self.jobs.get(&number).copied().unwrap_or(Job { kind, end: None }))
            .is_none()
        {
            self.totals.jobs += 1;
        }
    }
}

impl WaiterId {
    /// From its text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.strip_prefix('w')?.parse().ok().map(Self)
    }
}

impl fmt::Display for WaiterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {}", self.0)
    }
}

impl fmt::Display for JobNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}", self.0)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(run) => write!(f, "done by {run}"),
            Self::GivenUp(run) => write!(f, "given up by {run}"),
        }
    }
}
