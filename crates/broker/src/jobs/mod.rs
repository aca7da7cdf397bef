//! Job queues and budgets of this node: the rules are `nexo_core::jobs`'s; `machine_cell.rs` gives them a lock, the journal and a
//! place in checkpoints. Here they get what rules have not: workers that wait for jobs (`takers.rs`), a thread that knows the time
//! (`ticker.rs`), and answers, which are made from results and filters (`filtered.rs`) and pushed to queues (`answers.rs`).
//!
//! Whoever is told something is told when it is synced: a job that was handed out has spent tokens, so also that.

mod answers;
mod calls;
mod deletion;
mod error;
mod filtered;
mod requests;
mod scheduled;
mod settings;
mod takers;
mod ticker;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nexo_core::jobs::{JobAnswer, JobCommand, JobError, JobQueue, JobRecord, JobState, Jobs};
use nexo_core::machine::Step;
use nexo_core::message::Durability;
use nexo_log::{Claim, Urgency};
use nexo_types::{BudgetId, JobId, JobQueueId, QueueId, Timestamp, VhostName};
use parking_lot::Mutex;

use crate::error::QueueError;
use crate::journal::{ProposeError, Standing, Written};
use crate::machine_cell::{MachineCell, Replayed};
use crate::ordered_mutex::{OrderedMutex, Rank};
use crate::shared::Shared;
use crate::workers::Work;

pub use answers::WaiterAnswer;
use answers::{Answering, Caller};
pub use error::JobCallError;
pub use requests::{JobRequest, WaiterRequest};
use takers::Takers;
use ticker::Ticker;

/// Records of job queues are written under this id, which no queue has: ids of queues count up from one.
pub(crate) const JOBS: QueueId = QueueId(u64::MAX - 4);
/// Finished jobs that are forgotten at once where memory is short.
const SHRINK_MAX: usize = 1_000;
/// Jobs whose scores are looked at before one is handed out; mostly the ticker has seen to them.
const REFRESH_MAX: usize = 1_000;

/// All job queues and budgets.
#[derive(Debug)]
pub(crate) struct JobsCell {
    cell: MachineCell<Jobs>,
    takers: OrderedMutex<Takers>,
    ticker: Ticker,
    /// Calls that wait for a job to be finished.
    callers: Mutex<HashMap<JobId, VecDeque<Caller>>>,
    /// Queues that are on their way out: nobody joins those who wait there.
    closing: Mutex<BTreeSet<JobQueueId>>,
    /// What jobs took in memory when it was last looked at.
    memory_bytes: AtomicU64,
    /// One thread at a time gives answers, so that nobody gets two.
    answering: Mutex<Answering>,
    /// Somebody gives answers, and looks again afterwards.
    is_answering: AtomicBool,
    /// Some could not be given, and are tried again.
    is_unanswered: AtomicBool,
}

/// What a change may have made possible for workers that wait.
#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    queue: Option<JobQueueId>,
    budget: Option<BudgetId>,
    /// Whether another job of the queue may be the first. Other queues may have waited behind the one before.
    is_moved: bool,
    /// Anything.
    all: bool,
}

impl JobsCell {
    /// What was in the log, with its latest snapshot.
    pub(crate) fn new(restored: Replayed<Jobs>) -> Self {
        let memory_bytes = restored.machine.memory_bytes();
        Self {
            cell: MachineCell::new(JOBS, Rank::Jobs, restored),
            takers: OrderedMutex::new(Rank::Takers, Takers::default()),
            ticker: Ticker::default(),
            callers: Mutex::default(),
            closing: Mutex::default(),
            memory_bytes: AtomicU64::new(memory_bytes),
            answering: Mutex::default(),
            is_answering: AtomicBool::new(false),
            is_unanswered: AtomicBool::new(false),
        }
    }

    /// Their state, for checkpoints.
    pub(crate) const fn cell(&self) -> &MachineCell<Jobs> {
        &self.cell
    }

    /// Has these job queues instead of those there were. Whoever waits looks again.
    pub(crate) fn replace(&self, restored: Replayed<Jobs>) {
        self.cell.replace(restored, |_, _| ());
        self.callers.lock().clear();
        self.ticker.wake_by(Timestamp(0));
    }

    /// Looks at all of them. For a short while: nothing else goes on meanwhile.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Jobs) -> R) -> R {
        self.cell.look(|jobs, _| look(jobs))
    }

    pub(crate) fn stop(&self) {
        self.ticker.stop();
    }
}

impl Shared {
    /// Has a command decided, written down and applied, and has follow what follows from it. Gives back what to wait for
    /// before anybody is told.
    ///
    /// # Errors
    /// If the rules refuse it, or the log does; then nothing has changed.
    pub(crate) fn change_jobs(
        self: &Arc<Self>,
        command: &JobCommand,
    ) -> Result<(JobAnswer, Written), JobCallError> {
        let (answer, written, touched) = self.try_change_jobs(command)?;
        self.serve_takers(touched);
        Ok((answer, written))
    }

    /// The same, without serving workers that wait.
    fn try_change_jobs(
        self: &Arc<Self>,
        command: &JobCommand,
    ) -> Result<(JobAnswer, Written, Touched), JobCallError> {
        let mut is_moved = false;
        let decided = self.decide_jobs(claim_of(command), |jobs, now| {
            if let JobCommand::Take { queue, .. } = command {
                is_moved = refresh_before_take(jobs, queue, now);
            }
            if let JobCommand::Ask { queue, waiter: Some(_), .. } = command {
                self.refuse_closing(jobs, queue)?;
            }
            jobs.decide_command(now, command)
        });
        let (answer, written, touched) = decided?;
        Ok((answer, written, Touched { is_moved, ..touched }))
    }

    /// Has something decided, written down and applied, without serving workers that wait.
    fn decide_jobs(
        self: &Arc<Self>,
        claim: Claim,
        decide: impl FnOnce(&mut Jobs, Timestamp) -> Result<(Vec<JobRecord>, JobAnswer), JobError>,
    ) -> Result<(JobAnswer, Written, Touched), JobCallError> {
        let mut answer = JobAnswer::Done;
        let (follow, mut wake_by) = (RefCell::new(Follow::default()), None);
        let changed = self.change_advanced(
            &self.jobs.cell,
            &[],
            |jobs| {
                // Asked under the lock: whoever had it before may have written a later time otherwise.
                let (records, decided) = decide(jobs, self.clock.now())?;
                answer = decided;
                *follow.borrow_mut() = Follow::of(jobs, &records);
                let step = |record| Step { record, durability: Durability::Durable };
                Ok(records.into_iter().map(step).collect())
            },
            Urgency::Synced,
            claim,
            |jobs, _| {
                let mut follow = follow.borrow_mut();
                let id = follow.job.map(|job: JobId| job.queue()).or(follow.settings);
                let queue = id.and_then(|id| jobs.queue_by_id(id));
                wake_by = queue.and_then(JobQueue::next_wake);
                follow.to_answer.retain(|job| jobs.is_to_answer(*job));
            },
        );
        let changed = changed.map_err(|error: ProposeError| JobCallError::Queue(self.refused(&error)))?;
        let changed = changed.map_err(|refusal: JobError| JobCallError::Refused(refusal))?;
        let follow = follow.into_inner();
        self.follow_jobs(&follow, wake_by, changed.written);
        Ok((answer, changed.written, follow.touched))
    }

    /// What follows from records that were applied: calls that waited, answers that are due, a moment to look again.
    fn follow_jobs(self: &Arc<Self>, follow: &Follow, wake_by: Option<Timestamp>, written: Written) {
        for job in &follow.finished {
            let callers = self.jobs.callers.lock().remove(job);
            if let Some(callers) = callers {
                self.tell_callers_soon(*job, callers, written);
            }
        }
        if !follow.to_answer.is_empty() {
            self.answer_jobs_soon();
        }
        if follow.queues_went {
            self.forget_callers();
        }
        if let Some(at) = wake_by {
            // A score that is to be found is found by whoever hands out. The ticker need not run after every request.
            self.jobs.ticker.wake_by(at.max(self.clock.now().plus(ticker::REFRESH_EVERY.into())));
        }
    }

    /// Drops the job queues and budgets of a virtual host that is on its way out.
    pub(crate) fn forget_jobs_in(self: &Arc<Self>, vhost: &VhostName) -> Result<Written, QueueError> {
        match self.change_jobs(&JobCommand::ForgetVhost { vhost: vhost.clone() }) {
            Ok((_, written)) => Ok(written),
            Err(JobCallError::Queue(error)) => Err(error),
            // Nothing can be wrong with that.
            Err(JobCallError::Refused(refusal)) => {
                Err(QueueError::Unavailable { reason: refusal.to_string() })
            }
        }
    }

    /// Begins what a start has to do: answers that a crash cut off, and time.
    pub(crate) fn start_jobs(self: &Arc<Self>) -> std::io::Result<()> {
        self.jobs.ticker.start(self)?;
        if self.journal.standing() == Standing::Serving {
            self.wake_jobs();
        }
        Ok(())
    }

    /// Others are in place of the job queues that there were: there may be something to do.
    pub(crate) fn wake_jobs(self: &Arc<Self>) {
        self.jobs.ticker.wake_by(Timestamp(0));
        self.serve_all_takers();
        if self.jobs.look(|jobs| jobs.to_answer(1).next().is_some()) {
            self.answer_jobs_soon();
        }
    }

    /// What job queues may take in memory together: half of what the process may take.
    pub(crate) fn jobs_bytes_max(&self) -> u64 {
        self.options.jobs_bytes_max.min(self.memory.state().limit_bytes / 2)
    }

    pub(crate) fn note_jobs_memory(&self) {
        let bytes = self.jobs.look(Jobs::memory_bytes);
        self.jobs.memory_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Forgets finished jobs where memory is short, and refuses new ones if that is not enough.
    fn make_room_for_jobs(self: &Arc<Self>) -> Result<(), JobCallError> {
        let (used, max) = (|| self.jobs.memory_bytes.load(Ordering::Relaxed), self.jobs_bytes_max());
        if used() <= max {
            return Ok(());
        }
        self.change_jobs(&JobCommand::Shrink { max: SHRINK_MAX })?;
        self.note_jobs_memory();
        let used = used();
        if used <= max { Ok(()) } else { Err(JobError::OutOfMemory { used, max }.into()) }
    }

    /// Has somebody on a worker's thread see to answers.
    pub(crate) fn answer_jobs_soon(self: &Arc<Self>) {
        if !self.jobs.is_answering.swap(true, Ordering::SeqCst) {
            let shared = Arc::clone(self);
            self.workers.spawn(Work::Answer, move || shared.answer_jobs_slice());
        }
    }
}

/// Brings the scores of a queue up to the moment, as far as one hold of the lock allows; the ticker does it besides. Says whether
/// another job may be the first.
fn refresh_before_take(jobs: &mut Jobs, queue: &nexo_types::JobQueueName, now: Timestamp) -> bool {
    let Some(id) = jobs.queue(queue).map(JobQueue::id) else { return false };
    jobs.refresh_queue(id, now, REFRESH_MAX).moved
}

/// What brings bytes in waits for room on a disk that runs full; what frees some has the last of it.
const fn claim_of(command: &JobCommand) -> Claim {
    match command {
        JobCommand::Ask { .. }
        | JobCommand::Complete { .. }
        | JobCommand::PutQueue { .. }
        | JobCommand::PutBudget { .. }
        | JobCommand::Grant { .. } => Claim::Normal,
        JobCommand::DeleteQueue { .. }
        | JobCommand::DeleteBudget { .. }
        | JobCommand::ForgetVhost { .. }
        | JobCommand::Take { .. }
        | JobCommand::Extend { .. }
        | JobCommand::Fail { .. }
        | JobCommand::GiveBack { .. }
        | JobCommand::Cancel { .. }
        | JobCommand::CancelAll { .. }
        | JobCommand::Leave { .. }
        | JobCommand::Answered { .. }
        | JobCommand::Report { .. }
        | JobCommand::Due { .. }
        | JobCommand::Shrink { .. } => Claim::Reserved,
    }
}

/// What follows from records.
#[derive(Debug, Default)]
struct Follow {
    touched: Touched,
    finished: Vec<JobId>,
    /// Finished jobs with waiters to whom answers are to be brought, as far as can be told before the records are applied.
    to_answer: Vec<JobId>,
    /// Queues are deleted, perhaps some with calls that wait.
    queues_went: bool,
    /// The last job that a record was about.
    job: Option<JobId>,
    /// The queue that has other settings, by which the order of its jobs may be another one.
    settings: Option<JobQueueId>,
}

impl Follow {
    fn of(jobs: &Jobs, records: &[JobRecord]) -> Self {
        let mut follow = Self::default();
        for record in records {
            match record {
                JobRecord::Create { job, .. }
                | JobRecord::Raise { job }
                | JobRecord::HandOut { job, .. }
                | JobRecord::Extend { job, .. } => {
                    follow.touched.queue = Some(job.queue());
                    follow.job = Some(*job);
                }
                JobRecord::Join { job, .. } => {
                    follow.to_answer.extend(is_finished(jobs, *job).then_some(*job));
                    follow.job = Some(*job);
                }
                JobRecord::Return { job, .. } => {
                    follow.note_settled(jobs, *job);
                }
                JobRecord::Finish { job, .. } => {
                    follow.note_settled(jobs, *job);
                    follow.to_answer.push(*job);
                    follow.finished.push(*job);
                }
                JobRecord::Report { budget, .. } | JobRecord::Grant { budget, .. } => {
                    follow.touched.budget = Some(*budget);
                }
                JobRecord::PutQueue { queue, .. } => {
                    follow.touched.all = true;
                    follow.settings = Some(*queue);
                }
                JobRecord::PutBudget { .. } => follow.touched.all = true,
                JobRecord::DeleteQueue { .. } | JobRecord::ForgetVhost { .. } => {
                    follow.touched.all = true;
                    follow.queues_went = true;
                }
                // The score of a job whose waiter has left is found by the ticker, if nobody takes one before.
                JobRecord::Answered { job, .. } | JobRecord::Leave { job, .. } => follow.job = Some(*job),
                JobRecord::Forget { .. } | JobRecord::DeleteBudget { .. } => {}
            }
        }
        follow
    }

    /// A worker's hold of a job ends: its queue's others may go on, and so may all whose budget has more now.
    fn note_settled(&mut self, jobs: &Jobs, job: JobId) {
        let queue = job.queue();
        // Several queues in one command: time has passed.
        self.touched.all |= self.touched.queue.is_some_and(|other| other != queue);
        self.touched.queue = Some(queue);
        self.touched.budget = jobs.job(job).and_then(|(queue, job)| job.paid_by(queue));
        self.job = Some(job);
    }
}

fn is_finished(jobs: &Jobs, job: JobId) -> bool {
    jobs.job(job).is_some_and(|(_, job)| matches!(job.state(), JobState::Finished(_)))
}
