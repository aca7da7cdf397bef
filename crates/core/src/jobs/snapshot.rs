//! All job queues and budgets as bytes: a head with settings, figures and budgets, and chunks with jobs and uses of tokens.
//! Only chunks that have changed are written again (`changes.rs`).

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{BudgetId, JobQueueId, JobQueueName, Timestamp};

use super::budget::Budget;
use super::changes::Part;
use super::config::JobQueueConfig;
use super::figures::Figures;
use super::job::Job;
use super::queue::JobQueue;
use super::state::Jobs;
use crate::queue::{ChunkId, ChunkSlice};
use crate::wire::{Reader, WireError, Writer};

/// The versions in which the parts of a snapshot are written.
///
/// Version 2 of the head says of types and keys how long jobs and waiters waited, and of all what was used on the last day.
const HEAD_VERSION: u64 = 2;
/// Version 2 says of a job at work which budget it has reserved its cost in.
const CHUNK_VERSION: u64 = 2;
const JOBS: u8 = 0;
const TOKEN_LOG: u8 = 1;

impl Jobs {
    pub(super) fn encode_head(&self) -> Bytes {
        let mut out = Writer::with_capacity(1024);
        out.version(HEAD_VERSION);
        out.u64(self.next_queue.into());
        out.u64(self.next_budget.into());
        out.u64(self.budgets.len() as u64);
        for (id, budget) in &self.budgets {
            out.u64(id.0.into());
            budget.encode(&mut out);
        }
        out.u64(self.queues.len() as u64);
        for queue in self.queues.values() {
            out.u64(queue.id.0.into());
            out.text(queue.name.stored());
            queue.config.encode(&mut out);
            out.u64(queue.created_at.0);
            out.u64(queue.next);
            queue.figures.encode(&mut out);
        }
        out.u64(self.token_log.next());
        out.into_bytes()
    }

    pub(super) fn encode_chunks(&mut self, chunks_max: usize, items_max: usize) -> Option<ChunkSlice> {
        if !self.changes.is_ongoing() {
            return None;
        }
        let mut slice = ChunkSlice::default();
        let mut items = 0;
        while slice.chunks.len() < chunks_max && items < items_max {
            let Some((chunk, before)) = self.changes.next() else { break };
            let bytes = match before {
                Some(before) => before,
                None => {
                    let (bytes, count) = self.encode_chunk(chunk);
                    items += count;
                    bytes
                }
            };
            slice.chunks.push((chunk, bytes));
        }
        slice.more = self.changes.end_if_done();
        Some(slice)
    }

    /// A chunk as it is now, and how many items it has. No bytes if it has none.
    pub(super) fn encode_chunk(&self, chunk: ChunkId) -> (Bytes, usize) {
        let mut out = Writer::with_capacity(4096);
        out.version(CHUNK_VERSION);
        let count = match Part::of(chunk) {
            Part::Jobs(id, block) => {
                let Some(queue) = self.queues.get(&id) else { return (Bytes::new(), 0) };
                out.u8(JOBS);
                out.u64(id.0.into());
                let count = queue.jobs.block(block).count();
                out.u64(count as u64);
                for (number, job) in queue.jobs.block(block) {
                    out.u64(number);
                    job.encode(&mut out);
                }
                count
            }
            Part::TokenLog(block) => {
                out.u8(TOKEN_LOG);
                self.token_log.encode_block(block, &mut out)
            }
        };
        if count == 0 { (Bytes::new(), 0) } else { (out.into_bytes(), count) }
    }

    pub(super) fn from_snapshot<'a>(
        head: &[u8],
        chunks: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Self, WireError> {
        let mut input = Reader::new(head);
        let version = input.version("the snapshot of job queues", HEAD_VERSION)?;
        let mut jobs = Self { next_queue: input.u32()?, next_budget: input.u32()?, ..Self::default() };
        for _ in 0..input.u64()? {
            let id = BudgetId(input.u32()?);
            let budget = Budget::decode(&mut input)?;
            jobs.budget_names.insert(budget.name().clone(), id);
            jobs.budgets.insert(id, budget);
        }
        for _ in 0..input.u64()? {
            let id = JobQueueId(input.u32()?);
            let name = JobQueueName::from_stored(input.text()?).map_err(|_| WireError::BadName)?;
            let config = Arc::new(JobQueueConfig::decode(&mut input)?);
            let created_at = Timestamp(input.u64()?);
            let budget = config.budget.as_ref().and_then(|name| jobs.budget_id(name));
            let mut queue = JobQueue::new(id, name.clone(), config, budget, created_at);
            queue.next = input.u64()?;
            queue.figures = Figures::decode(&mut input, version)?;
            jobs.queue_names.insert(name, id);
            jobs.queues.insert(id, queue);
        }
        let next_use = input.u64()?;
        input.finish()?;
        for chunk in chunks {
            jobs.restore_chunk(chunk)?;
        }
        jobs.token_log.begin_at(next_use);
        Ok(jobs)
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), WireError> {
        let mut input = Reader::new(chunk);
        let version = input.version("a part of the snapshot of job queues", CHUNK_VERSION)?;
        match input.u8()? {
            JOBS => {
                let id = JobQueueId(input.u32()?);
                let queue = self.queues.get_mut(&id).ok_or(WireError::Range)?;
                for _ in 0..input.u64()? {
                    let number = input.u64()?;
                    let job = Job::decode(&mut input, version, queue.budget)?;
                    queue.restore_job(number, job);
                }
            }
            TOKEN_LOG => self.token_log.decode_block(&mut input)?,
            value => return Err(WireError::Unknown { what: "part of the snapshot of job queues", value }),
        }
        input.finish()
    }
}

impl JobQueue {
    fn restore_job(&mut self, number: u64, job: Job) {
        let is_found_by_key = job.is_pending() || job.is_running() || job.is_cached();
        if is_found_by_key {
            self.keys.insert(&self.jobs, job.key(), number);
        }
        let ids: Vec<(u32, Arc<str>)> = job.waiters().map(|(place, waiter)| (place, waiter.id)).collect();
        self.jobs.insert(number, Box::new(job));
        for (place, id) in ids {
            self.waiters.insert(&self.jobs, &id, number, place);
        }
        self.list(number);
    }
}
