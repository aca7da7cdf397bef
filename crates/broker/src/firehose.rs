//! RabbitMQ's firehose: in virtual hosts where it is on, every message that AMQP clients publish and are delivered is copied to
//! the exchange [`TRACE_EXCHANGE`].
//!
//! Here is where it is on, and the line in which copies wait until they are published. The line is bounded: whoever reads
//! copies slowly loses some, and never slows those who are traced. Where it is on is not kept over a restart, as in RabbitMQ.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use nexo_types::{ExchangeName, VhostName, limits};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::broker::Broker;

/// The exchange of each virtual host that copies go to.
pub const TRACE_EXCHANGE: &str = ExchangeName::TRACE;

/// A copy on its way to the exchange.
#[derive(Clone, Debug)]
pub struct TracedMessage {
    /// Where it goes.
    pub exchange: ExchangeName,
    /// `publish.{exchange}` or `deliver.{queue}`.
    pub routing_key: Vec<u8>,
    /// Properties in the bytes of AMQP: what is told of the message.
    pub properties: Vec<u8>,
    /// The body of the message.
    pub body: Bytes,
}

impl TracedMessage {
    /// What it takes in memory, about.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.routing_key.len() + self.properties.len() + self.body.len()
    }
}

/// Where messages are traced, and copies that wait.
#[derive(Debug, Default)]
pub struct Firehose {
    /// Whether it is on anywhere.
    any: AtomicBool,
    vhosts: Mutex<BTreeSet<VhostName>>,
    waiting: Mutex<Waiting>,
    arrived: Notify,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    copies: VecDeque<TracedMessage>,
    bytes: usize,
}

impl Firehose {
    /// Whether messages of a virtual host are copied. As long as it is off everywhere this is one load.
    #[must_use]
    #[inline]
    pub fn is_on(&self, vhost: &VhostName) -> bool {
        self.any.load(Ordering::Relaxed) && self.vhosts.lock().contains(vhost)
    }

    fn set(&self, vhost: &VhostName, on: bool) {
        let mut vhosts = self.vhosts.lock();
        if on {
            vhosts.insert(vhost.clone());
        } else {
            vhosts.remove(vhost);
        }
        self.any.store(!vhosts.is_empty(), Ordering::Relaxed);
    }

    /// Has a copy wait to be published, if there is room.
    pub fn add(&self, copy: TracedMessage) {
        let bytes = copy.bytes();
        let mut waiting = self.waiting.lock();
        if waiting.bytes + bytes > limits::TRACE_WAITING_BYTES_MAX {
            drop(waiting);
            self.note_dropped(1);
            return;
        }
        waiting.bytes += bytes;
        waiting.copies.push_back(copy);
        drop(waiting);
        self.arrived.notify_one();
    }

    /// So many copies were not published to somebody who wants them.
    pub(crate) fn note_dropped(&self, count: usize) {
        if count > 0 && self.dropped.fetch_add(count as u64, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "messages are traced faster than copies can be published, or queues take none; some are dropped"
            );
        }
    }

    /// Waits for copies and takes all that there are. For one task only.
    pub async fn next(&self) -> VecDeque<TracedMessage> {
        loop {
            let waiting = std::mem::take(&mut *self.waiting.lock());
            if !waiting.copies.is_empty() {
                return waiting.copies;
            }
            self.arrived.notified().await;
        }
    }

    /// How many copies were dropped because too many waited, or because a queue could take none.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Broker {
    /// The firehose.
    #[must_use]
    pub fn firehose(&self) -> &Arc<Firehose> {
        &self.shared.firehose
    }

    /// Copies what AMQP clients publish and are delivered in a virtual host to its trace exchange, or ends that.
    pub fn set_tracing(&self, vhost: &VhostName, on: bool) {
        let was_on = self.shared.firehose.is_on(vhost);
        self.shared.firehose.set(vhost, on);
        if was_on != on {
            let by = crate::events::OnBehalf::now();
            tracing::info!(%vhost, %by, "{}", if on { "tracing begins" } else { "tracing ends" });
        }
    }

    /// Whether that is so.
    #[must_use]
    pub fn is_traced(&self, vhost: &VhostName) -> bool {
        self.shared.firehose.is_on(vhost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(body_bytes: usize) -> TracedMessage {
        let exchange = ExchangeName::at(&VhostName::DEFAULT, TRACE_EXCHANGE).unwrap();
        TracedMessage {
            exchange,
            routing_key: Vec::new(),
            properties: Vec::new(),
            body: vec![0; body_bytes].into(),
        }
    }

    #[test]
    fn it_is_on_where_somebody_turned_it_on() {
        let (firehose, acme) = (Firehose::default(), VhostName::new("acme").unwrap());
        assert!(!firehose.is_on(&acme));
        firehose.set(&acme, true);
        assert!(firehose.is_on(&acme) && !firehose.is_on(&VhostName::DEFAULT));
        firehose.set(&acme, false);
        assert!(!firehose.any.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn copies_that_do_not_fit_are_dropped_and_counted() {
        let firehose = Firehose::default();
        let half = limits::TRACE_WAITING_BYTES_MAX / 2;
        for _ in 0..3 {
            firehose.add(copy(half));
        }
        assert_eq!((firehose.next().await.len(), firehose.dropped()), (1, 2));
        firehose.add(copy(half));
        assert_eq!((firehose.next().await.len(), firehose.dropped()), (1, 2), "there is room again");
    }
}
