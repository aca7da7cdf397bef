//! What follows from a change to a queue: what time brings, what is too much, who gets what. The end of the way that every
//! change takes, under the queue's lock; what may wait for the disk is left to workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nexo_core::queue::{Death, DuePlan, Handed};
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{Millis, Position, Timestamp};

use crate::commit::Confirm;
use crate::journal::{Encoded, ProposeError};
use crate::mailbox::{Deliveries, Mailbox};
use crate::placement::PlacedPages;
use crate::queue_cell::{CellState, QueueCell};
use crate::shared::Shared;
use crate::workers::Work;

/// Messages handed out, or dealt with because of time, under one hold of a queue's lock.
const BATCH: usize = 1000;
/// Batches under one hold of a queue's lock; what is left comes right after.
const BATCHES: usize = 8;
/// When a record could not be written, the queue tries again after this.
const RETRY: Millis = Millis(500);
/// The same, if only the disk is behind: what follows from a change never waits for it under the queue's lock.
const RETRY_BUSY: Millis = Millis(20);

/// What is left to do once the lock is free.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    /// Batches that wait in a mailbox for their messages to be read: the mailbox, the batch, the messages.
    cold: Vec<(Arc<Mailbox>, u64, Vec<Handed>)>,
    deaths: Vec<Death>,
    pages: Option<PlacedPages>,
    /// The queue has not been used for as long as it may live without.
    expired: bool,
}

impl Shared {
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
                tracing::debug!(queue = %cell.name.in_full(), %error, "a record could not be written; trying again later");
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
            let other = || state.queue.overflow_page().or_else(|| state.queue.expired_page(now));
            let wanted = state.placement.wanted_pages(&state.queue);
            aftermath.pages = wanted.or_else(|| Some(state.placement.place(&other()?).into()));
            state.paging = aftermath.pages.is_some();
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
        // On a full disk that would be encoded in vain with every change; maintenance does it when there is room.
        let may_settle = !state.unsettled.is_empty() && self.journal.health() == nexo_log::LogHealth::Ok;
        if may_settle && self.settle_kept(state)? {
            return Ok(true);
        }
        let advancing = state.queue.advance_time(now, BATCH);
        let due = state.queue.decide_due(now, BATCH);
        let mut more = due.more || advancing;
        let unwritten = match self.commit_due(state, due, aftermath) {
            // Consumers must go on: only what they acknowledge makes room. Nobody gets what has expired.
            Err(error @ ProposeError::Full { .. }) => Some(error),
            other => other.map(|()| None)?,
        };
        if self.stopping.load(Ordering::Relaxed) || advancing {
            return Ok(more);
        }
        let Some(dispatch) = state.queue.decide_dispatch(now, BATCH) else {
            if let Some(error) = unwritten {
                return Err(error);
            }
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
        self.note_usage(state, Position::default(), false);
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
        self.commit_verdict(state, &due.records, due.durable, Confirm::Lazily)?.whole()?;
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
        if let Some(pages) = aftermath.pages {
            let (shared, cell) = (Arc::clone(self), Arc::clone(cell));
            self.workers.spawn(Work::Deliver, move || shared.load_pages(&cell, &pages));
        }
        if aftermath.expired {
            let (shared, cell) = (Arc::clone(self), Arc::clone(cell));
            self.workers.spawn(Work::Chore, move || {
                shared.delete_unused(&cell, |state, now| expires_at(state).is_some_and(|at| at <= now))
            });
        }
    }
}

/// When a queue that nobody uses goes, if it ever does.
fn expires_at(state: &CellState) -> Option<Timestamp> {
    let expires = state.queue.config().expires?;
    (state.queue.consumers().0 == 0).then(|| state.last_used.plus(expires))
}
