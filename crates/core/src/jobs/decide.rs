//! What a command comes to. Nothing changes here: decisions become records, and `apply.rs` changes the state.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{BudgetId, JobId, JobQueueId, JobQueueName, Millis, Timestamp, limits};

use super::budget::{Budget, TokenReport};
use super::command::{Asked, AskedState, Handed, JobAnswer, JobCommand, NewJob, Settled, TakeOutcome};
use super::config::{JobQueueConfig, Overtake, WhileRunning};
use super::error::JobError;
use super::job::{Job, JobState, Outcome};
use super::queue::JobQueue;
use super::receipt::JobReceipt;
use super::record::{JobRecord, ReturnReason};
use super::score::Score;
use super::state::Jobs;
use super::waiter::Waiter;

/// When to try again where scores are still to be found. Whoever finds them says so before.
const UNSORTED_WAIT: Millis = Millis(100);

/// Jobs that can never be paid of which one take has done. More of them have to wait for the next.
const NEVER_PAID_MAX: usize = 100;

/// Records, and what whoever asked is told.
type Decided = Result<(Vec<JobRecord>, JobAnswer), JobError>;

impl Jobs {
    /// Decides what a command comes to.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn decide_command(&self, now: Timestamp, command: &JobCommand) -> Decided {
        match command {
            JobCommand::PutQueue { name, config } => self.decide_put_queue(now, name, config),
            JobCommand::DeleteQueue { name } => {
                let queue = self.find(name)?.id;
                done(JobRecord::DeleteQueue { queue, at: now })
            }
            JobCommand::PutBudget { name, config } => {
                config.check()?;
                let known = self.budget_id(name);
                if known.is_none() && self.budgets.len() >= limits::BUDGETS_MAX {
                    let max = limits::BUDGETS_MAX as u64;
                    return Err(JobError::TooMany { what: "the number of budgets", max });
                }
                let budget = known.unwrap_or(BudgetId(self.next_budget));
                done(JobRecord::PutBudget { budget, name: name.clone(), config: *config, at: now })
            }
            JobCommand::DeleteBudget { name } => {
                let budget = self.budget_of(name)?;
                match self.queues_of(budget).next() {
                    Some(queue) => {
                        Err(JobError::BudgetInUse { name: name.clone(), queue: queue.name.clone() })
                    }
                    None => done(JobRecord::DeleteBudget { budget }),
                }
            }
            JobCommand::ForgetVhost { vhost } => {
                let has = |name: &str| name == vhost.as_str();
                let is_any = self.queue_names.keys().any(|name| has(name.vhost_str()))
                    || self.budget_names.keys().any(|name| has(name.vhost_str()));
                let record = JobRecord::ForgetVhost { vhost: vhost.clone(), at: now };
                Ok((is_any.then_some(record).into_iter().collect(), JobAnswer::Done))
            }
            JobCommand::Ask { queue, job, waiter } => self.decide_ask(now, queue, job, waiter.as_ref()),
            JobCommand::Take { queue, worker, lease, max } => {
                self.decide_take(now, self.find(queue)?, worker, *lease, *max)
            }
            JobCommand::Extend { receipt, lease, progress } => {
                let (queue, _) = self.held(*receipt)?;
                let until = now.plus(lease.unwrap_or(queue.config.lease));
                let progress = progress.clone();
                let record = JobRecord::Extend { job: receipt.job, until, progress };
                Ok((vec![record], JobAnswer::Settled(Settled::Held(until))))
            }
            JobCommand::Complete { receipt, result, used, report } => {
                self.decide_complete(now, *receipt, result, *used, *report)
            }
            JobCommand::Fail { receipt, error, used, report, retry } => {
                let (queue, job) = self.held(*receipt)?;
                self.check_report(job.paid_by(queue), report)?;
                let used = used.unwrap_or(job.cost);
                let retry = if *retry { Retry::Later } else { Retry::Never };
                let decided = decide_failure(now, queue, receipt.job, job, error, used, *report, retry);
                let (record, settled) = decided;
                Ok((vec![record], JobAnswer::Settled(settled)))
            }
            JobCommand::GiveBack { receipt } => {
                let (_, job) = self.held(*receipt)?;
                let record =
                    returned(receipt.job, now, ReturnReason::GivenBack, 0, TokenReport::default(), now);
                debug_assert!(job.attempts > 0, "it was handed out");
                Ok((vec![record], JobAnswer::Settled(Settled::Returned)))
            }
            JobCommand::Cancel { job } => {
                let (_, found) = self.job(*job).ok_or(JobError::NoSuchJob { job: *job })?;
                if let JobState::Finished(finish) = &found.state {
                    return Err(JobError::Finished { job: *job, state: finish.outcome.name() });
                }
                done(finished(*job, Outcome::Cancelled, 0, TokenReport::default(), now))
            }
            JobCommand::CancelAll { queue, from, max } => {
                let queue = self.find(queue)?;
                let mut records = Vec::new();
                let mut jobs = queue.jobs.from(*from);
                for (number, job) in jobs.by_ref().take(*max) {
                    if job.waiting > 0 && !matches!(job.state, JobState::Finished(_)) {
                        let id = JobId::new(queue.id, number);
                        records.push(finished(id, Outcome::Cancelled, 0, TokenReport::default(), now));
                    }
                }
                Ok((records, JobAnswer::Cancelled(jobs.next().map(|(number, _)| number))))
            }
            JobCommand::Leave { queue, waiter } => self.decide_leave(now, queue, waiter),
            JobCommand::Answered { job, before } => {
                let is_new = self.job(*job).is_some_and(|(_, found)| found.is_to_answer());
                let record = JobRecord::Answered { job: *job, before: *before };
                Ok((is_new.then_some(record).into_iter().collect(), JobAnswer::Done))
            }
            JobCommand::Report { budget, report } => {
                let budget = self.budget_of(budget)?;
                self.check_report(Some(budget), report)?;
                done(JobRecord::Report { budget, report: *report, at: now })
            }
            JobCommand::Grant { budget, tokens, when } => {
                let id = self.budget_of(budget)?;
                let is_full = |budget: &Budget| budget.grants_len() >= limits::BUDGET_GRANTS_MAX;
                if self.budgets.get(&id).is_some_and(is_full) {
                    let max = limits::BUDGET_GRANTS_MAX as u64;
                    return Err(JobError::TooMany { what: "the number of grants that are to come", max });
                }
                if *tokens > limits::TOKENS_MAX {
                    return Err(JobError::TooMany { what: "tokens", max: limits::TOKENS_MAX });
                }
                done(JobRecord::Grant { budget: id, tokens: *tokens, when: *when, at: now })
            }
            JobCommand::Due { max } => {
                let records = self.decide_due(now, *max);
                let count = records.len();
                Ok((records, JobAnswer::Looked(count)))
            }
            JobCommand::Shrink { max } => {
                let old = |queue: &JobQueue| -> Vec<JobRecord> {
                    let jobs = queue.answered.iter().take(*max);
                    jobs.map(|number| JobRecord::Forget { job: JobId::new(queue.id, number) }).collect()
                };
                let records: Vec<JobRecord> = self.queues.values().flat_map(old).collect();
                let count = records.len();
                Ok((records, JobAnswer::Looked(count)))
            }
        }
    }

    fn find(&self, name: &JobQueueName) -> Result<&JobQueue, JobError> {
        self.queue(name).ok_or_else(|| JobError::NoSuchQueue { name: name.clone() })
    }

    fn budget_of(&self, name: &nexo_types::BudgetName) -> Result<BudgetId, JobError> {
        self.budget_id(name).ok_or_else(|| JobError::NoSuchBudget { name: name.clone() })
    }

    fn decide_put_queue(&self, now: Timestamp, name: &JobQueueName, config: &Arc<JobQueueConfig>) -> Decided {
        config.check()?;
        if let Some(budget) = &config.budget {
            if budget.vhost_str() != name.vhost_str() {
                return Err(JobError::NoSuchBudget { name: budget.clone() });
            }
            self.budget_of(budget)?;
        }
        let known = self.queue(name);
        if known.is_some_and(|queue| *queue.config == **config) {
            return Ok((Vec::new(), JobAnswer::Done));
        }
        if known.is_none()
            && (self.queues.len() >= limits::JOB_QUEUES_MAX || self.next_queue >= JobId::QUEUES_END)
        {
            let max = limits::JOB_QUEUES_MAX as u64;
            return Err(JobError::TooMany { what: "the number of job queues", max });
        }
        let queue = known.map_or(JobQueueId(self.next_queue), |queue| queue.id);
        done(JobRecord::PutQueue { queue, name: name.clone(), config: Arc::clone(config), at: now })
    }

    fn decide_ask(
        &self,
        now: Timestamp,
        name: &JobQueueName,
        new: &NewJob,
        waiter: Option<&Arc<Waiter>>,
    ) -> Decided {
        let queue = self.find(name)?;
        if let Some(waiter) = waiter
            && let Some((job, _)) = queue.waiter(&waiter.id)
        {
            let known = queue.jobs.get(job.sequence()).map_or("", Job::key);
            if known != &*new.body.key {
                return Err(JobError::OtherKey {
                    queue: name.clone(),
                    waiter: Arc::clone(&waiter.id),
                    key: known.into(),
                    asked: Arc::clone(&new.body.key),
                });
            }
            return asked(Vec::new(), job, AskedState::Known);
        }
        let waiter = waiter.map(|waiter| waiter.asking_at(now));
        let found = queue.joinable(&new.body.key, now);
        if let Some((number, state)) = found {
            let job = JobId::new(queue.id, number);
            let known = queue.jobs.get(number);
            let Some(waiter) = waiter else {
                let is_raised = !new.background && known.is_some_and(|known| known.background);
                let raise = (is_raised && state == AskedState::Joined).then_some(JobRecord::Raise { job });
                return asked(raise.into_iter().collect(), job, state);
            };
            if known.is_some_and(|known| known.places() as usize >= limits::JOB_WAITERS_MAX) {
                let max = limits::JOB_WAITERS_MAX as u64;
                return Err(JobError::TooMany { what: "the number of waiters of one job", max });
            }
            let before = known.map_or(Timestamp::MAX, |known| known.deadline);
            let is_first = known.is_some_and(|known| known.background);
            let own = new.deadline.unwrap_or(Timestamp::MAX);
            let deadline = if is_first { own } else { own.max(before) };
            let record = JobRecord::Join { job, waiter, deadline };
            return asked(vec![record], job, state);
        }
        if new.cost > limits::TOKENS_MAX {
            return Err(JobError::BadCost { cost: new.cost.to_string() });
        }
        self.check_payable(queue, new.cost)?;
        if let Some(max) = queue.config.pending_max
            && queue.pending >= max
        {
            return Err(JobError::TooMany { what: "the number of pending jobs of this queue", max });
        }
        let job = JobId::new(queue.id, queue.next);
        let record = JobRecord::Create {
            job,
            body: Arc::clone(&new.body),
            cost: if queue.budget.is_some() { new.cost } else { 0 },
            background: waiter.is_none() && new.background,
            deadline: new.deadline.unwrap_or(Timestamp::MAX),
            waiter,
            at: now,
        };
        asked(vec![record], job, AskedState::Created)
    }

    /// Whether a job of this cost can be paid for at all.
    ///
    /// # Errors
    /// If its queue's budget never holds as much.
    pub fn check_payable(&self, queue: &JobQueue, cost: u64) -> Result<(), JobError> {
        let budget = queue.budget.and_then(|id| self.budgets.get(&id));
        match budget.and_then(|budget| Some((budget.name(), budget.capacity()?))) {
            Some((budget, capacity)) if cost > capacity => {
                Err(JobError::NeverPaid { cost, budget: budget.clone(), capacity })
            }
            _ => Ok(()),
        }
    }

    /// Whether a budget can follow what an API has said. Nobody knows how often tokens come that no refill brings.
    fn check_report(&self, budget: Option<BudgetId>, report: &TokenReport) -> Result<(), JobError> {
        match budget.and_then(|id| self.budgets.get(&id)) {
            Some(budget) if report.refill_tokens.is_some() && budget.config().refill.is_none() => {
                let reason = format!(
                    "refill_tokens says how many tokens come with each refill, and budget '{}' has no refill; give it one",
                    budget.name()
                );
                Err(JobError::BadSetting { reason })
            }
            _ => Ok(()),
        }
    }

    /// The jobs that a worker gets: none while scores are still to be found.
    fn decide_take(
        &self,
        now: Timestamp,
        queue: &JobQueue,
        worker: &Arc<str>,
        lease: Option<Millis>,
        max: usize,
    ) -> Decided {
        let mut outcome = TakeOutcome::default();
        let mut records = Vec::new();
        if queue.config.paused {
            return Ok((records, JobAnswer::Taken(outcome)));
        }
        if !queue.is_in_order(now) {
            outcome.is_unsorted = true;
            outcome.again_at = Some(now.plus(UNSORTED_WAIT));
            return Ok((records, JobAnswer::Taken(outcome)));
        }
        let budget = queue.budget.and_then(|id| self.budgets.get(&id));
        let mut level = budget.map_or(i64::MAX, |budget| budget.level(now));
        let ahead = self.ahead_of(queue);
        let capacity = budget.and_then(Budget::capacity).unwrap_or(u64::MAX);
        let fail = |(number, job): (u64, &Job)| {
            let error = self.check_payable(queue, job.cost).err()?;
            let outcome = Outcome::Failed(error.to_string().into());
            Some(finished(JobId::new(queue.id, number), outcome, 0, TokenReport::default(), now))
        };
        if queue.config.overtake == Overtake::Affordable {
            // The search by cost finds none of them, and they would wait for ever.
            let dear = queue.order.above(capacity).take(NEVER_PAID_MAX);
            records.extend(dear.filter_map(|number| fail((number, queue.jobs.get(number)?))));
        }
        let until = now.plus(lease.unwrap_or(queue.config.lease));
        // Jobs of the same key are not handed out together, so each of them is passed over behind the first.
        let mut taken: Vec<&str> = Vec::new();
        let mut in_order =
            queue.order.iter().filter_map(|(score, number)| Some((score, number, queue.jobs.get(number)?)));
        while outcome.jobs.len() < max.min(limits::JOB_TAKE_MAX) {
            let next = match queue.config.overtake {
                // One at a time: the search by cost does not go on from where it was.
                Overtake::Affordable if outcome.jobs.is_empty() => queue
                    .order
                    .first_within(u64::try_from(level).unwrap_or(0).min(capacity))
                    .and_then(|(score, number)| Some((score, number, queue.jobs.get(number)?))),
                Overtake::Affordable => None,
                Overtake::Never => in_order.next(),
            };
            let Some((score, number, job)) = next else {
                if outcome.jobs.is_empty() && queue.order.len() > 0 {
                    let least = queue.order.least_cost().unwrap_or(0);
                    outcome.again_at = budget.and_then(|budget| budget.pays_at(now, least));
                }
                break;
            };
            if let Some(failed) = fail((number, job)) {
                // The budget has become smaller since the job was asked for. It would hold up the others for ever.
                records.push(failed);
                if records.len() - outcome.jobs.len() >= NEVER_PAID_MAX {
                    break;
                }
                continue;
            }
            let id = JobId::new(queue.id, number);
            if taken.contains(&job.key()) {
                continue;
            }
            let before = if job.cost == 0 { 0 } else { ahead.cost_before((score, job.created_at)) };
            let needed = job.cost.saturating_add(before);
            if needed > 0 && level < i64::try_from(needed).unwrap_or(i64::MAX) {
                if outcome.jobs.is_empty() {
                    outcome.again_at = budget.and_then(|budget| budget.pays_at(now, needed));
                    outcome.is_behind = before > 0;
                }
                break;
            }
            level = level.saturating_sub(job.cost as i64);
            taken.push(job.key());
            records.push(JobRecord::HandOut { job: id, worker: Arc::clone(worker), until, at: now });
            outcome.jobs.push(Handed {
                receipt: JobReceipt { job: id, hold: job.holds.saturating_add(1) },
                attempt: job.attempts + 1,
                body: job.body(),
                cost: job.cost,
                until,
                waiters: job.waiting,
                due: job.due(),
                created_at: job.created_at,
                score: score.0,
            });
        }
        if outcome.jobs.is_empty() && records.len() >= NEVER_PAID_MAX {
            outcome.again_at = Some(now);
        } else if outcome.jobs.is_empty() {
            // One whose delay is over may come before the first, or be one that can be paid.
            outcome.again_at = outcome.again_at.into_iter().chain(queue.order.next_delayed()).min();
        }
        Ok((records, JobAnswer::Taken(outcome)))
    }

    /// What the first jobs of other queues with the same budget cost, for which workers wait. Without this, a queue with cheap jobs
    /// would never let a dear one of another queue have its turn.
    fn ahead_of(&self, queue: &JobQueue) -> Ahead {
        if queue.budget.is_none() || queue.config.overtake == Overtake::Affordable {
            return Ahead::default();
        }
        let is_rival = |other: &&JobQueue| {
            other.id != queue.id
                && other.budget == queue.budget
                && !other.config.paused
                && other.config.overtake == Overtake::Never
        };
        let first = |other: &JobQueue| {
            let (score, number) = other.first()?;
            let job = other.jobs.get(number)?;
            Some(((score, job.created_at), job.cost))
        };
        let others = self.wanted.iter().filter_map(|id| self.queues.get(id)).filter(is_rival);
        Ahead(others.filter_map(first).collect())
    }

    /// The job that a receipt is for, if it is still held.
    fn held(&self, receipt: JobReceipt) -> Result<(&JobQueue, &Job), JobError> {
        let JobReceipt { job, hold } = receipt;
        let (queue, found) = self.job(job).ok_or(JobError::NoSuchJob { job })?;
        let not_held = |state| JobError::NotHeld { receipt, state };
        match &found.state {
            JobState::Finished(finish) => Err(JobError::Finished { job, state: finish.outcome.name() }),
            JobState::Running(_) if found.holds == hold => Ok((queue, found)),
            JobState::Running(_) => Err(not_held("another worker has it")),
            JobState::Pending { .. } => {
                Err(not_held("it was given back, failed or took too long, and waits to be handed out again"))
            }
        }
    }

    fn decide_complete(
        &self,
        now: Timestamp,
        receipt: JobReceipt,
        result: &Bytes,
        used: Option<u64>,
        report: TokenReport,
    ) -> Decided {
        let JobReceipt { job, hold } = receipt;
        let (queue, found) = self.job(job).ok_or(JobError::NoSuchJob { job })?;
        let settled = JobAnswer::Settled(Settled::Finished);
        match &found.state {
            // The same once more: the answer to the first was lost.
            JobState::Finished(finish)
                if finish.hold == hold && matches!(finish.outcome, Outcome::Done(_)) =>
            {
                return Ok((Vec::new(), settled));
            }
            // Its time was up, but nobody else has begun: the work is done, and somebody has paid for it.
            JobState::Pending { .. } if found.holds == hold && found.attempts > 0 => {}
            _ => drop(self.held(receipt)?),
        }
        self.check_report(found.paid_by(queue), &report)?;
        let used = used.unwrap_or(found.cost).min(limits::TOKENS_MAX);
        let outcome = Outcome::Done(result.clone());
        Ok((vec![finished(job, outcome, used, report, now)], settled))
    }

    fn decide_leave(&self, now: Timestamp, name: &JobQueueName, waiter: &Arc<str>) -> Decided {
        let queue = self.find(name)?;
        let unknown = || JobError::NoSuchWaiter { queue: name.clone(), waiter: Arc::clone(waiter) };
        let (id, place) = queue.waiter(waiter).ok_or_else(unknown)?;
        let job = queue.jobs.get(id.sequence()).ok_or_else(unknown)?;
        if let JobState::Finished(finish) = &job.state {
            return Err(JobError::Finished { job: id, state: finish.outcome.name() });
        }
        let mut records = vec![JobRecord::Leave { job: id, place }];
        if job.waiting == 1 && job.is_pending() {
            records.push(finished(id, Outcome::Cancelled, 0, TokenReport::default(), now));
        }
        Ok((records, JobAnswer::Done))
    }

    /// What follows from time alone: leases that have ended, deadlines that have passed, results that nobody needs any more.
    fn decide_due(&self, now: Timestamp, max: usize) -> Vec<JobRecord> {
        let mut records = Vec::new();
        for queue in self.queues.values() {
            for (_, number) in queue.deadlines.range(..=(now, u64::MAX)).take(max - records.len().min(max)) {
                let (Some(job), id) = (queue.jobs.get(*number), JobId::new(queue.id, *number)) else {
                    continue;
                };
                let none = TokenReport::default();
                records.push(match &job.state {
                    JobState::Pending { .. } => finished(id, Outcome::Expired, 0, none, now),
                    JobState::Running(run) => {
                        let error = format!("worker '{}' did not finish in time", run.worker);
                        let retry = Retry::AtOnce;
                        decide_failure(now, queue, id, job, &error.into(), 0, none, retry).0
                    }
                    JobState::Finished(_) => JobRecord::Forget { job: id },
                });
            }
        }
        records
    }

    /// When something next follows from time alone.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.queues.values().filter_map(|queue| queue.deadlines.first().map(|(at, _)| *at)).min()
    }
}

impl JobQueue {
    /// The job of a key that somebody who asks for it now joins, if there is one.
    fn joinable(&self, key: &str, now: Timestamp) -> Option<(u64, AskedState)> {
        let mut cached = None;
        let mut running = None;
        let mut pending = None;
        for (number, job) in self.of_key(key) {
            match &job.state {
                JobState::Finished(finish) => {
                    let is_fresh = now < finish.at.plus(self.config.result_ttl);
                    cached = cached.or((is_fresh && self.config.answer_from_cache).then_some(number));
                }
                JobState::Running(_) => {
                    let shares = self.config.while_running == WhileRunning::Share;
                    running = running.or(shares.then_some(number));
                }
                JobState::Pending { .. } => {
                    let is_young = now.since(job.created_at) < self.config.window && now < job.deadline;
                    pending = pending.max(is_young.then_some(number));
                }
            }
        }
        let cached = cached.map(|number| (number, AskedState::Cached));
        let running = running.map(|number| (number, AskedState::JoinedRunning));
        let pending = pending.map(|number| (number, AskedState::Joined));
        cached.or(running).or(pending)
    }
}

/// How urgent a job is among those of other queues.
type Rank = (Score, Timestamp);

/// The first jobs of other queues, and what they cost.
#[derive(Debug, Default)]
struct Ahead(Vec<(Rank, u64)>);

impl Ahead {
    /// What those cost that are more urgent. A budget that pays for them and one more need not hold that one up.
    fn cost_before(&self, rank: Rank) -> u64 {
        let before = self.0.iter().filter(|(other, _)| *other < rank);
        before.fold(0, |sum, (_, cost)| sum.saturating_add(*cost))
    }
}

/// Whether a job that failed is tried again.
#[derive(Clone, Copy, Debug)]
enum Retry {
    /// After a while, if attempts are left.
    Later,
    /// The same, without waiting: it was not the job's fault.
    AtOnce,
    /// Not at all.
    Never,
}

#[allow(clippy::too_many_arguments, reason = "what a worker says of a failure is a list of plain facts")]
fn decide_failure(
    now: Timestamp,
    queue: &JobQueue,
    id: JobId,
    job: &Job,
    error: &Arc<str>,
    used: u64,
    report: TokenReport,
    retry: Retry,
) -> (JobRecord, Settled) {
    let used = used.min(limits::TOKENS_MAX);
    let ready_at = match retry {
        Retry::Later => now.plus(queue.config.retry.wait_after(job.attempts)),
        Retry::AtOnce => now,
        Retry::Never => Timestamp::MAX,
    };
    let is_last = job.attempts >= queue.config.max_attempts;
    if matches!(retry, Retry::Never) || is_last {
        let outcome = Outcome::Failed(Arc::clone(error));
        return (finished(id, outcome, used, report, now), Settled::Finished);
    }
    if job.deadline <= ready_at {
        return (finished(id, Outcome::Expired, used, report, now), Settled::Finished);
    }
    let why = match retry {
        Retry::AtOnce => ReturnReason::LeaseEnded,
        Retry::Later | Retry::Never => ReturnReason::Failed,
    };
    (returned(id, ready_at, why, used, report, now), Settled::Retried(ready_at))
}

const fn finished(job: JobId, outcome: Outcome, used: u64, report: TokenReport, at: Timestamp) -> JobRecord {
    JobRecord::Finish { job, outcome, used, report, at }
}

const fn returned(
    job: JobId,
    ready_at: Timestamp,
    why: ReturnReason,
    used: u64,
    report: TokenReport,
    at: Timestamp,
) -> JobRecord {
    JobRecord::Return { job, ready_at, why, used, report, at }
}

fn done(record: JobRecord) -> Decided {
    Ok((vec![record], JobAnswer::Done))
}

fn asked(records: Vec<JobRecord>, job: JobId, state: AskedState) -> Decided {
    Ok((records, JobAnswer::Asked(Asked { job, state })))
}
