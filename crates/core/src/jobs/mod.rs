//! Job queues: work that many ask for and that is done once, most urgent first, when a budget of tokens can pay for it.
//!
//! [`Jobs`] is one state machine for all job queues and budgets that stand beside each other: handing a job out takes it from
//! its queue and its cost from a budget that other queues share, in one record. Whoever *asks* for work is a *waiter*. A waiter
//! joins the job of its key that is pending, or running, or has just been done; otherwise its job is new. Workers *take* jobs
//! and *complete* or *fail* them, and then every waiter has an answer of its own.
//!
//! What is durable and follows from records alone: jobs, waiters, results, leases, budgets, figures (`state.rs`, `apply.rs`).
//! What is not, and is made anew by whoever hands out: the order in which jobs are served (`order.rs`). Scores follow the clock,
//! and only they evaluate expressions. So a replay evaluates none: which job was handed out is in the record.
//!
//! Filters and answers are the broker's business: here a finished job knows which of its waiters have been answered.
//! Read `job.rs`, then `decide.rs` and `apply.rs`.

mod apply;
mod budget;
mod changes;
mod command;
mod config;
mod decide;
mod error;
mod expressions;
mod figures;
mod job;
mod keys;
mod machine;
mod numbers;
mod order;
mod pending_kinds;
mod queue;
mod receipt;
mod record;
mod score;
mod score_failures;
mod snapshot;
mod state;
mod table;
mod token_log;
mod turns;
mod waiter;

pub use budget::{Budget, BudgetConfig, Refill, TokenReport};
pub use command::{Asked, AskedState, Handed, JobAnswer, JobCommand, NewJob, Settled, TakeOutcome};
pub use config::{Band, EmptyAnswers, JobQueueConfig, Overtake, WhileRunning};
pub use error::JobError;
pub use expressions::{CostRule, Filter, FilterError};
pub use figures::{Figures, KindFigures, Times};
pub use job::{Finish, Job, JobBody, JobState, Outcome, Run};
pub use machine::JobsOutline;
pub use pending_kinds::PendingOf;
pub use queue::{BandCount, JobQueue, Pending, Refreshed};
pub use receipt::{JobReceipt, JobReceiptError};
pub use record::{JobRecord, ReturnReason};
pub use score::{Score, ScorePolicy, Standing};
pub use state::Jobs;
pub use token_log::TokenUse;
pub use turns::Turns;
pub use waiter::{Reply, Waiter};
