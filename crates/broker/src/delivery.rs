//! A message in a consumer's hands.

use nexo_core::message::StoredMessage;
use nexo_types::{Offset, QueueId, QueueName, Timestamp};

use crate::headers::{Headers, HeadersError};
use crate::property_codec::{Envelope, PropertyCodec, ToldDeath};
use crate::receipt::Receipt;

/// A message that was handed to a consumer, or shown by a peek.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The queue it is in.
    pub queue: QueueId,
    /// What that queue is called.
    pub queue_name: QueueName,
    /// Its id in that queue.
    pub offset: Offset,
    /// How often it has been delivered, this time included; 0 for a message that was only shown.
    pub attempt: u32,
    /// When it was pushed.
    pub enqueued_at: Timestamp,
    /// When it comes back unless something is said about it; `None` for a message that was only shown, or that
    /// comes back when its consumer's connection ends.
    pub lease_until: Option<Timestamp>,
    /// When it was handed out; meaningless for a message that was only shown.
    pub granted_at: Timestamp,
    /// The message itself.
    pub message: StoredMessage,
    /// Who reads the format that its properties are stored in.
    pub(crate) codec: Option<&'static dyn PropertyCodec>,
}

impl Delivery {
    /// Its headers as a native client sees them, whatever protocol it came by.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn headers(&self) -> Result<Headers, HeadersError> {
        self.codec.ok_or(HeadersError::Unreadable)?.headers(&self.message.properties)
    }

    /// How it was addressed, if it came by a protocol with exchanges.
    #[must_use]
    pub fn envelope(&self) -> Option<Envelope> {
        self.codec?.envelope(&self.message.properties)
    }

    /// What it tells by itself of its death, if it died and came here through an exchange. Of one that was moved to a queue its
    /// origin tells.
    #[must_use]
    pub fn told_death(&self) -> Option<ToldDeath> {
        self.codec?.death(&self.message.properties)
    }

    /// What to show when acknowledging it.
    #[must_use]
    pub const fn receipt(&self) -> Receipt {
        Receipt { queue: self.queue, offset: self.offset, attempt: self.attempt, granted_at: self.granted_at }
    }
}
