//! What happened to job queues, jobs and budgets, as it is written down.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{BudgetId, BudgetName, JobId, JobQueueId, JobQueueName, Timestamp, VhostName};

use super::budget::{BudgetConfig, TokenReport};
use super::config::JobQueueConfig;
use super::job::{JobBody, Outcome};
use super::waiter::Waiter;
use crate::wire::{Reader, WireError, Writer};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum JobRecord {
    /// A queue has these settings; it is new if its id is.
    PutQueue {
        /// Given once; 32 bits, since ids of its jobs begin with it.
        queue: JobQueueId,
        /// With the virtual host. No two queues have the same.
        name: JobQueueName,
        /// All of them, also those that stay as they were.
        config: Arc<JobQueueConfig>,
        /// The broker's time of the change.
        at: Timestamp,
    },
    /// A queue is gone, with all its jobs.
    DeleteQueue {
        /// Its jobs are known by it: their ids begin with this one.
        queue: JobQueueId,
        /// The broker's time of the change.
        at: Timestamp,
    },
    /// A budget has these settings; it is new if its id is.
    PutBudget {
        /// Given once.
        budget: BudgetId,
        /// With the virtual host. No two budgets have the same.
        name: BudgetName,
        /// All of them, also those that stay as they were.
        config: BudgetConfig,
        /// The broker's time of the change.
        at: Timestamp,
    },
    /// A budget is gone.
    DeleteBudget {
        /// No queue pays from it any more: whoever deletes it is refused until then.
        budget: BudgetId,
    },
    /// A virtual host is gone, with its job queues and budgets.
    ForgetVhost {
        /// Its job queues and budgets go with it.
        vhost: VhostName,
        /// The broker's time of the change.
        at: Timestamp,
    },
    /// A job is new.
    Create {
        /// The next number of its queue, behind the queue's id.
        job: JobId,
        /// What is to be done.
        body: Arc<JobBody>,
        /// What it costs.
        cost: u64,
        /// Whether nobody waits for it.
        background: bool,
        /// When it is too late; `MAX` for never.
        deadline: Timestamp,
        /// `None` for a job in the background.
        waiter: Option<Arc<Waiter>>,
        /// The broker's time of the request: the job is as old as that.
        at: Timestamp,
    },
    /// A job that nobody waits for is as urgent from here on as if somebody did.
    Raise {
        /// One that is pending, and was asked for in the background.
        job: JobId,
    },
    /// Somebody waits for a job that is there.
    Join {
        /// One that is pending or running, or whose result answers the waiter at once.
        job: JobId,
        /// It gets the next place among those of the job.
        waiter: Arc<Waiter>,
        /// When it is too late now; `MAX` for never.
        deadline: Timestamp,
    },
    /// A waiter does not wait any more.
    Leave {
        /// It stays, unless a record behind this one cancels it.
        job: JobId,
        /// That of the waiter, from 0 in the order in which they came. No place is used twice.
        place: u32,
    },
    /// A job is handed to a worker, and its cost is reserved.
    HandOut {
        /// One that is pending.
        job: JobId,
        /// What it calls itself, for whoever looks at the job.
        worker: Arc<str>,
        /// The end of its lease.
        until: Timestamp,
        /// The broker's time of the hand-out.
        at: Timestamp,
    },
    /// A worker needs longer, or tells how far it is.
    Extend {
        /// One that is running.
        job: JobId,
        /// The new end of its lease.
        until: Timestamp,
        /// What it told, if it did.
        progress: Option<Bytes>,
    },
    /// A job comes back from its worker and is pending again. What was reserved is settled.
    Return {
        /// One that was running.
        job: JobId,
        /// When it may be handed out again.
        ready_at: Timestamp,
        /// What ended the worker's hold.
        why: ReturnReason,
        /// What the attempt used.
        used: u64,
        /// What the API said.
        report: TokenReport,
        /// The broker's time of the return.
        at: Timestamp,
    },
    /// A job has come to its end. What was reserved is settled.
    Finish {
        /// One that was running, or pending if nobody can or will work on it.
        job: JobId,
        /// What came of it.
        outcome: Outcome,
        /// What the last attempt used.
        used: u64,
        /// What the API said.
        report: TokenReport,
        /// The broker's time of the end.
        at: Timestamp,
    },
    /// Waiters of a finished job have been answered: all before this place.
    Answered {
        /// One that is finished.
        job: JobId,
        /// The first place that has no answer yet.
        before: u32,
    },
    /// A finished job is forgotten, with its result and its waiters' ids.
    Forget {
        /// One that is finished. Whoever asks for its key later has a new one made.
        job: JobId,
    },
    /// An API has said how many tokens it has.
    Report {
        /// The one that pays at that API.
        budget: BudgetId,
        /// What it said.
        report: TokenReport,
        /// The broker's time of the report: refills count from it.
        at: Timestamp,
    },
    /// Tokens come once.
    Grant {
        /// The one that has more from then on, within its capacity.
        budget: BudgetId,
        /// In tokens, at most 2^48.
        tokens: u64,
        /// When they can be spent: at once if that has passed.
        when: Timestamp,
        /// The broker's time of the request.
        at: Timestamp,
    },
}

/// Why a job comes back from its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnReason {
    /// The worker gave it back untouched: the attempt does not count.
    GivenBack,
    /// The worker could not do it.
    Failed,
    /// The worker's time was up. It may still complete the job, if nobody else has begun.
    LeaseEnded,
}

impl ReturnReason {
    const fn number(self) -> u8 {
        match self {
            Self::GivenBack => 0,
            Self::Failed => 1,
            Self::LeaseEnded => 2,
        }
    }

    const fn of_number(value: u8) -> Result<Self, WireError> {
        match value {
            0 => Ok(Self::GivenBack),
            1 => Ok(Self::Failed),
            2 => Ok(Self::LeaseEnded),
            value => Err(WireError::Unknown { what: "reason for which a job comes back", value }),
        }
    }
}

/// The version in which records are written.
const VERSION: u8 = 1;

impl JobRecord {
    /// When it happened, where that matters.
    #[must_use]
    pub fn time(&self) -> Option<Timestamp> {
        match self {
            Self::PutQueue { at, .. }
            | Self::DeleteQueue { at, .. }
            | Self::PutBudget { at, .. }
            | Self::ForgetVhost { at, .. }
            | Self::Create { at, .. }
            | Self::HandOut { at, .. }
            | Self::Return { at, .. }
            | Self::Finish { at, .. }
            | Self::Report { at, .. }
            | Self::Grant { at, .. } => Some(*at),
            Self::Join { waiter, .. } => Some(waiter.at),
            Self::DeleteBudget { .. }
            | Self::Raise { .. }
            | Self::Leave { .. }
            | Self::Extend { .. }
            | Self::Answered { .. }
            | Self::Forget { .. } => None,
        }
    }

    /// The bytes to write down.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(96);
        match self {
            Self::PutQueue { queue, name, config, at } => {
                out.tag(VERSION, 0);
                out.u64(queue.0.into());
                out.text(name.stored());
                config.encode(&mut out);
                out.u64(at.0);
            }
            Self::DeleteQueue { queue, at } => {
                out.tag(VERSION, 1);
                out.u64(queue.0.into());
                out.u64(at.0);
            }
            Self::PutBudget { budget, name, config, at } => {
                out.tag(VERSION, 2);
                out.u64(budget.0.into());
                out.text(name.stored());
                config.encode(&mut out);
                out.u64(at.0);
            }
            Self::DeleteBudget { budget } => {
                out.tag(VERSION, 3);
                out.u64(budget.0.into());
            }
            Self::ForgetVhost { vhost, at } => {
                out.tag(VERSION, 4);
                out.text(vhost.as_str());
                out.u64(at.0);
            }
            Self::Create { job, body, cost, background, deadline, waiter, at } => {
                out.tag(VERSION, 5);
                out.u64(job.0);
                body.encode(&mut out);
                out.u64(*cost);
                out.u8(u8::from(*background));
                out.u64(deadline.0);
                match waiter {
                    None => out.u8(0),
                    Some(waiter) => {
                        out.u8(1);
                        waiter.encode(&mut out);
                    }
                }
                out.u64(at.0);
            }
            Self::Join { job, waiter, deadline } => {
                out.tag(VERSION, 6);
                out.u64(job.0);
                waiter.encode(&mut out);
                out.u64(deadline.0);
            }
            Self::Leave { job, place } => {
                out.tag(VERSION, 7);
                out.u64(job.0);
                out.u64((*place).into());
            }
            Self::HandOut { job, worker, until, at } => {
                out.tag(VERSION, 8);
                out.u64(job.0);
                out.text(worker);
                out.u64(until.0);
                out.u64(at.0);
            }
            Self::Extend { job, until, progress } => {
                out.tag(VERSION, 9);
                out.u64(job.0);
                out.u64(until.0);
                match progress {
                    None => out.u8(0),
                    Some(progress) => {
                        out.u8(1);
                        out.bytes(progress);
                    }
                }
            }
            Self::Return { job, ready_at, why, used, report, at } => {
                out.tag(VERSION, 10);
                out.u64(job.0);
                out.u64(ready_at.0);
                out.u8(why.number());
                out.u64(*used);
                report.encode(&mut out);
                out.u64(at.0);
            }
            Self::Finish { job, outcome, used, report, at } => {
                out.tag(VERSION, 11);
                out.u64(job.0);
                outcome.encode(&mut out);
                out.u64(*used);
                report.encode(&mut out);
                out.u64(at.0);
            }
            Self::Answered { job, before } => {
                out.tag(VERSION, 12);
                out.u64(job.0);
                out.u64((*before).into());
            }
            Self::Forget { job } => {
                out.tag(VERSION, 13);
                out.u64(job.0);
            }
            Self::Report { budget, report, at } => {
                out.tag(VERSION, 14);
                out.u64(budget.0.into());
                report.encode(&mut out);
                out.u64(at.0);
            }
            Self::Grant { budget, tokens, when, at } => {
                out.tag(VERSION, 15);
                out.u64(budget.0.into());
                out.u64(*tokens);
                out.u64(when.0);
                out.u64(at.0);
            }
            Self::Raise { job } => {
                out.tag(VERSION, 16);
                out.u64(job.0);
            }
        }
        out.into_bytes()
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        let (_, kind) = input.tag("a record of job queues", VERSION)?;
        let from = &mut input;
        let record = match kind {
            0 => Self::PutQueue {
                queue: JobQueueId(from.u32()?),
                name: JobQueueName::from_stored(from.text()?).map_err(|_| WireError::BadName)?,
                config: Arc::new(JobQueueConfig::decode(from)?),
                at: Timestamp(from.u64()?),
            },
            1 => Self::DeleteQueue { queue: JobQueueId(from.u32()?), at: Timestamp(from.u64()?) },
            2 => Self::PutBudget {
                budget: BudgetId(from.u32()?),
                name: BudgetName::from_stored(from.text()?).map_err(|_| WireError::BadName)?,
                config: BudgetConfig::decode(from)?,
                at: Timestamp(from.u64()?),
            },
            3 => Self::DeleteBudget { budget: BudgetId(from.u32()?) },
            4 => Self::ForgetVhost {
                vhost: VhostName::new(from.text()?).map_err(|_| WireError::BadName)?,
                at: Timestamp(from.u64()?),
            },
            5 => Self::Create {
                job: JobId(from.u64()?),
                body: Arc::new(JobBody::decode(from)?),
                cost: from.u64()?,
                background: from.flag()?,
                deadline: Timestamp(from.u64()?),
                waiter: match from.flag()? {
                    false => None,
                    true => Some(Arc::new(Waiter::decode(from)?)),
                },
                at: Timestamp(from.u64()?),
            },
            6 => Self::Join {
                job: JobId(from.u64()?),
                waiter: Arc::new(Waiter::decode(from)?),
                deadline: Timestamp(from.u64()?),
            },
            7 => Self::Leave { job: JobId(from.u64()?), place: from.u32()? },
            8 => Self::HandOut {
                job: JobId(from.u64()?),
                worker: from.text()?.into(),
                until: Timestamp(from.u64()?),
                at: Timestamp(from.u64()?),
            },
            9 => Self::Extend {
                job: JobId(from.u64()?),
                until: Timestamp(from.u64()?),
                progress: match from.flag()? {
                    false => None,
                    true => Some(Bytes::copy_from_slice(from.bytes()?)),
                },
            },
            10 => Self::Return {
                job: JobId(from.u64()?),
                ready_at: Timestamp(from.u64()?),
                why: ReturnReason::of_number(from.u8()?)?,
                used: from.u64()?,
                report: TokenReport::decode(from)?,
                at: Timestamp(from.u64()?),
            },
            11 => Self::Finish {
                job: JobId(from.u64()?),
                outcome: Outcome::decode(from)?,
                used: from.u64()?,
                report: TokenReport::decode(from)?,
                at: Timestamp(from.u64()?),
            },
            12 => Self::Answered { job: JobId(from.u64()?), before: from.u32()? },
            13 => Self::Forget { job: JobId(from.u64()?) },
            14 => Self::Report {
                budget: BudgetId(from.u32()?),
                report: TokenReport::decode(from)?,
                at: Timestamp(from.u64()?),
            },
            15 => Self::Grant {
                budget: BudgetId(from.u32()?),
                tokens: from.u64()?,
                when: Timestamp(from.u64()?),
                at: Timestamp(from.u64()?),
            },
            16 => Self::Raise { job: JobId(from.u64()?) },
            value => return Err(WireError::Unknown { what: "kind of record of job queues", value }),
        };
        input.finish()?;
        Ok(record)
    }
}
