//! What is known of the connection to one node, for those who look after the cluster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nexo_types::{NodeId, Timestamp};
use parking_lot::Mutex;

/// How one node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The node that is reached.
    pub node: NodeId,
    /// Its name, if it was ever reached.
    pub name: Option<String>,
    /// `HOST:PORT`.
    pub address: String,
    /// Since when there is a connection to it.
    pub connected_since: Option<Timestamp>,
    /// From a question to its answer, the last time.
    pub round_trip: Option<Duration>,
    /// How many milliseconds its clock is ahead of this node's, the last time.
    pub clock_skew_ms: Option<i64>,
    /// The version of the protocol that was agreed upon, the last time.
    pub version: Option<u16>,
    /// Bytes of envelopes that came from it.
    pub received_bytes: u64,
    /// Bytes of envelopes that went to it.
    pub sent_bytes: u64,
    /// Envelopes for it that were not sent.
    pub dropped: u64,
    /// Why there was no connection the last time that there was none.
    pub last_error: Option<String>,
}

/// The same, while it changes.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) received_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    name: Option<String>,
    connected_since: Option<Timestamp>,
    round_trip: Option<Duration>,
    clock_skew_ms: Option<i64>,
    version: Option<u16>,
    last_error: Option<String>,
}

impl Figures {
    pub(crate) fn connected(&self, now: Timestamp, name: String, version: u16) {
        let mut state = self.state.lock();
        (state.connected_since, state.name, state.version) = (Some(now), Some(name), Some(version));
    }

    pub(crate) fn measured(&self, round_trip: Duration, skew_ms: i64) {
        let mut state = self.state.lock();
        (state.round_trip, state.clock_skew_ms) = (Some(round_trip), Some(skew_ms));
    }

    /// Notes why there is no connection, and tells whether that is news.
    pub(crate) fn failed(&self, reason: &str) -> bool {
        let mut state = self.state.lock();
        let is_news = state.connected_since.take().is_some() || state.last_error.as_deref() != Some(reason);
        state.last_error = Some(reason.to_owned());
        is_news
    }

    pub(crate) fn status(&self, node: NodeId, address: &str, dropped: u64) -> PeerStatus {
        let State { name, connected_since, round_trip, clock_skew_ms, version, last_error } =
            self.state.lock().clone();
        PeerStatus {
            node,
            name,
            address: address.to_owned(),
            connected_since,
            round_trip,
            clock_skew_ms,
            version,
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            dropped,
            last_error,
        }
    }
}
