//! One queue with all that belongs to it on this node, behind a lock of its own.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use nexo_core::queue::Queue;
use nexo_types::{ConsumerId, Position, QueueId, QueueName, Timestamp};
use parking_lot::Mutex;

use crate::mailbox::Mailbox;

/// A queue and its lock.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) id: QueueId,
    pub(crate) name: QueueName,
    pub(crate) state: Mutex<SlotState>,
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct SlotState {
    pub(crate) queue: Queue,
    pub(crate) mailboxes: HashMap<ConsumerId, Arc<Mailbox>, RandomState>,
    /// It has been deleted; whoever still holds the slot must leave it alone.
    pub(crate) deleted: bool,
    /// A page is being read.
    pub(crate) paging: bool,
    /// A page has just come in.
    pub(crate) page_arrived: bool,
    /// The earliest deadline that the timer has been told.
    pub(crate) armed: Option<Timestamp>,
    /// Records have been written since the last snapshot.
    pub(crate) dirty: bool,
    /// The frames of the last snapshot; empty if there is none.
    pub(crate) snapshot: Vec<Position>,
    /// What was last said about its memory.
    pub(crate) memory_bytes: u64,
}

impl Slot {
    pub(crate) fn new(queue: Queue) -> Self {
        let state = SlotState {
            queue,
            mailboxes: HashMap::default(),
            deleted: false,
            paging: false,
            page_arrived: false,
            armed: None,
            dirty: true,
            snapshot: Vec::new(),
            memory_bytes: 0,
        };
        Self { id: state.queue.id(), name: state.queue.name().clone(), state: Mutex::new(state) }
    }
}
