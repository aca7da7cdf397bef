//! What a record makes of the state. Nothing here looks at a clock or evaluates an expression, and nothing can fail: a record
//! that does not fit, since its job is gone for example, changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use nexo_types::{BudgetId, JobId, JobQueueId, Millis, Timestamp, VhostName};

use super::budget::{Budget, TokenReport};
use super::changes::Part;
use super::figures::Times;
use super::job::{Finish, Job, JobState, Outcome, Run};
use super::queue::JobQueue;
use super::record::{JobRecord, ReturnReason};
use super::state::Jobs;
use super::token_log::TokenUse;
use super::waiter::Waiter;

impl Jobs {
    pub(super) fn apply_record(&mut self, record: &JobRecord) {
        match record {
            JobRecord::PutQueue { queue, name, config, at } => {
                let budget = config.budget.as_ref().and_then(|name| self.budget_id(name));
                self.next_queue = self.next_queue.max(queue.0 + 1);
                match self.queues.get_mut(queue) {
                    Some(known) => known.configure(Arc::clone(config), budget),
                    None => {
                        let new = JobQueue::new(*queue, name.clone(), Arc::clone(config), budget, *at);
                        self.queues.insert(*queue, new);
                        self.queue_names.insert(name.clone(), *queue);
                    }
                }
            }
            JobRecord::DeleteQueue { queue, at } => self.delete_queue(*queue, *at),
            JobRecord::PutBudget { budget, name, config, at } => {
                self.next_budget = self.next_budget.max(budget.0 + 1);
                match self.budgets.get_mut(budget) {
                    Some(known) => known.configure(*config, *at),
                    None => {
                        self.budgets.insert(*budget, Budget::new(name.clone(), *config, *at));
                        self.budget_names.insert(name.clone(), *budget);
                    }
                }
            }
            JobRecord::DeleteBudget { budget } => {
                if let Some(gone) = self.budgets.remove(budget) {
                    self.budget_names.remove(gone.name());
                }
            }
            JobRecord::ForgetVhost { vhost, at } => self.forget_vhost(vhost, *at),
            JobRecord::Create { job, body, cost, background, deadline, waiter, at } => {
                let new = Job::new(body, *cost, *background, *deadline, *at);
                self.create(*job, new, waiter.as_deref());
            }
            JobRecord::Raise { job } => self.with(*job, |_, job| job.background = false),
            JobRecord::Join { job, waiter, deadline } => self.join(*job, waiter, *deadline),
            JobRecord::Leave { job, place } => self.leave(*job, *place),
            JobRecord::HandOut { job, worker, until, at } => self.hand_out(*job, worker, *until, *at),
            JobRecord::Extend { job, until, progress } => {
                self.with(*job, |_, job| {
                    if let JobState::Running(run) = &mut job.state {
                        run.until = *until;
                        if let Some(progress) = progress {
                            run.progress = progress.clone();
                        }
                    }
                });
            }
            JobRecord::Return { job, ready_at, why, used, report, at } => {
                self.settle(*job, *used, report, *at, false);
                self.with(*job, |queue, job| {
                    match why {
                        ReturnReason::GivenBack => job.attempts = job.attempts.saturating_sub(1),
                        ReturnReason::Failed | ReturnReason::LeaseEnded => queue.figures.retried += 1,
                    }
                    if *why != ReturnReason::LeaseEnded {
                        // Whoever has let go of it has nothing more to say: the next receipt is another one.
                        job.holds = job.holds.saturating_add(1);
                    }
                    job.state = JobState::Pending { ready_at: *ready_at };
                });
            }
            JobRecord::Finish { job, outcome, used, report, at } => {
                let is_done = matches!(outcome, Outcome::Done(_));
                self.settle(*job, *used, report, *at, is_done);
                self.finish(*job, outcome, *at);
            }
            JobRecord::Answered { job, before } => self.with(*job, |queue, job| {
                queue.figures.answered += job.note_answered(*before);
            }),
            JobRecord::Forget { job } => self.forget(*job),
            JobRecord::Report { budget, report, at } => {
                if let Some(budget) = self.budgets.get_mut(budget) {
                    budget.report(*at, report);
                }
            }
            JobRecord::Grant { budget, tokens, when, at } => {
                if let Some(budget) = self.budgets.get_mut(budget) {
                    budget.grant(*at, *when, *tokens);
                }
            }
        }
    }

    /// Changes a job. What is known of it besides (indexes, counts, deadlines, its place in the order) follows.
    fn with(&mut self, id: JobId, change: impl FnOnce(&mut JobQueue, &mut Job)) {
        self.touch(id);
        let Some(queue) = self.queues.get_mut(&id.queue()) else { return };
        let number = id.sequence();
        queue.take_out(number);
        let Some(mut job) = queue.jobs.remove(number) else { return };
        queue.unlist(number, &job);
        let was_running = job.is_running();
        change(queue, &mut job);
        let is_running = job.is_running();
        queue.jobs.insert(number, job);
        queue.list(number);
        if was_running != is_running {
            // Others of its key may be handed out only when it is not running.
            for sibling in queue.siblings(number) {
                queue.take_out(sibling);
                queue.rescore(sibling);
            }
        }
    }

    fn create(&mut self, id: JobId, job: Job, waiter: Option<&Waiter>) {
        self.touch(id);
        let Some(queue) = self.queues.get_mut(&id.queue()) else { return };
        let number = id.sequence();
        queue.next = queue.next.max(number + 1);
        queue.figures.created += 1;
        // What waits has a row of figures, even if nothing has happened to it yet.
        queue.figures.note(job.kind(), job.key(), |_| {});
        queue.keys.insert(&queue.jobs, job.key(), number);
        queue.jobs.insert(number, Box::new(job));
        queue.list(number);
        if let Some(waiter) = waiter {
            self.add_waiter(id, waiter);
        }
    }

    fn join(&mut self, id: JobId, waiter: &Waiter, deadline: Timestamp) {
        let mut hit = None;
        self.with(id, |queue, job| {
            job.deadline = deadline;
            let remember = queue.config.remember;
            if let JobState::Finished(finish) = &mut job.state {
                finish.until = finish.until.max(waiter.at.plus(remember));
                hit = Some((job.kind().to_owned(), job.key().to_owned()));
            } else {
                queue.figures.joined += 1;
            }
        });
        self.add_waiter(id, waiter);
        if let (Some((kind, key)), Some(queue)) = (hit, self.queues.get_mut(&id.queue())) {
            queue.figures.cache_hits += 1;
            queue.figures.responses.note(Millis::ZERO);
            queue.figures.note(&kind, &key, |figures| {
                figures.cache_hits += 1;
                figures.responses.note(Millis::ZERO);
            });
        }
    }

    fn add_waiter(&mut self, id: JobId, waiter: &Waiter) {
        let mut place = 0;
        self.with(id, |queue, job| {
            place = job.join(waiter);
            queue.figures.answered += job.note_answered(0);
        });
        if let Some(queue) = self.queues.get_mut(&id.queue()) {
            queue.waiters.insert(&queue.jobs, &waiter.id, id.sequence(), place);
        }
    }

    fn leave(&mut self, id: JobId, place: u32) {
        let number = id.sequence();
        if let Some(queue) = self.queues.get_mut(&id.queue())
            && let Some(job) = queue.jobs.get(number)
        {
            let waiter = job.id_at(place).to_owned();
            queue.waiters.remove(&waiter, number, place);
        }
        self.with(id, |_, job| job.leave(place));
    }

    fn hand_out(&mut self, id: JobId, worker: &Arc<str>, until: Timestamp, at: Timestamp) {
        let mut reserved = (None, 0);
        self.with(id, |queue, job| {
            reserved = (queue.budget, job.cost);
            if job.holds == 0 {
                let wait = at.since(job.created_at);
                queue.figures.waits.note(wait);
                queue.figures.note(job.kind(), job.key(), |figures| figures.waits.note(wait));
            }
            job.attempts += 1;
            job.holds = job.holds.saturating_add(1);
            job.state = JobState::Running(Box::new(Run {
                worker: Arc::clone(worker),
                since: at,
                until,
                progress: bytes::Bytes::new(),
                budget: queue.budget,
            }));
        });
        if let (Some(budget), cost) = reserved
            && let Some(budget) = self.budgets.get_mut(&budget)
        {
            budget.reserve(at, cost);
        }
    }

    /// A worker's hold ends: what was reserved is given back, less what was used.
    fn settle(&mut self, id: JobId, used: u64, report: &TokenReport, at: Timestamp, success: bool) {
        let Some(queue) = self.queues.get_mut(&id.queue()) else { return };
        let Some(job) = queue.jobs.get(id.sequence()) else { return };
        let budget = job.paid_by(queue);
        let (reserved, took) = match &job.state {
            JobState::Running(run) => (job.cost, at.since(run.since)),
            JobState::Pending { .. } | JobState::Finished(_) => (0, Millis::ZERO),
        };
        let (kind, key): (Arc<str>, Arc<str>) = (job.kind().into(), job.key().into());
        if used > 0 {
            queue.figures.note_tokens(&kind, &key, at, used);
        }
        // What no budget has paid for is in the figures, and is nobody's use.
        let log = budget.filter(|_| used > 0).map(|budget| TokenUse {
            at,
            budget,
            job: id,
            kind,
            key,
            tokens: used,
            success,
            took,
        });
        self.settle_budget(budget, reserved, used, report, at);
        if let Some(used) = log {
            self.touch_part(Part::of_use(self.token_log.next()));
            if let Some(oldest) = self.token_log.to_give_way() {
                self.touch_part(Part::of_use(oldest));
            }
            self.token_log.push(used);
        }
    }

    fn settle_budget(
        &mut self,
        budget: Option<BudgetId>,
        reserved: u64,
        used: u64,
        report: &TokenReport,
        at: Timestamp,
    ) {
        if let Some(budget) = budget.and_then(|id| self.budgets.get_mut(&id)) {
            budget.settle(at, reserved, used);
            if !report.is_empty() {
                budget.report(at, report);
            }
        }
    }

    fn finish(&mut self, id: JobId, outcome: &Outcome, at: Timestamp) {
        let is_done = matches!(outcome, Outcome::Done(_));
        let mut before = None;
        self.with(id, |queue, job| {
            let took = match &job.state {
                JobState::Running(run) => at.since(run.since),
                JobState::Pending { .. } | JobState::Finished(_) => Millis::ZERO,
            };
            let is_run = job.attempts > 0;
            let (kind, key) = (job.kind().to_owned(), job.key().to_owned());
            match outcome {
                Outcome::Done(_) => queue.figures.done += 1,
                Outcome::Failed(_) => queue.figures.failed += 1,
                Outcome::Cancelled => queue.figures.cancelled += 1,
                Outcome::Expired => queue.figures.expired += 1,
            }
            if is_run {
                queue.figures.runs.note(took);
            }
            let mut responses = Times::default();
            if is_done {
                job.waiters().for_each(|(_, waiter)| responses.note(at.since(waiter.at)));
            }
            queue.figures.responses.add(responses);
            queue.figures.note(&kind, &key, |figures| {
                figures.done += u64::from(is_done);
                figures.failed += u64::from(matches!(outcome, Outcome::Failed(_)));
                if is_run {
                    figures.runs.note(took);
                }
                figures.responses.add(responses);
            });
            if is_done {
                before = queue.of_key(&key).find(|(_, other)| other.is_cached).map(|(number, _)| number);
            }
            let kept = if is_done {
                queue.config.result_ttl.max(queue.config.remember)
            } else {
                queue.config.remember
            };
            job.is_cached = is_done;
            job.state = JobState::Finished(Box::new(Finish {
                outcome: outcome.clone(),
                at,
                answered: 0,
                hold: job.holds,
                until: at.plus(kept),
            }));
            queue.figures.answered += job.note_answered(0);
        });
        // The result that was cached before is not any more, and is kept for its own waiters only.
        if let Some(before) = before {
            self.with(JobId::new(id.queue(), before), |queue, job| {
                let remember = queue.config.remember;
                let last = job.waiters().map(|(_, waiter)| waiter.at).max().unwrap_or_default();
                job.is_cached = false;
                if let JobState::Finished(finish) = &mut job.state {
                    finish.until = finish.until.min(last.max(finish.at).plus(remember).max(at));
                }
            });
        }
    }

    fn forget(&mut self, id: JobId) {
        self.touch(id);
        let Some(queue) = self.queues.get_mut(&id.queue()) else { return };
        let number = id.sequence();
        queue.take_out(number);
        if let Some(job) = queue.jobs.get(number) {
            let ids: Vec<(u32, String)> =
                job.waiters().map(|(place, waiter)| (place, waiter.id.to_string())).collect();
            for (place, waiter) in ids {
                queue.waiters.remove(&waiter, number, place);
            }
        }
        if let Some(job) = queue.jobs.remove(number) {
            queue.unlist(number, &job);
            queue.pending_numbers.remove(number);
            queue.answered.remove(number);
            queue.pending_kinds.remove(job.kind(), number);
            queue.keys.remove(job.key(), number);
        }
    }

    fn delete_queue(&mut self, id: JobQueueId, at: Timestamp) {
        let Some(queue) = self.queues.get(&id) else { return };
        let blocks: Vec<u64> = queue.jobs.blocks().collect();
        let mut reserved: BTreeMap<BudgetId, u64> = BTreeMap::new();
        for job in queue.deadlines.iter().filter_map(|(_, number)| queue.jobs.get(*number)) {
            if let Some(budget) = job.paid_by(queue).filter(|_| job.is_running()) {
                *reserved.entry(budget).or_default() += job.cost;
            }
        }
        for block in blocks {
            self.touch_part(Part::Jobs(id, block));
        }
        for (budget, reserved) in reserved {
            self.settle_budget(Some(budget), reserved, 0, &TokenReport::default(), at);
        }
        if let Some(queue) = self.queues.remove(&id) {
            self.queue_names.remove(&queue.name);
            self.garbage.push(queue);
        }
    }

    fn forget_vhost(&mut self, vhost: &VhostName, at: Timestamp) {
        let is_in = |name: &str| name == vhost.as_str();
        let queues = self.queue_names.iter().filter(|(name, _)| is_in(name.vhost_str()));
        let queues: Vec<JobQueueId> = queues.map(|(_, id)| *id).collect();
        queues.into_iter().for_each(|id| self.delete_queue(id, at));
        self.budget_names.retain(|name, id| {
            let is_gone = is_in(name.vhost_str());
            if is_gone {
                self.budgets.remove(id);
            }
            !is_gone
        });
    }
}

impl JobQueue {
    /// Notes what follows from a job's state.
    pub(super) fn list(&mut self, number: u64) {
        let Some(job) = self.jobs.get(number) else { return };
        self.memory_bytes += job.memory_bytes();
        self.deadlines.extend(job.next_deadline().map(|at| (at, number)));
        let (is_pending, is_running, is_to_answer) = (job.is_pending(), job.is_running(), job.is_to_answer());
        let unfound = (!is_pending && !is_running && !job.is_cached).then(|| job.key().to_owned());
        if is_to_answer {
            self.to_answer.insert(number);
        }
        self.running += u64::from(is_running);
        if is_pending {
            self.pending += 1;
            self.pending_numbers.insert(number);
            self.pending_kinds.insert(job.kind(), number);
            self.rescore(number);
        } else {
            self.pending_numbers.remove(number);
            self.pending_kinds.remove(job.kind(), number);
        }
        if !is_pending && !is_running && !is_to_answer {
            self.answered.insert(number);
        } else {
            self.answered.remove(number);
        }
        if let Some(key) = unfound {
            self.keys.remove(&key, number);
        }
    }

    /// Takes back what [`Self::list`] noted.
    fn unlist(&mut self, number: u64, job: &Job) {
        self.memory_bytes = self.memory_bytes.saturating_sub(job.memory_bytes());
        if let Some(at) = job.next_deadline() {
            self.deadlines.remove(&(at, number));
        }
        self.to_answer.remove(&number);
        self.running -= u64::from(job.is_running());
        self.pending -= u64::from(job.is_pending());
    }
}
