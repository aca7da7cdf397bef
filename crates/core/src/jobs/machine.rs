//! Job queues and budgets as a [`Machine`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{BudgetId, JobId, JobQueueId, Timestamp};

use super::budget::Budget;
use super::command::{JobAnswer, JobCommand};
use super::config::JobQueueConfig;
use super::error::JobError;
use super::figures::Figures;
use super::job::Job;
use super::record::JobRecord;
use super::state::Jobs;
use super::token_log::TokenLog;
use crate::machine::{Decision, Machine};
use crate::message::Durability;
use crate::queue::{ChunkId, ChunkSlice};
use crate::wire::WireError;

impl Machine for Jobs {
    type Command = JobCommand;
    type Answer = Result<JobAnswer, JobError>;
    type Record = JobRecord;
    type Applied = ();
    type Missing = Infallible;
    type Outline = JobsOutline;

    fn decide(&self, now: Timestamp, command: &JobCommand) -> Decision<JobRecord, Self::Answer> {
        match self.decide_command(now, command) {
            Ok((records, answer)) => Decision::of(records, true, Ok(answer)),
            Err(refusal) => Decision::of([], true, Err(refusal)),
        }
    }

    fn apply(&mut self, record: &JobRecord, _: Durability) -> Result<(), Infallible> {
        self.apply_record(record);
        Ok(())
    }

    fn encode(record: &JobRecord) -> Bytes {
        record.encode()
    }

    fn decode(bytes: &[u8]) -> Result<JobRecord, WireError> {
        JobRecord::decode(bytes)
    }

    fn advance_time(&mut self, now: Timestamp, max: usize) -> bool {
        self.refresh(now, max)
    }

    fn next_deadline(&self, _: Timestamp) -> Option<Timestamp> {
        self.next_due().into_iter().chain(self.next_refresh()).min()
    }

    fn begin_snapshot(&mut self, _: impl Iterator<Item = ChunkId>, stale: &[ChunkId]) -> Bytes {
        self.changes.begin(stale);
        self.encode_head()
    }

    fn next_chunks(&mut self, chunks_max: usize, items_max: usize) -> Option<ChunkSlice> {
        self.encode_chunks(chunks_max, items_max)
    }

    fn has_chunk_changed(&self, chunk: ChunkId) -> bool {
        self.changes.has(chunk)
    }

    fn abandon_snapshot(&mut self, taken: &[ChunkId]) {
        self.changes.abandon(taken);
    }

    fn time_of(record: &JobRecord) -> Option<Timestamp> {
        record.time()
    }

    fn restore<'a>(head: &[u8], chunks: impl Iterator<Item = &'a [u8]>) -> Result<Self, WireError> {
        Self::from_snapshot(head, chunks)
    }

    fn outline(&self, _: Timestamp) -> JobsOutline {
        let queue = |queue: &super::JobQueue| QueueOutline {
            name: queue.name.to_string(),
            config: (*queue.config).clone(),
            budget: queue.budget,
            next: queue.next,
            figures: SameFigures(queue.figures.clone()),
            jobs: queue.jobs_from(0).map(|(id, job)| (id, job.clone())).collect(),
            counts: [queue.pending, queue.running, queue.memory_bytes(), queue.waiters_known()],
            pending_kinds: queue.pending_kinds.outline(),
        };
        JobsOutline {
            queues: self.queues.iter().map(|(id, known)| (*id, queue(known))).collect(),
            budgets: self.budgets.clone(),
            next: (self.next_queue, self.next_budget),
            token_log: self.token_log.clone(),
        }
    }
}

/// All job queues and budgets, to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct JobsOutline {
    queues: BTreeMap<JobQueueId, QueueOutline>,
    budgets: BTreeMap<BudgetId, Budget>,
    next: (u32, u32),
    token_log: TokenLog,
}

#[derive(Clone, Debug, PartialEq)]
struct QueueOutline {
    name: String,
    config: JobQueueConfig,
    budget: Option<BudgetId>,
    next: u64,
    figures: SameFigures,
    jobs: BTreeMap<JobId, Job>,
    /// What is kept beside the jobs, and follows from them.
    counts: [u64; 4],
    pending_kinds: BTreeMap<Arc<str>, Vec<u64>>,
}

/// Figures, compared by what they count.
#[derive(Clone, Debug)]
struct SameFigures(Figures);

impl PartialEq for SameFigures {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }
}

#[cfg(test)]
mod figures;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
