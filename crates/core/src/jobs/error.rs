//! Why something that was asked of job queues or budgets cannot be.

use std::sync::Arc;

use nexo_types::{BudgetName, JobId, JobQueueName, NameError, limits};
use thiserror::Error;

use super::receipt::JobReceipt;
use crate::config::ConfigError;

/// Why not.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum JobError {
    /// There is no such queue.
    #[error("there is no job queue '{name}'")]
    NoSuchQueue {
        /// As it was asked for.
        name: JobQueueName,
    },
    /// The queue is on its way out.
    #[error("job queue '{name}' is being deleted; nobody can wait for its jobs any more")]
    QueueGoing {
        /// Its name.
        name: JobQueueName,
    },
    /// The queue went while somebody waited.
    #[error("job queue '{name}' was deleted while this call waited; there is no answer any more")]
    QueueDeleted {
        /// Its name.
        name: JobQueueName,
    },
    /// There is no such budget.
    #[error("there is no budget '{name}'")]
    NoSuchBudget {
        /// As it was asked for.
        name: BudgetName,
    },
    /// The budget is needed.
    #[error("budget '{name}' pays for job queue '{queue}'; give that another budget first")]
    BudgetInUse {
        /// The one that was to go.
        name: BudgetName,
        /// A queue that has it.
        queue: JobQueueName,
    },
    /// There is no such job, or not any more.
    #[error("there is no job {job}; it was forgotten, or never was")]
    NoSuchJob {
        /// The number that was given.
        job: JobId,
    },
    /// There is no such waiter, or not any more.
    #[error("nobody waits as '{waiter}' in job queue '{queue}', or the answer is no longer remembered")]
    NoSuchWaiter {
        /// Where it was looked for.
        queue: JobQueueName,
        /// As it was given.
        waiter: Arc<str>,
    },
    /// The waiter waits for something else.
    #[error(
        "waiter '{waiter}' of job queue '{queue}' waits for key '{key}' already; it cannot wait for '{asked}' as well: use another id"
    )]
    OtherKey {
        /// The queue.
        queue: JobQueueName,
        /// The waiter's id.
        waiter: Arc<str>,
        /// The key that it asked for before.
        key: Arc<str>,
        /// The key that it asks for now.
        asked: Arc<str>,
    },
    /// The worker no longer has the job.
    #[error("job {} is not held by receipt {receipt} any more: {state}", .receipt.job)]
    NotHeld {
        /// What was shown: a hold that has ended, or never was.
        receipt: JobReceipt,
        /// What became of it.
        state: &'static str,
    },
    /// The job has come to its end.
    #[error("job {job} is finished: {state}")]
    Finished {
        /// The one that was to be changed.
        job: JobId,
        /// How it ended.
        state: &'static str,
    },
    /// A waiter's class is none of the queue's.
    #[error("job queue '{queue}' has {}; it has {}", named(class), known.join(", "))]
    UnknownClass {
        /// The one whose settings have the classes.
        queue: JobQueueName,
        /// What was given.
        class: Arc<str>,
        /// What there is.
        known: Vec<Arc<str>>,
    },
    /// The budget can never pay.
    #[error("the job costs {cost} tokens, and budget '{budget}' never holds more than {capacity}")]
    NeverPaid {
        /// What it costs.
        cost: u64,
        /// The one of the job's queue.
        budget: BudgetName,
        /// What it holds at most.
        capacity: u64,
    },
    /// A cost that is none.
    #[error("a cost is a whole number of tokens from 0 to {}; it is {cost}", limits::TOKENS_MAX)]
    BadCost {
        /// What was given, or what the expression gave.
        cost: String,
    },
    /// A setting that cannot be.
    #[error("{reason}")]
    BadSetting {
        /// Which, and what it should be.
        reason: String,
    },
    /// A field of a request that cannot be.
    #[error("{0}")]
    BadName(#[from] NameError),
    /// An expression that is none.
    #[error("the expression for {what} cannot be used: {reason}")]
    BadExpression {
        /// What it is for.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Too much of something.
    #[error("{what} is at most {max}; this would be more")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How much there may be.
        max: u64,
    },
    /// Job queues take as much memory as they may.
    #[error(
        "jobs take {used} bytes of memory and may take {max}; complete or cancel some, or allow more (jobs_bytes_max, memory_high)"
    )]
    OutOfMemory {
        /// What they take.
        used: u64,
        /// What they may take.
        max: u64,
    },
}

fn named(class: &str) -> String {
    match class {
        "" => "no place for a waiter without a class, which would be a class with an empty name".to_owned(),
        class => format!("no class '{class}'"),
    }
}

impl From<ConfigError> for JobError {
    fn from(error: ConfigError) -> Self {
        Self::BadSetting { reason: error.to_string() }
    }
}
