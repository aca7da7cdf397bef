//! The middle of the way that every change takes: what was decided is proposed to the journal, and applied. And the answer
//! to whoever waits for it, or whose change was not taken.

use nexo_core::config::SyncMode;
use nexo_core::queue::Applied;
use nexo_core::record::Record;
use nexo_log::{Claim, EntryRef, Patience, Urgency};
use nexo_types::{Position, QueueName};

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
    ) -> Result<Option<Written>, ProposeError> {
        if records.is_empty() {
            return Ok(None);
        }
        if !durable {
            for record in records {
                self.apply_unwritten(state, record);
            }
            return Ok(None);
        }
        let urgency = self.urgency(state, confirm);
        Ok(Some(self.commit(state, records, urgency, Claim::Reserved, Patience::RefuseLast)?.0))
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
}
