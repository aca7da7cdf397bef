//! Where deliveries come from: a consumer of a queue, or a queue that a client gets messages from.

use std::sync::Arc;
use std::time::Duration;

use nexo_broker::{Handed, QueueError, QueueHandle, Settle, Settling, Subscription};
use nexo_types::{ConsumerId, Offset};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::arguments::QueueKind;
use super::limit::Limit;

/// What every delivery of one consumer has in common.
#[derive(Debug)]
pub(super) struct Source {
    /// Unique within the connection.
    pub(super) id: u64,
    pub(super) channel: u16,
    pub(super) queue: QueueHandle,
    /// How many unsettled messages the consumer may hold; 0 for any number.
    pub(super) prefetch: u32,
    pub(super) kind: QueueKind,
    /// How long the client may hold a message.
    pub(super) timeout: Option<Duration>,
    subscribed: Mutex<Subscribed>,
}

/// What the consumer is to the broker. It changes when the channel gets a limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Subscribed {
    pub(super) consumer: Option<ConsumerId>,
    /// How many messages all consumers of the channel may hold together.
    pub(super) limit: Option<Arc<Limit>>,
}

impl Source {
    pub(super) fn new(id: u64, channel: u16, queue: QueueHandle, kind: QueueKind) -> Self {
        Self { id, channel, queue, prefetch: 0, kind, timeout: None, subscribed: Mutex::default() }
    }

    pub(super) fn subscribed(&self) -> Subscribed {
        self.subscribed.lock().clone()
    }

    pub(super) fn set_subscribed(&self, subscribed: Subscribed) {
        *self.subscribed.lock() = subscribed;
    }

    /// Says something about held messages, and makes room for as many. `true` if other consumers of the channel may
    /// have room now as well.
    ///
    /// # Errors
    /// If it could not be written down. The messages are held as before, and there is room for no others.
    pub(super) fn settle(&self, held: &[(Offset, u32)], what: Settle) -> Result<bool, QueueError> {
        match self.queue.settle_for(held, what, self.credit(held)) {
            // The queue is gone and its messages with it.
            Ok(()) | Err(QueueError::NotFound { .. }) => Ok(self.make_room(held)),
            Err(
                error @ (QueueError::Alarm(_) | QueueError::Busy { .. } | QueueError::Unavailable { .. }),
            ) => Err(error),
        }
    }

    /// As [`Self::settle`], for a client that is told when it is done.
    ///
    /// # Errors
    /// As there.
    pub(super) fn begin_settle(
        &self,
        held: &[(Offset, u32)],
        what: Settle,
    ) -> Result<(Option<Settling>, bool), QueueError> {
        match self.queue.begin_settle(held, what, self.credit(held)) {
            Ok(settling) => Ok((Some(settling), self.make_room(held))),
            Err(QueueError::NotFound { .. }) => Ok((None, self.make_room(held))),
            Err(
                error @ (QueueError::Alarm(_) | QueueError::Busy { .. } | QueueError::Unavailable { .. }),
            ) => Err(error),
        }
    }

    /// As [`Self::settle`], for a consumer that is gone or goes: the broker sees to it, and there is nobody to get more. The
    /// client does not hold them any more, so others of the channel may have as many.
    pub(super) fn settle_eventually(&self, held: &[(Offset, u32)], what: Settle) {
        if let Err(error) = self.queue.settle_eventually(held, what)
            && !matches!(error, QueueError::NotFound { .. })
        {
            // They come back when the broker does.
            tracing::warn!(queue = %self.queue.name().in_full(), %error, messages = held.len(), "messages could not be settled");
        }
        self.make_room(held);
    }

    /// Who gets how much more when these are settled.
    fn credit(&self, held: &[(Offset, u32)]) -> Option<(ConsumerId, u32)> {
        let consumer = self.subscribed().consumer.filter(|_| self.prefetch > 0)?;
        Some((consumer, count(held)))
    }

    fn make_room(&self, held: &[(Offset, u32)]) -> bool {
        let Some(limit) = self.subscribed().limit else { return false };
        limit.give_back(count(held));
        true
    }
}

fn count(held: &[(Offset, u32)]) -> u32 {
    u32::try_from(held.len()).unwrap_or(u32::MAX)
}

/// Messages that were handed to a consumer and are not written yet. What is left when it is dropped goes back as if it
/// had never been taken.
#[derive(Debug)]
pub(super) struct UnwrittenBatch {
    pub(super) source: Arc<Source>,
    pub(super) rest: std::vec::IntoIter<Handed>,
}

impl Drop for UnwrittenBatch {
    fn drop(&mut self) {
        let rest: Vec<(Offset, u32)> =
            self.rest.as_slice().iter().map(|one| (one.offset, one.attempts)).collect();
        if !rest.is_empty() {
            self.source.settle_eventually(&rest, Settle::Undelivered);
        }
    }
}

/// What a subscription brought.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) source: Arc<Source>,
    pub(super) subscription: Subscription,
    pub(super) stop: Arc<Notify>,
    pub(super) news: News,
}

#[derive(Debug)]
pub(super) enum News {
    Messages(UnwrittenBatch),
    /// The queue is gone.
    Gone,
    /// The consumer was told to stop.
    Stopped,
}
