//! The middle of the way that every change takes: what was decided is proposed to the journal, and applied. And the answer
//! to whoever waits for it, or whose change was not taken.

use nexo_core::config::{DeadLetters, SyncMode};
use nexo_core::queue::Applied;
use nexo_core::record::Record;
use nexo_log::{Claim, EntryRef, Patience, Urgency};
use nexo_types::{Position, QueueName};

use crate::alarms::{Alarm, Resource};
use crate::error::QueueError;
use crate::journal::{Encoded, ProposeError, Proposed, Written};
use crate::queue_cell::CellState;
use crate::shared::Shared;

/// When a caller may be told that its change is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirm {
    /// As the queue is set.
    AsQueue,
    /// Nobody waits.
    Lazily,
}

/// What came of a verdict about messages.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    /// Where it was written down, if it had to be.
    pub(crate) written: Option<Written>,
    /// The disk is too full for messages to become dead letters; all else is done. They are where they were.
    pub(crate) deaths_refused: Option<ProposeError>,
}

impl Committed {
    /// For whoever says all of it again.
    ///
    /// # Errors
    /// If messages were to become dead letters, and could not.
    pub(crate) fn whole(self) -> Result<Option<Written>, ProposeError> {
        self.deaths_refused.map_or(Ok(self.written), Err)
    }
}

impl Shared {
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

    /// Writes down, if need be, and applies what was decided of leased or ready messages. Nobody waits for the disk under the
    /// queue's lock: where the log has no room, nothing has changed.
    pub(crate) fn commit_verdict(
        &self,
        state: &mut CellState,
        records: &[Record],
        durable: bool,
        confirm: Confirm,
    ) -> Result<Committed, ProposeError> {
        if records.is_empty() {
            return Ok(Committed::default());
        }
        if !durable {
            for record in records {
                self.apply_unwritten(state, record);
            }
            return Ok(Committed::default());
        }
        let urgency = self.urgency(state, confirm);
        self.commit_deaths_apart(state, records, urgency, Patience::RefuseLast)
    }

    /// Writes a verdict down, on a full disk without what makes dead letters: a dead letter frees nothing before it has been
    /// copied to another queue, and for that there is no room. One that goes nowhere is only taken out.
    ///
    /// # Errors
    /// If the log does not take it; then nothing has changed.
    pub(crate) fn commit_deaths_apart(
        &self,
        state: &mut CellState,
        records: &[Record],
        urgency: Urgency,
        patience: Patience,
    ) -> Result<Committed, ProposeError> {
        let dies = |record: &&Record| matches!(record, Record::Die { .. });
        let moves = state.durable && state.queue.config().dead_letters != DeadLetters::Nowhere;
        let claim =
            if moves && records.iter().any(|record| dies(&record)) { Claim::Normal } else { Claim::Reserved };
        let error = match self.commit(state, records, urgency, claim, patience) {
            Ok((written, _)) => return Ok(Committed { written: Some(written), deaths_refused: None }),
            Err(error @ ProposeError::Full { .. }) if claim == Claim::Normal => error,
            Err(error) => return Err(error),
        };
        let others: Vec<Record> = records.iter().filter(|record| !dies(record)).cloned().collect();
        // Leases are written down here for the sake of what follows them.
        let written = match others.iter().all(|record| matches!(record, Record::Lease { .. })) {
            true => None,
            false => Some(self.commit(state, &others, urgency, Claim::Reserved, patience)?.0),
        };
        Ok(Committed { written, deaths_refused: Some(error) })
    }

    /// Applies a record without writing it down: it names only transient messages.
    pub(crate) fn apply_unwritten(&self, state: &mut CellState, record: &Record) -> Applied {
        self.apply(state, Position::default(), record)
    }

    /// Applies a record that was just decided.
    pub(crate) fn apply(&self, state: &mut CellState, at: Position, record: &Record) -> Applied {
        let applied = state.queue.apply(record).expect("a decision names only messages in memory");
        if matches!(record, Record::Configure { .. }) {
            // A policy gives thousands of queues the same.
            self.catalog.share_config(&mut state.queue);
        }
        self.note_usage(state, at, applied.removed.is_some());
        if !self.journal.releases_early() {
            let is_safe = |at| self.journal.is_safe(self.journal.frame_at(at));
            state.placement.note_push(record, at, is_safe);
        }
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

    /// Takes note of where the messages of a record lie that was applied, and of those that have left. Tells the log what the
    /// queue keeps alive, and maintenance if much has been let go.
    pub(crate) fn note_usage(&self, state: &mut CellState, at: Position, removed: bool) {
        let mut freed = 0;
        state.placement.follow(&mut state.queue, at, removed, |segment, bytes| {
            self.log.account(segment, bytes);
            freed += bytes.min(0).unsigned_abs();
        });
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
            ProposeError::Full { .. } => QueueError::Alarm(Alarm { resource: Resource::Disk, reason }),
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
}
