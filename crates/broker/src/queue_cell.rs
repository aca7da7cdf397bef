//! One queue with all that belongs to it on this node, behind a lock of its own.

use std::collections::VecDeque;

use nexo_core::message::Durability;
use nexo_core::queue::{Death, Queue};
use nexo_core::rare::{Empty, Rare};
use nexo_types::{QueueId, QueueName, Timestamp};

use crate::flow::{Flow, FlowGate};
use crate::journal::Written;
use crate::mailbox::Mailboxes;
use crate::manifest::Snapshot;
use crate::ordered_mutex::{OrderedGuard, OrderedMutex, Rank};
use crate::placement::Placement;
use crate::request::SessionId;
use crate::unsettled::Unsettled;

/// A queue and its lock.
#[derive(Debug)]
pub(crate) struct QueueCell {
    pub(crate) id: QueueId,
    pub(crate) name: QueueName,
    /// Whether the queue itself survives a restart.
    pub(crate) durability: Durability,
    /// The connection that alone may use it, and whose end is its own.
    pub(crate) owner: Option<SessionId>,
    /// Its creation, which may not be safe yet: another may find the queue before that.
    pub(crate) created: Written,
    /// Held while dead letters are moved, so that they stay in order.
    pub(crate) dead_lettering: OrderedMutex<()>,
    /// Publishers that wait for consumers to be served.
    pub(crate) gate: FlowGate,
    pub(crate) state: OrderedMutex<CellState>,
}

/// A queue's lock, for as long as it is held.
pub(crate) type CellGuard<'a> = OrderedGuard<'a, CellState>;

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct CellState {
    pub(crate) queue: Queue,
    /// Where its durable messages lie.
    pub(crate) placement: Placement,
    pub(crate) mailboxes: Rare<Mailboxes>,
    pub(crate) flow: Rare<Flow>,
    /// As in the cell: records are written down.
    pub(crate) durable: bool,
    /// It has been deleted; whoever still holds the cell must leave it alone.
    pub(crate) deleted: bool,
    /// It is not deleted, but another cell has its place: what was in this one was lost in part. `deleted` is set too.
    pub(crate) replaced: bool,
    /// A page is being read.
    pub(crate) paging: bool,
    /// Not everything could be handed out: the disk was behind, or it was too much for one hold of the lock. The rest comes
    /// soon.
    pub(crate) unfinished: bool,
    /// A page has just come in.
    pub(crate) page_arrived: bool,
    /// The earliest deadline that the timer has been told.
    pub(crate) armed: Option<Timestamp>,
    /// Records have been written since the last snapshot.
    pub(crate) dirty: bool,
    /// The last snapshot.
    pub(crate) snapshot: Snapshot,
    /// Messages that died and are to be moved, in the order of their deaths.
    pub(crate) pending_deaths: Rare<PendingDeaths>,
    /// What was said about leased messages and could not be written down yet.
    pub(crate) unsettled: Rare<Unsettled>,
    /// What an answer must wait for that rests on what is in the queue: the latest push that somebody waits for, or the
    /// latest record of any kind where the journal can lose it.
    pub(crate) last_change: Written,
    /// What was last said about its memory.
    pub(crate) memory_bytes: u64,
    /// When it was last declared, or lost a consumer, or was asked for a message.
    pub(crate) last_used: Timestamp,
}

/// Messages that died and are to be moved.
#[derive(Debug, Default)]
pub(crate) struct PendingDeaths(pub(crate) VecDeque<Death>);

impl Empty for PendingDeaths {
    const EMPTY: &'static Self = &Self(VecDeque::new());
}

impl CellState {
    /// Whether the queue goes with its last consumer, and that one has left.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.queue.config().auto_delete && self.queue.consumers().0 == 0
    }
}

impl QueueCell {
    pub(crate) fn new(queue: Queue) -> Self {
        Self::with(queue, Durability::Durable, None)
    }

    pub(crate) fn with(queue: Queue, durability: Durability, owner: Option<SessionId>) -> Self {
        let state = CellState {
            queue,
            placement: Placement::default(),
            mailboxes: Rare::default(),
            flow: Rare::default(),
            durable: durability == Durability::Durable,
            deleted: false,
            replaced: false,
            paging: false,
            unfinished: false,
            page_arrived: false,
            armed: None,
            dirty: true,
            snapshot: Snapshot::default(),
            pending_deaths: Rare::default(),
            unsettled: Rare::default(),
            last_change: Written::NOTHING,
            memory_bytes: 0,
            last_used: Timestamp(0),
        };
        let (id, name) = (state.queue.id(), state.queue.name().clone());
        Self {
            id,
            name,
            durability,
            owner,
            created: Written::NOTHING,
            dead_lettering: OrderedMutex::new(Rank::DeadLettering, ()),
            gate: FlowGate::default(),
            state: OrderedMutex::new(Rank::Queue(id), state),
        }
    }

    /// Whether records of this queue are written down.
    pub(crate) fn is_durable(&self) -> bool {
        self.durability == Durability::Durable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the allocator gives for it together with the two counts of an `Arc` is 1,024 bytes, and 1,280 for more.
    #[test]
    fn a_queue_without_messages_is_small() {
        // Only debug builds know the ranks of locks: of two of them, one of which lies where there was no room for it.
        let ranks = if cfg!(debug_assertions) { 3 * size_of::<Rank>() } else { 0 };
        let bytes = size_of::<QueueCell>() - ranks;
        assert!(bytes + 16 <= 1024, "{bytes} bytes");
    }
}
