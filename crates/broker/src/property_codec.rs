//! What the broker must know of messages and queues, and only the crate of the protocol can tell that they came by. Each
//! protocol registers what it knows ([`Codecs`](crate::codecs::Codecs)).

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use nexo_core::config::QueueConfig;
use nexo_core::message::{DeathReason, NewMessage, Properties, PropertyFormat, StoredMessage};
use nexo_core::topology::{HeaderSource, NoHeaders};
use nexo_types::{ExchangeName, Priority, QueueKind, QueueName, Timestamp};

use crate::codecs::Codecs;
use crate::headers::{Headers, HeadersError};

/// Reads the properties of messages that are stored in one format, for whoever wants them in a form of its own.
pub trait PropertyCodec: Send + Sync + Debug {
    /// The format.
    fn format(&self) -> PropertyFormat;

    /// The headers as all protocols can read them.
    ///
    /// # Errors
    /// If they cannot be read.
    fn headers(&self, properties: &Properties) -> Result<Headers, HeadersError>;

    /// The headers, for exchanges that look at them.
    fn header_source<'a>(&self, _properties: &'a Properties) -> Box<dyn HeaderSource + 'a> {
        Box::new(NoHeaders)
    }

    /// How the message was addressed, and what its sender said about it beside headers.
    fn envelope(&self, _properties: &Properties) -> Option<Envelope> {
        None
    }

    /// What the message tells of the last time it died, where that is in its properties and not in its
    /// [origin](StoredMessage::origin).
    fn death(&self, _properties: &Properties) -> Option<ToldDeath> {
        None
    }
}

/// Addresses messages that died and go to an exchange.
pub trait DeadLetterCodec: Send + Sync + Debug {
    /// The message as it is published to a dead-letter exchange, and the keys it is routed by.
    fn dead_letter(&self, message: StoredMessage, note: &DeathInfo<'_>) -> DeadLetter;

    /// The dead letter as one of its queues takes it, which may rank and keep messages in a way of its own.
    fn for_queue(&self, dead_letter: &NewMessage, queue: &QueueConfig) -> NewMessage;

    /// Whether sending this dead letter to `queue` would close a circle that nobody but the broker keeps going.
    fn is_cycle(&self, dead_letter: &NewMessage, queue: &QueueName) -> bool;
}

/// Gives a message that the broker sends by itself the form in which clients of the protocol expect one.
pub trait PublishCodec: Send + Sync + Debug {
    /// The message.
    fn publication(&self, publication: &Publication<'_>) -> NewMessage;
}

/// A message that the broker sends by itself.
#[derive(Clone, Debug)]
pub struct Publication<'a> {
    /// The exchange it goes to; empty for the default exchange.
    pub exchange: &'a str,
    /// The key it is routed by.
    pub routing_key: &'a str,
    /// Empty if nobody says.
    pub content_type: &'a str,
    /// Headers, in their order.
    pub headers: &'a [(Arc<str>, Arc<str>)],
    /// How urgent it is.
    pub priority: Priority,
    /// What it says.
    pub body: Bytes,
    /// When it was to be sent.
    pub at: Timestamp,
}

/// Knows queues that were asked for in the words of one protocol.
pub trait QueueCodec: Send + Sync + Debug {
    /// What the protocol calls the queue, if it is one of its own.
    fn kind(&self, name: &QueueName, queue: &QueueConfig) -> Option<QueueKind>;

    /// What the protocol was told when the queue was declared.
    fn arguments(&self, _queue: &QueueConfig) -> Headers {
        Headers::default()
    }

    /// Whether the protocol was told what the queue does when it is full.
    fn names_overflow(&self, _queue: &QueueConfig) -> bool {
        false
    }

    /// Sets what was told only by arguments when the settings were written, and has fields by now.
    fn read_arguments(&self, _queue: &mut QueueConfig) {}
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

/// What a message tells by itself of the last time it died. Its publisher may have written it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldDeath {
    /// Why it died, in the protocol's words.
    pub reason: String,
    /// The queue it was in.
    pub queue: String,
    /// The exchange it had been published to; empty for the default exchange.
    pub exchange: String,
    /// How often it died there for this reason.
    pub count: u64,
    /// When it first did.
    pub at: Option<Timestamp>,
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
    /// Who reads the properties it is stored with.
    pub codecs: &'a Codecs,
}

/// A dead message, addressed anew.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The message.
    pub message: NewMessage,
    /// The keys it is routed by.
    pub routing_keys: Vec<Bytes>,
}
