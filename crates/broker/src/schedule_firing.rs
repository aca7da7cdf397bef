//! Firing schedules: what they send is pushed to its queues in one frame with the record that says so, and so is the job that they
//! ask for (`jobs/scheduled.rs`). So a crash neither loses a time nor has it fired twice.
//!
//! What lies with the target (there is no such queue, nobody is bound, the queue is full, a job is refused) is a failure: it is
//! written down, told and counted, and the next time is tried again. What lies with the broker (an alarm, a full disk, a disk that
//! is behind) holds the schedule up: its time stays, and it is fired when that is over, as late as it may be by then. Others go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nexo_core::machine::Step;
use nexo_core::message::{Durability, NewMessage};
use nexo_core::queue::{Admission, Death, PushOutcome};
use nexo_core::record::Record;
use nexo_core::schedule::{
    Action, Due, Outcome, Schedule, ScheduleEntry, ScheduleError, ScheduleKey, ScheduleRecord, ScheduledJob,
    ScheduledMessage, Schedules, as_text,
};
use nexo_core::shared_messages::SharedMessages;
use nexo_core::topology::RouteError;
use nexo_log::{Claim, Urgency};
use nexo_types::{JobQueueName, Millis, Position, QueueId, Timestamp, VhostName};

use crate::broker::Broker;
use crate::commit::Confirm;
use crate::error::{QueueError, ScheduleRunError};
use crate::jobs::JobCallError;
use crate::journal::{Encoded, ProposeError, Proposed, Written};
use crate::property_codec::Publication;
use crate::queue_cell::{CellGuard, QueueCell};
use crate::rebuild::{rebuilding, replaced};
use crate::schedules::Held;
use crate::share::SHARE_BYTES_MIN;
use crate::shared::Shared;

/// Schedules that a worker fires before others have their turn.
const TURN: usize = 64;
/// Messages in one frame.
const MESSAGES_MAX: usize = 256;
/// Bytes of them.
const BYTES_MAX: usize = 1024 * 1024;
/// How long a schedule waits that the broker holds up.
const RETRY: Millis = Millis(500);
/// The same, if only the disk is behind, or a queue is locked.
const RETRY_BUSY: Millis = Millis(20);
/// Queues are locked for microseconds, and those that are locked already must not wait for one that is locked for longer.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(5);

/// Header of every message that a schedule sends: its name.
const SCHEDULE_HEADER: &str = "x-schedule";
/// Header of every message that a schedule sends: its time by the table, whenever it is sent.
const TIME_HEADER: &str = "x-scheduled-at";

/// Why nothing was sent.
#[derive(Debug)]
enum Unsent {
    /// The broker does not take messages now.
    Held(QueueError),
    /// It cannot be done.
    Failed(String),
    /// It has been changed or fired meanwhile.
    Stale,
}

/// What is written down beside what is sent.
#[derive(Clone, Copy, Debug)]
enum Why<'a> {
    Due(&'a Due),
    /// Somebody wants it now.
    Asked(Timestamp),
}

impl Why<'_> {
    fn times(&self) -> &[Timestamp] {
        match self {
            Self::Due(due) => &due.scheduled,
            Self::Asked(now) => std::slice::from_ref(now),
        }
    }
}

/// What came of sending.
struct Sent {
    written: Written,
    /// Why some queues, or all, did not take some times.
    refused: Option<(usize, String)>,
}

/// Where what a schedule does goes.
enum Aim<'a> {
    /// Messages to these queues.
    Queues(Vec<Arc<QueueCell>>),
    /// A job of this job queue.
    Job(&'a JobQueueName, &'a ScheduledJob),
}

/// A queue that gets messages.
struct Target<'a> {
    cell: &'a Arc<QueueCell>,
    state: CellGuard<'a>,
    records: Vec<(Record, Durability)>,
    deaths: Vec<Death>,
    urgency: Urgency,
}

impl Shared {
    /// Runs on a worker: fires some of those whose time has come.
    pub(crate) fn fire_due(self: &Arc<Self>) {
        // Whoever fires looks again when it is done.
        let Some(one_at_a_time) = self.schedules.firing.try_lock() else { return };
        if self.stopping.load(Ordering::Relaxed) {
            return;
        }
        let now = self.clock.calendar();
        match self.refuse_pushes() {
            Ok(()) => {
                let due = self.schedules.due(now, TURN);
                // The schedules may be those of the log already while the queues, or the exchanges, are still those of before: one that is
                // not there would be a failure, and the time gone. Schedules that were found before all are there are not fired: they
                // are others by then. Whoever rebuilds has the timer call.
                if self.is_rebuilding() {
                    return;
                }
                for (key, entry) in due {
                    match self.fire(&key, &entry) {
                        Ok(()) => drop(self.schedules.held.lock().remove(&key)),
                        Err(error) => self.hold(key, &error),
                    }
                }
            }
            // That holds for all of them, and is told by the alarm.
            Err(error) => {
                let held = Held { until: now.plus(RETRY), reason: error.to_string().into() };
                let all = self.schedules.due(now, usize::MAX);
                let mut waiting = self.schedules.held.lock();
                waiting.extend(all.into_iter().map(|(key, _)| (key, held.clone())));
            }
        }
        drop(one_at_a_time);
        // If others are due, the timer calls at once, and workers have done something else in between.
        self.arm_schedules();
    }

    /// Takes note of one that has to wait. It is told once.
    fn hold(&self, key: ScheduleKey, error: &QueueError) {
        let wait = if error.is_busy() { RETRY_BUSY } else { RETRY };
        let (until, reason) = (self.clock.calendar().plus(wait), Arc::<str>::from(error.to_string()));
        let (vhost, schedule) = (key.0.clone(), Arc::clone(&key.1));
        let before = self.schedules.held.lock().insert(key, Held { until, reason });
        if before.is_none() && !error.is_busy() {
            tracing::warn!(%vhost, %schedule, %error, "a schedule is due and has to wait");
        }
    }

    /// Fires the times of a schedule that have come, or some of them.
    ///
    /// # Errors
    /// If it has to wait.
    fn fire(self: &Arc<Self>, key: &ScheduleKey, entry: &Arc<ScheduleEntry>) -> Result<(), QueueError> {
        let now = self.clock.calendar();
        let aim = self.aim(&entry.schedule);
        let queues = if let Ok(Aim::Queues(cells)) = &aim { cells.len() } else { 1 };
        let Some(due) = entry.due(now, at_once(&entry.schedule, queues)) else { return Ok(()) };
        let sent = match aim {
            _ if due.scheduled.is_empty() => self.pass(key, entry, &due, &Outcome::Done).map(|()| None),
            Err(error) => Err(Unsent::Failed(error)),
            Ok(aim) => self.carry_out(key, entry, Why::Due(&due), &aim).map(Some),
        };
        let failed = match sent {
            Ok(sent) => sent.and_then(|sent| sent.refused),
            Err(Unsent::Stale) => return Ok(()),
            Err(Unsent::Held(error)) => return Err(error),
            Err(Unsent::Failed(error)) => {
                let outcome = Outcome::Failed { error: error.as_str().into() };
                match self.pass(key, entry, &due, &outcome) {
                    Ok(()) => Some((due.scheduled.len(), error)),
                    Err(Unsent::Held(error)) => return Err(error),
                    Err(Unsent::Stale | Unsent::Failed(_)) => return Ok(()),
                }
            }
        };
        self.note_fired(key, entry, &due, failed, now);
        Ok(())
    }

    /// Counts what came of times, and tells of what failed.
    fn note_fired(
        &self,
        (vhost, name): &ScheduleKey,
        entry: &ScheduleEntry,
        due: &Due,
        failed: Option<(usize, String)>,
        now: Timestamp,
    ) {
        let counters = &self.schedules.counters;
        let failures = failed.as_ref().map_or(0, |(count, _)| *count);
        counters.fired.fetch_add((due.scheduled.len() - failures) as u64, Ordering::Relaxed);
        counters.failed.fetch_add(failures as u64, Ordering::Relaxed);
        counters.missed.fetch_add(due.missed, Ordering::Relaxed);
        if failures == 0 {
            let late: u64 = due.scheduled.iter().map(|at| now.since(*at).0).sum();
            counters.late_ms.fetch_add(late, Ordering::Relaxed);
        }
        if due.missed > 0 {
            tracing::info!(%vhost, schedule = %name, missed = due.missed, "times of a schedule were missed");
        }
        if let Some((_, error)) = failed {
            // Each time it is in the figures; in the log and among the events it is told once for each reason.
            let status = &entry.status;
            let is_known = status
                .last_error
                .as_ref()
                .is_some_and(|(at, known)| **known == *error && status.last_run.is_none_or(|run| run < *at));
            if !is_known {
                self.events.schedule_failed(vhost, name, &error);
            }
        }
    }

    /// Where what a schedule does goes now.
    ///
    /// # Errors
    /// If it sends to no queue, in words for whoever looks after it.
    fn aim<'a>(&self, schedule: &'a Schedule) -> Result<Aim<'a>, String> {
        match &schedule.action {
            Action::Ask { queue, job } => Ok(Aim::Job(queue, job)),
            Action::Push { queue, .. } => {
                let found = self.catalog.get(queue);
                Ok(Aim::Queues(vec![found.ok_or_else(|| format!("queue '{queue}' does not exist"))?]))
            }
            Action::Publish { exchange, routing_key, message } => {
                let mut ids: Vec<QueueId> = Vec::new();
                // What the message says to an exchange of headers is the same each time.
                let (name, key) = (exchange.as_str(), routing_key);
                let message = self.message(&schedule.name, (name, key, message), Timestamp(0));
                let headers = self.options.codecs.header_source(&message.properties);
                let routes = self.catalog.exchanges.routes();
                let key: [&[u8]; 1] = [routing_key.as_bytes()];
                let routed = routes.publish(&exchange.vhost(), exchange.as_str(), &key, &*headers, &mut ids);
                routed.map_err(|error| match error {
                    RouteError::NoSuchExchange => format!("exchange '{exchange}' does not exist"),
                    RouteError::Internal => {
                        format!("exchange '{exchange}' is internal: nobody may publish to it")
                    }
                })?;
                ids.sort_unstable();
                ids.dedup();
                let cells: Vec<_> = ids.into_iter().filter_map(|id| self.catalog.get_id(id)).collect();
                match cells.is_empty() {
                    true => {
                        Err(format!("exchange '{exchange}' has no queue for routing key '{routing_key}'"))
                    }
                    false => Ok(Aim::Queues(cells)),
                }
            }
        }
    }

    /// The messages for some times; none if it sends none.
    fn messages(&self, schedule: &Schedule, times: &[Timestamp]) -> Vec<NewMessage> {
        let publication = match &schedule.action {
            Action::Push { queue, message } => ("", queue.as_str(), message),
            Action::Publish { exchange, routing_key, message } => {
                (exchange.as_str(), &**routing_key, message)
            }
            Action::Ask { .. } => return Vec::new(),
        };
        times.iter().map(|at| self.message(&schedule.name, publication, *at)).collect()
    }

    /// The message for one time, with its exchange and routing key.
    fn message(
        &self,
        schedule: &Arc<str>,
        (exchange, routing_key, message): (&str, &str, &ScheduledMessage),
        scheduled: Timestamp,
    ) -> NewMessage {
        let mut headers: Vec<(Arc<str>, Arc<str>)> = message.headers.clone();
        headers.push((SCHEDULE_HEADER.into(), Arc::clone(schedule)));
        headers.push((TIME_HEADER.into(), as_text(scheduled).into()));
        let (content_type, priority) = (&*message.content_type, message.priority);
        let body = message.body.clone();
        self.options.codecs.publication(&Publication {
            exchange,
            routing_key,
            content_type,
            headers: &headers,
            priority,
            body,
            at: scheduled,
        })
    }

    /// Writes down what came of times at which nothing is sent.
    fn pass(
        &self,
        key: &ScheduleKey,
        entry: &Arc<ScheduleEntry>,
        due: &Due,
        outcome: &Outcome,
    ) -> Result<(), Unsent> {
        let record = due.record(&key.0, &key.1, self.clock.calendar(), outcome);
        let changed = self.change_machine(
            self.schedules.cell(),
            &[],
            |known| steps_if_same(known, key, entry, vec![record]),
            Urgency::Written,
            Claim::Reserved,
            |_| (),
        );
        changed.map_err(|error| Unsent::Held(self.refused(&error)))?.map(drop)
    }

    /// Does what a schedule does at some times, and writes down that these are fired, in one frame.
    fn carry_out(
        self: &Arc<Self>,
        key: &ScheduleKey,
        entry: &Arc<ScheduleEntry>,
        why: Why<'_>,
        aim: &Aim<'_>,
    ) -> Result<Sent, Unsent> {
        self.refuse_pushes().map_err(Unsent::Held)?;
        match aim {
            Aim::Queues(cells) => self.send(key, entry, why, cells),
            Aim::Job(queue, job) => self.ask(key, entry, why, queue, job),
        }
    }

    /// Asks for a job, once for all of these times: they would be one job.
    fn ask(
        self: &Arc<Self>,
        key: &ScheduleKey,
        entry: &Arc<ScheduleEntry>,
        why: Why<'_>,
        queue: &JobQueueName,
        job: &ScheduledJob,
    ) -> Result<Sent, Unsent> {
        let taken = vec![true; why.times().len()];
        let records = outcome_records(key, why, self.clock.calendar(), &taken, None);
        let asked = self.ask_for_schedule(queue, job, |known| steps_if_same(known, key, entry, records));
        match asked {
            Ok(written) => Ok(Sent { written: written?, refused: None }),
            Err(JobCallError::Refused(refusal)) => Err(Unsent::Failed(refusal.to_string())),
            Err(JobCallError::Queue(error)) => Err(Unsent::Held(error)),
        }
    }

    /// Pushes the messages of some times to all their queues, and writes down that these are fired, in one frame.
    fn send(
        self: &Arc<Self>,
        key: &ScheduleKey,
        entry: &Arc<ScheduleEntry>,
        why: Why<'_>,
        cells: &[Arc<QueueCell>],
    ) -> Result<Sent, Unsent> {
        let messages = self.messages(&entry.schedule, why.times());
        let mut taken = vec![false; messages.len()];
        let mut refusal: Option<String> = None;
        let mut states: Vec<(&Arc<QueueCell>, CellGuard<'_>)> = Vec::with_capacity(cells.len());
        let latest = Instant::now() + LOCK_WAIT_MAX;
        // Large ones are stored once for all of them.
        let shares = cells.len() > 1 && messages.iter().any(|message| message.body.len() >= SHARE_BYTES_MIN);
        let mut shared: Option<SharedMessages> = None;
        for cell in cells {
            let Some(state) = cell.state.try_lock_until(latest) else {
                let reason = format!("others hold queue '{}'", cell.name);
                return Err(Unsent::Held(QueueError::Busy { reason }));
            };
            if state.replaced {
                return Err(Unsent::Held(replaced(&cell.name)));
            }
            if state.deleted {
                refusal = Some(format!("queue '{}' does not exist", cell.name));
                continue;
            }
            states.push((cell, state));
        }
        // Asked under all locks: whoever had one before may have written a later time otherwise.
        let now = self.clock.now();
        let mut targets: Vec<Target<'_>> = Vec::with_capacity(states.len());
        for (cell, state) in states {
            let mut target = self.target(cell, state, &messages, now, &mut taken, &mut refusal);
            if shares {
                self.share(&mut target, &mut shared);
            }
            targets.push(target);
        }
        let records = outcome_records(key, why, self.clock.calendar(), &taken, refusal.as_deref());
        let is_written = |messages: &&SharedMessages| messages.durability() == Durability::Durable;
        // Batches name it as the first entry of the frame.
        let mut entries: Vec<Encoded> = shared.iter().filter(is_written).map(Encoded::store).collect();
        for target in &targets {
            let written = target.records.iter().filter(|(_, durability)| *durability == Durability::Durable);
            entries.extend(written.map(|(record, _)| Encoded::new(target.cell.id, record)));
        }
        let urgency = targets.iter().map(|target| target.urgency).max().unwrap_or(Urgency::Written);
        let changed = self.change_machine(
            self.schedules.cell(),
            &entries,
            |known| steps_if_same(known, key, entry, records),
            urgency,
            Claim::Normal,
            |_| (),
        );
        let changed = changed.map_err(|error: ProposeError| Unsent::Held(self.refused(&error)))??;
        self.apply_sent(targets, Proposed { at: changed.at, written: changed.written }, now);
        let failures = taken.iter().filter(|taken| !**taken).count();
        let refused = refusal.filter(|_| failures > 0).map(|error| (failures, error));
        Ok(Sent { written: changed.written, refused })
    }

    /// What one queue makes of the messages.
    fn target<'a>(
        &self,
        cell: &'a Arc<QueueCell>,
        state: CellGuard<'a>,
        messages: &[NewMessage],
        now: Timestamp,
        taken: &mut [bool],
        refusal: &mut Option<String>,
    ) -> Target<'a> {
        let codecs = &self.options.codecs;
        let durability = if state.durable { Durability::Durable } else { Durability::Transient };
        let fit = |message: &NewMessage| {
            let fitted = codecs.publication_for(message, &cell.name, state.queue.config());
            NewMessage { durability, ..fitted }
        };
        let messages: Vec<NewMessage> = messages.iter().map(fit).collect();
        let plan = state.queue.decide_push(now, &messages, Admission::Checked);
        for (taken, outcome) in taken.iter_mut().zip(&plan.outcomes) {
            match outcome {
                PushOutcome::Accepted(_) | PushOutcome::Duplicate(_) => *taken = true,
                PushOutcome::Refused { limit, max, .. } => {
                    *refusal = Some(format!("queue '{}' is full: {limit} is {max}", cell.name));
                }
            }
        }
        let mut records: Vec<(Record, Durability)> =
            plan.reserve.into_iter().map(|record| (record, durability)).collect();
        let mut deaths = Vec::new();
        for (durability, batch) in plan.batches {
            deaths.extend(plan.dead_letters.deaths_in(&batch));
            // What is refused comes and dies in one frame.
            records.extend(plan.dead_letters.death_in(&batch, now).map(|record| (record, durability)));
            records.push((Record::Messages(batch), durability));
        }
        let urgency = self.urgency(&state, Confirm::AsQueue);
        Target { cell, state, records, deaths, urgency }
    }

    /// Has a queue share the messages of those before it.
    fn share(&self, target: &mut Target<'_>, shared: &mut Option<SharedMessages>) {
        for (record, durability) in &mut target.records {
            if let Record::Messages(batch) = record {
                *record = Record::Messages(self.share_batch(batch.clone(), *durability, shared));
            }
        }
    }

    /// Has the queues be as was written down, and lets go of them.
    fn apply_sent(self: &Arc<Self>, targets: Vec<Target<'_>>, proposed: Proposed, now: Timestamp) {
        let mut aftermaths = Vec::with_capacity(targets.len());
        for target in targets {
            let Target { cell, mut state, records, deaths, urgency } = target;
            let is_written = records.iter().any(|(_, durability)| *durability == Durability::Durable);
            if is_written {
                self.note_proposed(&mut state, proposed);
                state.last_change = state.last_change.and(proposed.written.with(urgency));
            }
            for (record, durability) in &records {
                let at = match durability {
                    Durability::Durable => proposed.at,
                    Durability::Transient => Position::default(),
                };
                self.apply(&mut state, at, record);
            }
            aftermaths.push((cell, self.follow_up(cell, &mut state, now), deaths, urgency));
        }
        // Only now: this may take a queue's lock, and the order of locks is that of ids.
        for (cell, aftermath, deaths, urgency) in aftermaths {
            self.finish(cell, aftermath);
            if !deaths.is_empty() {
                // It goes on whether or not anybody waits for it.
                drop(self.begin_move(cell, deaths, urgency));
            }
        }
    }
}

impl Broker {
    /// Has a schedule do what it does, now, whatever its time table says. Returns when that is safe.
    ///
    /// # Errors
    /// If there is none, or it could not be done.
    pub async fn run_schedule(&self, vhost: &VhostName, name: &str) -> Result<(), ScheduleRunError> {
        loop {
            self.shared.refuse_if_stopping()?;
            let missing = || ScheduleError::NoSuchSchedule { vhost: vhost.clone(), name: name.to_owned() };
            let info = self.schedule(vhost, name).ok_or_else(missing).map_err(ScheduleRunError::Refused)?;
            if self.shared.is_rebuilding() {
                return Err(rebuilding().into());
            }
            let key = (info.vhost, Arc::clone(&info.entry.schedule.name));
            let now = self.shared.clock.calendar();
            let aim = self.shared.aim(&info.entry.schedule);
            let aim = aim.map_err(|reason| ScheduleRunError::Failed { reason })?;
            match self.shared.carry_out(&key, &info.entry, Why::Asked(now), &aim) {
                Ok(Sent { refused: Some((_, reason)), .. }) | Err(Unsent::Failed(reason)) => {
                    return Err(ScheduleRunError::Failed { reason });
                }
                Ok(Sent { written, refused: None }) => {
                    self.shared.schedules.counters.fired.fetch_add(1, Ordering::Relaxed);
                    return Ok(self.shared.wait_for(written).await?);
                }
                Err(Unsent::Held(error)) if error.is_busy() => self.shared.until_room().await,
                Err(Unsent::Held(error)) => return Err(error.into()),
                Err(Unsent::Stale) => {}
            }
        }
    }
}

/// How many times of a schedule go into one frame.
fn at_once(schedule: &Schedule, queues: usize) -> usize {
    let queues = queues.max(1);
    (MESSAGES_MAX / queues).min(BYTES_MAX / (schedule.bytes() * queues)).max(1)
}

/// The records, unless the schedule is not what it was when they were made.
fn steps_if_same(
    known: &Schedules,
    (vhost, name): &ScheduleKey,
    entry: &Arc<ScheduleEntry>,
    records: Vec<ScheduleRecord>,
) -> Result<Vec<Step<ScheduleRecord>>, Unsent> {
    if !known.get(vhost, name).is_some_and(|now| Arc::ptr_eq(now, entry)) {
        return Err(Unsent::Stale);
    }
    Ok(records.into_iter().map(|record| Step { record, durability: Durability::Durable }).collect())
}

/// What is written down of these times: those that a queue took, and those that none did.
fn outcome_records(
    (vhost, name): &ScheduleKey,
    why: Why<'_>,
    at: Timestamp,
    taken: &[bool],
    refusal: Option<&str>,
) -> Vec<ScheduleRecord> {
    let due = match why {
        Why::Asked(_) => {
            let ran = ScheduleRecord::Ran { vhost: vhost.clone(), name: Arc::clone(name), at };
            return taken.iter().any(|taken| *taken).then_some(ran).into_iter().collect();
        }
        Why::Due(due) => due,
    };
    let times = |wanted: bool| -> Vec<Timestamp> {
        let all = due.scheduled.iter().zip(taken).filter(|(_, taken)| **taken == wanted);
        all.map(|(at, _)| *at).collect()
    };
    let mut records = Vec::new();
    let (fired, failed) = (times(true), times(false));
    let is_failed = !failed.is_empty();
    if !fired.is_empty() {
        let due = Due { scheduled: fired, ..due.clone() };
        records.push(due.record(vhost, name, at, &Outcome::Done));
    }
    if is_failed {
        let missed = if records.is_empty() { due.missed } else { 0 };
        let error = refusal.unwrap_or("no queue took it").into();
        let due = Due { scheduled: failed, missed, next: due.next };
        records.push(due.record(vhost, name, at, &Outcome::Failed { error }));
    }
    records
}
