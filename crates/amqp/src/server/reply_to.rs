//! Direct reply-to: answers that go straight to the connection that asked, without a queue.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// The pseudo-queue that a client consumes from and names as the place for answers.
pub(super) const REPLY_TO: &[u8] = b"amq.rabbitmq.reply-to";
/// What the names begin with that servers answer to.
pub(super) const REPLY_TO_PREFIX: &str = "amq.rabbitmq.reply-to.";
/// Answers on their way to one connection. One that does not read loses what comes then, as it would lose messages that
/// it consumes without acknowledging.
pub(super) const REPLIES_MAX: usize = 1_024;

/// An answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) channel: u16,
    pub(super) serial: u64,
    pub(super) routing_key: Bytes,
    pub(super) properties: Bytes,
    pub(super) body: Bytes,
}

/// Who waits for answers, by the name that was given out.
#[derive(Debug, Default)]
pub(super) struct ReplyDesk {
    waiting: Mutex<HashMap<Bytes, Place>>,
}

/// Where answers go.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) to: mpsc::Sender<Reply>,
    pub(super) channel: u16,
    pub(super) serial: u64,
}

impl ReplyDesk {
    pub(super) fn open(&self, name: Bytes, place: Place) {
        self.waiting.lock().insert(name, place);
    }

    pub(super) fn close(&self, name: &[u8]) {
        self.waiting.lock().remove(name);
    }

    pub(super) fn knows(&self, name: &[u8]) -> bool {
        self.waiting.lock().contains_key(name)
    }

    /// Sends an answer; `false` if nobody waits for it.
    pub(super) fn send(&self, routing_key: &[u8], properties: &[u8], body: &[u8]) -> bool {
        let Some(place) = self.waiting.lock().get(routing_key).cloned() else { return false };
        let own = Bytes::copy_from_slice;
        let reply = Reply {
            channel: place.channel,
            serial: place.serial,
            routing_key: own(routing_key),
            properties: own(properties),
            body: own(body),
        };
        match place.to.try_send(reply) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                tracing::debug!("a direct reply is dropped: its client does not read");
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}
