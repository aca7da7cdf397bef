//! Jobs that schedules ask for. The job's record and that of the schedule are one frame: after a crash both are there, or none, and
//! the time is fired then. `schedule_firing.rs` says when, and what is written down of the schedule.

use std::sync::Arc;

use nexo_core::jobs::{JobCommand, JobError, JobQueue, NewJob};
use nexo_core::machine::Step;
use nexo_core::message::Durability;
use nexo_core::schedule::{ScheduleRecord, ScheduledJob, Schedules};
use nexo_log::{Claim, Urgency};
use nexo_types::JobQueueName;

use super::{Follow, JobCallError, JobRequest};
use crate::journal::{ProposeError, Written};
use crate::shared::Shared;

impl Shared {
    /// Whether a schedule can ask for this, by what there is now.
    ///
    /// # Errors
    /// If there is no such queue, the cost cannot be said, or the budget never holds as much.
    pub(crate) fn check_scheduled_job(
        &self,
        queue: &JobQueueName,
        job: &ScheduledJob,
    ) -> Result<(), JobError> {
        let new = self.scheduled_job(queue, job)?;
        self.jobs.look(|jobs| {
            let found = jobs.queue(queue).ok_or_else(|| JobError::NoSuchQueue { name: queue.clone() })?;
            jobs.check_payable(found, new.cost)
        })
    }

    /// Asks for the job of a schedule, for which nobody waits: if one of its key is there, it is that one. `steps` says what is
    /// written down of the schedule with it, or why it is not to be.
    ///
    /// # Errors
    /// If the rules of job queues refuse it, memory is short, or the log takes no more; then nothing has changed.
    pub(crate) fn ask_for_schedule<E>(
        self: &Arc<Self>,
        queue: &JobQueueName,
        job: &ScheduledJob,
        steps: impl FnOnce(&Schedules) -> Result<Vec<Step<ScheduleRecord>>, E>,
    ) -> Result<Result<Written, E>, JobCallError> {
        self.make_room_for_jobs()?;
        let new = self.scheduled_job(queue, job)?;
        let command = JobCommand::Ask { queue: queue.clone(), job: new, waiter: None };
        let (mut follow, mut wake_by) = (Follow::default(), None);
        let changed = self.change_both(
            (&self.jobs.cell, self.schedules.cell()),
            |jobs, schedules| {
                let (records, _) = jobs.decide_command(self.clock.now(), &command).map_err(Not::Refused)?;
                let beside = steps(schedules).map_err(Not::Scheduled)?;
                follow = Follow::of(jobs, &records);
                let step = |record| Step { record, durability: Durability::Durable };
                Ok((records.into_iter().map(step).collect(), beside))
            },
            Urgency::Synced,
            Claim::Normal,
            |jobs| wake_by = jobs.queue(queue).and_then(JobQueue::next_wake),
        );
        let changed = match changed.map_err(|error: ProposeError| self.refused(&error))? {
            Ok(changed) => changed,
            Err(Not::Refused(refusal)) => return Err(refusal.into()),
            Err(Not::Scheduled(refusal)) => return Ok(Err(refusal)),
        };
        self.follow_jobs(&follow, wake_by, changed.written);
        self.serve_takers(follow.touched);
        Ok(Ok(changed.written))
    }

    /// The job, with what it costs now.
    fn scheduled_job(&self, queue: &JobQueueName, job: &ScheduledJob) -> Result<NewJob, JobError> {
        let found = self.jobs.look(|jobs| {
            let found = jobs.queue(queue)?;
            Some((found.cost_rule(&job.kind).cloned(), found.budget().is_some()))
        });
        let (rule, has_budget) = found.ok_or_else(|| JobError::NoSuchQueue { name: queue.clone() })?;
        let request = JobRequest {
            kind: job.kind.to_string(),
            key: job.key.to_string(),
            payload: job.payload.clone(),
            cost: job.cost,
            ..JobRequest::default()
        };
        let new = request.job(rule.as_ref(), has_budget)?;
        Ok(NewJob { background: job.background, ..new })
    }
}

/// Why nothing was written down.
enum Not<E> {
    Refused(JobError),
    Scheduled(E),
}
