//! What is done with messages once they are in a queue: pop, subscribe, settle, send back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nexo_core::queue::{Death, LeaseError, LeaseTerms, ReturnCause, Terms, Verdict};
use nexo_log::{Patience, Urgency};
use nexo_types::{Millis, Offset, QueueId, QueueName, Timestamp, limits};
use tokio::sync::oneshot;

use crate::broker::Broker;
use crate::commit::{Committed, Confirm};
use crate::dead_letter_move::DeadLetterMove;
use crate::delivery::Delivery;
use crate::error::{PopError, QueueError, SettleError, SubscribeError};
use crate::events::OnBehalf;
use crate::journal::{ProposeError, Written};
use crate::queue_cell::{CellState, QueueCell};
use crate::receipt::Receipt;
use crate::request::{PopRequest, PopTerms, Redrive, Redriven, Settle, SubscribeRequest};
use crate::shared::Shared;
use crate::subscription::{Kind, Subscription};
use crate::workers::Work;

/// A redrive moves this many at a time, and reports after each.
const REDRIVE_STEP: usize = 256;

impl Broker {
    /// Takes messages: as many as there are, up to the maximum, or the first that come within the wait.
    /// Dropping the future gives back what it had been handed.
    ///
    /// # Errors
    /// If there is no such queue, or a number is out of range.
    pub async fn pop(&self, name: &QueueName, request: PopRequest) -> Result<Vec<Delivery>, PopError> {
        self.pop_on(name, request, PopTerms::default()).await
    }

    /// As [`Self::pop`], on other terms.
    ///
    /// # Errors
    /// As there, and if more messages are in flight than the terms allow.
    pub async fn pop_on(
        &self,
        name: &QueueName,
        request: PopRequest,
        on: PopTerms,
    ) -> Result<Vec<Delivery>, PopError> {
        in_range("max", request.max as u64, 1, limits::POP_BATCH_MAX as u64)?;
        in_range("wait_ms", request.wait.0, 0, limits::POP_WAIT_MAX.0)?;
        let PopTerms { groups, in_flight } = on;
        let terms = Terms { groups, in_flight, ..terms(request.visibility)? };
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
    /// If there is no such queue, a number is out of range, or another consumer has the queue for itself.
    pub fn subscribe(
        &self,
        name: &QueueName,
        request: SubscribeRequest,
    ) -> Result<Subscription, SubscribeError> {
        in_range("credit", request.credit.into(), 0, limits::CREDIT_MAX.into())?;
        let terms = terms(request.visibility)?;
        self.shared.refuse_if_stopping()?;
        let cell = self.cell(name)?;
        let kind = if request.keep_leases { Kind::KeepingLeases } else { Kind::Lasting };
        let terms = (terms, request.credit);
        let started = Subscription::start(&self.shared, &cell, kind, (None, Arc::default()), terms)?;
        Ok(started.counting(self.protocol))
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
            let committed = committed.map(|committed| {
                let written = committed.written.unwrap_or(Written::NOTHING).and(rests_on);
                (written, committed.deaths_refused)
            });
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
        let (written, deaths_refused) = match written {
            Ok(done) => done,
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
        let mut answers: Vec<Result<T, SettleError>> = named.collect();
        let mut deaths = deaths;
        if let Some(error) = deaths_refused {
            let reason = self.shared.refused(&error).to_string();
            let dead: BTreeSet<Offset> = deaths.drain(..).map(|death| death.offset).collect();
            let refused =
                answers.iter_mut().zip(receipts).filter(|(_, receipt)| dead.contains(&receipt.offset));
            for (answer, _) in refused {
                *answer = Err(SettleError::Unavailable { reason: reason.clone() });
            }
        }
        Some(Settled {
            answers,
            written: Some(written),
            dead: (!deaths.is_empty()).then_some((cell, deaths, urgency)),
        })
    }

    /// Sends dead letters back to where they came from, or elsewhere. Only those that are there now; `progress`
    /// is told what has been done so far.
    ///
    /// # Errors
    /// If there is no such queue, or the log takes no more. What was moved before that stays moved.
    pub async fn redrive(
        &self,
        name: &QueueName,
        request: Redrive,
        progress: &(dyn Fn(Redriven) + Sync),
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
            done.refused += part.refused;
            done.skipped = part.passed.len() as u64 - done.refused;
            passed = part.passed;
            left -= part.moved.min(left);
            progress(done);
        }
        self.shared.wait_for(written.and(self.shared.all_that_can_be_lost())).await?;
        Ok(done)
    }
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
            let committed =
                self.commit_deaths_apart(state, &plan.records, Urgency::Lazy, Patience::Wait);
            if let Err(error) = committed.and_then(Committed::whole) {
                tracing::warn!(queue = %cell.name.in_full(), %error, "messages of ended connections cannot be returned now");
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
        let on_behalf = OnBehalf::now();
        self.workers.spawn(kind, move || {
            // Whoever asked may have gone.
            let _ = send.send(on_behalf.run_blocking(work));
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
