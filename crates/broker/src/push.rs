//! Putting messages into a queue by its name, as calls do that wait until their messages are safe.

use std::time::Duration;

use nexo_core::message::{Durability, NewMessage};
use nexo_core::queue::{Admission, Death, PushOutcome};
use nexo_core::record::Record;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{Offset, QueueName, Timestamp, limits};
use tokio::runtime::RuntimeFlavor;

use crate::alarms::DuringAlarm;
use crate::broker::Broker;
use crate::commit::Confirm;
use crate::dead_letter_move::DeadLetterMove;
use crate::error::{PushError, QueueError};
use crate::flow::{Evenness, Pacing};
use crate::intake::IntakeHold;
use crate::journal::{ProposeError, Written};
use crate::push_order::PushTurn;
use crate::queue_cell::CellState;
use crate::request::Pushed;
use crate::shared::Shared;

/// Whoever pushes no more than this at once is not slowed for the sake of consumers.
const UNPAUSED_MESSAGES: usize = 64;
/// How long a push may be slowed for the sake of consumers before it is answered.
const PAUSE_MAX: Duration = Duration::from_millis(100);
impl Broker {
    /// Pushes messages. When this resolves, those that were taken are as safe as their queue promises.
    /// Answers come in the order of the messages.
    ///
    /// # Errors
    /// If none was taken: there is no such queue, or the log takes no more. If the log fails while this waits,
    /// whether they were kept is not known.
    pub async fn push(
        &self,
        name: &QueueName,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Pushed, PushError>>, QueueError> {
        self.push_counted(name, messages, None, None, DuringAlarm::Refused).await
    }

    /// As [`Self::push`], also while an alarm is on, if so asked.
    pub(crate) async fn push_during(
        &self,
        during: DuringAlarm,
        name: &QueueName,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Pushed, PushError>>, QueueError> {
        self.push_counted(name, messages, None, None, during).await
    }

    /// As [`Self::push`], and the messages come after those of all pushes whose turn was taken before: also when the disk
    /// is behind, and those have to wait for room. Their memory is given back as soon as the queue has them.
    ///
    /// # Errors
    /// As there.
    pub async fn push_in_turn(
        &self,
        turn: PushTurn,
        name: &QueueName,
        messages: Vec<NewMessage>,
        hold: Option<IntakeHold>,
    ) -> Result<Vec<Result<Pushed, PushError>>, QueueError> {
        self.push_counted(name, messages, Some(turn), hold, DuringAlarm::Refused).await
    }

    async fn push_counted(
        &self,
        name: &QueueName,
        messages: Vec<NewMessage>,
        turn: Option<PushTurn>,
        hold: Option<IntakeHold>,
        during: DuringAlarm,
    ) -> Result<Vec<Result<Pushed, PushError>>, QueueError> {
        let count = messages.len();
        let pushed = self.push_uncounted(name, messages, turn, hold, during).await;
        let taken = pushed.iter().flatten().filter(|answer| answer.is_ok()).count();
        self.count(|traffic| traffic.pushed(taken, count - taken));
        pushed
    }

    async fn push_uncounted(
        &self,
        name: &QueueName,
        messages: Vec<NewMessage>,
        turn: Option<PushTurn>,
        hold: Option<IntakeHold>,
        during: DuringAlarm,
    ) -> Result<Vec<Result<Pushed, PushError>>, QueueError> {
        let mut turn = turn;
        if let Some(turn) = &mut turn {
            turn.come().await;
        }
        match during {
            DuringAlarm::Refused => self.shared.refuse_pushes()?,
            DuringAlarm::Taken => self.shared.refuse_if_stopping()?,
        }
        let cell = self.found(name).await?;
        let mut answers: Vec<Option<Result<Pushed, PushError>>> =
            messages.iter().map(|message| self.check(message).err().map(Err)).collect();
        let wanted = messages.into_iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let mut wanted: Vec<NewMessage> = wanted.map(|(message, _)| message).collect();
        // Bytes that memory has no room for go to the log, where nobody waits for them.
        let spill = self.shared.under_pressure();
        let all_transient = wanted.iter().all(|message| message.durability == Durability::Transient);
        if spill || !cell.is_durable() {
            let durability = if spill { Durability::Durable } else { Durability::Transient };
            for message in &mut wanted {
                message.durability = durability;
            }
        }
        let confirm = if all_transient { Confirm::Lazily } else { Confirm::AsQueue };
        let pacing = if wanted.len() > UNPAUSED_MESSAGES { Pacing::Paced } else { Pacing::Unpaced };
        let mut evenness = Evenness::Even;
        let mut written = Written::NOTHING;
        let mut dead: Vec<DeadLetterMove> = Vec::new();
        let mut outcomes: Vec<Result<Pushed, PushError>> = Vec::with_capacity(wanted.len());
        // A frame holds a batch, which is far smaller than a segment, or one message.
        let bytes = wanted.iter().map(|message| message.body.len()).max().unwrap_or(0);
        while !wanted.is_empty() {
            let pushed = self.shared.off_runtime_if_oversize(bytes, || {
                self.shared.with(&cell, |state, now| {
                    let around = self.shared.surroundings();
                    let was_ahead = state.is_ahead(around);
                    let round = self.shared.push_now(state, now, &wanted, confirm)?;
                    evenness = state.pushed(was_ahead, around, round.busy_from as u64, pacing);
                    Ok(round)
                })
            })?;
            let mut round = match pushed {
                Ok(round) => round,
                Err(ProposeError::Busy) => {
                    self.shared.until_room().await;
                    continue;
                }
                // Those of an earlier round were taken, and their answers count.
                Err(error) if !outcomes.is_empty() => {
                    let reason = error.to_string();
                    let rest = wanted.iter().map(|_| Err(PushError::Unavailable { reason: reason.clone() }));
                    outcomes.extend(rest);
                    break;
                }
                Err(error) => return Err(self.shared.refused_for(name, &error)),
            };
            written = written.and(round.written);
            if !round.deaths.is_empty() {
                dead.push(self.shared.begin_move(&cell, std::mem::take(&mut round.deaths), round.urgency));
            }
            if round.busy_from < wanted.len() {
                // The disk fell behind in between. What was pushed stays so, and the rest comes after it.
                round.outcomes.truncate(round.busy_from);
                self.shared.until_room().await;
            }
            // The queue has its own copy; those who wait for the disk need not hold the messages.
            wanted.drain(..round.outcomes.len());
            outcomes.extend(round.outcomes);
        }
        let pauses = evenness == Evenness::Pause && pacing == Pacing::Paced;
        // The queue counts the messages from now on, and the next may push.
        drop((wanted, hold, turn));
        self.shared.wait_for(written).await?;
        for mut dead_letters in dead {
            // What cannot be moved now is moved later; it was refused in any case.
            let _ = dead_letters.wait(&self.shared).await;
        }
        if pauses {
            // Not for long: it is taken, and whoever waits in vain for the answer sends it again.
            let _ = tokio::time::timeout(PAUSE_MAX, self.shared.until_even(&cell)).await;
        }
        let mut taken = outcomes.drain(..);
        for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
            *answer = taken.next();
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// The largest body that a queue takes.
    #[must_use]
    pub fn body_bytes_max(&self) -> usize {
        // It is written with its properties, perhaps as a dead letter with its origin, in one frame of the log.
        const { assert!(limits::BODY_BYTES_MAX + 2 * limits::PROPERTIES_BYTES_MAX <= nexo_log::FRAME_BYTES_MAX) };
        self.shared.options.body_bytes_max.min(limits::BODY_BYTES_MAX)
    }

    fn check(&self, message: &NewMessage) -> Result<(), PushError> {
        let max = self.body_bytes_max();
        if message.body.len() > max {
            return Err(PushError::BodyTooLarge { max, len: message.body.len() });
        }
        let times = [("delay_ms", message.delay), ("ttl_ms", message.ttl.unwrap_or_default())];
        match times.into_iter().find(|(_, time)| *time > limits::DELAY_MAX) {
            Some((field, time)) => {
                Err(PushError::TimeTooLong { field, max: limits::DELAY_MAX.0, value: time.0 })
            }
            None => Ok(()),
        }
    }
}

/// What came of pushing messages under one hold of their queue's lock.
pub(crate) struct PushRound {
    pub(crate) written: Written,
    /// For each message.
    pub(crate) outcomes: Vec<Result<Pushed, PushError>>,
    /// From this message on none was taken, only because the disk is behind.
    busy_from: usize,
    /// Those that were refused and are to be dead-lettered.
    pub(crate) deaths: Vec<Death>,
    /// How safe they must be where they go, before anybody is told.
    pub(crate) urgency: Urgency,
}

impl Shared {
    /// Pushes messages into a locked queue. Does not wait for the disk, unless a message is larger than a segment.
    ///
    /// # Errors
    /// If none was taken.
    pub(crate) fn push_now(
        &self,
        state: &mut CellState,
        now: Timestamp,
        messages: &[NewMessage],
        confirm: Confirm,
    ) -> Result<PushRound, ProposeError> {
        let plan = state.queue.decide_push(now, messages, Admission::Checked);
        let urgency = self.urgency(state, confirm);
        let patience = Patience::Refuse;
        let mut written = None;
        if let Some(reserve) = plan.reserve {
            self.commit(state, &[reserve], Urgency::Lazy, Claim::Normal, patience)?;
        }
        let (mut taken, mut refused) = (false, None);
        let mut deaths = Vec::new();
        for (durability, batch) in plan.batches {
            let first = batch.items().first().map_or(Offset(0), |item| item.offset);
            let dead = plan.dead_letters.deaths_in(&batch);
            // What is refused comes and dies in one frame, so that it is a dead letter or was never there.
            let death = plan.dead_letters.death_in(&batch, now);
            let records: Vec<Record> = death.into_iter().chain([Record::Messages(batch)]).collect();
            match durability {
                Durability::Transient => {
                    for record in &records {
                        self.apply_unwritten(state, record);
                    }
                    deaths.extend(dead);
                    taken = true;
                }
                Durability::Durable => {
                    match self.commit(state, &records, urgency, Claim::Normal, patience) {
                        Ok((done, _)) => {
                            written = Some(done);
                            deaths.extend(dead);
                            taken = true;
                        }
                        // Nothing of this push was taken: the caller is told so at once.
                        Err(error) if !taken => return Err(error),
                        Err(error) => {
                            refused = Some((first, error));
                            break;
                        }
                    }
                }
            }
        }
        if let Some(done) = written {
            state.last_change = state.last_change.and(done);
        }
        let name = state.queue.name().clone();
        let is_behind = |outcome: &PushOutcome| match (outcome, &refused) {
            (
                PushOutcome::Accepted(offset)
                | PushOutcome::Duplicate(offset)
                | PushOutcome::Refused { dead_letter: Some(offset), .. },
                Some((first, _)),
            ) => offset >= first,
            (PushOutcome::Refused { .. }, _) | (_, None) => false,
        };
        let is_repeated =
            |outcome: &&PushOutcome| matches!(outcome, PushOutcome::Duplicate(_)) && !is_behind(outcome);
        let duplicates = plan.outcomes.iter().filter(is_repeated).count();
        let refusals = plan.outcomes.iter().any(|outcome| matches!(outcome, PushOutcome::Refused { .. }));
        if duplicates > 0 || (refusals && !self.journal.releases_early()) {
            // A repetition is as safe as what it repeats, which may still be on its way to the disk. So is a refusal, if
            // what fills the queue can be lost.
            written = Some(written.unwrap_or(Written::NOTHING).and(state.last_change));
        }
        let is_busy = matches!(refused, Some((_, ProposeError::Busy)));
        let first_behind = plan.outcomes.iter().position(is_behind).filter(|_| is_busy);
        let busy_from = first_behind.unwrap_or(plan.outcomes.len());
        let outcomes = plan.outcomes.into_iter().map(|outcome| match (outcome, &refused) {
            (outcome, Some((_, error))) if is_behind(&outcome) => {
                Err(PushError::Unavailable { reason: error.to_string() })
            }
            (PushOutcome::Accepted(offset), _) => Ok(Pushed { offset, duplicate: false }),
            (PushOutcome::Duplicate(offset), _) => Ok(Pushed { offset, duplicate: true }),
            (PushOutcome::Refused { limit, max, .. }, _) => {
                Err(PushError::Full { name: name.clone(), fact: format!("{limit} is {max}") })
            }
        });
        let outcomes = outcomes.collect();
        // Those that are tried again are counted then.
        state.queue.note_duplicates(duplicates as u64);
        let written = written.unwrap_or(Written::NOTHING);
        Ok(PushRound { written, outcomes, busy_from, deaths, urgency })
    }

    /// Does something that waits for the disk if it pushes `bytes` that do not fit into a segment: then other tasks of the
    /// runtime's thread have another one meanwhile.
    pub(crate) fn off_runtime_if_oversize<R>(&self, bytes: usize, work: impl FnOnce() -> R) -> R {
        let is_shared = tokio::runtime::Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        if is_shared && self.log.is_oversize(bytes) { tokio::task::block_in_place(work) } else { work() }
    }
}
