//! Workers that wait for jobs. Those of one queue are served in the order in which they came; nobody polls. The lock of this list
//! is taken before that of the jobs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use nexo_core::jobs::{Handed, JobAnswer, JobCommand, JobQueue, TakeOutcome};
use nexo_types::{JobQueueId, JobQueueName, Millis, Timestamp};
use tokio::sync::oneshot;

use super::{JobCallError, Touched};
use crate::error::QueueError;
use crate::journal::Written;
use crate::shared::Shared;

/// Jobs for a worker, and what to wait for before it is given them.
pub(super) type Served = Result<(Vec<Handed>, Written), JobCallError>;

/// All workers that wait.
#[derive(Debug, Default)]
pub(super) struct Takers {
    by_queue: BTreeMap<JobQueueId, Line>,
    /// Lines whose first job waits for more urgent ones of other queues with the same budget. They look again when one of those is
    /// handed out or is not wanted any more, which no moment tells.
    behind: BTreeSet<JobQueueId>,
    next: u64,
}

/// Those that wait for jobs of one queue.
#[derive(Debug, Default)]
struct Line {
    takers: VecDeque<Taker>,
    /// When its first job can be handed out, as far as that is known.
    again_at: Option<Timestamp>,
    /// Why the first has not got the job that there is for it: the disk is behind, or scores are still to be found.
    held_up: Option<QueueError>,
}

#[derive(Debug)]
struct Taker {
    number: u64,
    command: JobCommand,
    serve: oneshot::Sender<Served>,
}

impl Takers {
    /// When somebody may next be served by time alone.
    pub(super) fn next_again(&self) -> Option<Timestamp> {
        self.by_queue.values().filter_map(|line| line.again_at).min()
    }

    pub(super) fn len(&self) -> usize {
        self.by_queue.values().map(|line| line.takers.len()).sum()
    }
}

/// A place in the line, which is given up when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<Shared>,
    queue: JobQueueId,
    number: u64,
}

impl Place {
    /// Why a job that is there cannot be handed out, if one cannot.
    pub(super) fn held_up(&self) -> Option<QueueError> {
        let takers = self.shared.jobs.takers.lock();
        takers.by_queue.get(&self.queue)?.held_up.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut takers = self.shared.jobs.takers.lock();
        let Some(line) = takers.by_queue.get_mut(&self.queue) else { return };
        line.takers.retain(|taker| taker.number != self.number);
        if line.takers.is_empty() {
            self.shared.end_line(&mut takers, self.queue);
            // Nobody would work on its first job, so it holds up no other queue.
            let behind = self.shared.lines_behind(&takers, self.queue);
            self.shared.serve_lines(&mut takers, behind);
        }
    }
}

impl Shared {
    /// Has a worker wait for jobs, unless there are some now.
    pub(super) fn join_takers(
        self: &Arc<Self>,
        queue: JobQueueId,
        name: &JobQueueName,
        worker: &Arc<str>,
        lease: Option<Millis>,
        max: usize,
    ) -> (Place, oneshot::Receiver<Served>) {
        let command = JobCommand::Take { queue: name.clone(), worker: Arc::clone(worker), lease, max };
        let (serve, served) = oneshot::channel();
        let number = {
            let mut takers = self.jobs.takers.lock();
            takers.next += 1;
            let number = takers.next;
            takers.by_queue.entry(queue).or_default().takers.push_back(Taker { number, command, serve });
            self.jobs.cell.change(|jobs| jobs.set_wanted(queue, true));
            number
        };
        let place = Place { shared: Arc::clone(self), queue, number };
        self.serve_takers(Touched { queue: Some(queue), ..Touched::default() });
        (place, served)
    }

    /// Hands jobs to those who wait, as far as there are any.
    pub(super) fn serve_takers(self: &Arc<Self>, touched: Touched) {
        let mut takers = self.jobs.takers.lock();
        if takers.by_queue.is_empty() {
            return;
        }
        let queues: BTreeSet<JobQueueId> = match (touched.all, touched.budget) {
            (true, _) => takers.by_queue.keys().copied().collect(),
            (false, Some(budget)) => self.jobs.look(|jobs| {
                let pays = |id: &JobQueueId| {
                    jobs.queue_by_id(*id).is_some_and(|queue| queue.budget() == Some(budget))
                };
                let own = touched.queue;
                takers.by_queue.keys().copied().filter(|id| Some(*id) == own || pays(id)).collect()
            }),
            (false, None) => touched.queue.into_iter().collect(),
        };
        self.serve_lines(&mut takers, queues);
    }

    /// Has all who wait look again. The job queues that are in place of others do not know yet for which of them workers wait.
    pub(super) fn serve_all_takers(self: &Arc<Self>) {
        let mut takers = self.jobs.takers.lock();
        let all: BTreeSet<JobQueueId> = takers.by_queue.keys().copied().collect();
        self.jobs.cell.change(|jobs| all.iter().for_each(|id| jobs.set_wanted(*id, true)));
        self.serve_lines(&mut takers, all);
    }

    /// Serves those whose jobs may be paid by now, and those of queues that have another first job.
    pub(super) fn serve_takers_at(self: &Arc<Self>, now: Timestamp, moved: &BTreeSet<JobQueueId>) {
        let mut takers = self.jobs.takers.lock();
        let is_due = |line: &Line| line.again_at.is_some_and(|at| at <= now);
        let due = takers.by_queue.iter().filter(|(_, line)| is_due(line)).map(|(id, _)| *id);
        let mut queues: BTreeSet<JobQueueId> = due.chain(moved.iter().copied()).collect();
        for queue in moved {
            queues.extend(self.lines_behind(&takers, *queue));
        }
        self.serve_lines(&mut takers, queues);
    }

    /// Serves lines, and those that look again since these have changed. It ends: a line has others look again only when one of
    /// its workers got a job or is told that there are none.
    fn serve_lines(self: &Arc<Self>, takers: &mut Takers, mut queues: BTreeSet<JobQueueId>) {
        while let Some(queue) = queues.pop_first() {
            if self.serve_line(takers, queue) {
                queues.extend(self.lines_behind(takers, queue));
            }
        }
    }

    /// The lines that may wait for a more urgent job of this queue.
    fn lines_behind(&self, takers: &Takers, queue: JobQueueId) -> BTreeSet<JobQueueId> {
        if takers.behind.is_empty() {
            return BTreeSet::new();
        }
        self.jobs.look(|jobs| {
            let budget = |id: &JobQueueId| jobs.queue_by_id(*id).and_then(JobQueue::budget);
            let own = budget(&queue);
            let is_same = |id: &JobQueueId| *id != queue && own.is_some() && budget(id) == own;
            takers.behind.iter().copied().filter(is_same).collect()
        })
    }

    fn end_line(&self, takers: &mut Takers, queue: JobQueueId) {
        takers.by_queue.remove(&queue);
        takers.behind.remove(&queue);
        self.jobs.cell.change(|jobs| jobs.set_wanted(queue, false));
    }

    /// Serves those who wait in one line, as far as there are jobs for them. Says whether something has changed for lines behind it.
    fn serve_line(self: &Arc<Self>, takers: &mut Takers, queue: JobQueueId) -> bool {
        let Takers { by_queue, behind, .. } = takers;
        let Some(line) = by_queue.get_mut(&queue) else { return false };
        line.again_at = None;
        line.held_up = None;
        behind.remove(&queue);
        let mut has_changed = false;
        while let Some(first) = line.takers.front() {
            if first.serve.is_closed() {
                line.takers.pop_front();
                continue;
            }
            match self.try_change_jobs(&first.command) {
                Ok((JobAnswer::Taken(TakeOutcome { jobs, .. }), written, _)) if !jobs.is_empty() => {
                    self.serve_first(line, jobs, written);
                    has_changed = true;
                }
                Ok((JobAnswer::Taken(TakeOutcome { is_unsorted: true, again_at, .. }), _, _)) => {
                    // The ticker finds the rest, and serves this line then.
                    line.again_at = again_at;
                    let reason = "the order of the queue's jobs is being made, since the broker has started or its settings have \
                                  changed; try again in a moment";
                    line.held_up = Some(QueueError::Unavailable { reason: reason.into() });
                    self.jobs.ticker.wake_by(self.clock.now());
                    break;
                }
                Ok((JobAnswer::Taken(TakeOutcome { again_at, is_behind, .. }), _, touched)) => {
                    // Its first job is another one, or was one that can never be paid and has failed.
                    has_changed |= touched.is_moved || touched.budget.is_some();
                    line.again_at = again_at;
                    if is_behind {
                        behind.insert(queue);
                    }
                    if let Some(at) = again_at {
                        self.jobs.ticker.wake_by(at);
                    }
                    break;
                }
                Ok(_) => break,
                Err(JobCallError::Queue(error)) if error.is_busy() => {
                    // The disk is behind; the ticker tries again.
                    let soon = self.clock.now().plus(Millis(1));
                    line.again_at = Some(soon);
                    line.held_up = Some(error);
                    has_changed = true;
                    self.jobs.ticker.wake_by(soon);
                    break;
                }
                Err(error) => {
                    // The queue is gone, or the log is: whoever waits is told.
                    if let Some(taker) = line.takers.pop_front() {
                        let _ = taker.serve.send(Err(error));
                    }
                }
            }
        }
        if line.takers.is_empty() {
            self.end_line(takers, queue);
            has_changed = true;
        }
        has_changed
    }

    /// Gives jobs to the first in line. If it has gone in this moment they go back, and keep their places.
    fn serve_first(self: &Arc<Self>, line: &mut Line, jobs: Vec<Handed>, written: Written) {
        let Some(taker) = line.takers.pop_front() else { return };
        if let Err(Ok((jobs, _))) = taker.serve.send(Ok((jobs, written))) {
            self.give_back(&jobs);
        }
    }

    /// Gives jobs back that a worker has not got, and has others get them.
    pub(super) fn give_back_and_serve(self: &Arc<Self>, jobs: &[Handed]) {
        self.give_back(jobs);
        self.serve_takers(Touched { all: true, ..Touched::default() });
    }

    /// Gives jobs back that a worker has not got.
    fn give_back(self: &Arc<Self>, jobs: &[Handed]) {
        for handed in jobs {
            if let Err(error) = self.try_change_jobs(&JobCommand::GiveBack { receipt: handed.receipt }) {
                // It comes back when its lease ends.
                tracing::debug!(job = %handed.receipt.job, %error, "a job that nobody took cannot be given back now");
            }
        }
    }
}
