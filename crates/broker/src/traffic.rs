//! What came and went over each protocol, for the metrics: connections, channels, messages, refusals.
//!
//! A [`Broker`](crate::Broker) that was made with [`Broker::over`](crate::Broker::over) counts what it does for its
//! protocol; the ports count their connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nexo_types::Protocol;

/// Counters of one protocol. Aligned, so that two protocols do not share a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Traffic {
    connections: AtomicU64,
    connections_opened: AtomicU64,
    channels: AtomicU64,
    logins: AtomicU64,
    refused_logins: AtomicU64,
    published: AtomicU64,
    refused_pushes: AtomicU64,
    delivered: AtomicU64,
    acked: AtomicU64,
}

/// The figures of one protocol at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficStats {
    /// Connections that are open.
    pub connections: u64,
    /// Connections ever opened.
    pub connections_opened: u64,
    /// Channels that are open, where the protocol has any.
    pub channels: u64,
    /// Logins ever let in, and requests with one where each has its own.
    pub logins: u64,
    /// Logins, signatures and addresses ever refused.
    pub refused_logins: u64,
    /// Messages ever taken.
    pub published: u64,
    /// Messages ever refused: a queue or the disk was full, or a limit was exceeded.
    pub refused_pushes: u64,
    /// Messages ever handed out.
    pub delivered: u64,
    /// Messages ever acknowledged by a client.
    pub acked: u64,
}

/// Something open that is counted until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the count"]
pub struct Counted {
    all: Arc<AllTraffic>,
    gauge: fn(&Traffic) -> &AtomicU64,
    protocol: Protocol,
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.gauge)(self.all.of(self.protocol)).fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters of all protocols.
#[derive(Debug, Default)]
pub struct AllTraffic([Traffic; Protocol::ALL.len()]);

impl AllTraffic {
    /// The counters of one.
    #[must_use]
    pub const fn of(&self, protocol: Protocol) -> &Traffic {
        &self.0[protocol.index()]
    }

    /// Counts a connection, as long as the answer lives.
    pub fn connection(self: &Arc<Self>, protocol: Protocol) -> Counted {
        self.of(protocol).connections_opened.fetch_add(1, Ordering::Relaxed);
        self.count(protocol, |traffic| &traffic.connections)
    }

    /// Counts a channel, as long as the answer lives.
    pub fn channel(self: &Arc<Self>, protocol: Protocol) -> Counted {
        self.count(protocol, |traffic| &traffic.channels)
    }

    fn count(self: &Arc<Self>, protocol: Protocol, gauge: fn(&Traffic) -> &AtomicU64) -> Counted {
        gauge(self.of(protocol)).fetch_add(1, Ordering::Relaxed);
        Counted { all: Arc::clone(self), gauge, protocol }
    }
}

impl Traffic {
    /// Somebody was let in.
    pub fn logged_in(&self) {
        self.logins.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody was not let in.
    pub fn login_refused(&self) {
        self.refused_logins.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn pushed(&self, taken: usize, refused: usize) {
        self.published.fetch_add(taken as u64, Ordering::Relaxed);
        if refused > 0 {
            self.refused_pushes.fetch_add(refused as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn delivered(&self, messages: usize) {
        self.delivered.fetch_add(messages as u64, Ordering::Relaxed);
    }

    pub(crate) fn acked(&self, messages: usize) {
        self.acked.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// The figures now.
    #[must_use]
    pub fn stats(&self) -> TrafficStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrafficStats {
            connections: read(&self.connections),
            connections_opened: read(&self.connections_opened),
            channels: read(&self.channels),
            logins: read(&self.logins),
            refused_logins: read(&self.refused_logins),
            published: read(&self.published),
            refused_pushes: read(&self.refused_pushes),
            delivered: read(&self.delivered),
            acked: read(&self.acked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_counted_until_it_ends() {
        let all = Arc::new(AllTraffic::default());
        let first = all.connection(Protocol::Sqs);
        let second = all.connection(Protocol::Sqs);
        let channel = all.channel(Protocol::Amqp);
        drop(first);
        let stats = all.of(Protocol::Sqs).stats();
        assert_eq!((stats.connections, stats.connections_opened, stats.channels), (1, 2, 0));
        assert_eq!(all.of(Protocol::Amqp).stats().channels, 1);
        drop((second, channel));
        assert_eq!(all.of(Protocol::Sqs).stats().connections, 0);
        assert_eq!(all.of(Protocol::Amqp).stats().channels, 0);
    }
}
