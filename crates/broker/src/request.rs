//! What callers ask for, and what they get. Plain values.

use nexo_types::{Millis, Offset, QueueName};

/// Which queues to list.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// Only names that begin so.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<String>,
    /// At most this many.
    pub limit: usize,
}

/// A pull.
#[derive(Clone, Copy, Debug)]
pub struct PopRequest {
    /// At most this many messages.
    pub max: usize,
    /// How long to wait for the first.
    pub wait: Millis,
    /// How long the caller may hold them; `None` as the queue says.
    pub visibility: Option<Millis>,
    /// No more than this many bytes of bodies and properties, but at least one message.
    pub bytes_max: Option<usize>,
}

/// A subscription.
#[derive(Clone, Copy, Debug)]
pub struct SubscribeRequest {
    /// How many messages may come at first.
    pub credit: u32,
    /// How long the consumer may hold one; `None` as the queue says.
    pub visibility: Option<Millis>,
    /// Whether messages stay with the consumer when the subscription ends, until their leases do.
    pub keep_leases: bool,
}

/// Which dead letters go back, and where to.
#[derive(Clone, Debug, Default)]
pub struct Redrive {
    /// Where to; `None` to where each came from.
    pub target: Option<QueueName>,
    /// Only these; all if empty.
    pub offsets: Vec<Offset>,
    /// At most this many.
    pub max: Option<u64>,
}

/// What a redrive has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Messages moved.
    pub moved: u64,
    /// Messages left where they are, because their source is gone or they have none.
    pub skipped: u64,
}

/// What became of a pushed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Its id, or that of the message it repeats.
    pub offset: Offset,
    /// Whether it repeats another.
    pub duplicate: bool,
}
