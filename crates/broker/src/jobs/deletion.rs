//! The end of a job queue. Whoever waits for its jobs is told first: they are cancelled in slices, and answers to queues are given
//! like any others. What a crash cuts off is a queue with fewer jobs; it is deleted when somebody asks for that again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nexo_core::jobs::{JobAnswer, JobCommand, JobError, JobQueue, Jobs};
use nexo_types::{JobQueueId, JobQueueName};

use super::JobCallError;
use crate::broker::Broker;
use crate::shared::Shared;

/// Jobs that are looked at in one hold of the lock.
const CANCEL_MAX: usize = 1_000;
/// How long answers may take. Whoever deletes a queue may do so because they take long.
const ANSWERS_MAX: Duration = Duration::from_secs(10);
/// How often is looked whether they were given.
const ANSWERS_LOOK: Duration = Duration::from_millis(10);

impl Broker {
    /// Deletes a job queue with all its jobs. Those that have waiters are cancelled first, and the waiters told. Answers to queues
    /// that cannot be given within ten seconds are not given.
    ///
    /// # Errors
    /// If there is none, or the log takes no more.
    pub async fn delete_job_queue(&self, name: &JobQueueName) -> Result<(), JobCallError> {
        let find = |jobs: &Jobs| jobs.queue(name).map(JobQueue::id);
        let Some(id) = self.shared.jobs.look(find) else { return Err(self.no_such_queue(name).await) };
        let _closing = Closing::new(&self.shared, id);
        let mut next = Some(0);
        while let Some(from) = next {
            let cancel = JobCommand::CancelAll { queue: name.clone(), from, max: CANCEL_MAX };
            next = match self.jobs_command(&cancel).await? {
                JobAnswer::Cancelled(next) => next,
                other => unreachable!("cancelling is answered as such, and not as {other:?}"),
            };
        }
        self.until_answered(id, name).await;
        self.jobs_command(&JobCommand::DeleteQueue { name: name.clone() }).await.map(drop)
    }

    async fn until_answered(&self, id: JobQueueId, name: &JobQueueName) {
        let began = Instant::now();
        let left = |jobs: &Jobs| jobs.queue_by_id(id).map_or(0, JobQueue::unanswered);
        loop {
            let jobs = self.shared.jobs.look(left);
            if jobs == 0 {
                return;
            }
            if began.elapsed() >= ANSWERS_MAX {
                tracing::warn!(queue = %name.in_full(), jobs, "a job queue is deleted before all answers were given");
                return;
            }
            tokio::time::sleep(ANSWERS_LOOK).await;
        }
    }
}

/// A queue that is on its way out, until this is dropped.
struct Closing {
    shared: Arc<Shared>,
    queue: JobQueueId,
}

impl Closing {
    fn new(shared: &Arc<Shared>, queue: JobQueueId) -> Self {
        shared.jobs.closing.lock().insert(queue);
        Self { shared: Arc::clone(shared), queue }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.shared.jobs.closing.lock().remove(&self.queue);
    }
}

impl Shared {
    /// Refuses waiters of a queue that is on its way out: they would come too late to be told.
    pub(super) fn refuse_closing(&self, jobs: &Jobs, name: &JobQueueName) -> Result<(), JobError> {
        let closing = self.jobs.closing.lock();
        match jobs.queue(name) {
            Some(queue) if closing.contains(&queue.id()) => Err(JobError::QueueGoing { name: name.clone() }),
            Some(_) | None => Ok(()),
        }
    }

    /// Has calls that wait for jobs of queues that are gone look again, and find that out.
    pub(super) fn forget_callers(&self) {
        let mut callers = self.jobs.callers.lock();
        self.jobs.look(|jobs| callers.retain(|job, _| jobs.queue_by_id(job.queue()).is_some()));
    }
}
