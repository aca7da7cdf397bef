//! What is one of its kind where messages are handed out: who consumers are, and what they have been given.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nexo_core::queue::Outgoing;
use nexo_types::ConsumerId;

use crate::flow::Pool;

/// What the queues share when they hand messages out.
#[derive(Debug)]
pub(crate) struct Dispatch {
    /// What consumers have been handed and have not passed on.
    pub(crate) outgoing: Arc<Outgoing>,
    /// What tells whether publishers hold consumers up, where one queue hands out too little to tell.
    pub(crate) pool: Pool,
    /// Messages handed out by all queues.
    delivered: AtomicU64,
    next_consumer: AtomicU64,
}

impl Dispatch {
    pub(crate) fn new(outgoing: Outgoing) -> Self {
        Self {
            outgoing: Arc::new(outgoing),
            pool: Pool::default(),
            delivered: AtomicU64::new(0),
            next_consumer: AtomicU64::new(1),
        }
    }

    pub(crate) fn new_consumer_id(&self) -> ConsumerId {
        ConsumerId(self.next_consumer.fetch_add(1, Ordering::Relaxed))
    }

    /// So many messages were handed out.
    pub(crate) fn note_delivered(&self, messages: u64) {
        self.delivered.fetch_add(messages, Ordering::Relaxed);
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }
}
