//! A queue in the hands of a protocol that keeps connections: no look-ups by name, no waiting, whole batches.

use std::sync::Arc;

use bytes::Bytes;
use nexo_core::config::{QueueConfig, SyncMode};
use nexo_core::message::Durability;
use nexo_core::queue::{Death, Handed, Queue, ReturnCause, ReturnPlan, SharedCredit, Terms};
use nexo_log::Urgency;
use nexo_types::{ConsumerId, Millis, Offset, Protocol, QueueId, QueueName, Timestamp};

use crate::broker::Broker;
use crate::codecs::Codecs;
use crate::commit::{Committed, Confirm};
use crate::dead_letter_move::DeadLetterMove;
use crate::error::{QueueError, SubscribeError};
use crate::journal::Written;
use crate::owed::SocketState;
use crate::queue_cell::QueueCell;
use crate::request::{SessionId, Settle};
use crate::shared::Shared;
use crate::subscription::{Kind, Subscription};

/// With this much on its way to the disk, whoever can wait should: far less than what the log takes, and so little that who
/// cannot wait long is not behind much.
const UNWRITTEN_BYTES_MAX: usize = 2 << 20;

/// Messages that are settled under one hold of a queue's lock: a millisecond or two.
pub(crate) const SETTLE_SLICE: usize = 4_096;

/// A queue. Cheap to clone; if the queue is deleted, calls answer that it does not exist.
#[derive(Clone, Debug)]
pub struct QueueHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cell: Arc<QueueCell>,
    pub(crate) protocol: Option<Protocol>,
}

/// What somebody's word about messages it holds comes to, and how many are acknowledged by it: what is said a second time
/// counts once.
pub(crate) fn decide_settle(
    queue: &Queue,
    now: Timestamp,
    held: &[(Offset, u32)],
    what: Settle,
) -> (ReturnPlan, usize) {
    let cause = match what {
        Settle::Ack => {
            let verdict = queue.decide_ack(now, held);
            let acked = verdict.answers.iter().filter(|answer| answer.is_ok()).count();
            let plan = ReturnPlan { records: verdict.records, durable: verdict.durable, deaths: Vec::new() };
            return (plan, acked);
        }
        Settle::Reject => ReturnCause::Reject,
        Settle::Undelivered => ReturnCause::Undelivered,
        Settle::Requeue => ReturnCause::SessionEnd,
    };
    (queue.decide_return(now, held, cause).1, 0)
}

/// Messages that were settled, and what to wait for before anybody is told so.
#[derive(Debug)]
#[must_use = "nothing is known about the settling until this was awaited"]
pub struct Settling {
    shared: Arc<Shared>,
    written: Written,
    dead_letters: Option<DeadLetterMove>,
}

impl Settling {
    /// Of messages that are dead letters already.
    pub(crate) fn of_dead_letters(shared: &Arc<Shared>, dead_letters: DeadLetterMove) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, written: Written::NOTHING, dead_letters: Some(dead_letters) }
    }

    /// Waits until it is as safe as the queue promises.
    ///
    /// # Errors
    /// If the log failed meanwhile, or dead letters could not be moved. If that was for want of space, the next call
    /// tries again.
    pub async fn done(&mut self) -> Result<(), QueueError> {
        if let Some(dead_letters) = &mut self.dead_letters {
            dead_letters.wait(&self.shared).await.map_err(|(error, _)| error)?;
            self.dead_letters = None;
        }
        self.shared.wait_for(self.written).await
    }
}

impl Broker {
    /// The queue of this name, if there is one.
    #[must_use]
    pub fn queue(&self, name: &QueueName) -> Option<QueueHandle> {
        let cell = self.shared.catalog.get(name)?;
        Some(self.handle(cell))
    }

    /// The queue with this id, if it is still there.
    #[must_use]
    pub fn queue_by_id(&self, id: QueueId) -> Option<QueueHandle> {
        let cell = self.shared.catalog.get_id(id)?;
        Some(self.handle(cell))
    }

    pub(crate) fn handle(&self, cell: Arc<QueueCell>) -> QueueHandle {
        QueueHandle { shared: Arc::clone(&self.shared), cell, protocol: self.protocol }
    }

    /// Waits until a change is as safe as its queue promises.
    ///
    /// # Errors
    /// If the log failed meanwhile.
    pub async fn wait_for(&self, written: Written) -> Result<(), QueueError> {
        self.shared.wait_for(written).await
    }

    /// Returns when the log takes more, after it was [`QueueError::Busy`].
    pub async fn until_room(&self) {
        self.shared.until_room().await;
    }

    /// What time it is, as the broker's own records have it.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// What to wait for before more is pushed, if the disk is behind: an append that finds no room waits on its thread.
    #[must_use]
    pub fn disk_behind(&self) -> Option<Written> {
        let journal = &self.shared.journal;
        (journal.unwritten_bytes() > UNWRITTEN_BYTES_MAX).then(|| journal.so_far(Urgency::Written))
    }

    /// Bytes that wait to be written.
    #[must_use]
    pub fn unwritten_bytes(&self) -> usize {
        self.shared.journal.unwritten_bytes()
    }

    /// Everything that was written down so far.
    #[must_use]
    pub fn all_so_far(&self) -> Written {
        self.shared.journal.so_far(Urgency::Synced)
    }

    /// Returns when the disk has caught up, if it is behind: for one who has much more to push, or was told
    /// [`QueueError::Busy`]. Then others wait for no more than what was pushed before.
    pub async fn disk_caught_up(&self) {
        if !self.shared.journal.has_room() {
            self.shared.until_room().await;
        }
        if self.shared.journal.unwritten_bytes() <= UNWRITTEN_BYTES_MAX {
            return;
        }
        let urgency = match self.shared.options.sync {
            SyncMode::Os => Urgency::Written,
            SyncMode::Always | SyncMode::Interval | SyncMode::Inherit => Urgency::Synced,
        };
        // If it failed, the next push says so.
        let _ = self.shared.wait_for(self.shared.journal.so_far(urgency)).await;
    }
}

impl QueueHandle {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.cell.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.cell.name
    }

    /// Whether it survives a restart.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.cell.durability
    }

    /// The connection that alone may use it.
    #[must_use]
    pub fn owner(&self) -> Option<SessionId> {
        self.cell.owner
    }

    /// Who reads what messages are stored with.
    #[must_use]
    pub fn codecs(&self) -> &Codecs {
        &self.shared.options.codecs
    }

    /// What it is: what it was told to be, and what policies make of that.
    #[must_use]
    pub fn config(&self) -> QueueConfig {
        self.cell.state.lock().queue.config().clone()
    }

    /// What it was told to be itself, whatever policies say.
    #[must_use]
    pub fn base_config(&self) -> QueueConfig {
        self.cell.state.lock().queue.config().base().clone()
    }

    /// What the way in of this name keeps with the queue.
    #[must_use]
    pub fn annotation(&self, owner: &str) -> Option<Bytes> {
        self.cell.state.lock().queue.config().annotations.get(owner).cloned()
    }

    /// How long a consumer may hold a message that does not ask for another time.
    #[must_use]
    pub fn visibility(&self) -> Millis {
        self.cell.state.lock().queue.config().visibility
    }

    /// When it was created.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        self.cell.state.lock().queue.created_at()
    }

    /// Messages that are with a consumer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.cell.state.lock().queue.in_flight()
    }

    /// Messages that could be delivered, and consumers.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let state = self.cell.state.lock();
        let figures = state.queue.counts();
        (figures.0, figures.1)
    }

    /// What a message that is there takes on the average, if there is any.
    #[must_use]
    pub fn mean_bytes(&self) -> Option<u64> {
        let state = self.cell.state.lock();
        state.queue.body_bytes().checked_div(state.queue.len())
    }

    /// Notes that somebody uses it, so that it does not go for want of that.
    pub fn touch(&self) {
        self.touch_if_there();
    }

    /// The same. `false` if it has been deleted; then it is in the catalog no more.
    pub(crate) fn touch_if_there(&self) -> bool {
        let mut state = self.cell.state.lock();
        state.last_used = self.shared.clock.now();
        !state.deleted
    }

    /// Adds a consumer that stays until the subscription is dropped. What it holds then stays with its connection, which
    /// must settle it.
    ///
    /// # Errors
    /// If the queue is gone, or it or another consumer wants the queue for itself.
    pub fn subscribe(
        &self,
        terms: Terms,
        credit: u32,
        limit: Option<Arc<SharedCredit>>,
        socket: Arc<SocketState>,
    ) -> Result<Subscription, SubscribeError> {
        self.shared.refuse_if_stopping()?;
        let (kind, limits) = (Kind::KeepingLeases, (limit, socket));
        let started = Subscription::start(&self.shared, &self.cell, kind, limits, (terms, credit))?;
        Ok(started.counting(self.protocol))
    }

    /// As [`Self::subscribe`], in the place of a consumer of this queue, which ends. What never reached it goes back; nobody
    /// comes between the two.
    ///
    /// # Errors
    /// As there. The old one has ended all the same.
    pub fn resubscribe(
        &self,
        old: Subscription,
        terms: Terms,
        credit: u32,
        limit: Option<Arc<SharedCredit>>,
        socket: Arc<SocketState>,
    ) -> Result<Subscription, SubscribeError> {
        debug_assert_eq!(old.queue(), self.cell.id, "a consumer stays with its queue");
        self.shared.refuse_if_stopping()?;
        old.replace((limit, socket), (terms, credit))
    }

    /// Lets a consumer have more messages. With 0 it looks again, after a limit it shares has grown.
    pub fn add_credit(&self, consumer: ConsumerId, credit: u32) {
        // A queue that is gone has nothing to give.
        let _ = self.shared.with(&self.cell, |state, _| state.queue.add_credit(consumer, credit));
    }

    /// Has a consumer that does not acknowledge wait while a limit that others share is used up.
    pub fn heed_limit(&self, consumer: ConsumerId, limit: Arc<SharedCredit>) {
        // A queue that is gone has nothing to give.
        let _ = self.shared.with(&self.cell, |state, _| state.queue.heed_limit(consumer, limit));
    }

    /// Takes one message if there is one, and says how many are left.
    ///
    /// # Errors
    /// If the queue is gone, or it is not certain that there is none.
    pub async fn get(&self, terms: Terms) -> Result<Option<(Handed, u64)>, QueueError> {
        self.shared.refuse_if_stopping()?;
        let before = self.shared.all_that_can_be_lost();
        let pull = Subscription::pull_one(&self.shared, &self.cell, terms)?.counting(self.protocol);
        pull.wait_for_log(1).await;
        let mut taken = pull.take_handed();
        // One that came after the look and before the leave is settled already if handing it out settles it.
        taken.extend(pull.close().await);
        if taken.is_empty() {
            // Where messages are settled when they are handed out, one may be gone that was lost on its way.
            self.shared.until_certain(before).await?;
        }
        let left = self.counts().0;
        Ok(taken.pop().map(|handed| (handed, left)))
    }

    /// Says something about messages that a connection holds, by offset and attempt; does not wait for the disk. What
    /// does not hold any more is passed over: the message has come back, and somebody else may have it.
    ///
    /// # Errors
    /// If the queue is gone, or the log takes no more.
    pub fn settle(&self, held: &[(Offset, u32)], what: Settle) -> Result<(), QueueError> {
        self.settle_for(held, what, None)
    }

    /// As [`Self::settle`], and gives a consumer more credit under the same lock.
    ///
    /// # Errors
    /// As there.
    pub fn settle_for(
        &self,
        held: &[(Offset, u32)],
        what: Settle,
        credit: Option<(ConsumerId, u32)>,
    ) -> Result<(), QueueError> {
        let (_, deaths, _) = self.settle_now(held, what, credit, Confirm::Lazily)?;
        self.shared.dead_letter_soon(&self.cell, deaths);
        Ok(())
    }

    /// As [`Self::settle`], for somebody who does not wait, and cannot try again because it goes away: on a full disk it
    /// is kept and done as soon as there is room. Until then the messages stay leased.
    ///
    /// # Errors
    /// If the queue is gone, or the log has failed.
    pub fn settle_eventually(&self, held: &[(Offset, u32)], what: Settle) -> Result<(), QueueError> {
        let mut left = held;
        while !left.is_empty() {
            let (slice, rest) = left.split_at(left.len().min(SETTLE_SLICE));
            match self.settle(slice, what) {
                Ok(()) => left = rest,
                Err(error @ (QueueError::Alarm(_) | QueueError::Busy { .. })) => {
                    if !error.is_busy() {
                        tracing::warn!(queue = %self.cell.name.in_full(), messages = left.len(), %error, "settled when there is room");
                    }
                    // Not those before: somebody else may have them by now.
                    self.cell.state.lock().unsettled.keep(left, what, self.protocol);
                    self.shared.maintenance.note_stuck(&self.cell);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// As [`Self::settle_for`], for somebody who is told when it is done.
    ///
    /// # Errors
    /// As there.
    pub fn begin_settle(
        &self,
        held: &[(Offset, u32)],
        what: Settle,
        credit: Option<(ConsumerId, u32)>,
    ) -> Result<Settling, QueueError> {
        let (written, deaths, urgency) = self.settle_now(held, what, credit, Confirm::AsQueue)?;
        let dead_letters = (!deaths.is_empty()).then(|| self.shared.begin_move(&self.cell, deaths, urgency));
        Ok(Settling { shared: Arc::clone(&self.shared), written, dead_letters })
    }

    /// Settles a bounded number of messages under one hold of the queue's lock: a connection may end with millions.
    fn settle_now(
        &self,
        held: &[(Offset, u32)],
        what: Settle,
        credit: Option<(ConsumerId, u32)>,
        confirm: Confirm,
    ) -> Result<(Written, Vec<Death>, Urgency), QueueError> {
        let mut slices = held.chunks(SETTLE_SLICE).peekable();
        let mut all = (Written::NOTHING, Vec::new(), Urgency::Lazy);
        while let Some(slice) = slices.next() {
            let credit = credit.filter(|_| slices.peek().is_none());
            let (written, deaths, urgency) = match self.settle_slice(slice, what, credit, confirm) {
                Ok(settled) => settled,
                Err(error) => {
                    self.shared.dead_letter_soon(&self.cell, all.1);
                    return Err(error);
                }
            };
            all.0 = all.0.and(written);
            all.1.extend(deaths);
            all.2 = urgency;
        }
        Ok(all)
    }

    fn settle_slice(
        &self,
        held: &[(Offset, u32)],
        what: Settle,
        credit: Option<(ConsumerId, u32)>,
        confirm: Confirm,
    ) -> Result<(Written, Vec<Death>, Urgency), QueueError> {
        let (written, deaths, urgency, acked) = self.shared.with(&self.cell, |state, now| {
            let (plan, acked) = decide_settle(&state.queue, now, held, what);
            let ReturnPlan { records, durable, deaths } = plan;
            let committed = self.shared.commit_verdict(state, &records, durable, confirm);
            let written = committed.and_then(Committed::whole);
            // Whoever could not settle gets no more: what it holds must stay bounded.
            if let Some((consumer, credit)) = credit.filter(|_| written.is_ok()) {
                state.queue.add_credit(consumer, credit);
            }
            (written, deaths, self.shared.urgency(state, confirm), acked)
        })?;
        match written {
            Ok(written) => {
                self.shared.count(self.protocol, |traffic| traffic.acked(acked));
                Ok((written.unwrap_or(Written::NOTHING), deaths, urgency))
            }
            Err(error) => Err(self.shared.refused_for(&self.cell.name, &error)),
        }
    }

    /// Takes everything that waits out of the queue, and says how many that were.
    ///
    /// # Errors
    /// If the queue is gone, or the log takes no more.
    pub async fn purge(&self) -> Result<u64, QueueError> {
        let broker = Broker { shared: Arc::clone(&self.shared), protocol: self.protocol };
        self.cell.state.lock().refuse_if_gone(&self.cell.name)?;
        broker.purge(&self.cell.name).await
    }
}
