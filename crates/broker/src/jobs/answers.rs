//! Answers: what a result is to each waiter. They are made on a worker's thread, from the result and the waiter's filter
//! (`filtered.rs`), in turns that are bounded by time: a filter may take long, and a job may have many waiters. Those who want them in a queue get them pushed there, in one frame with the note that they were. So a
//! crash at any moment neither forgets a waiter nor answers one twice. Those who wait in a call are told when the end of the job
//! is safe; whoever comes later asks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nexo_core::jobs::{EmptyAnswers, Finish, Job, JobRecord, JobState, Jobs, Outcome, Reply, Turns, Waiter};
use nexo_core::machine::Step;
use nexo_core::message::{Durability, NewMessage};
use nexo_core::queue::Admission;
use nexo_core::record::Record;
use nexo_log::{Claim, Urgency};
use nexo_types::{JobId, Millis, Priority, QueueName};
use serde_json::json;
use tokio::sync::oneshot;

use super::JOBS;
use super::filtered::Results;
use crate::error::QueueError;
use crate::journal::{Encoded, ProposeError, Proposed, Written};
use crate::property_codec::Publication;
use crate::queue_cell::{CellGuard, QueueCell};
use crate::shared::Shared;
use crate::workers::Work;

/// Jobs that are looked at before others have their turn.
const JOBS_MAX: usize = 64;
/// Waiters that are answered in one frame, and bytes of their answers.
const WAITERS_MAX: usize = 256;
const ANSWER_BYTES: usize = 1024 * 1024;
/// How long the waiters of one job are answered before it is another's turn, and how long all this goes on before what else waits
/// for this thread. What one waiter's filter may take is bounded by steps.
const TURN: Duration = Duration::from_millis(5);
const SLICE: Duration = Duration::from_millis(20);
/// When to try again what the log did not take.
const RETRY_AFTER: Millis = Millis(200);

/// What a waiter is told.
#[derive(Clone, Debug, PartialEq)]
pub struct WaiterAnswer {
    /// The waiter.
    pub waiter: Arc<str>,
    /// The job that the answer comes from.
    pub job: JobId,
    /// Its type.
    pub kind: Arc<str>,
    /// Its key.
    pub key: Arc<str>,
    /// `done`, `failed`, `cancelled` or `expired`.
    pub status: &'static str,
    /// The items of the result that its filter lets through, or the whole result if nothing is filtered, as JSON. Empty unless the
    /// job was done.
    pub result: Bytes,
    /// Why the job failed, or why items could not be judged.
    pub error: Option<String>,
}

impl WaiterAnswer {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut answer = json!({
            "waiter": &*self.waiter,
            "job": self.job.0.to_string(),
            "type": &*self.kind,
            "key": &*self.key,
            "status": self.status,
        });
        if let Some(error) = &self.error {
            answer["error"] = json!(error);
        }
        let mut text = answer.to_string();
        // It is JSON already, and may be large.
        if let Ok(result) = std::str::from_utf8(&self.result)
            && !result.is_empty()
        {
            text.pop();
            text.push_str(",\"result\":");
            text.push_str(result);
            text.push('}');
        }
        text
    }

    /// Whether it has no items: its filter let nothing through, or there were none. Without a filter they are as the worker wrote
    /// them, with space in between or not.
    fn is_empty(&self) -> bool {
        let written = self.result.iter().filter(|byte| !byte.is_ascii_whitespace());
        self.error.is_none() && written.eq(b"[]")
    }
}

/// A call that waits for a waiter's answer.
#[derive(Debug)]
pub(super) struct Caller {
    /// The waiter's place at its job.
    pub(super) place: u32,
    /// Takes the answer, and what to wait for before it is passed on.
    pub(super) tell: oneshot::Sender<(WaiterAnswer, Written)>,
}

/// Waiters to be told, and the place behind the last of them.
pub(super) type Told = (Vec<(u32, Waiter)>, u32);

/// A finished job, with what is needed for its answers.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub(super) job: JobId,
    pub(super) kind: Arc<str>,
    pub(super) key: Arc<str>,
    pub(super) outcome: Outcome,
    pub(super) empty_answers: EmptyAnswers,
    /// The waiters that are to be answered, and the place behind the last of them.
    pub(super) waiters: Vec<(u32, Waiter)>,
    pub(super) before: u32,
}

impl Finished {
    /// A job that is finished, with some of its waiters.
    pub(super) fn of(jobs: &Jobs, id: JobId, waiters: impl FnOnce(&Job, &Finish) -> Told) -> Option<Self> {
        let (queue, job) = jobs.job(id)?;
        let JobState::Finished(finish) = job.state() else { return None };
        let (waiters, before) = waiters(job, finish);
        let body = job.body();
        Some(Self {
            job: id,
            kind: body.kind,
            key: body.key,
            outcome: finish.outcome.clone(),
            empty_answers: queue.config().empty_answers,
            waiters,
            before,
        })
    }

    /// What its last waiter is told, by the thread that calls this.
    pub(super) fn last_answer(&self) -> Option<WaiterAnswer> {
        self.waiters.last().map(|(_, waiter)| self.answer(waiter, &mut Results::default()))
    }

    fn answer(&self, waiter: &Waiter, results: &mut Results) -> WaiterAnswer {
        let (result, error) = match &self.outcome {
            Outcome::Done(result) if waiter.filter.is_empty() => (result.clone(), None),
            Outcome::Done(result) => results.filtered(result, &waiter.filter),
            Outcome::Failed(error) => (Bytes::new(), Some(error.to_string())),
            Outcome::Cancelled | Outcome::Expired => (Bytes::new(), None),
        };
        WaiterAnswer {
            waiter: Arc::clone(&waiter.id),
            job: self.job,
            kind: Arc::clone(&self.kind),
            key: Arc::clone(&self.key),
            status: self.outcome.name(),
            result,
            error,
        }
    }
}

/// What is known from one slice of answering to the next.
#[derive(Debug, Default)]
pub(super) struct Answering {
    turns: Turns,
    results: Results,
}

/// Whoever gives answers. Others need not begin until it is gone, and then they must.
struct Giving<'a>(&'a AtomicBool);

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    /// Answers waiters of some jobs; the rest when other work has had its turn.
    pub(super) fn answer_jobs_slice(self: &Arc<Self>) {
        let giving = Giving(&self.jobs.is_answering);
        let answered = self.answer_some_jobs();
        // Before it looks again: what is finished from here on is seen, or somebody is asked to look.
        drop(giving);
        if answered.is_err() {
            self.jobs.is_unanswered.store(true, Ordering::SeqCst);
            self.jobs.ticker.wake_by(self.clock.now().plus(RETRY_AFTER));
        } else if self.jobs.look(|jobs| jobs.to_answer(1).next().is_some()) {
            self.answer_jobs_soon();
        } else if let Some(mut answering) = self.jobs.answering.try_lock() {
            // Nobody keeps what was read for those who may come at some time.
            answering.results.clear();
            answering.turns.clear();
        }
    }

    fn answer_some_jobs(self: &Arc<Self>) -> Result<(), QueueError> {
        let began = Instant::now();
        let mut answering = self.jobs.answering.lock();
        let Answering { turns, results } = &mut *answering;
        let jobs = self.jobs.look(|jobs| turns.next(jobs, JOBS_MAX));
        self.until_ends_are_safe()?;
        for job in jobs {
            turns.note(job);
            self.answer_job(job, results).inspect_err(|error| {
                tracing::warn!(%job, %error, "answers to a job's waiters cannot be given now; it is tried again");
            })?;
            if began.elapsed() >= SLICE {
                break;
            }
        }
        Ok(())
    }

    /// Waits until the ends of jobs are safe that were just looked at. A message may be delivered before it is on disk. If a crash took
    /// back an answer and the end of its job, the job would be done again, and might end otherwise than its waiter was told.
    fn until_ends_are_safe(&self) -> Result<(), QueueError> {
        if !self.journal.releases_early() {
            // A delivery waits for all that was proposed before it.
            return Ok(());
        }
        let ends = self.journal.wait(self.journal.so_far(Urgency::Synced));
        ends.wait_blocking().map_err(|error| QueueError::Unavailable { reason: error.to_string() })
    }

    /// Answers some of a job's waiters, those that come first.
    fn answer_job(self: &Arc<Self>, job: JobId, results: &mut Results) -> Result<(), QueueError> {
        let began = Instant::now();
        let term = self.memory_term();
        let Some(finished) = self.to_answer(job) else { return Ok(()) };
        let skips = finished.empty_answers == EmptyAnswers::Skip;
        let mut by_queue: BTreeMap<QueueName, Vec<NewMessage>> = BTreeMap::new();
        let (mut before, mut bytes) = (finished.before, 0);
        for (at, (place, waiter)) in finished.waiters.iter().enumerate() {
            if at > 0 && began.elapsed() >= TURN {
                before = *place;
                break;
            }
            let Reply::Queue(queue) = &waiter.reply else { continue };
            let answer = finished.answer(waiter, results);
            if skips && answer.is_empty() {
                continue;
            }
            let message = self.message_of(queue, &answer);
            bytes += message.body.len();
            if bytes > ANSWER_BYTES && !by_queue.is_empty() {
                before = *place;
                break;
            }
            by_queue.entry(queue.clone()).or_default().push(message);
        }
        let mut answered = self.push_answers(term, job, before, &by_queue);
        while matches!(answered, Err(ProposeError::Busy)) && !self.stopping.load(Ordering::Relaxed) {
            self.journal.wait_for_room();
            answered = self.push_answers(term, job, before, &by_queue);
        }
        answered.map_err(|error| self.refused(&error))
    }

    /// A job whose waiters wait for answers, with the first of these.
    fn to_answer(&self, job: JobId) -> Option<Finished> {
        let first = |found: &Job, finish: &Finish| -> Told {
            let waiters: Vec<_> = found.waiters_from(finish.answered).take(WAITERS_MAX).collect();
            let before = match waiters.last() {
                Some((last, _)) if waiters.len() == WAITERS_MAX => last + 1,
                _ => found.places(),
            };
            (waiters, before)
        };
        self.jobs.look(|jobs| Finished::of(jobs, job, first))
    }

    /// Has calls that waited for a job told of its end, which is safe when `written` is.
    pub(super) fn tell_callers_soon(
        self: &Arc<Self>,
        job: JobId,
        callers: VecDeque<Caller>,
        written: Written,
    ) {
        self.tell_more_callers(job, callers, written, Results::default());
    }

    /// Tells some, and the others when other work has had its turn.
    fn tell_more_callers(
        self: &Arc<Self>,
        job: JobId,
        mut callers: VecDeque<Caller>,
        written: Written,
        mut results: Results,
    ) {
        let shared = Arc::clone(self);
        self.workers.spawn(Work::Answer, move || {
            shared.tell_callers(job, &mut callers, written, &mut results);
            if !callers.is_empty() {
                shared.tell_more_callers(job, callers, written, results);
            }
        });
    }

    fn tell_callers(
        &self,
        job: JobId,
        callers: &mut VecDeque<Caller>,
        written: Written,
        results: &mut Results,
    ) {
        let began = Instant::now();
        let mut some: VecDeque<Caller> = callers.drain(..callers.len().min(WAITERS_MAX)).collect();
        some.retain(|caller| !caller.tell.is_closed());
        let of_callers = |found: &Job, _: &Finish| -> Told {
            // Whoever has left is told so when it looks again.
            some.retain(|caller| found.waiter(caller.place).is_some());
            let waiter = |caller: &Caller| Some((caller.place, found.waiter(caller.place)?));
            (some.iter().filter_map(waiter).collect(), 0)
        };
        let Some(finished) = self.jobs.look(|jobs| Finished::of(jobs, job, of_callers)) else { return };
        for (_, waiter) in &finished.waiters {
            let Some(caller) = some.pop_front() else { break };
            // It may have gone in this moment.
            let _ = caller.tell.send((finished.answer(waiter, results), written));
            if began.elapsed() >= TURN {
                break;
            }
        }
        // Those who are left are the first when it goes on.
        while let Some(caller) = some.pop_back() {
            callers.push_front(caller);
        }
    }

    /// In which term of the journal the memory is. What was looked at in an earlier one may be lost.
    pub(crate) fn memory_term(&self) -> u32 {
        self.journal.so_far(Urgency::Lazy).term()
    }

    /// Pushes answers to their queues and notes that they were given, in one frame. They were found in memory in this term.
    pub(crate) fn push_answers(
        self: &Arc<Self>,
        term: u32,
        job: JobId,
        before: u32,
        by_queue: &BTreeMap<QueueName, Vec<NewMessage>>,
    ) -> Result<(), ProposeError> {
        let mut cells: Vec<(Arc<QueueCell>, &Vec<NewMessage>)> = Vec::new();
        for (name, messages) in by_queue {
            match self.catalog.get(name) {
                Some(cell) => cells.push((cell, messages)),
                None => {
                    let count = messages.len();
                    tracing::warn!(queue = %name.in_full(), count, "a queue for answers is gone; its waiters can still ask for theirs");
                }
            }
        }
        cells.sort_unstable_by_key(|(cell, _)| cell.id);
        let mut states: Vec<CellGuard<'_>> = cells.iter().map(|(cell, _)| cell.state.lock()).collect();
        let now = self.clock.now();
        let mut pushes: Vec<(usize, Record, Durability)> = Vec::new();
        for (at, (_, messages)) in cells.iter().enumerate() {
            let state = &states[at];
            if state.replaced {
                return Err(ProposeError::Lost);
            }
            if state.deleted {
                continue;
            }
            let durability = if state.durable { Durability::Durable } else { Durability::Transient };
            let fit = |message: &NewMessage| {
                let fitted = self.options.codecs.for_queue(message, state.queue.config());
                NewMessage { durability, ..fitted }
            };
            let messages: Vec<NewMessage> = messages.iter().map(fit).collect();
            let plan = state.queue.decide_push(now, &messages, Admission::Forced);
            pushes.extend(plan.reserve.map(|record| (at, record, Durability::Durable)));
            for (durability, batch) in plan.batches {
                pushes.push((at, Record::Messages(batch), durability));
            }
        }
        let entries: Vec<Encoded> = pushes
            .iter()
            .filter(|(at, _, durability)| *durability == Durability::Durable && states[*at].durable)
            .map(|(at, record, _)| Encoded::new(cells[*at].0.id, record))
            .collect();
        let answered = JobRecord::Answered { job, before };
        let proposed = self.commit_beside_jobs(term, &entries, answered)?;
        for state in &mut states {
            self.note_proposed(state, proposed);
        }
        for (at, record, _) in &pushes {
            self.apply(&mut states[*at], proposed.at, record);
        }
        let aftermaths: Vec<_> = cells
            .iter()
            .zip(&mut states)
            .map(|((cell, _), state)| self.follow_up(cell, state, now))
            .collect();
        drop(states);
        for ((cell, _), aftermath) in cells.iter().zip(aftermaths) {
            self.finish(cell, aftermath);
        }
        Ok(())
    }

    /// An answer as a message: JSON, with headers for whoever sorts messages without reading them.
    fn message_of(&self, queue: &QueueName, answer: &WaiterAnswer) -> NewMessage {
        let headers = [
            ("waiter".into(), Arc::clone(&answer.waiter)),
            ("job".into(), answer.job.0.to_string().into()),
            ("key".into(), Arc::clone(&answer.key)),
            ("status".into(), answer.status.into()),
        ];
        self.options.codecs.publication(&Publication {
            exchange: "",
            routing_key: queue.as_str(),
            content_type: "application/json",
            headers: &headers,
            priority: Priority::default(),
            body: Bytes::from(answer.to_json()),
            at: self.clock.calendar(),
        })
    }

    /// Writes a record of the jobs down with records of queues, whose locks are held, and applies it. To be followed by applying
    /// those.
    ///
    /// # Errors
    /// If the journal does not take it, or the job queues were rebuilt since this term.
    fn commit_beside_jobs(
        self: &Arc<Self>,
        term: u32,
        beside: &[Encoded],
        record: JobRecord,
    ) -> Result<Proposed, ProposeError> {
        debug_assert!(beside.iter().all(|entry| entry.as_entry().queue != JOBS));
        let mut proposed = None;
        let claim = if beside.is_empty() { Claim::Reserved } else { Claim::Normal };
        let changed = self.change_advanced(
            &self.jobs.cell,
            beside,
            // With their lock held they cannot be replaced.
            |_| match self.memory_term() == term {
                true => Ok(vec![Step { record, durability: Durability::Durable }]),
                false => Err(ProposeError::Lost),
            },
            Urgency::Written,
            claim,
            |_, done| proposed = Some(done),
        )?;
        changed?;
        // Whoever was answered last may be forgotten at its time.
        self.jobs.ticker.wake_by(self.clock.now().plus(Millis(1)));
        Ok(proposed.expect("a record was written"))
    }
}
