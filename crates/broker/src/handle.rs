//! A queue in the hands of a protocol that keeps connections: no look-ups by name, no waiting, whole batches.

use std::sync::Arc;

use bytes::Bytes;
use nexo_core::config::QueueConfig;
use nexo_core::message::{Durability, NewMessage};
use nexo_core::queue::{Death, ReturnCause, SharedCredit, Terms};
use nexo_types::{ConsumerId, Millis, Offset, QueueId, QueueName, Timestamp};

use crate::broker::Broker;
use crate::delivery::Delivery;
use crate::error::{CreateError, PushError, QueueError};
use crate::request::{Declaration, SessionId, Settle};
use crate::shared::{Confirm, Shared, Written, not_found};
use crate::slot::Slot;
use crate::subscription::{Kind, Subscription};

/// A queue. Cheap to clone; if the queue is deleted, calls answer that it does not exist.
#[derive(Clone, Debug)]
pub struct QueueHandle {
    shared: Arc<Shared>,
    pub(crate) slot: Arc<Slot>,
}

/// What came of pushing a batch.
#[derive(Debug)]
pub struct PushedBatch {
    /// What to wait for before anybody is told.
    pub written: Written,
    /// Messages that were not taken, by their place in the batch.
    pub refused: Vec<(usize, PushError)>,
}

impl Broker {
    /// The queue of this name, if there is one.
    #[must_use]
    pub fn queue(&self, name: &QueueName) -> Option<QueueHandle> {
        let slot = self.shared.catalog.get(name)?;
        Some(QueueHandle { shared: Arc::clone(&self.shared), slot })
    }

    /// The queue with this id, if it is still there.
    #[must_use]
    pub fn queue_by_id(&self, id: QueueId) -> Option<QueueHandle> {
        let slot = self.shared.catalog.get_id(id)?;
        Some(QueueHandle { shared: Arc::clone(&self.shared), slot })
    }

    /// The queue of this name, created if there is none; with it, whether it is new. Whether one that was there is what
    /// was asked for, the caller decides.
    ///
    /// # Errors
    /// If a setting cannot be, or the log takes no more.
    pub async fn declare_queue(
        &self,
        name: &QueueName,
        declaration: Declaration,
    ) -> Result<(QueueHandle, bool), CreateError> {
        declaration.config.check(name)?;
        self.shared.refuse_if_stopping()?;
        let _changing = self.shared.catalog_change.lock().await;
        if let Some(found) = self.queue(name) {
            found.slot.state.lock().last_used = self.shared.clock.now();
            return Ok((found, false));
        }
        let max = nexo_types::limits::QUEUES_MAX;
        if self.shared.catalog.len() >= max {
            return Err(CreateError::TooMany { max });
        }
        // What belongs to a connection does not outlive it, nor the process.
        let durability =
            if declaration.owner.is_some() { Durability::Transient } else { declaration.durability };
        let (slot, written) =
            self.shared.add_queue(name, declaration.config, durability, declaration.owner)?;
        self.shared.wait_for(written).await?;
        Ok((QueueHandle { shared: Arc::clone(&self.shared), slot }, true))
    }

    /// Waits until a change is as safe as its queue promises.
    ///
    /// # Errors
    /// If the log failed meanwhile.
    pub async fn wait_for(&self, written: Written) -> Result<(), QueueError> {
        self.shared.wait_for(written).await
    }

    /// Deletes all queues that belong to a connection, because it has ended.
    pub async fn end_session(&self, session: SessionId) {
        for slot in self.shared.catalog.all().into_iter().filter(|slot| slot.owner == Some(session)) {
            // It may be gone already.
            let _ = self.delete_queue(&slot.name).await;
        }
    }
}

impl QueueHandle {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.slot.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.slot.name
    }

    /// Whether it survives a restart.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.slot.durability
    }

    /// The connection that alone may use it.
    #[must_use]
    pub fn owner(&self) -> Option<SessionId> {
        self.slot.owner
    }

    /// What it is told to be.
    #[must_use]
    pub fn config(&self) -> QueueConfig {
        self.slot.state.lock().queue.config().clone()
    }

    /// What the way in of this name keeps with the queue.
    #[must_use]
    pub fn annotation(&self, owner: &str) -> Option<Bytes> {
        self.slot.state.lock().queue.config().annotations.get(owner).cloned()
    }

    /// How long a consumer may hold a message that does not ask for another time.
    #[must_use]
    pub fn visibility(&self) -> Millis {
        self.slot.state.lock().queue.config().visibility
    }

    /// When it was created.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        self.slot.state.lock().queue.created_at()
    }

    /// Messages that are with a consumer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slot.state.lock().queue.in_flight()
    }

    /// Messages that could be delivered, and consumers.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let state = self.slot.state.lock();
        let figures = state.queue.counts();
        (figures.0, figures.1)
    }

    /// Pushes messages; does not wait for the disk.
    ///
    /// # Errors
    /// If none was taken: the queue is gone, or the log takes no more.
    pub fn push(&self, messages: &[NewMessage]) -> Result<PushedBatch, QueueError> {
        self.shared.refuse_if_stopping()?;
        let all_transient = messages.iter().all(|message| message.durability == Durability::Transient);
        let confirm =
            if all_transient || !self.slot.is_durable() { Confirm::Lazily } else { Confirm::AsQueue };
        let adjusted = self.adjust(messages);
        let messages = adjusted.as_deref().unwrap_or(messages);
        let pushed =
            self.shared.with(&self.slot, |state, now| self.shared.push_now(state, now, messages, confirm))?;
        let (written, outcomes) = pushed.map_err(|error| self.shared.refused(&error))?;
        let refused = outcomes.into_iter().enumerate().filter_map(|(at, outcome)| Some((at, outcome.err()?)));
        Ok(PushedBatch { written: written.unwrap_or(Written::NOTHING), refused: refused.collect() })
    }

    /// Messages of a queue that does not survive a restart do not either; when memory is short they go to the log.
    fn adjust(&self, messages: &[NewMessage]) -> Option<Vec<NewMessage>> {
        let durability = match (self.shared.under_pressure(), self.slot.durability) {
            (true, _) => Durability::Durable,
            (false, Durability::Transient) => Durability::Transient,
            (false, Durability::Durable) => return None,
        };
        Some(messages.iter().map(|message| NewMessage { durability, ..message.clone() }).collect())
    }

    /// Adds a consumer that stays until the subscription is dropped. What it holds then stays with its connection, which
    /// must settle it.
    ///
    /// # Errors
    /// If the queue is gone.
    pub fn subscribe(
        &self,
        terms: Terms,
        credit: u32,
        limit: Option<Arc<SharedCredit>>,
    ) -> Result<Subscription, QueueError> {
        self.shared.refuse_if_stopping()?;
        Subscription::start_sharing(&self.shared, &self.slot, terms, credit, limit, Kind::KeepingLeases)
    }

    /// Lets a consumer have more messages. With 0 it looks again, after a limit it shares has grown.
    pub fn add_credit(&self, consumer: ConsumerId, credit: u32) {
        // A queue that is gone has nothing to give.
        let _ = self.shared.with(&self.slot, |state, _| state.queue.add_credit(consumer, credit));
    }

    /// Takes one message if there is one, and says how many are left.
    ///
    /// # Errors
    /// If the queue is gone.
    pub async fn get(&self, terms: Terms) -> Result<Option<(Delivery, u64)>, QueueError> {
        self.shared.refuse_if_stopping()?;
        let pull = Subscription::start(&self.shared, &self.slot, terms, 1, Kind::Pull)?;
        let mut taken = pull.take_with_log(1).await;
        drop(pull);
        let left = self.counts().0;
        Ok(taken.pop().map(|delivery| (delivery, left)))
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
        let (written, deaths) = self.shared.with(&self.slot, |state, now| {
            if let Some((consumer, credit)) = credit {
                state.queue.add_credit(consumer, credit);
            }
            let (records, durable, deaths): (_, _, Vec<Death>) = match what {
                Settle::Ack => {
                    let verdict = state.queue.decide_ack(now, held);
                    (verdict.records, verdict.durable, Vec::new())
                }
                Settle::Requeue | Settle::Reject | Settle::Undelivered => {
                    let cause = match what {
                        Settle::Reject => ReturnCause::Reject,
                        Settle::Undelivered => ReturnCause::Undelivered,
                        Settle::Requeue | Settle::Ack => ReturnCause::SessionEnd,
                    };
                    let (_, plan) = state.queue.decide_return(now, held, cause);
                    (plan.records, plan.durable, plan.deaths)
                }
            };
            (self.shared.commit_verdict(state, &records, durable, Confirm::Lazily), deaths)
        })?;
        self.shared.bury_soon(&self.slot, deaths);
        written.map_err(|error| self.shared.refused(&error))?;
        Ok(())
    }

    /// Takes everything that waits out of the queue, and says how many that were.
    ///
    /// # Errors
    /// If the queue is gone, or the log takes no more.
    pub async fn purge(&self) -> Result<u64, QueueError> {
        let broker = Broker { shared: Arc::clone(&self.shared) };
        if self.slot.state.lock().deleted {
            return Err(not_found(&self.slot.name));
        }
        broker.purge(&self.slot.name).await
    }
}
