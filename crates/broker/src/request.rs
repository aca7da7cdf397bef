//! What callers ask for, and what they get. Plain values.

use std::fmt;
use std::sync::Arc;

use nexo_core::config::QueueConfig;
use nexo_core::message::Durability;
use nexo_core::queue::{GroupTake, InFlightLimit};
use nexo_types::{Millis, Offset, QueueName, VhostName};

/// Which queues to list.
#[derive(Clone, Debug, Default)]
pub struct ListRequest {
    /// Only those in this virtual host; all if it is not given.
    pub vhost: Option<VhostName>,
    /// Only names that begin so.
    pub prefix: String,
    /// Only names after this one, in the order of virtual hosts and names.
    pub after: Option<QueueName>,
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

/// How a pull takes messages, where it differs from others.
#[derive(Clone, Copy, Debug, Default)]
pub struct PopTerms {
    /// How much of a group it takes at once.
    pub groups: GroupTake,
    /// How many messages of the queue may be with consumers.
    pub in_flight: Option<InFlightLimit>,
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
    /// Which queues they may go to; any, unless somebody says otherwise.
    pub gate: MoveGate,
    /// Where to; `None` to where each came from.
    pub target: Option<QueueName>,
    /// Only these; all if empty.
    pub offsets: Vec<Offset>,
    /// At most this many.
    pub max: Option<u64>,
}

/// What a redrive has done, by its end or so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Messages moved.
    pub moved: u64,
    /// Messages left where they are, because their source is gone or they have none.
    pub skipped: u64,
    /// Messages left where they are, because the [`MoveGate`] does not let them go to their source.
    pub refused: u64,
}

type MayMoveTo = dyn Fn(&QueueName) -> bool + Send + Sync;

/// Says which queues messages may be moved to. It is asked again for every batch.
#[derive(Clone, Default)]
pub struct MoveGate(Option<Arc<MayMoveTo>>);

impl MoveGate {
    /// Those of which this is true.
    pub fn new(may: impl Fn(&QueueName) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(may)))
    }

    pub(crate) fn lets(&self, target: &QueueName) -> bool {
        self.0.as_ref().is_none_or(|may| may(target))
    }
}

impl fmt::Debug for MoveGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "MoveGate(asked)" } else { "MoveGate(open)" })
    }
}

/// One connection of a client, for as long as the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// A queue as a protocol declares it.
#[derive(Clone, Debug)]
pub struct Declaration {
    /// Its settings.
    pub config: QueueConfig,
    /// Whether it survives a restart. A queue with an owner never does.
    pub durability: Durability,
    /// The connection that alone may use it, and whose end is its own.
    pub owner: Option<SessionId>,
}

/// When a queue may be deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteIf {
    /// Only if it has no consumers.
    pub unused: bool,
    /// Only if it has no messages that could be delivered.
    pub empty: bool,
}

/// What is said about a message that a connection holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// It is done.
    Ack,
    /// It goes back to its place.
    Requeue,
    /// It goes back to its place, and was never seen.
    Undelivered,
    /// It will never succeed.
    Reject,
}

/// What became of a pushed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Its id, or that of the message it repeats.
    pub offset: Offset,
    /// Whether it repeats another.
    pub duplicate: bool,
}
