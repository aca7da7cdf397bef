//! What can be asked of job queues, and what whoever asked is told.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{BudgetName, JobId, JobQueueName, Millis, Timestamp, VhostName};

use super::budget::{BudgetConfig, TokenReport};
use super::config::JobQueueConfig;
use super::job::JobBody;
use super::receipt::JobReceipt;
use super::waiter::Waiter;

/// What somebody, or time, wants.
#[derive(Clone, Debug, PartialEq)]
pub enum JobCommand {
    /// A queue with these settings, new or instead of those it has.
    PutQueue {
        /// With the virtual host, which must be there.
        name: JobQueueName,
        /// All of them: nothing is kept of what it had.
        config: Arc<JobQueueConfig>,
    },
    /// A queue goes, with its jobs.
    DeleteQueue {
        /// One that is there.
        name: JobQueueName,
    },
    /// A budget with these settings, new or instead of those it has.
    PutBudget {
        /// With the virtual host, which must be there.
        name: BudgetName,
        /// All of them: nothing is kept of those it had.
        config: BudgetConfig,
    },
    /// A budget goes.
    DeleteBudget {
        /// One that is there, and pays for no queue.
        name: BudgetName,
    },
    /// A virtual host goes.
    ForgetVhost {
        /// One that is on its way out.
        vhost: VhostName,
    },
    /// Work is to be done.
    Ask {
        /// By workers of this queue.
        queue: JobQueueName,
        /// It is not made if another of its key can be joined.
        job: NewJob,
        /// Who waits for it; `None` to have it done in the background.
        waiter: Option<Arc<Waiter>>,
    },
    /// A worker wants jobs.
    Take {
        /// Of this queue.
        queue: JobQueueName,
        /// What it is called.
        worker: Arc<str>,
        /// For how long; `None` for as long as the queue says.
        lease: Option<Millis>,
        /// At most so many.
        max: usize,
    },
    /// A worker needs longer, or tells how far it is.
    Extend {
        /// What it holds.
        receipt: JobReceipt,
        /// For how long from now; `None` for as long as the queue says.
        lease: Option<Millis>,
        /// How far it is, as JSON.
        progress: Option<Bytes>,
    },
    /// A worker is done.
    Complete {
        /// What it held.
        receipt: JobReceipt,
        /// The result, as JSON.
        result: Bytes,
        /// What it used; `None` for the cost.
        used: Option<u64>,
        /// What the API said.
        report: TokenReport,
    },
    /// A worker could not do it.
    Fail {
        /// What it held.
        receipt: JobReceipt,
        /// What the worker says of the failure.
        error: Arc<str>,
        /// What it used; `None` for the cost.
        used: Option<u64>,
        /// What the API said.
        report: TokenReport,
        /// Whether to try again, if attempts are left.
        retry: bool,
    },
    /// A worker gives a job back untouched. It keeps its place.
    GiveBack {
        /// What it held.
        receipt: JobReceipt,
    },
    /// Nobody wants a job any more.
    Cancel {
        /// One that is pending or running.
        job: JobId,
    },
    /// Nobody is to wait for jobs of a queue any more: those that have waiters are cancelled.
    CancelAll {
        /// The queue.
        queue: JobQueueName,
        /// The number of the job to begin with.
        from: u64,
        /// At most so many jobs are looked at.
        max: usize,
    },
    /// A waiter does not wait any more. A job that nobody waits for then is cancelled if it is pending.
    Leave {
        /// The one in which it waits: ids of waiters are unique in one queue.
        queue: JobQueueName,
        /// As it was given when it asked.
        waiter: Arc<str>,
    },
    /// Waiters of a finished job have been answered: all before this place.
    Answered {
        /// One that is finished.
        job: JobId,
        /// The first place that has no answer yet.
        before: u32,
    },
    /// An API has said how many tokens it has.
    Report {
        /// The one that pays at that API.
        budget: BudgetName,
        /// What it said.
        report: TokenReport,
    },
    /// Tokens come once.
    Grant {
        /// To this budget.
        budget: BudgetName,
        /// In tokens, at most 2^48.
        tokens: u64,
        /// From when on they can be spent.
        when: Timestamp,
    },
    /// Time has passed: leases end, deadlines pass, results are forgotten.
    Due {
        /// At most so many jobs.
        max: usize,
    },
    /// Memory is short: finished jobs that were answered are forgotten, the oldest first.
    Shrink {
        /// At most so many jobs of each queue.
        max: usize,
    },
}

/// A job that somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// What is to be done.
    pub body: Arc<JobBody>,
    /// What it costs.
    pub cost: u64,
    /// When it is too late for whoever asks.
    pub deadline: Option<Timestamp>,
    /// Whether it is done only when nothing more urgent is there, as long as nobody waits for it.
    pub background: bool,
}

/// What whoever asked is told.
#[derive(Clone, Debug, PartialEq)]
pub enum JobAnswer {
    /// It is done.
    Done,
    /// What became of a request for work.
    Asked(Asked),
    /// Jobs for a worker.
    Taken(TakeOutcome),
    /// What became of a worker's job.
    Settled(Settled),
    /// So many jobs were looked at; fewer than asked for if there are no more.
    Looked(usize),
    /// Jobs were cancelled; the number of the one to go on with, if there are more.
    Cancelled(Option<u64>),
}

/// What became of a request for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The job that the answer will come from.
    pub job: JobId,
    /// How it was found.
    pub state: AskedState,
}

/// How a job was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedState {
    /// It is new.
    Created,
    /// It was there, and waits to be worked on.
    Joined,
    /// It was being worked on.
    JoinedRunning,
    /// It was done already.
    Cached,
    /// This waiter had asked before.
    Known,
}

/// Jobs for a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TakeOutcome {
    /// The most urgent first.
    pub jobs: Vec<Handed>,
    /// When to try again, if there are jobs that cannot be handed out now and it is known.
    pub again_at: Option<Timestamp>,
    /// Whether the first job waits for more urgent ones of other queues, which the same budget is to pay before. Then it may also be
    /// its turn as soon as one of them is handed out, or nobody wants it any more.
    pub is_behind: bool,
    /// Whether nothing is handed out since scores are still to be found: the first job might not be the most urgent.
    pub is_unsorted: bool,
}

/// A job in a worker's hands.
#[derive(Clone, Debug, PartialEq)]
pub struct Handed {
    /// To be named when it is completed.
    pub receipt: JobReceipt,
    /// Which attempt it is, counted from 1. One that is given back does not count.
    pub attempt: u32,
    /// What is to be done.
    pub body: JobBody,
    /// What is reserved for it.
    pub cost: u64,
    /// The end of its lease: whoever is not done by then extends it.
    pub until: Timestamp,
    /// How many wait for it, from 0 for one in the background.
    pub waiters: u32,
    /// When the first of them needs it.
    pub due: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its score when it was handed out.
    pub score: f64,
}

/// What became of a worker's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is finished.
    Finished,
    /// It will be tried again, not before this moment.
    Retried(Timestamp),
    /// It is held until then.
    Held(Timestamp),
    /// It is pending again.
    Returned,
}
