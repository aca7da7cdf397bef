//! What is done with messages: push, pop, subscribe, settle, send back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nexo_core::message::{Durability, NewMessage};
use nexo_core::queue::{
    Admission, Death, GroupTake, LeaseError, LeaseTerms, PushOutcome, ReturnCause, Terms, Verdict,
};
use nexo_core::record::Record;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{Millis, Offset, QueueId, QueueName, Timestamp, limits};
use tokio::runtime::RuntimeFlavor;
use tokio::sync::oneshot;

use crate::broker::Broker;
use crate::commit::Confirm;
use crate::dead_letter_move::DeadLetterMove;
use crate::delivery::Delivery;
use crate::error::{PopError, PushError, QueueError, SettleError};
use crate::flow::{Evenness, Pacing};
use crate::journal::{ProposeError, Written};
use crate::queue_cell::{CellState, QueueCell};
use crate::receipt::Receipt;
use crate::request::{PopRequest, Pushed, Redrive, Redriven, Settle, SubscribeRequest};
use crate::shared::Shared;
use crate::subscription::{Kind, Subscription};
use crate::workers::Work;

/// Whoever pushes no more than this at once is not slowed for the sake of consumers.
const UNPAUSED_MESSAGES: usize = 64;
/// How long a push may be slowed for the sake of consumers before it is answered.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// A redrive moves this many at a time, and reports after each.
const REDRIVE_STEP: usize = 256;

/// Pushes of which each comes after the one before, although several wait for the disk at once. A clone is the same order.
#[derive(Clone, Debug, Default)]
pub struct PushOrder(Arc<tokio::sync::Mutex<()>>);

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
        self.push_counted(name, messages, None).await
    }

    /// As [`Self::push`], and the messages come after those of all pushes of the same order that were begun before: also
    /// when the disk is behind, and those have to wait for room.
    ///
    /// # Errors
    /// As there.
    pub async fn push_in_order(
        &self,
        order: &PushOrder,
        name: &QueueName,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Pushed, PushError>>, QueueError> {
        self.push_counted(name, messages, Some(order)).await
    }

    async fn push_counted(
        &self,
        name: &QueueName,
        messages: Vec<NewMessage>,
        order: Option<&PushOrder>,
    ) -> Result<Vec<Result<Pushed, PushError>>, QueueError> {
        let count = messages.len();
        let pushed = self.push_uncounted(name, messages, order).await;
        let taken = pushed.iter().flatten().filter(|answer| answer.is_ok()).count();
        self.count(|traffic| traffic.pushed(taken, count - taken));
        pushed
    }

    async fn push_uncounted(
        &self,
        name: &QueueName,
        messages: Vec<NewMessage>,
        order: Option<&PushOrder>,
    ) -> Result<Vec<Result<Pushed, PushError>>, QueueError> {
        // Those who wait for it are served in the order in which they came.
        let turn = match order {
            Some(order) => Some(order.0.lock().await),
            None => None,
        };
        self.shared.refuse_pushes()?;
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
        drop((wanted, turn));
        self.shared.wait_for(written).await?;
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
        limits::BODY_BYTES_MAX
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

    /// Takes messages: as many as there are, up to the maximum, or the first that come within the wait.
    /// Dropping the future gives back what it had been handed.
    ///
    /// # Errors
    /// If there is no such queue, or a number is out of range.
    pub async fn pop(&self, name: &QueueName, request: PopRequest) -> Result<Vec<Delivery>, PopError> {
        self.pop_taking(name, request, GroupTake::Head).await
    }

    /// As [`Self::pop`], but with the first message of a group come those behind it, in order.
    ///
    /// # Errors
    /// As there.
    pub async fn pop_runs(&self, name: &QueueName, request: PopRequest) -> Result<Vec<Delivery>, PopError> {
        self.pop_taking(name, request, GroupTake::Run).await
    }

    async fn pop_taking(
        &self,
        name: &QueueName,
        request: PopRequest,
        groups: GroupTake,
    ) -> Result<Vec<Delivery>, PopError> {
        in_range("max", request.max as u64, 1, limits::POP_BATCH_MAX as u64)?;
        in_range("wait_ms", request.wait.0, 0, limits::POP_WAIT_MAX.0)?;
        let terms = Terms { groups, ..terms(request.visibility)? };
        self.shared.refuse_if_stopping()?;
        let cell = self.found(name).await?;
        let mut subscription =
            Subscription::pull(&self.shared, &cell, terms, request.max as u32, request.bytes_max)?
                .counting(self.protocol);
        let mut taken = subscription.take_with_log(request.max).await;
        if taken.is_empty() && request.wait > Millis::ZERO {
            let first = tokio::time::timeout(request.wait.as_duration(), subscription.next()).await;
            taken = first.ok().flatten().unwrap_or_default();
        }
        // No more messages, but those that came meanwhile as well.
        subscription.stop_credit();
        taken.extend(subscription.take());
        if let Some(max) = request.bytes_max {
            subscription.put_back_beyond(&mut taken, max);
        }
        Ok(taken)
    }

    /// Adds a consumer that stays until the subscription is dropped.
    ///
    /// # Errors
    /// If there is no such queue, or a number is out of range.
    pub fn subscribe(&self, name: &QueueName, request: SubscribeRequest) -> Result<Subscription, PopError> {
        in_range("credit", request.credit.into(), 0, limits::CREDIT_MAX.into())?;
        let terms = terms(request.visibility)?;
        self.shared.refuse_if_stopping()?;
        let cell = self.cell(name)?;
        let kind = if request.keep_leases { Kind::KeepingLeases } else { Kind::Lasting };
        Ok(Subscription::start(&self.shared, &cell, terms, request.credit, kind)?.counting(self.protocol))
    }

    /// Says that messages have arrived, where the queue asks for that. Gives back when each lease ends.
    pub async fn received(&self, receipts: &[Receipt]) -> Vec<Result<Timestamp, SettleError>> {
        self.settle(receipts, Confirm::AsQueue, |state, now, part| {
            (state.queue.decide_received(now, part), Vec::new())
        })
        .await
    }

    /// Says that messages are done. When this resolves, they are gone as safely as their queue promises.
    pub async fn ack(&self, receipts: &[Receipt]) -> Vec<Result<(), SettleError>> {
        let acked = self.settle(receipts, Confirm::AsQueue, |state, now, part| {
            (state.queue.decide_ack(now, part), Vec::new())
        });
        self.counting_acks(acked.await)
    }

    /// Says that messages are done, without waiting for the disk. If the process dies within moments, they may
    /// be delivered again.
    pub async fn ack_unconfirmed(&self, receipts: &[Receipt]) -> Vec<Result<(), SettleError>> {
        let acked = self.settle(receipts, Confirm::Lazily, |state, now, part| {
            (state.queue.decide_ack(now, part), Vec::new())
        });
        self.counting_acks(acked.await)
    }

    pub(crate) fn counting_acks(&self, acked: Vec<Result<(), SettleError>>) -> Vec<Result<(), SettleError>> {
        let done = acked.iter().filter(|answer| answer.is_ok()).count();
        self.count(|traffic| traffic.acked(done));
        acked
    }

    /// Gives messages back, to be delivered again after `delay`, or as the queue's back-off says.
    pub async fn nack(&self, receipts: &[Receipt], delay: Option<Millis>) -> Vec<Result<(), SettleError>> {
        if let Some(delay) = delay.filter(|delay| *delay > limits::DELAY_MAX) {
            let error =
                SettleError::TimeTooLong { field: "delay_ms", max: limits::DELAY_MAX.0, value: delay.0 };
            return vec![Err(error); receipts.len()];
        }
        self.give_back(receipts, ReturnCause::Nack(delay)).await
    }

    /// Says that messages will never succeed: they become dead letters at once, whatever their attempts.
    pub async fn reject(&self, receipts: &[Receipt]) -> Vec<Result<(), SettleError>> {
        self.give_back(receipts, ReturnCause::Reject).await
    }

    /// Gives messages back that nobody has looked at: they take their place again at once, and the delivery does not
    /// count as an attempt.
    pub async fn return_unseen(&self, receipts: &[Receipt]) -> Vec<Result<(), SettleError>> {
        self.give_back(receipts, ReturnCause::Undelivered).await
    }

    async fn give_back(&self, receipts: &[Receipt], cause: ReturnCause) -> Vec<Result<(), SettleError>> {
        self.settle(receipts, Confirm::AsQueue, |state, now, part| {
            let (answers, plan) = state.queue.decide_return(now, part, cause);
            (Verdict { answers, records: plan.records, durable: plan.durable }, plan.deaths)
        })
        .await
    }

    /// Keeps messages for `visibility` from now. Gives back when each lease ends.
    pub async fn extend(
        &self,
        receipts: &[Receipt],
        visibility: Millis,
    ) -> Vec<Result<Timestamp, SettleError>> {
        if visibility > limits::VISIBILITY_MAX {
            let error = SettleError::TimeTooLong {
                field: "visibility_ms",
                max: limits::VISIBILITY_MAX.0,
                value: visibility.0,
            };
            return vec![Err(error); receipts.len()];
        }
        self.settle(receipts, Confirm::AsQueue, |state, now, part| {
            (state.queue.decide_extend(now, part, visibility), Vec::new())
        })
        .await
    }

    /// Sorts receipts by queue, has each queue decide, and waits for what was written.
    pub(crate) async fn settle<T>(
        &self,
        receipts: &[Receipt],
        confirm: Confirm,
        mut decide: impl FnMut(&mut CellState, Timestamp, &[(Offset, u32)]) -> (Verdict<T>, Vec<Death>),
    ) -> Vec<Result<T, SettleError>> {
        let mut by_queue: BTreeMap<QueueId, Vec<usize>> = BTreeMap::new();
        for (index, receipt) in receipts.iter().enumerate() {
            by_queue.entry(receipt.queue).or_default().push(index);
        }
        let mut answers: Vec<Option<Result<T, SettleError>>> = receipts.iter().map(|_| None).collect();
        let mut written: Vec<Written> = Vec::new();
        let mut dead: Vec<(DeadLetterMove, Vec<usize>)> = Vec::new();
        for (queue, indices) in by_queue {
            let part: Vec<Receipt> = indices.iter().map(|index| receipts[*index]).collect();
            let settled = loop {
                match self.settle_in_queue(queue, &part, confirm, &mut decide) {
                    Some(settled) => break settled,
                    None => self.shared.until_room().await,
                }
            };
            written.extend(settled.written);
            for (index, answer) in indices.iter().zip(settled.answers) {
                answers[*index] = Some(answer);
            }
            // All of it is begun before any of it is waited for: whoever asked may go away.
            dead.extend(
                settled
                    .dead
                    .map(|(cell, deaths, urgency)| (self.shared.begin_move(&cell, deaths, urgency), indices)),
            );
        }
        // Whoever is told that a message failed for good finds it in the dead-letter queue.
        for (mut dead_letters, indices) in dead {
            let Err((error, left)) = dead_letters.wait(&self.shared).await else { continue };
            for index in indices.into_iter().filter(|index| left.contains(&receipts[*index].offset)) {
                answers[index] = Some(Err(SettleError::Unavailable { reason: error.to_string() }));
            }
        }
        for written in written {
            if let Err(error) = self.shared.wait_for(written).await {
                let reason = error.to_string();
                return receipts
                    .iter()
                    .map(|_| Err(SettleError::Unavailable { reason: reason.clone() }))
                    .collect();
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// `None` if the disk is behind: then it is to be tried again.
    fn settle_in_queue<T>(
        &self,
        queue: QueueId,
        receipts: &[Receipt],
        confirm: Confirm,
        decide: &mut impl FnMut(&mut CellState, Timestamp, &[(Offset, u32)]) -> (Verdict<T>, Vec<Death>),
    ) -> Option<Settled<T>> {
        let gone = |receipt: &Receipt| Err(SettleError::QueueGone { receipt: receipt.to_string() });
        let before = self.shared.all_that_can_be_lost();
        let all_gone = || {
            let rests_on =
                self.shared.refusal_rests_on(confirm, || before.and(self.shared.all_that_can_be_lost()));
            let answers = receipts.iter().map(gone).collect();
            Some(Settled { written: Some(rests_on), ..Settled::answers(answers) })
        };
        let Some(cell) = self.shared.catalog.get_id(queue) else { return all_gone() };
        let done = self.shared.with(&cell, |state, now| {
            // A receipt from before a crash may name a message that the crash took back, and another one has its place:
            // an attempt that never was is one that no lease has.
            let held = |receipt: &Receipt| match state.queue.granted_at(receipt.offset) {
                Some(at) if at != receipt.granted_at => (receipt.offset, 0),
                _ => (receipt.offset, receipt.attempt),
            };
            let part: Vec<(Offset, u32)> = receipts.iter().map(held).collect();
            let (verdict, deaths) = decide(state, now, &part);
            let committed = self.shared.commit_verdict(state, &verdict.records, verdict.durable, confirm);
            let rests_on = self.shared.refusal_rests_on(confirm, || state.last_change);
            let committed = committed.map(|written| written.unwrap_or(Written::NOTHING).and(rests_on));
            (verdict.answers, deaths, committed, self.shared.urgency(state, confirm))
        });
        let (answers, deaths, written, urgency) = match done {
            Ok(done) => done,
            Err(QueueError::NotFound { .. }) => return all_gone(),
            Err(error) => {
                let failed = SettleError::Unavailable { reason: error.to_string() };
                return Some(Settled::answers(receipts.iter().map(|_| Err(failed.clone())).collect()));
            }
        };
        let written = match written {
            Ok(written) => written,
            Err(ProposeError::Busy) => return None,
            Err(error) => {
                let reason = self.shared.refused(&error).to_string();
                let failed =
                    receipts.iter().map(|_| Err(SettleError::Unavailable { reason: reason.clone() }));
                return Some(Settled::answers(failed.collect()));
            }
        };
        let named = answers.into_iter().zip(receipts);
        let named = named.map(|(answer, receipt)| answer.map_err(|e| settle_error(&cell.name, receipt, e)));
        let answers = named.collect();
        Some(Settled {
            answers,
            written: Some(written),
            dead: (!deaths.is_empty()).then_some((cell, deaths, urgency)),
        })
    }

    /// Sends dead letters back to where they came from, or elsewhere. Only those that are there now; `progress`
    /// is told how many have been moved so far.
    ///
    /// # Errors
    /// If there is no such queue, or the log takes no more. What was moved before that stays moved.
    pub async fn redrive(
        &self,
        name: &QueueName,
        request: Redrive,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Redriven, QueueError> {
        self.shared.refuse_if_stopping()?;
        let cell = self.found(name).await?;
        if let Some(target) = &request.target {
            self.found(target).await?;
        }
        let before = cell.state.lock().queue.next_offset();
        let mut done = Redriven::default();
        let mut left = request.max.unwrap_or(u64::MAX);
        let written = self.shared.all_that_can_be_lost();
        // Those that cannot go anywhere are seen once, at the head; what lies behind them must still go.
        let mut passed: Vec<Offset> = Vec::new();
        while left > 0 {
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(REDRIVE_STEP);
            let (shared, part_cell, part) = (Arc::clone(&self.shared), Arc::clone(&cell), request.clone());
            let seen = passed.clone();
            let part = self
                .shared
                .on_worker(Work::Move, move || shared.redrive_part(&part_cell, &part, before, step, seen))
                .await?;
            if matches!(part, Err(QueueError::Busy { .. })) {
                self.shared.until_room().await;
                continue;
            }
            let Some(part) = part? else { break };
            done.moved += part.moved;
            done.skipped = part.passed.len() as u64;
            passed = part.passed;
            left -= part.moved.min(left);
            progress(done.moved);
        }
        self.shared.wait_for(written.and(self.shared.all_that_can_be_lost())).await?;
        Ok(done)
    }
}

/// What came of pushing messages under one hold of their queue's lock.
pub(crate) struct PushRound {
    pub(crate) written: Written,
    /// For each message.
    pub(crate) outcomes: Vec<Result<Pushed, PushError>>,
    /// From this message on none was taken, only because the disk is behind.
    busy_from: usize,
}

/// What came of settling messages of one queue.
struct Settled<T> {
    answers: Vec<Result<T, SettleError>>,
    written: Option<Written>,
    dead: Option<(Arc<QueueCell>, Vec<Death>, Urgency)>,
}

impl<T> Settled<T> {
    const fn answers(answers: Vec<Result<T, SettleError>>) -> Self {
        Self { answers, written: None, dead: None }
    }
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
        for (durability, batch) in plan.batches {
            let first = batch.items().first().map_or(Offset(0), |item| item.offset);
            let record = Record::Messages(batch);
            match durability {
                Durability::Transient => {
                    self.apply_unwritten(state, &record);
                    taken = true;
                }
                Durability::Durable => {
                    match self.commit(state, &[record], urgency, Claim::Normal, patience) {
                        Ok((done, _)) => {
                            written = Some(done);
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
            (PushOutcome::Accepted(offset) | PushOutcome::Duplicate(offset), Some((first, _))) => {
                offset >= first
            }
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
            (PushOutcome::Refused { limit, max }, _) => {
                Err(PushError::Full { name: name.clone(), fact: format!("{limit} is {max}") })
            }
        });
        let outcomes = outcomes.collect();
        // Those that are tried again are counted then.
        state.queue.note_duplicates(duplicates as u64);
        Ok(PushRound { written: written.unwrap_or(Written::NOTHING), outcomes, busy_from })
    }

    /// Does something that waits for the disk if it pushes `bytes` that do not fit into a segment: then other tasks of the
    /// runtime's thread have another one meanwhile.
    pub(crate) fn off_runtime_if_oversize<R>(&self, bytes: usize, work: impl FnOnce() -> R) -> R {
        let is_shared = tokio::runtime::Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        if is_shared && self.log.is_oversize(bytes) { tokio::task::block_in_place(work) } else { work() }
    }

    /// Moves dead messages on a worker.
    pub(crate) fn dead_letter_soon(self: &Arc<Self>, cell: &Arc<QueueCell>, deaths: Vec<Death>) {
        if !deaths.is_empty() {
            cell.state.lock().pending_deaths.0.extend(deaths);
            let (shared, cell) = (Arc::clone(self), Arc::clone(cell));
            self.workers.spawn(Work::Move, move || shared.dead_letter_slice(&cell));
        }
    }

    /// After a restart: messages that belonged to connections come back, and deadlines are set.
    pub(crate) fn end_sessions(self: &Arc<Self>, cell: &Arc<QueueCell>) {
        let ended = self.with(cell, |state, now| {
            let plan = state.queue.decide_session_end(now);
            let committed = self.commit(state, &plan.records, Urgency::Lazy, Claim::Reserved, Patience::Wait);
            if let Err(error) = committed {
                tracing::warn!(queue = %cell.name, %error, "messages of ended connections cannot be returned now");
                // Nobody else brings them back: they have no lease that could end.
                let held = state.queue.held_by_sessions();
                state.unsettled.keep(&held, Settle::Requeue, None);
                self.maintenance.note_stuck(cell);
            }
            // Those too that had died before.
            state.queue.deaths()
        });
        if let Ok(deaths) = ended {
            self.dead_letter_soon(cell, deaths);
        }
    }

    /// Has something done that may wait for the disk, and gives back where its result will be.
    pub(crate) fn begin_on_worker<R: Send + 'static>(
        &self,
        kind: Work,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> oneshot::Receiver<R> {
        let (send, receive) = oneshot::channel();
        self.workers.spawn(kind, move || {
            // Whoever asked may have gone.
            let _ = send.send(work());
        });
        receive
    }

    /// Runs something that may wait for the disk.
    pub(crate) async fn on_worker<R: Send + 'static>(
        &self,
        kind: Work,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, QueueError> {
        self.begin_on_worker(kind, work)
            .await
            .map_err(|_| QueueError::Unavailable { reason: "the broker is stopping".into() })
    }
}

fn terms(visibility: Option<Millis>) -> Result<Terms, PopError> {
    let lease = match visibility {
        None => LeaseTerms::Queue,
        Some(span) => {
            in_range("visibility_ms", span.0, 1, limits::VISIBILITY_MAX.0)?;
            LeaseTerms::For(span)
        }
    };
    Ok(Terms { lease, ..Terms::default() })
}

fn in_range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), PopError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(PopError::OutOfRange { field, min, max, value })
}

fn settle_error(queue: &QueueName, receipt: &Receipt, error: LeaseError) -> SettleError {
    let queue = queue.clone();
    let offset = receipt.offset;
    match error {
        LeaseError::Unknown => SettleError::Unknown { queue, offset },
        LeaseError::NotLeased => SettleError::NotLeased { queue, offset },
        LeaseError::Stale { current } => {
            SettleError::Stale { queue, offset, attempt: receipt.attempt, current }
        }
        LeaseError::AlreadyReceived { until } => {
            SettleError::AlreadyReceived { queue, offset, until: until.unwrap_or(Timestamp::MAX) }
        }
    }
}
