//! Pushing messages that a protocol has packed: as they are where the queue can take them so, otherwise one by one.

use nexo_core::batch::MessageBatch;
use nexo_core::draft::PackedBatch;
use nexo_core::message::{Durability, NewMessage};
use nexo_core::queue::{Death, PackedPlan};
use nexo_core::record::Record;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::Timestamp;

use crate::commit::Confirm;
use crate::error::{PushError, QueueError};
use crate::flow::{Evenness, Pacing};
use crate::handle::{QueueHandle, Settling};
use crate::journal::{ProposeError, Written};
use crate::push::PushRound;
use crate::queue_cell::CellState;

/// What came of pushing a packed batch.
#[derive(Debug)]
pub struct PackedPushed {
    /// What to wait for before anybody is told.
    pub written: Written,
    /// Messages that were not taken.
    pub refused: Vec<Refused>,
    /// Those of them that the queue dead-letters, to be waited for before their publisher is told.
    pub dead_letters: Option<Settling>,
    /// Whether its consumers are served, or the publisher should wait for [`QueueHandle::until_even`].
    pub evenness: Evenness,
}

impl PackedPushed {
    const fn all_taken(written: Written) -> Self {
        Self { written, refused: Vec::new(), dead_letters: None, evenness: Evenness::Even }
    }
}

/// A message that a queue did not take.
#[derive(Debug)]
pub struct Refused {
    /// Its place in the packed batch.
    pub at: usize,
    /// The message.
    pub message: NewMessage,
    /// Why the queue refused it.
    pub error: PushError,
}

/// Messages that a queue did not take, as they were when the log refused them.
enum Untaken {
    Packed(PackedBatch),
    Sealed(Box<MessageBatch>, Durability),
}

impl Untaken {
    /// As they came. This copies what was sealed, so no lock is held.
    fn into_packed(self) -> PackedBatch {
        match self {
            Self::Packed(packed) => packed,
            Self::Sealed(batch, durability) => PackedBatch::reopen(&batch, durability),
        }
    }
}

impl QueueHandle {
    /// Pushes one message; does not wait for the disk.
    ///
    /// # Errors
    /// If it was not taken: the queue is gone, or the log takes no more.
    pub fn push(&self, message: &NewMessage) -> Result<PackedPushed, QueueError> {
        let draft = message.as_draft();
        let mut packed = PackedBatch::new(draft.durability, 0, 1);
        packed.push(&draft);
        self.push_packed(&mut Some(packed), Pacing::Unpaced)
    }

    /// Pushes messages and takes the packed batch; does not wait for the disk. If none was taken, the packed batch stays.
    ///
    /// # Errors
    /// If none was taken: the queue is gone, or the log takes no more.
    pub fn push_packed(
        &self,
        packed: &mut Option<PackedBatch>,
        pacing: Pacing,
    ) -> Result<PackedPushed, QueueError> {
        let count = packed.as_ref().map_or(0, PackedBatch::len);
        let pushed = self.push_uncounted(packed, pacing);
        let refused = match &pushed {
            Ok(pushed) => pushed.refused.len(),
            // It is tried again.
            Err(QueueError::Alarm(_) | QueueError::Busy { .. }) => return pushed,
            Err(QueueError::NotFound { .. } | QueueError::Unavailable { .. }) => count,
        };
        self.shared.count(self.protocol, |traffic| traffic.pushed(count - refused, refused));
        pushed
    }

    fn push_uncounted(
        &self,
        packed: &mut Option<PackedBatch>,
        pacing: Pacing,
    ) -> Result<PackedPushed, QueueError> {
        self.shared.refuse_pushes()?;
        let Some(taken) = packed.take() else {
            return Ok(PackedPushed::all_taken(Written::NOTHING));
        };
        let count = taken.len() as u64;
        // Messages of a queue that does not survive a restart do not either; when memory is short they go to the log.
        let durability = match (self.shared.under_pressure(), self.cell.durability) {
            (true, _) => Durability::Durable,
            (false, Durability::Transient) => Durability::Transient,
            (false, Durability::Durable) => taken.durability(),
        };
        let confirm = if taken.durability() == Durability::Transient || !self.cell.is_durable() {
            Confirm::Lazily
        } else {
            Confirm::AsQueue
        };
        let pushed = self.shared.off_runtime_if_oversize(taken.bytes(), || {
            self.shared.with(&self.cell, |state, now| {
                let around = self.shared.surroundings();
                let was_ahead = state.is_ahead(around);
                let plan = state.queue.decide_packed(&taken).filter(|_| durability == taken.durability());
                let (pushed, deaths, urgency) = match plan {
                    Some(plan) => {
                        (self.push_as_it_is(state, now, taken, &plan, confirm)?, Vec::new(), Urgency::Lazy)
                    }
                    None => self.push_one_by_one(state, now, taken, durability, confirm)?,
                };
                let taken = count - pushed.refused.len() as u64;
                let evenness = state.pushed(was_ahead, around, taken, pacing);
                Ok((PackedPushed { evenness, ..pushed }, deaths, urgency))
            })
        })?;
        match pushed {
            Ok((pushed, deaths, _)) if deaths.is_empty() => Ok(pushed),
            Ok((pushed, deaths, urgency)) => {
                let moving = self.shared.begin_move(&self.cell, deaths, urgency);
                Ok(PackedPushed {
                    dead_letters: Some(Settling::of_dead_letters(&self.shared, moving)),
                    ..pushed
                })
            }
            Err((error, untaken)) => {
                let untaken: Untaken = untaken;
                *packed = Some(untaken.into_packed());
                Err(self.shared.refused_for(&self.cell.name, &error))
            }
        }
    }

    /// Waits while consumers of this queue wait for the broker and not the other way round.
    pub async fn until_even(&self) {
        self.shared.until_even(&self.cell).await;
    }

    fn push_as_it_is(
        &self,
        state: &mut CellState,
        now: Timestamp,
        packed: PackedBatch,
        plan: &PackedPlan,
        confirm: Confirm,
    ) -> Result<PackedPushed, (ProposeError, Untaken)> {
        if let Some(reserve) = &plan.reserve
            && let Err(error) = self.shared.commit(
                state,
                std::slice::from_ref(reserve),
                Urgency::Lazy,
                Claim::Normal,
                Patience::Refuse,
            )
        {
            return Err((error, Untaken::Packed(packed)));
        }
        let durability = packed.durability();
        let record = Record::Messages(plan.seal(packed, now));
        if durability == Durability::Transient {
            self.shared.apply_unwritten(state, &record);
            return Ok(PackedPushed::all_taken(Written::NOTHING));
        }
        let urgency = self.shared.urgency(state, confirm);
        let records = std::slice::from_ref(&record);
        match self.shared.commit(state, records, urgency, Claim::Normal, Patience::Refuse) {
            Ok((written, _)) => {
                state.last_change = state.last_change.and(written);
                Ok(PackedPushed::all_taken(written))
            }
            Err(error) => match record {
                Record::Messages(batch) => Err((error, Untaken::Sealed(Box::new(batch), durability))),
                _ => unreachable!("the record holds messages"),
            },
        }
    }

    fn push_one_by_one(
        &self,
        state: &mut CellState,
        now: Timestamp,
        packed: PackedBatch,
        durability: Durability,
        confirm: Confirm,
    ) -> Result<(PackedPushed, Vec<Death>, Urgency), (ProposeError, Untaken)> {
        let mut messages = packed.messages().expect("a packed batch holds readable messages");
        for message in &mut messages {
            message.durability = durability;
        }
        let round = match self.shared.push_now(state, now, &messages, confirm) {
            Ok(round) => round,
            Err(error) => return Err((error, Untaken::Packed(packed))),
        };
        let PushRound { written, outcomes, deaths, urgency, .. } = round;
        let refused = outcomes.into_iter().enumerate().filter_map(|(at, outcome)| {
            Some(Refused { at, message: messages[at].clone(), error: outcome.err()? })
        });
        let refused = refused.collect();
        Ok((PackedPushed { refused, ..PackedPushed::all_taken(written) }, deaths, urgency))
    }
}
