//! What all parts of a broker share, and the way every change to a queue takes:
//! lock it, decide, write down, apply, see what follows from that, unlock, hand out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use nexo_core::config::SyncMode;
use nexo_core::queue::{Applied, Death, DuePlan, Handed, PageRequest};
use nexo_core::record::Record;
use nexo_core::shared_messages::SharedMemory;
use nexo_log::{Claim, EntryRef, Log, Patience, Urgency};
use nexo_types::{Millis, Position, QueueName, Timestamp};

use crate::buffers::ConnectionBuffers;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::connections::Connections;
use crate::disk_room::DiskRoom;
use crate::dispatch::Dispatch;
use crate::error::QueueError;
use crate::intake::Intake;
use crate::journal::{Encoded, Journal, ProposeError, Proposed, Written};
use crate::mailbox::{Deliveries, Mailbox};
use crate::maintenance::Maintenance;
use crate::options::BrokerOptions;
use crate::queue_cell::{CellState, QueueCell};
use crate::threads::Threads;
use crate::timer::Timer;
use crate::traffic::{AllTraffic, Protocol, Traffic};
use crate::unreadable::Unreadable;
use crate::workers::{Work, Workers};

/// Messages handed out, or dealt with because of time, under one hold of a queue's lock.
const BATCH: usize = 1000;
/// Batches under one hold of a queue's lock; what is left comes right after.
const BATCHES: usize = 8;
/// What a queue takes that has no messages and one binding, in the catalog and among the exchanges too; as measured.
const QUEUE_BYTES: u64 = 1920;
/// When a record could not be written, the queue tries again after this.
const RETRY: Millis = Millis(500);
/// The same, if only the disk is behind: what follows from a change never waits for it under the queue's lock.
const RETRY_BUSY: Millis = Millis(20);

/// How often is looked whether the log's next segment is ready, when everything is written and it is not.
const ROOM_RECHECK: Duration = Duration::from_millis(1);

/// Everything that is one of its kind in a broker.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: BrokerOptions,
    pub(crate) room: DiskRoom,
    pub(crate) intake: Intake,
    pub(crate) connections: Arc<Connections>,
    pub(crate) buffers: Arc<ConnectionBuffers>,
    pub(crate) dispatch: Dispatch,
    /// Where changes are written down.
    pub(crate) journal: Box<dyn Journal>,
    /// The storage of this node: what was written down is read from it.
    pub(crate) log: Log,
    pub(crate) clock: Arc<Clock>,
    pub(crate) catalog: Catalog,
    pub(crate) threads: Threads,
    pub(crate) timer: Arc<Timer>,
    pub(crate) workers: Workers,
    pub(crate) maintenance: Maintenance,
    /// Memory of all queues, near enough.
    pub(crate) memory_bytes: AtomicI64,
    /// Memory of messages that queues share.
    pub(crate) shared_memory: Arc<SharedMemory>,
    /// Messages found since the start to be lost to damage.
    pub(crate) damaged_messages: AtomicU64,
    /// There may be more of them, which nobody can count.
    pub(crate) damaged_uncounted: bool,
    /// Places of the log that cannot be read now.
    pub(crate) unreadable: Unreadable,
    pub(crate) stopping: AtomicBool,
    pub(crate) traffic: Arc<AllTraffic>,
}

/// What is left to do once the lock is free.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    /// Batches that wait in a mailbox for their messages to be read: the mailbox, the batch, the messages.
    cold: Vec<(Arc<Mailbox>, u64, Vec<Handed>)>,
    deaths: Vec<Death>,
    pages: Vec<PageRequest>,
    /// The queue has not been used for as long as it may live without.
    expired: bool,
}

/// When a caller may be told that its change is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirm {
    /// As the queue is set.
    AsQueue,
    /// Nobody waits.
    Lazily,
}

impl Shared {
    /// Counts something for a protocol, if it is one's.
    pub(crate) fn count(&self, protocol: Option<Protocol>, count: impl FnOnce(&Traffic)) {
        if let Some(protocol) = protocol {
            count(self.traffic.of(protocol));
        }
    }

    /// Runs `change` on a queue, then everything that follows from it.
    ///
    /// # Errors
    /// If the queue has been deleted.
    pub(crate) fn with<R>(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        change: impl FnOnce(&mut CellState, Timestamp) -> R,
    ) -> Result<R, QueueError> {
        let mut state = cell.state.lock();
        state.refuse_if_gone(&cell.name)?;
        let now = self.clock.now();
        let result = change(&mut state, now);
        let aftermath = self.follow_up(cell, &mut state, now);
        drop(state);
        self.finish(cell, aftermath);
        Ok(result)
    }

    /// Runs `change` on two queues at once, always locking the lower id first.
    pub(crate) fn with_both<R>(
        self: &Arc<Self>,
        one: &Arc<QueueCell>,
        other: &Arc<QueueCell>,
        change: impl FnOnce(&mut CellState, &mut CellState, Timestamp) -> R,
    ) -> Result<R, QueueError> {
        debug_assert_ne!(one.id, other.id, "two locks need two queues");
        let (mut one_state, mut other_state) = if one.id < other.id {
            let first = one.state.lock();
            (first, other.state.lock())
        } else {
            let first = other.state.lock();
            let second = one.state.lock();
            (second, first)
        };
        for (state, cell) in [(&one_state, one), (&other_state, other)] {
            state.refuse_if_gone(&cell.name)?;
        }
        let now = self.clock.now();
        let result = change(&mut one_state, &mut other_state, now);
        let one_after = self.follow_up(one, &mut one_state, now);
        let other_after = self.follow_up(other, &mut other_state, now);
        drop((one_state, other_state));
        self.finish(one, one_after);
        self.finish(other, other_after);
        Ok(result)
    }

    /// The timer's call: a deadline of this queue has come.
    pub(crate) fn wake_queue(self: &Arc<Self>, cell: &Arc<QueueCell>, at: Timestamp) {
        // A queue that was deleted needs nothing any more.
        let _ = self.with(cell, |state, _| {
            if state.armed.is_some_and(|armed| armed <= at) {
                state.armed = None;
            }
        });
    }

    /// Writes records of one queue down as one frame, and applies them.
    ///
    /// # Errors
    /// If the log does not take them; then nothing has changed.
    pub(crate) fn commit(
        &self,
        state: &mut CellState,
        records: &[Record],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<(Written, Vec<Applied>), ProposeError> {
        let id = state.queue.id();
        let shares = |record: &Record| matches!(record, Record::Messages(batch) if batch.is_shared());
        debug_assert!(!records.iter().any(shares), "a frame of one queue has nothing to share");
        // Of a queue that does not survive a restart only messages are written, to be read back when memory is short.
        let kept = |record: &&Record| state.durable || matches!(record, Record::Messages(_));
        let entries: Vec<Encoded> =
            records.iter().filter(kept).map(|record| Encoded::new(id, record)).collect();
        let (at, written) = if entries.is_empty() {
            (Position::default(), Written::NOTHING)
        } else {
            let proposed = self.propose(&entries, urgency, claim, patience)?;
            self.note_proposed(state, proposed);
            (proposed.at, proposed.written)
        };
        let applied = records.iter().map(|record| self.apply(state, at, record)).collect();
        Ok((written, applied))
    }

    /// Applies a record without writing it down: it names only transient messages.
    pub(crate) fn apply_unwritten(&self, state: &mut CellState, record: &Record) -> Applied {
        self.apply(state, Position::default(), record)
    }

    /// Applies a record that was just decided.
    pub(crate) fn apply(&self, state: &mut CellState, at: Position, record: &Record) -> Applied {
        let applied = state.queue.apply(at, record).expect("a decision names only messages in memory");
        self.note_usage(state);
        applied
    }

    /// Proposes records as one frame.
    pub(crate) fn propose(
        &self,
        entries: &[Encoded],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Proposed, ProposeError> {
        let refs: Vec<EntryRef<'_>> = entries.iter().map(Encoded::as_entry).collect();
        self.journal.propose(&refs, urgency, claim, patience)
    }

    /// Tells the log what a queue keeps alive, and maintenance if much has been let go.
    pub(crate) fn note_usage(&self, state: &mut CellState) {
        let mut freed = 0;
        for (segment, bytes) in state.queue.drain_usage() {
            self.log.account(segment, bytes);
            freed += bytes.min(0).unsigned_abs();
        }
        if freed > 0 {
            self.maintenance.note_freed(freed, self.options.segment_bytes.into());
        }
    }

    /// Waits until a change is as safe as it was asked to be.
    ///
    /// # Errors
    /// If the log failed meanwhile: whether the change survives a restart is not known then. If the change is lost.
    pub(crate) async fn wait_for(&self, written: Written) -> Result<(), QueueError> {
        if written.is_nothing() {
            return Ok(());
        }
        self.journal
            .wait(written)
            .await
            .map_err(|error| QueueError::Unavailable { reason: error.to_string() })
    }

    /// Returns when the log takes more, after it was [`QueueError::Busy`]. Nobody holds a lock or a thread meanwhile.
    pub(crate) async fn until_room(&self) {
        // If that fails, the next attempt says so.
        let _ = self.journal.wait(self.journal.so_far(Urgency::Written)).await;
        while !self.journal.has_room() {
            tokio::time::sleep(ROOM_RECHECK).await;
        }
    }

    /// How urgent a change to this queue is, if somebody waits for it.
    pub(crate) fn urgency(&self, state: &CellState, confirm: Confirm) -> Urgency {
        let mode = match state.queue.config().sync {
            SyncMode::Inherit => self.options.sync,
            own => own,
        };
        match (confirm, mode) {
            (Confirm::Lazily, _) => Urgency::Lazy,
            (Confirm::AsQueue, SyncMode::Always | SyncMode::Inherit) => Urgency::Synced,
            (Confirm::AsQueue, SyncMode::Interval | SyncMode::Os) => Urgency::Written,
        }
    }

    /// The error for a record that the log did not take.
    pub(crate) fn unavailable(error: &ProposeError) -> QueueError {
        let reason = error.to_string();
        match error {
            ProposeError::Full { .. } => QueueError::DiskFull { reason },
            ProposeError::Busy => QueueError::Busy { reason },
            ProposeError::Unavailable { .. } | ProposeError::Lost => QueueError::Unavailable { reason },
        }
    }

    /// The same, and maintenance is told if it was for want of space.
    pub(crate) fn refused(&self, error: &ProposeError) -> QueueError {
        if matches!(error, ProposeError::Full { .. }) {
            self.maintenance.note_full();
        }
        Self::unavailable(error)
    }

    /// The same for a record of this queue.
    pub(crate) fn refused_for(&self, queue: &QueueName, error: &ProposeError) -> QueueError {
        match self.refused(error) {
            QueueError::Busy { reason } => QueueError::Busy {
                reason: format!(
                    "queue '{queue}' has to wait: {reason}, and {} bytes are not written yet",
                    self.journal.unwritten_bytes()
                ),
            },
            other => other,
        }
    }

    pub(crate) fn refuse_if_stopping(&self) -> Result<(), QueueError> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(QueueError::Unavailable { reason: "the broker is stopping".into() });
        }
        Ok(())
    }

    /// Why nothing new is written for want of space, if so.
    pub(crate) fn want_of_space(&self) -> Option<String> {
        match self.journal.health() {
            nexo_log::LogHealth::Full { reason } => Some(format!("the disk is full: {reason}")),
            nexo_log::LogHealth::Ok => self.room.shortage(&self.clock),
            nexo_log::LogHealth::Failed { .. } => None,
        }
    }

    /// Whether messages are taken at all.
    pub(crate) fn refuse_pushes(&self) -> Result<(), QueueError> {
        self.refuse_if_stopping()?;
        match self.room.shortage(&self.clock) {
            Some(reason) => Err(QueueError::DiskFull { reason }),
            None => Ok(()),
        }
    }

    /// What time brings, what is too much, who gets what: until nothing is left to do now.
    pub(crate) fn follow_up(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        state: &mut CellState,
        now: Timestamp,
    ) -> Aftermath {
        let mut aftermath = Aftermath::default();
        let mut deliveries = Deliveries::default();
        self.write_leases(state);
        let mut outcome = Ok(true);
        for _ in 0..BATCHES {
            outcome = self.follow_up_once(state, now, &mut aftermath, &mut deliveries);
            if !matches!(outcome, Ok(true)) {
                break;
            }
        }
        let delivered: usize = deliveries.batches.iter().map(|(_, messages)| messages.len()).sum();
        if delivered > 0 {
            self.dispatch.note_delivered(delivered as u64);
            state.delivered(self.surroundings(), &cell.gate, delivered as u64);
        }
        // Under the lock, so that a consumer gets its messages in the order in which they were handed out.
        for (mailbox, messages) in deliveries.batches {
            let rests_on = self.delivery_rests_on(cell, state, &messages);
            if let Some((number, messages)) = mailbox.put(messages, rests_on) {
                aftermath.cold.push((mailbox, number, messages));
            }
        }
        // Whoever asks for what is there now waits for this as for a page.
        let unfinished = matches!(outcome, Ok(true) | Err(ProposeError::Busy));
        let caught_up = std::mem::replace(&mut state.unfinished, unfinished) && !unfinished;
        let again = match outcome {
            Ok(more) => more.then_some(now),
            Err(error) => {
                tracing::debug!(queue = %cell.name, %error, "a record could not be written; trying again later");
                Some(now.plus(if error == ProposeError::Busy { RETRY_BUSY } else { RETRY }))
            }
        };
        let expiry = expires_at(state);
        aftermath.expired = expiry.is_some_and(|at| at <= now);
        let expiry = expiry.filter(|at| *at > now);
        let unwritten = state.queue.has_unwritten_leases().then(|| now.plus(RETRY));
        let deadline = again.or_else(|| state.queue.next_deadline(now));
        let deadline = deadline.into_iter().chain(expiry).chain(unwritten).min();
        if let Some(at) = deadline
            && state.armed.is_none_or(|armed| at < armed)
        {
            state.armed = Some(at);
            self.timer.set(cell, at);
        }
        if !state.paging {
            aftermath.pages = state.queue.wanted_pages();
            if aftermath.pages.is_empty() {
                let wanted = state.queue.overflow_page().or_else(|| state.queue.expired_page(now));
                aftermath.pages.extend(wanted);
            }
            state.paging = !aftermath.pages.is_empty();
        }
        if std::mem::take(&mut state.page_arrived) || caught_up {
            // Whoever waits for the log and not for a push must see that it was read.
            for mailbox in state.mailboxes.0.values() {
                mailbox.stir();
            }
        }
        self.note_memory(state);
        aftermath
    }

    /// One round; says whether another may find more to do.
    fn follow_up_once(
        &self,
        state: &mut CellState,
        now: Timestamp,
        aftermath: &mut Aftermath,
        deliveries: &mut Deliveries,
    ) -> Result<bool, ProposeError> {
        let advancing = state.queue.advance_time(now, BATCH);
        let due = state.queue.decide_due(now, BATCH);
        let mut more = due.more || advancing;
        self.commit_due(state, due, aftermath)?;
        if self.stopping.load(Ordering::Relaxed) || advancing {
            return Ok(more);
        }
        let Some(dispatch) = state.queue.decide_dispatch(now, BATCH) else {
            // What nobody took although it was only for those who wait.
            let gone = state.queue.decide_ttl_zero(now);
            self.commit_due(state, gone, aftermath)?;
            // Only what nobody takes can be too much.
            let overflow = state.queue.decide_overflow(now);
            more |= overflow.more;
            self.commit_due(state, overflow, aftermath)?;
            return Ok(more);
        };
        let mut is_unwritten = false;
        if dispatch.durable && state.durable {
            let entry = Encoded::new(state.queue.id(), &dispatch.record);
            // What is left of a full disk is for what frees space, and a lease does not. But whoever will acknowledge
            // must get its messages; `unwritten.rs` says what that means for a replay.
            let claim = if dispatch.must_be_written() { Claim::Reserved } else { Claim::Normal };
            match self.propose(&[entry], Urgency::Lazy, claim, Patience::RefuseLast) {
                Ok(proposed) => self.note_proposed(state, proposed),
                Err(ProposeError::Full { .. }) if claim == Claim::Normal => is_unwritten = true,
                Err(error) => {
                    state.queue.undo_dispatch(&dispatch);
                    return Err(error);
                }
            }
        }
        let handed =
            state.queue.commit_dispatch(&dispatch).expect("a dispatch names only messages in memory");
        if is_unwritten {
            state.queue.note_unwritten(&dispatch);
        }
        self.note_usage(state);
        let mut handed = handed.into_iter();
        for turn in &dispatch.turns {
            let messages = handed.by_ref().take(turn.count as usize);
            deliveries.add(turn.consumer, &state.mailboxes, messages);
        }
        Ok(true)
    }

    /// Writes down leases for which there was no room when they were given, as far as there is by now.
    fn write_leases(&self, state: &mut CellState) {
        // Thousands of leases would be encoded in vain with every change to the queue.
        if !state.queue.has_unwritten_leases() || self.journal.health() != nexo_log::LogHealth::Ok {
            return;
        }
        let records = state.queue.decide_unwritten_leases(BATCH);
        // If there is still none, it is tried again later.
        let _ = self.commit(state, &records, Urgency::Lazy, Claim::Normal, Patience::RefuseLast);
    }

    /// Writes down and applies what a queue decided by itself. If there is no room, it decides the same again later.
    fn commit_due(
        &self,
        state: &mut CellState,
        due: DuePlan,
        aftermath: &mut Aftermath,
    ) -> Result<(), ProposeError> {
        self.commit_verdict(state, &due.records, due.durable, Confirm::Lazily)?;
        aftermath.deaths.extend(due.deaths);
        Ok(())
    }

    pub(crate) fn finish(self: &Arc<Self>, cell: &Arc<QueueCell>, aftermath: Aftermath) {
        for (mailbox, number, messages) in aftermath.cold {
            let (shared, cell) = (Arc::clone(self), Arc::clone(cell));
            let read = move || shared.read_delivery(&cell, &mailbox, number, messages);
            self.workers.spawn(Work::Deliver, read);
        }
        self.dead_letter_soon(cell, aftermath.deaths);
        if !aftermath.pages.is_empty() {
            let (shared, cell) = (Arc::clone(self), Arc::clone(cell));
            self.workers.spawn(Work::Deliver, move || shared.load_pages(&cell, &aftermath.pages));
        }
        if aftermath.expired {
            let (shared, cell) = (Arc::clone(self), Arc::clone(cell));
            self.workers.spawn(Work::Chore, move || {
                shared.delete_unused(&cell, |state, now| expires_at(state).is_some_and(|at| at <= now))
            });
        }
    }

    fn note_memory(&self, state: &mut CellState) {
        let memory = state.queue.memory_bytes();
        let change = memory as i64 - state.memory_bytes as i64;
        state.memory_bytes = memory;
        self.memory_bytes.fetch_add(change, Ordering::Relaxed);
        if change > 0 {
            self.note_if_pressed();
        }
    }

    /// Messages take more memory than before, or may take less.
    pub(crate) fn note_if_pressed(&self) {
        if self.under_pressure() {
            self.maintenance.note_pressure();
        }
    }

    /// Whether messages take more memory than they may: those in queues, on their way in and on their way out. A quarter is
    /// left for what is not counted, such as what the allocator keeps.
    pub(crate) fn under_pressure(&self) -> bool {
        let used = self
            .message_memory_bytes()
            .saturating_add(self.intake.held_bytes())
            .saturating_add(self.dispatch.outgoing.bytes());
        used > self.message_bytes_max()
    }

    /// What messages may take: three quarters of the bound, less what the queues themselves and buffers of connections take.
    /// However many of these there are, a quarter is for messages.
    pub(crate) fn message_bytes_max(&self) -> u64 {
        let max = self.options.memory_bytes_max;
        let queues = self.catalog.len() as u64 * QUEUE_BYTES;
        (max / 4 * 3).saturating_sub(queues + self.buffers.bytes()).max(max / 4)
    }
}

impl Drop for Shared {
    /// A broker that is dropped without being shut down is as one that crashed, but its threads end.
    fn drop(&mut self) {
        self.maintenance.stop();
        self.timer.stop();
        self.workers.stop();
    }
}

/// When a queue that nobody uses goes, if it ever does.
fn expires_at(state: &CellState) -> Option<Timestamp> {
    let expires = state.queue.config().expires?;
    (state.queue.consumers().0 == 0).then(|| state.last_used.plus(expires))
}

pub(crate) fn not_found(name: &QueueName) -> QueueError {
    QueueError::NotFound { name: name.clone() }
}
