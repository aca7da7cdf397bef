//! Where the broker is reached: one node, or any of several that are one broker.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ledger::SessionId;

/// The ports of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) amqp: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) sqs: SocketAddr,
    pub(crate) http: SocketAddr,
}

/// All nodes. Clients take one after the other, whether it is up or not: nobody tells them.
#[derive(Debug)]
pub(crate) struct Doors {
    first: Door,
    others: Vec<Door>,
    next: AtomicUsize,
}

impl Doors {
    pub(crate) const fn new(first: Door, others: Vec<Door>) -> Self {
        Self { first, others, next: AtomicUsize::new(0) }
    }

    /// How many nodes there are.
    pub(crate) const fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// The door of a session, always the same. The books tell by that whom the loss of a node concerns.
    pub(crate) fn of(&self, session: SessionId) -> Door {
        self.at(session.door(self.count()))
    }

    /// The next one, for whoever is in no session.
    pub(crate) fn any(&self) -> Door {
        self.at(self.next.fetch_add(1, Ordering::Relaxed) % self.count())
    }

    fn at(&self, number: usize) -> Door {
        number.checked_sub(1).and_then(|other| self.others.get(other)).copied().unwrap_or(self.first)
    }
}
