//! What can go wrong, one enum for each kind of call. Every text names the subject, the fact and the demand.

use std::path::PathBuf;

use nexo_core::config::ConfigError;
use nexo_core::queue::ConsumerRefusal;
use nexo_core::topology::VhostError;
use nexo_types::{Offset, QueueName, Timestamp};
use thiserror::Error;

use crate::alarms::Alarm;

/// A broker that could not start.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The directory could not be made or used.
    #[error("cannot use the data directory '{}': {source}", path.display())]
    Directory {
        /// The data directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The log could not be opened.
    #[error(transparent)]
    Log {
        /// Why; it names the directory.
        source: nexo_log::OpenError,
    },
    /// The log was opened but does not make sense.
    #[error("the data in '{}' cannot be read: {reason}", path.display())]
    Unreadable {
        /// The data directory.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The node is one of several, and something that was in its log is gone. The others have it: it has to come from them.
    #[error("the data of this node in '{}' is damaged: {reason}", path.display())]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// The first place that was found.
        reason: String,
    },
}

/// A queue that is not there, or a broker that cannot serve it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    /// There is no such queue.
    #[error("queue '{name}' does not exist")]
    NotFound {
        /// The name that was asked for.
        name: QueueName,
    },
    /// There is no room on the disk, or in memory, now. Nothing was changed; it may be tried again.
    #[error("{0}")]
    Alarm(Alarm),
    /// The disk is behind, or others hold the queue. Nothing was changed; it may be tried again soon.
    #[error("{reason}")]
    Busy {
        /// Which queue, and what it waits for.
        reason: String,
    },
    /// The log takes no more records.
    #[error("{reason}")]
    Unavailable {
        /// Why, in words for whoever has to mend it.
        reason: String,
    },
}

impl QueueError {
    /// Whether it may be tried again soon, when the disk has caught up.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }
}

/// A queue that could not be created or changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CreateError {
    /// A setting that cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is one of that name, with other settings.
    #[error("queue '{name}' exists with {existing}; this create asks for {asked}")]
    Differs {
        /// The one that was declared.
        name: QueueName,
        /// The first setting that differs, as it is.
        existing: String,
        /// The same setting, as asked for.
        asked: String,
    },
    /// There are as many queues as there may be.
    #[error("there are {max} queues, and no more are allowed")]
    TooMany {
        /// Queues of the whole broker.
        max: usize,
    },
    /// Its virtual host is not there, or full.
    #[error(transparent)]
    Vhost(#[from] VhostError),
    /// See there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A change of exchanges, bindings or virtual hosts that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExchangeError<E> {
    /// The rules forbid it.
    #[error("{0}")]
    Refused(E),
    /// See there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A change of users or permissions that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AccessChangeError {
    /// The rules forbid it.
    #[error(transparent)]
    Refused(nexo_core::access::AccessError),
    /// See there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A change of policies or parameters that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyChangeError {
    /// The rules forbid it.
    #[error(transparent)]
    Refused(nexo_core::policy::PolicyError),
    /// See there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A change of a cluster's nodes that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeChangeError {
    /// The rules forbid it.
    #[error(transparent)]
    Refused(nexo_core::nodes::NodeError),
    /// See there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A change of schedules that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleChangeError {
    /// The rules forbid it.
    #[error(transparent)]
    Refused(nexo_core::schedule::ScheduleError),
    /// See there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A schedule that did not run when somebody asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleRunError {
    /// There is none.
    #[error(transparent)]
    Refused(nexo_core::schedule::ScheduleError),
    /// What it should do cannot be done.
    #[error("{reason}")]
    Failed {
        /// Why, in words for whoever looks after it.
        reason: String,
    },
    /// See there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A queue that was not deleted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeleteError {
    /// It has consumers.
    #[error("queue '{name}' has consumers, and was to be deleted only without")]
    InUse {
        /// The one that was to be deleted if nobody used it.
        name: QueueName,
    },
    /// It has messages.
    #[error("queue '{name}' has messages, and was to be deleted only without")]
    NotEmpty {
        /// The one that was to be deleted if it was empty.
        name: QueueName,
    },
    /// See there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// One message of a push that was not taken. The others of the same push were.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PushError {
    /// The queue is full and refuses.
    #[error("queue '{name}' is full: {fact}")]
    Full {
        /// The one that refused a message.
        name: QueueName,
        /// Which limit, and how full.
        fact: String,
    },
    /// Too large a body.
    #[error("a body has at most {max} bytes; this one has {len}")]
    BodyTooLarge {
        /// In bytes, of the body alone.
        max: usize,
        /// What was given.
        len: usize,
    },
    /// A time beyond its limit.
    #[error("{field} is at most {max} ms; it is {value}")]
    TimeTooLong {
        /// The field's name, as the API has it.
        field: &'static str,
        /// In milliseconds.
        max: u64,
        /// What was given.
        value: u64,
    },
    /// The log took earlier messages of the same push, but not this one.
    #[error("{reason}")]
    Unavailable {
        /// Why, in words for whoever has to mend it.
        reason: String,
    },
}

/// A pop or subscription that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PopError {
    /// A number outside its range.
    #[error("{field} must be between {min} and {max}; it is {value}")]
    OutOfRange {
        /// As clients call it.
        field: &'static str,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
        /// What was given.
        value: u64,
    },
    /// As many messages are with consumers as may be.
    #[error("queue '{name}' has {max} messages in flight, and no more are allowed")]
    TooManyInFlight {
        /// The one that hands out no more.
        name: QueueName,
        /// Messages, over all its consumers.
        max: usize,
    },
    /// See there.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// A consumer that could not be added.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SubscribeError {
    /// It or another consumer wants the queue for itself.
    #[error("queue '{name}' is in exclusive use, or has consumers and cannot be")]
    InExclusiveUse {
        /// The one that another consumer has for itself.
        name: QueueName,
    },
    /// A number outside its range, or a queue that is not there.
    #[error(transparent)]
    Pop(#[from] PopError),
}

impl SubscribeError {
    pub(crate) fn new(name: &QueueName, refusal: ConsumerRefusal) -> Self {
        let name = name.clone();
        match refusal {
            ConsumerRefusal::InExclusiveUse => Self::InExclusiveUse { name },
            ConsumerRefusal::TooManyInFlight { max } => PopError::TooManyInFlight { name, max }.into(),
        }
    }
}

impl From<QueueError> for SubscribeError {
    fn from(error: QueueError) -> Self {
        Self::Pop(error.into())
    }
}

/// Something was said about a message, and it does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettleError {
    /// The queue of the receipt is gone.
    #[error("the queue of receipt {receipt} does not exist any more")]
    QueueGone {
        /// As it was given: nothing else is known of it.
        receipt: String,
    },
    /// The message is not with a consumer: acknowledged already, or its lease has ended.
    #[error(
        "message {offset} of queue '{queue}' is not leased: it was settled already, or its lease ended and it came back"
    )]
    NotLeased {
        /// The one that the receipt names.
        queue: QueueName,
        /// Its offset, which the receipt names.
        offset: Offset,
    },
    /// The message is with a consumer again, under a later receipt.
    #[error(
        "message {offset} of queue '{queue}' was delivered again as attempt {current}; this receipt is for attempt {attempt}"
    )]
    Stale {
        /// The one that the receipt names.
        queue: QueueName,
        /// Its offset, which the receipt names.
        offset: Offset,
        /// The attempt of the receipt.
        attempt: u32,
        /// The attempt that holds the lease.
        current: u32,
    },
    /// The queue never had such a message.
    #[error("queue '{queue}' never delivered a message {offset}")]
    Unknown {
        /// The one that the receipt names.
        queue: QueueName,
        /// An offset that it never gave.
        offset: Offset,
    },
    /// The message was already received.
    #[error(
        "message {offset} of queue '{queue}' was already marked as received; its lease runs until {until}"
    )]
    AlreadyReceived {
        /// The one that the receipt names.
        queue: QueueName,
        /// Its offset, which the receipt names.
        offset: Offset,
        /// The end of the lease: work must be done by then.
        until: Timestamp,
    },
    /// A time beyond its limit.
    #[error("{field} is at most {max} ms; it is {value}")]
    TimeTooLong {
        /// The field's name, as the API has it.
        field: &'static str,
        /// In milliseconds.
        max: u64,
        /// What was given.
        value: u64,
    },
    /// The log takes no more records.
    #[error("{reason}")]
    Unavailable {
        /// Why, in words for whoever has to mend it.
        reason: String,
    },
}
