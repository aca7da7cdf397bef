//! All job queues and budgets that share a log of records, and how to find what is in them.

use std::collections::BTreeMap;

use nexo_types::{BudgetId, BudgetName, JobId, JobQueueId, JobQueueName, Timestamp};

use super::budget::Budget;
use super::changes::{Changes, Part};
use super::job::Job;
use super::queue::JobQueue;
use super::token_log::{TokenLog, TokenUse};

/// All job queues and budgets.
#[derive(Debug, Default)]
pub struct Jobs {
    pub(super) queues: BTreeMap<JobQueueId, JobQueue>,
    pub(super) queue_names: BTreeMap<JobQueueName, JobQueueId>,
    pub(super) budgets: BTreeMap<BudgetId, Budget>,
    pub(super) budget_names: BTreeMap<BudgetName, BudgetId>,
    /// Ids are not given twice.
    pub(super) next_queue: u32,
    pub(super) next_budget: u32,
    pub(super) token_log: TokenLog,
    pub(super) changes: Changes,
    /// What is gone and still to be freed, without anybody's lock.
    pub(super) garbage: Vec<JobQueue>,
}

impl Jobs {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A queue.
    #[must_use]
    pub fn queue(&self, name: &JobQueueName) -> Option<&JobQueue> {
        self.queues.get(self.queue_names.get(name)?)
    }

    /// A queue by its id.
    #[must_use]
    pub fn queue_by_id(&self, id: JobQueueId) -> Option<&JobQueue> {
        self.queues.get(&id)
    }

    /// All queues, by name.
    pub fn queues(&self) -> impl Iterator<Item = &JobQueue> {
        self.queue_names.values().filter_map(|id| self.queues.get(id))
    }

    /// A budget.
    #[must_use]
    pub fn budget(&self, name: &BudgetName) -> Option<&Budget> {
        self.budgets.get(self.budget_names.get(name)?)
    }

    /// A budget by its id.
    #[must_use]
    pub fn budget_by_id(&self, id: BudgetId) -> Option<&Budget> {
        self.budgets.get(&id)
    }

    /// All budgets, by name.
    pub fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.budget_names.values().filter_map(|id| self.budgets.get(id))
    }

    /// The id of a budget.
    #[must_use]
    pub fn budget_id(&self, name: &BudgetName) -> Option<BudgetId> {
        self.budget_names.get(name).copied()
    }

    /// The queues that a budget pays for.
    pub fn queues_of(&self, budget: BudgetId) -> impl Iterator<Item = &JobQueue> {
        self.queues.values().filter(move |queue| queue.budget == Some(budget))
    }

    /// A job, with its queue.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<(&JobQueue, &Job)> {
        let queue = self.queues.get(&id.queue())?;
        Some((queue, queue.jobs.get(id.sequence())?))
    }

    /// Uses of tokens from `since` on and before `until`, the latest first.
    pub fn token_log(&self, since: Timestamp, until: Timestamp) -> impl Iterator<Item = &TokenUse> {
        self.token_log.between(since, until)
    }

    /// What jobs take in memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.queues.values().map(JobQueue::memory_bytes).sum()
    }

    /// Says that workers wait for jobs of a queue, or none any more. Among queues that share a budget, those for which nobody
    /// waits do not hold up the others.
    pub fn set_wanted(&mut self, queue: JobQueueId, is_wanted: bool) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.is_wanted = is_wanted;
        }
    }

    /// Keeps scores current. At most `max` jobs are looked at; says whether there are more.
    pub fn refresh(&mut self, now: Timestamp, max: usize) -> bool {
        let mut more = false;
        for queue in self.queues.values_mut() {
            more |= queue.refresh(now, max);
        }
        more
    }

    /// The same for one queue.
    pub fn refresh_queue(&mut self, queue: JobQueueId, now: Timestamp, max: usize) -> bool {
        self.queues.get_mut(&queue).is_some_and(|queue| queue.refresh(now, max))
    }

    /// When a score may next change, if one does.
    #[must_use]
    pub fn next_refresh(&self) -> Option<Timestamp> {
        self.queues.values().filter_map(|queue| queue.order.next_change()).min()
    }

    /// Whether a job is finished and has waiters to whom answers are to be brought.
    #[must_use]
    pub fn is_to_answer(&self, job: JobId) -> bool {
        self.queues.get(&job.queue()).is_some_and(|queue| queue.to_answer.contains(&job.sequence()))
    }

    /// Finished jobs with waiters that have no answer, at most `max` of them.
    pub fn to_answer(&self, max: usize) -> impl Iterator<Item = JobId> + '_ {
        self.queues
            .values()
            .flat_map(|queue| queue.to_answer.iter().map(move |number| JobId::new(queue.id, *number)))
            .take(max)
    }

    /// Queues that were deleted, to be freed where nobody waits.
    #[must_use]
    pub fn take_garbage(&mut self) -> Vec<JobQueue> {
        std::mem::take(&mut self.garbage)
    }

    /// To be called before anything changes that a snapshot says of a job.
    pub(super) fn touch(&mut self, job: JobId) {
        self.touch_part(Part::of_job(job));
    }

    pub(super) fn touch_part(&mut self, part: Part) {
        let chunk = part.chunk();
        if self.changes.touch(chunk) {
            let (bytes, _) = self.encode_chunk(chunk);
            self.changes.keep(chunk, bytes);
        }
    }
}
