//! What can be done with job queues and budgets from outside.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nexo_core::jobs::{
    Asked, Budget, Finish, Handed, Job, JobAnswer, JobCommand, JobError, JobQueue, JobReceipt, JobState,
    Jobs, Outcome, Reply, Settled, TokenReport,
};
use nexo_core::topology::Topology;
use nexo_types::{BudgetName, JobId, JobQueueName, Millis, Timestamp, VhostName, limits};
use tokio::sync::oneshot;

use super::JobCallError;
use super::answers::{self, Caller, Finished, WaiterAnswer};
use super::requests::{JobRequest, json};
use crate::broker::Broker;
use crate::error::QueueError;
use crate::journal::Written;
use crate::shared::Shared;
use crate::workers::Work;

/// How long a worker whose time is over is kept while the disk is behind: there is a job for it, which cannot be handed out yet.
const HELD_UP_MAX: Duration = Duration::from_secs(10);
/// How often is looked whether that is still so. The job itself wakes the worker.
const HELD_UP_LOOK: Duration = Duration::from_millis(20);

impl Broker {
    /// Looks at all job queues and budgets. For a short while: nothing else goes on with them meanwhile.
    pub fn look_at_jobs<R>(&self, look: impl FnOnce(&Jobs, Timestamp) -> R) -> R {
        let now = self.shared.clock.now();
        self.shared.jobs.look(|jobs| look(jobs, now))
    }

    /// Workers that wait for jobs now.
    #[must_use]
    pub fn waiting_workers(&self) -> usize {
        self.shared.jobs.takers.lock().len()
    }

    /// How often the thread that brings time to job queues has looked whether there is something to do. It does not while nothing is.
    #[must_use]
    pub fn job_ticks(&self) -> u64 {
        self.shared.jobs.ticker.ticks()
    }

    /// Deletes a budget.
    ///
    /// # Errors
    /// If there is none, a job queue needs it, or the log takes no more.
    pub async fn delete_budget(&self, name: &BudgetName) -> Result<(), JobCallError> {
        self.jobs_command(&JobCommand::DeleteBudget { name: name.clone() }).await.map(drop)
    }

    /// Tells a budget what its API has said.
    ///
    /// # Errors
    /// If there is none, or the log takes no more.
    pub async fn report_tokens(&self, name: &BudgetName, report: TokenReport) -> Result<(), JobCallError> {
        self.jobs_command(&JobCommand::Report { budget: name.clone(), report }).await.map(drop)
    }

    /// Has tokens come to a budget once, now or later.
    ///
    /// # Errors
    /// If there is none, it has too many to come, or the log takes no more.
    pub async fn grant_tokens(
        &self,
        name: &BudgetName,
        tokens: u64,
        when: Option<Timestamp>,
    ) -> Result<(), JobCallError> {
        let when = when.unwrap_or_else(|| self.now());
        self.jobs_command(&JobCommand::Grant { budget: name.clone(), tokens, when }).await.map(drop)
    }

    /// Asks for work: joins the job of that key, or makes one. When this resolves, it is safe.
    ///
    /// # Errors
    /// If the request cannot be met, there is no queue for the answer, memory or the disk runs short, or the log takes no more.
    pub async fn ask_job(&self, queue: &JobQueueName, request: &JobRequest) -> Result<Asked, JobCallError> {
        self.shared.refuse_pushes()?;
        let found = self.shared.jobs.look(|jobs| {
            jobs.queue(queue).map(|found| {
                let rule = found.cost_rule(&request.kind).filter(|_| request.cost.is_none()).cloned();
                (Arc::clone(found.config()), rule, found.budget().is_some())
            })
        });
        let Some((config, rule, has_budget)) = found else { return Err(self.no_such_queue(queue).await) };
        if !request.payload.is_empty() {
            json(&request.payload, "the payload of a job")?;
        }
        let job = request.job(rule.as_ref(), has_budget)?;
        let now = self.now();
        let waiter = request.waiter.as_ref().map(|waiter| waiter.waiter(queue, &config, now)).transpose()?;
        if let Some(Reply::Queue(name)) = waiter.as_ref().map(|waiter| &waiter.reply) {
            self.found(name).await?;
        }
        self.shared.make_room_for_jobs()?;
        let command = JobCommand::Ask { queue: queue.clone(), job, waiter: waiter.map(Arc::new) };
        match self.jobs_command(&command).await? {
            JobAnswer::Asked(asked) => Ok(asked),
            other => unreachable!("a request is answered as one, and not as {other:?}"),
        }
    }

    /// Hands jobs to a worker: the most urgent, as far as they can be paid. Waits for some if there are none. Whoever drops
    /// this while it waits gets none.
    ///
    /// # Errors
    /// If there is no such queue, the broker stops, or the log takes no more.
    pub async fn take_jobs(
        &self,
        queue: &JobQueueName,
        worker: &str,
        lease: Option<Millis>,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Handed>, JobCallError> {
        self.shared.refuse_if_stopping()?;
        nexo_types::check_name(worker, "name of a worker", limits::JOB_WORD_BYTES_MAX)
            .map_err(JobError::from)?;
        let range = 1..=limits::JOB_LEASE_MAX.0;
        if lease.is_some_and(|lease| !range.contains(&lease.0)) {
            let reason = format!("lease_ms is a number from 1 to {}", limits::JOB_LEASE_MAX.0);
            return Err(JobError::BadSetting { reason }.into());
        }
        let find = |jobs: &Jobs| jobs.queue(queue).map(JobQueue::id);
        let Some(id) = self.shared.jobs.look(find) else { return Err(self.no_such_queue(queue).await) };
        let max = max.clamp(1, limits::JOB_TAKE_MAX);
        let (place, served) = self.shared.join_takers(id, queue, &worker.into(), lease, max);
        let mut served = Serving { broker: self, served: Some(served) };
        let mut outcome = tokio::time::timeout(wait, served.next()).await.ok();
        // Whose time is over is told that there is nothing only if that is so, and not while the disk is behind.
        let patience = tokio::time::Instant::now() + HELD_UP_MAX;
        while outcome.is_none()
            && let Some(error) = place.held_up()
        {
            if tokio::time::Instant::now() >= patience {
                return Err(error.into());
            }
            outcome = tokio::time::timeout(HELD_UP_LOOK, served.next()).await.ok();
        }
        // Nothing comes from here on but what has come already.
        drop(place);
        let outcome = outcome.or_else(|| served.try_next());
        let Some(outcome) = outcome else { return Ok(Vec::new()) };
        let (jobs, written) = outcome?;
        let mut handed = HandedOver { broker: self, jobs };
        self.shared.wait_for(written).await?;
        Ok(std::mem::take(&mut handed.jobs))
    }

    /// Gives a worker more time, and keeps what it tells of its progress. Gives back until when it has.
    ///
    /// # Errors
    /// If the job is not its any more, or the log takes no more.
    pub async fn extend_job(
        &self,
        receipt: JobReceipt,
        lease: Option<Millis>,
        progress: Option<Bytes>,
    ) -> Result<Timestamp, JobCallError> {
        if let Some(progress) = &progress {
            bounded(
                progress.len(),
                limits::JOB_PROGRESS_BYTES_MAX,
                "what is told of a job's progress, in bytes,",
            )?;
            json(progress, "what is told of a job's progress")?;
        }
        let lease = lease.map(|lease| Millis(lease.0.clamp(1, limits::JOB_LEASE_MAX.0)));
        match self.jobs_command(&JobCommand::Extend { receipt, lease, progress }).await? {
            JobAnswer::Settled(Settled::Held(until)) => Ok(until),
            other => unreachable!("an extension is answered as one, and not as {other:?}"),
        }
    }

    /// Completes a job: its result is cached, and every waiter gets its answer.
    ///
    /// # Errors
    /// If the job is not its any more, the result is no JSON or too large, or the log takes no more.
    pub async fn complete_job(
        &self,
        receipt: JobReceipt,
        result: Bytes,
        used: Option<u64>,
        report: TokenReport,
    ) -> Result<(), JobCallError> {
        bounded(result.len(), limits::JOB_RESULT_BYTES_MAX, "the result of a job, in bytes,")?;
        let result = self.checked_result(result).await?;
        self.jobs_command(&JobCommand::Complete { receipt, result, used, report }).await.map(drop)
    }

    /// Says that a job could not be done. It is tried again, or its waiters are told.
    ///
    /// # Errors
    /// If the job is not its any more, or the log takes no more.
    pub async fn fail_job(
        &self,
        receipt: JobReceipt,
        error: &str,
        used: Option<u64>,
        report: TokenReport,
        retry: bool,
    ) -> Result<Settled, JobCallError> {
        bounded(error.len(), limits::JOB_ERROR_BYTES_MAX, "what is said of a failure, in bytes,")?;
        let command = JobCommand::Fail { receipt, error: error.into(), used, report, retry };
        match self.jobs_command(&command).await? {
            JobAnswer::Settled(settled) => Ok(settled),
            other => unreachable!("a failure is answered as one, and not as {other:?}"),
        }
    }

    /// Gives a job back. It keeps its place, and the attempt does not count.
    ///
    /// # Errors
    /// If the job is not its any more, or the log takes no more.
    pub async fn give_back_job(&self, receipt: JobReceipt) -> Result<(), JobCallError> {
        self.jobs_command(&JobCommand::GiveBack { receipt }).await.map(drop)
    }

    /// Cancels a job: its waiters are told, and so is its worker when it next says something.
    ///
    /// # Errors
    /// If there is none, it is finished, or the log takes no more.
    pub async fn cancel_job(&self, job: JobId) -> Result<(), JobCallError> {
        self.jobs_command(&JobCommand::Cancel { job }).await.map(drop)
    }

    /// Has a waiter wait no more.
    ///
    /// # Errors
    /// If there is none, its job is finished, or the log takes no more.
    pub async fn leave_job(&self, queue: &JobQueueName, waiter: &str) -> Result<(), JobCallError> {
        self.jobs_command(&JobCommand::Leave { queue: queue.clone(), waiter: waiter.into() }).await.map(drop)
    }

    /// The answer to a waiter. Waits until there is one, at most so long; `None` if there is none by then.
    ///
    /// # Errors
    /// If nobody waits by that name.
    pub async fn job_answer(
        &self,
        queue: &JobQueueName,
        waiter: &str,
        wait: Duration,
    ) -> Result<Option<WaiterAnswer>, JobCallError> {
        let mut before = self.shared.all_that_can_be_lost();
        let found = async {
            let mut has_waited = false;
            loop {
                before = self.shared.all_that_can_be_lost();
                let found = self.find_answer(queue, waiter).map_err(|error| match error {
                    JobError::NoSuchQueue { name } if has_waited => JobError::QueueDeleted { name },
                    error => error,
                });
                has_waited = true;
                match found? {
                    Found::Finished(finished) => return Ok(Told::Late(finished)),
                    // Without an answer it has left, or was thrown out of memory with all others: it is looked for again.
                    Found::Waits(told) => {
                        if let Ok((answer, written)) = told.await {
                            return Ok::<Told, JobCallError>(Told::Answer(answer, written));
                        }
                    }
                }
            }
        };
        let Ok(found) = tokio::time::timeout(wait, found).await else { return Ok(None) };
        match found {
            Ok(Told::Answer(answer, written)) => {
                self.shared.wait_for(written).await?;
                Ok(Some(answer))
            }
            Err(refused) => {
                self.shared.until_certain(before).await?;
                Err(refused)
            }
            Ok(Told::Late(finished)) => {
                // Not before it is safe, and not on a thread that serves connections.
                self.shared.wait_for(self.shared.jobs.cell.last_change()).await?;
                self.shared.wait_for(before.and(self.shared.all_that_can_be_lost())).await?;
                Ok(self.shared.on_worker(Work::Answer, move || finished.last_answer()).await?)
            }
        }
    }

    /// The result that is cached under a key, with when it was made and when it is too old.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn cached_result(
        &self,
        queue: &JobQueueName,
        key: &str,
    ) -> Result<Option<(Bytes, Timestamp, Timestamp)>, JobCallError> {
        let now = self.now();
        self.shared.jobs.look(|jobs| {
            let found = jobs.queue(queue).ok_or_else(|| JobError::NoSuchQueue { name: queue.clone() })?;
            let cached = found.of_key(key).find_map(|(_, job)| match job.state() {
                JobState::Finished(finish) => match &finish.outcome {
                    Outcome::Done(result) => {
                        Some((result.clone(), finish.at, finish.at.plus(found.config().result_ttl)))
                    }
                    Outcome::Failed(_) | Outcome::Cancelled | Outcome::Expired => None,
                },
                JobState::Pending { .. } | JobState::Running(_) => None,
            });
            Ok(cached.filter(|(_, _, until)| now < *until))
        })
    }

    /// A budget, as it is now.
    #[must_use]
    pub fn budget(&self, name: &BudgetName) -> Option<(Budget, Timestamp)> {
        let now = self.now();
        self.shared.jobs.look(|jobs| jobs.budget(name).cloned()).map(|budget| (budget, now))
    }

    /// What is said of a queue that was not found, when that is certain.
    pub(super) async fn no_such_queue(&self, queue: &JobQueueName) -> JobCallError {
        let before = self.shared.all_that_can_be_lost();
        let is_there = self.shared.jobs.look(|jobs| jobs.queue(queue).is_some());
        match self.shared.until_certain(before).await {
            Err(error) => error.into(),
            Ok(()) if is_there => {
                QueueError::Unavailable { reason: "the job queue has just been made".into() }.into()
            }
            Ok(()) => JobError::NoSuchQueue { name: queue.clone() }.into(),
        }
    }

    pub(super) async fn jobs_command(&self, command: &JobCommand) -> Result<JobAnswer, JobCallError> {
        self.until_changed(|shared| shared.change_jobs(command)).await
    }

    /// Makes a change, when there is room for it, and waits until it is safe.
    pub(super) async fn until_changed<R>(
        &self,
        mut change: impl FnMut(&Arc<Shared>) -> Result<(R, Written), JobCallError>,
    ) -> Result<R, JobCallError> {
        self.shared.refuse_if_stopping()?;
        loop {
            let before = self.shared.all_that_can_be_lost();
            match change(&self.shared) {
                Ok((answer, written)) => {
                    self.shared.wait_for(written).await?;
                    return Ok(answer);
                }
                Err(JobCallError::Queue(error)) if error.is_busy() => self.shared.until_room().await,
                Err(refused @ JobCallError::Refused(_)) => {
                    // What it is refused for may not be safe yet, or of the past.
                    self.shared.wait_for(self.shared.jobs.cell.last_change()).await?;
                    self.shared.until_certain(before).await?;
                    return Err(refused);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn refuse_closed_vhost(&self, vhost: &VhostName) -> Result<(), JobCallError> {
        let open = |topology: &Topology| topology.open_vhost(vhost).is_ok();
        if self.shared.catalog.exchanges.look(open) {
            Ok(())
        } else {
            Err(JobError::BadSetting { reason: format!("there is no virtual host '{vhost}'") }.into())
        }
    }

    /// Whether a result is JSON. A large one is looked at where no connection waits.
    async fn checked_result(&self, result: Bytes) -> Result<Bytes, JobCallError> {
        const HERE_MAX: usize = 16 * 1024;
        let check = |result: &Bytes| json(result, "the result of a job").map(drop);
        if result.len() <= HERE_MAX {
            check(&result)?;
            return Ok(result);
        }
        let checked = result.clone();
        self.shared.on_worker(Work::Answer, move || check(&checked)).await??;
        Ok(result)
    }

    fn find_answer(&self, queue: &JobQueueName, waiter: &str) -> Result<Found, JobError> {
        // Whoever finishes a job takes the callers' lock after that of the jobs was let go.
        let mut callers = self.shared.jobs.callers.lock();
        self.shared.jobs.look(|jobs| {
            let found = jobs.queue(queue).ok_or_else(|| JobError::NoSuchQueue { name: queue.clone() })?;
            let unknown = || JobError::NoSuchWaiter { queue: queue.clone(), waiter: waiter.into() };
            let (id, place) = found.waiter(waiter).ok_or_else(unknown)?;
            let only = |job: &Job, _: &Finish| -> answers::Told {
                (job.waiter(place).map(|waiter| (place, waiter)).into_iter().collect(), place + 1)
            };
            if let Some(finished) = Finished::of(jobs, id, only) {
                return Ok(Found::Finished(finished));
            }
            let (tell, told) = oneshot::channel();
            let waiting = callers.entry(id).or_default();
            // Those that did not wait so long are gone. Seldom, since many may wait for one job.
            if waiting.len().is_power_of_two() {
                waiting.retain(|other| !other.tell.is_closed());
            }
            waiting.push_back(Caller { place, tell });
            Ok(Found::Waits(told))
        })
    }
}

/// Where a waiter's answer is.
enum Found {
    Finished(Finished),
    Waits(oneshot::Receiver<(WaiterAnswer, Written)>),
}

/// How a call comes to its answer.
enum Told {
    /// It waited, and was told.
    Answer(WaiterAnswer, Written),
    /// The job had come to its end before.
    Late(Finished),
}

/// A worker's turn that is to come. Jobs that come when nobody is there any more go back.
struct Serving<'a> {
    broker: &'a Broker,
    served: Option<oneshot::Receiver<super::takers::Served>>,
}

impl Serving<'_> {
    async fn next(&mut self) -> super::takers::Served {
        let Some(served) = &mut self.served else { return Err(stopping().into()) };
        let outcome = served.await.unwrap_or_else(|_| Err(stopping().into()));
        self.served = None;
        outcome
    }

    fn try_next(&mut self) -> Option<super::takers::Served> {
        self.served.take()?.try_recv().ok()
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        if let Some(mut served) = self.served.take() {
            served.close();
            if let Ok(Ok((jobs, _))) = served.try_recv() {
                self.broker.shared.give_back_and_serve(&jobs);
            }
        }
    }
}

/// Jobs on their way to a worker, which go back if it goes before it has them.
struct HandedOver<'a> {
    broker: &'a Broker,
    jobs: Vec<Handed>,
}

impl Drop for HandedOver<'_> {
    fn drop(&mut self) {
        if !self.jobs.is_empty() {
            self.broker.shared.give_back_and_serve(&self.jobs);
        }
    }
}

fn stopping() -> QueueError {
    QueueError::Unavailable { reason: "the broker is stopping".into() }
}

fn bounded(len: usize, max: usize, what: &'static str) -> Result<(), JobError> {
    if len <= max { Ok(()) } else { Err(JobError::TooMany { what, max: max as u64 }) }
}
