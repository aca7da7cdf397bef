//! What the broker must know of messages that came by a protocol with exchanges, and only that protocol's crate can
//! tell: their headers, and how one that died is addressed anew.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use nexo_core::config::QueueConfig;
use nexo_core::message::{DeathReason, NewMessage, Properties, StoredMessage};
use nexo_core::topology::HeaderSource;
use nexo_types::{ExchangeName, QueueName, Timestamp};

use crate::headers::Headers;
use crate::queue_cell::QueueCell;
use crate::shared::Shared;

/// Reads and writes the properties of such messages.
pub trait PropertyCodec: Send + Sync + Debug {
    /// The headers, for exchanges that look at them.
    fn header_source<'a>(&self, properties: &'a Properties) -> Box<dyn HeaderSource + 'a>;

    /// The message as it is published to a dead-letter exchange, and the keys it is routed by.
    fn dead_letter(&self, message: StoredMessage, note: &DeathInfo<'_>) -> DeadLetter;

    /// The letter as one of its queues takes it, which may rank and keep messages in a way of its own.
    fn for_queue(&self, letter: &NewMessage, queue: &QueueConfig) -> NewMessage;

    /// Whether sending this letter to `queue` would close a circle that nobody but the broker keeps going.
    fn is_cycle(&self, letter: &NewMessage, queue: &QueueName) -> bool;

    /// The headers as a native client sees them.
    fn native_headers(&self, properties: &Properties) -> Headers;

    /// How the message was addressed, and what its sender said about it beside headers.
    fn envelope(&self, _properties: &Properties) -> Option<Envelope> {
        None
    }

    /// What the protocol was told when the queue was declared.
    fn arguments(&self, _queue: &QueueConfig) -> Headers {
        Headers::default()
    }

    /// Sets what was told only by arguments when the settings were written, and has fields by now.
    fn read_arguments(&self, _queue: &mut QueueConfig) {}

    /// Whether the protocol was told that the queue is replicated ("quorum"), although all queues are alike here.
    fn is_quorum(&self, _queue: &QueueConfig) -> bool {
        false
    }
}

impl Shared {
    /// Completes the settings of queues that an earlier release wrote.
    pub(crate) fn read_arguments(&self, cells: &[Arc<QueueCell>]) {
        let Some(codec) = &self.options.property_codec else { return };
        for cell in cells {
            cell.state.lock().queue.read_arguments(|config| codec.read_arguments(config));
        }
    }
}

/// How a message of a protocol with exchanges was addressed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The exchange it was published to; empty for the default exchange.
    pub exchange: String,
    /// The routing key. Bytes that are no text are replaced.
    pub routing_key: String,
    /// Properties other than headers, by the protocol's names for them.
    pub properties: Headers,
}

/// Why and where a message died, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct DeathInfo<'a> {
    /// The queue it was in.
    pub queue: &'a QueueName,
    /// Why it is a dead letter.
    pub reason: DeathReason,
    /// When it became one.
    pub at: Timestamp,
    /// The exchange it goes to.
    pub exchange: &'a ExchangeName,
    /// The routing key it gets instead of its own.
    pub routing_key: Option<&'a Bytes>,
}

/// A dead message, addressed anew.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The message.
    pub message: NewMessage,
    /// The keys it is routed by.
    pub routing_keys: Vec<Bytes>,
}
