//! Direct reply-to: answers that go straight to the connection that asked, without a queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use nexo_types::VhostName;
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// The pseudo-queue that a client consumes from and names as the place for answers.
pub(super) const REPLY_TO: &[u8] = b"amq.rabbitmq.reply-to";
/// What the names begin with that servers answer to.
pub(super) const REPLY_TO_PREFIX: &str = "amq.rabbitmq.reply-to.";
/// Answers on their way to one connection. One that does not read loses what comes then, as it would lose messages that
/// it consumes without acknowledging.
pub(super) const REPLIES_MAX: usize = 1_024;
/// As above, in bytes: what waits for a connection that does not read. One answer may be larger.
const REPLIES_BYTES_MAX: usize = 8 << 20;

/// An answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) channel: u16,
    pub(super) serial: u64,
    pub(super) routing_key: Bytes,
    pub(super) properties: Bytes,
    pub(super) body: Bytes,
    _pending: Pending,
}

/// The bytes of an answer among all that are on their way to its connection.
#[derive(Debug)]
struct Pending {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Pending {
    /// `None` if there is no room.
    fn new(bytes: usize, all: &Arc<AtomicUsize>) -> Option<Self> {
        let before = all.fetch_add(bytes, Ordering::Relaxed);
        let pending = Self { bytes, all: Arc::clone(all) };
        (before == 0 || before + bytes <= REPLIES_BYTES_MAX).then_some(pending)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Who waits for answers, by the name that was given out.
#[derive(Debug, Default)]
pub(super) struct ReplyDesk {
    waiting: Mutex<HashMap<Bytes, Place>>,
}

/// Where answers go.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The virtual host of the connection: only from there is it answered.
    pub(super) vhost: VhostName,
    pub(super) to: mpsc::Sender<Reply>,
    pub(super) channel: u16,
    pub(super) serial: u64,
    /// Bytes that are on their way to the connection.
    pub(super) bytes: Arc<AtomicUsize>,
}

impl ReplyDesk {
    pub(super) fn open(&self, name: Bytes, place: Place) {
        self.waiting.lock().insert(name, place);
    }

    pub(super) fn close(&self, name: &[u8]) {
        self.waiting.lock().remove(name);
    }

    pub(super) fn knows(&self, vhost: &VhostName, name: &[u8]) -> bool {
        self.waiting.lock().get(name).is_some_and(|place| place.vhost == *vhost)
    }

    /// Sends an answer; `false` if nobody waits for it.
    pub(super) fn send(&self, vhost: &VhostName, routing_key: &[u8], properties: &[u8], body: &[u8]) -> bool {
        let place = self.waiting.lock().get(routing_key).filter(|place| place.vhost == *vhost).cloned();
        let Some(place) = place else { return false };
        let Some(pending) = Pending::new(properties.len() + body.len(), &place.bytes) else {
            tracing::debug!("a direct reply is dropped: its client does not read");
            return true;
        };
        let own = Bytes::copy_from_slice;
        let reply = Reply {
            channel: place.channel,
            serial: place.serial,
            routing_key: own(routing_key),
            properties: own(properties),
            body: own(body),
            _pending: pending,
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
