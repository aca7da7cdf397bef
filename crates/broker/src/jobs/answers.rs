//! Answers: what a result is to each waiter. They are made on a worker's thread, from the result and the waiter's filter, and
//! pushed to the queues of those who want them there, in one frame with the note that they were. So a crash at any moment neither
//! forgets a waiter nor answers one twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nexo_core::jobs::{EmptyAnswers, Filter, JobRecord, JobState, Outcome, Reply, Waiter};
use nexo_core::machine::Step;
use nexo_core::message::{Durability, NewMessage};
use nexo_core::queue::Admission;
use nexo_core::record::Record;
use nexo_log::{Claim, Urgency};
use nexo_types::{JobId, Millis, Priority, QueueName};
use parking_lot::MutexGuard;
use serde_json::{Value, json};

use super::JOBS;
use crate::error::QueueError;
use crate::journal::{Encoded, ProposeError, Proposed};
use crate::property_codec::Publication;
use crate::queue_cell::{CellState, QueueCell};
use crate::shared::Shared;

/// Jobs that are looked at before others have their turn.
const JOBS_MAX: usize = 64;
/// Waiters that are answered in one frame, and bytes of their answers.
const WAITERS_MAX: usize = 256;
const ANSWER_BYTES: usize = 1024 * 1024;
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
    /// The items of the result that its filter lets through, or the whole result if it is no list and nothing is filtered.
    pub result: Value,
    /// Why the job failed, or why items could not be judged.
    pub error: Option<String>,
}

impl WaiterAnswer {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut answer = json!({
            "waiter": &*self.waiter,
            "job": self.job.0.to_string(),
            "type": &*self.kind,
            "key": &*self.key,
            "status": self.status,
        });
        if self.status == "done" {
            answer["result"] = self.result.clone();
        }
        if let Some(error) = &self.error {
            answer["error"] = json!(error);
        }
        answer
    }

    /// Whether its filter let nothing through.
    fn is_empty(&self) -> bool {
        self.status == "done" && self.error.is_none() && self.result.as_array().is_some_and(Vec::is_empty)
    }
}

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

/// A result that was read once, for all its waiters.
struct Read<'a> {
    finished: &'a Finished,
    result: Result<Value, String>,
    filters: BTreeMap<Arc<str>, Result<Filter, String>>,
}

impl<'a> Read<'a> {
    fn new(finished: &'a Finished) -> Self {
        let result = match &finished.outcome {
            Outcome::Done(result) => serde_json::from_slice(result).map_err(|error| error.to_string()),
            Outcome::Failed(_) | Outcome::Cancelled | Outcome::Expired => Ok(Value::Null),
        };
        Self { finished, result, filters: BTreeMap::new() }
    }

    fn answer(&mut self, waiter: &Waiter) -> WaiterAnswer {
        let Finished { job, kind, key, outcome, .. } = self.finished;
        let mut answer = WaiterAnswer {
            waiter: Arc::clone(&waiter.id),
            job: *job,
            kind: Arc::clone(kind),
            key: Arc::clone(key),
            status: outcome.name(),
            result: Value::Null,
            error: None,
        };
        match (outcome, &self.result) {
            (Outcome::Done(_), Ok(result)) if waiter.filter.is_empty() => answer.result = result.clone(),
            (Outcome::Done(_), Ok(result)) => {
                let filter = self
                    .filters
                    .entry(Arc::clone(&waiter.filter))
                    .or_insert_with(|| Filter::new(&waiter.filter).map_err(|error| error.to_string()));
                match filter {
                    Ok(filter) => (answer.result, answer.error) = filtered(filter, result),
                    Err(error) => answer.error = Some(error.clone()),
                }
            }
            (Outcome::Done(_), Err(error)) => answer.error = Some(format!("the result is no JSON: {error}")),
            (Outcome::Failed(error), _) => answer.error = Some(error.to_string()),
            (Outcome::Cancelled | Outcome::Expired, _) => {}
        }
        answer
    }
}

/// The items that a filter lets through, and why some could not be judged, which are left out.
fn filtered(filter: &Filter, result: &Value) -> (Value, Option<String>) {
    let items = result.as_array().map_or(std::slice::from_ref(result), Vec::as_slice);
    let (mut kept, mut failed, mut first) = (Vec::new(), 0u64, None);
    for (number, item) in items.iter().enumerate() {
        match filter.lets(item) {
            Ok(true) => kept.push(item.clone()),
            Ok(false) => {}
            Err(error) => {
                failed += 1;
                first.get_or_insert_with(|| format!("item {number}: {error}"));
            }
        }
    }
    let error = first.map(|first| format!("the filter failed on {failed} of {} items; {first}", items.len()));
    (Value::Array(kept), error)
}

impl Finished {
    /// What its waiters are told, by the thread that calls this.
    pub(super) fn answers(&self) -> Vec<(Waiter, WaiterAnswer)> {
        let mut read = Read::new(self);
        self.waiters.iter().map(|(_, waiter)| (waiter.clone(), read.answer(waiter))).collect()
    }
}

impl Shared {
    /// Answers waiters of some jobs; the rest when other work has had its turn.
    pub(super) fn answer_jobs_slice(self: &Arc<Self>) {
        // Before it looks: what is finished from here on is seen, or somebody is asked to look again.
        self.jobs.is_answering.store(false, Ordering::SeqCst);
        let _one_at_a_time = self.jobs.answering.lock();
        let jobs: Vec<JobId> = self.jobs.look(|jobs| jobs.to_answer(JOBS_MAX).collect());
        for job in &jobs {
            if let Err(error) = self.answer_job(*job) {
                tracing::warn!(%job, %error, "answers to a job's waiters cannot be given now; it is tried again");
                self.jobs.is_unanswered.store(true, Ordering::SeqCst);
                self.jobs.ticker.wake_by(self.clock.now().plus(RETRY_AFTER));
                return;
            }
        }
        if !jobs.is_empty() && self.jobs.look(|jobs| jobs.to_answer(1).next().is_some()) {
            self.answer_jobs_soon();
        }
    }

    /// Answers some of a job's waiters, those that come first.
    fn answer_job(self: &Arc<Self>, job: JobId) -> Result<(), QueueError> {
        let Some(finished) = self.to_answer(job) else { return Ok(()) };
        let skips = finished.empty_answers == EmptyAnswers::Skip;
        let mut by_queue: BTreeMap<QueueName, Vec<NewMessage>> = BTreeMap::new();
        let mut read = Read::new(&finished);
        let (mut before, mut bytes) = (finished.before, 0);
        for (place, waiter) in &finished.waiters {
            let Reply::Queue(queue) = &waiter.reply else { continue };
            let answer = read.answer(waiter);
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
        let mut answered = self.push_answers(job, before, &by_queue);
        while matches!(answered, Err(ProposeError::Busy)) && !self.stopping.load(Ordering::Relaxed) {
            self.journal.wait_for_room();
            answered = self.push_answers(job, before, &by_queue);
        }
        answered.map_err(|error| self.refused(&error))
    }

    /// A job whose waiters wait for answers, with the first of these.
    fn to_answer(&self, job: JobId) -> Option<Finished> {
        self.jobs.look(|jobs| {
            let (queue, found) = jobs.job(job)?;
            let JobState::Finished(finish) = found.state() else { return None };
            let waiters: Vec<(u32, Waiter)> = found.waiters_from(finish.answered).take(WAITERS_MAX).collect();
            let before = match waiters.last() {
                Some((last, _)) if waiters.len() == WAITERS_MAX => last + 1,
                _ => found.places(),
            };
            let body = found.body();
            Some(Finished {
                job,
                kind: body.kind,
                key: body.key,
                outcome: finish.outcome.clone(),
                empty_answers: queue.config().empty_answers,
                waiters,
                before,
            })
        })
    }

    /// Pushes answers to their queues and notes that they were given, in one frame.
    fn push_answers(
        self: &Arc<Self>,
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
        let mut states: Vec<MutexGuard<'_, CellState>> =
            cells.iter().map(|(cell, _)| cell.state.lock()).collect();
        let now = self.clock.now();
        let mut pushes: Vec<(usize, Record, Durability)> = Vec::new();
        for (at, (_, messages)) in cells.iter().enumerate() {
            let state = &states[at];
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
        let proposed = self.commit_beside_jobs(&entries, answered)?;
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
            body: Bytes::from(answer.to_json().to_string()),
            at: self.clock.calendar(),
        })
    }

    /// Writes a record of the jobs down with records of queues, whose locks are held, and applies it. To be followed by applying
    /// those.
    fn commit_beside_jobs(
        self: &Arc<Self>,
        beside: &[Encoded],
        record: JobRecord,
    ) -> Result<Proposed, ProposeError> {
        debug_assert!(beside.iter().all(|entry| entry.as_entry().queue != JOBS));
        let mut proposed = None;
        let claim = if beside.is_empty() { Claim::Reserved } else { Claim::Normal };
        let changed = self.change_advanced(
            &self.jobs.cell,
            beside,
            |_| Ok::<_, std::convert::Infallible>(vec![Step { record, durability: Durability::Durable }]),
            Urgency::Written,
            claim,
            |_, done| proposed = Some(done),
        )?;
        let Ok(_) = changed;
        // Whoever was answered last may be forgotten at its time.
        self.jobs.ticker.wake_by(self.clock.now().plus(Millis(1)));
        Ok(proposed.expect("a record was written"))
    }
}
