//! All job queues and budgets that share a log of records, and how to find what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nexo_types::{BudgetId, BudgetName, JobId, JobQueueId, JobQueueName, Timestamp};

use super::budget::Budget;
use super::changes::{Changes, Part};
use super::job::Job;
use super::queue::{JobQueue, Refreshed};
use super::token_log::{TokenLog, TokenUse};

/// All job queues and budgets.
#[derive(Debug, Default)]
pub struct Jobs {
    pub(super) queues: BTreeMap<JobQueueId, JobQueue>,
    pub(super) queue_names: BTreeMap<JobQueueName, JobQueueId>,
    pub(super) budgets: BTreeMap<BudgetId, Budget>,
    pub(super) budget_names: BTreeMap<BudgetName, BudgetId>,
    /// Queues for whose jobs workers wait. Not durable.
    pub(super) wanted: BTreeSet<JobQueueId>,
    /// Queues of which another job may be the first since somebody asked. Not durable.
    pub(super) moved: BTreeSet<JobQueueId>,
    /// Queues with scores that could not be found for a reason that nobody was told yet. Not durable.
    pub(super) failing: BTreeSet<JobQueueId>,
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
        if is_wanted {
            self.wanted.insert(queue);
        } else {
            self.wanted.remove(&queue);
        }
    }

    /// Keeps scores current. At most `max` jobs of each queue are looked at; says whether there are more.
    pub fn refresh(&mut self, now: Timestamp, max: usize) -> bool {
        let mut more = false;
        for queue in self.queues.values_mut() {
            let Refreshed { more: has_more, moved } = queue.refresh(now, max);
            more |= has_more;
            if moved {
                self.moved.insert(queue.id);
            }
            if queue.failures.has_untold() {
                self.failing.insert(queue.id);
            }
        }
        more
    }

    /// The same for one queue, for somebody who then takes jobs from it. What [`Self::take_moved`] gives is not about that.
    pub fn refresh_queue(&mut self, queue: JobQueueId, now: Timestamp, max: usize) -> Refreshed {
        let Some(queue) = self.queues.get_mut(&queue) else { return Refreshed::default() };
        let refreshed = queue.refresh(now, max);
        if queue.failures.has_untold() {
            self.failing.insert(queue.id);
        }
        refreshed
    }

    /// Why scores could not be found, by queue: each reason once for each policy, and not more than a few.
    #[must_use]
    pub fn take_score_errors(&mut self) -> Vec<(JobQueueName, Arc<str>)> {
        let mut errors = Vec::new();
        for id in std::mem::take(&mut self.failing) {
            if let Some(queue) = self.queues.get_mut(&id) {
                let name = &queue.name;
                errors.extend(queue.failures.take_untold().into_iter().map(|error| (name.clone(), error)));
            }
        }
        errors
    }

    /// Queues of which another job may be the first, or more jobs can be handed out, since this was last asked: time has passed, a
    /// waiter joined, or a delay is over. Workers that wait for their jobs look again.
    #[must_use]
    pub fn take_moved(&mut self) -> BTreeSet<JobQueueId> {
        std::mem::take(&mut self.moved)
    }

    /// When a score may next change, if one does.
    #[must_use]
    pub fn next_refresh(&self) -> Option<Timestamp> {
        self.queues.values().filter_map(JobQueue::next_change).min()
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
