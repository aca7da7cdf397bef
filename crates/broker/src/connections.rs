//! How many clients may be connected. A process has a number of descriptors, and the log must always get those that it
//! needs; so every port asks here before it serves a connection. One too many is told so: at once where the protocol has
//! words for that, and otherwise in a connection that is let in for nothing else.
//!
//! The management port has a share of its own: clients cannot keep a health check out, and whoever fills the management
//! port keeps no client out. Where a connection may wait for its next request, as in HTTP, one that waits makes room for a
//! new one: silent connections keep nobody out. While as many as may be are on their way out, a port takes nobody in for a
//! moment rather than turn him away: a crowd of strangers waits in the system's line, and so does whoever comes behind them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nexo_types::Protocol;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The management port's share of all connections: one in eight.
const MANAGEMENT_SHARE: usize = 8;
/// And at most this many: health checks, scrapers, people, and workers that wait for jobs.
const MANAGEMENT_MAX: usize = 4_096;
/// Connections that were asked to go and have not yet, at most: until then there are so many more than there may be.
const LEAVING_MAX: usize = 16;
/// How long a port waits for them to go.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);
/// Connections too many that are let in to be told so, at once; any further is closed without a word.
const TURNED_AWAY_MAX: usize = 16;
/// Refused and failed connections are logged at most this often.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// The connections of all ports.
#[derive(Debug)]
pub struct Connections {
    management_max: usize,
    others_max: usize,
    open: Mutex<[usize; Protocol::ALL.len()]>,
    accepted: [AtomicU64; Protocol::ALL.len()],
    refused: [AtomicU64; Protocol::ALL.len()],
    warned_at: Mutex<Option<Instant>>,
    /// Those whose clients send requests now and then, the oldest first.
    request_wise: Mutex<BTreeMap<u64, (Protocol, Arc<Presence>)>>,
    next_number: AtomicU64,
    /// Those that were asked to go and are still there.
    leaving: AtomicUsize,
    /// One of them has gone.
    left: Notify,
    /// Those that are only told that there are too many.
    turned_away: AtomicUsize,
}

/// What a connection does, and whether it is to go.
#[derive(Debug, Default)]
pub struct Presence {
    in_request: AtomicBool,
    /// Whether it ever had a request.
    is_known: AtomicBool,
    is_asked_to_go: AtomicBool,
    go: Notify,
}

impl Presence {
    /// Notes that a request begins to be worked on, or has been answered.
    pub fn set_in_request(&self, in_request: bool) {
        self.is_known.store(true, Ordering::Relaxed);
        self.in_request.store(in_request, Ordering::SeqCst);
    }

    /// Whether a request is being worked on.
    #[must_use]
    pub fn is_in_request(&self) -> bool {
        self.in_request.load(Ordering::SeqCst)
    }

    /// Resolves when it has to make room for another connection. It may go on if it has a request by then.
    pub async fn asked_to_go(&self) {
        self.go.notified().await;
    }

    /// Asks it to go, if it waits for a request and has not been asked yet.
    fn ask_to_go(&self) -> bool {
        let asked = !self.is_in_request() && !self.is_asked_to_go.swap(true, Ordering::Relaxed);
        if asked {
            self.go.notify_one();
        }
        asked
    }
}

/// The connections of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Open now.
    pub open: usize,
    /// Ever accepted.
    pub accepted: u64,
    /// Ever closed at once, since there were too many.
    pub refused: u64,
}

/// The right to serve one connection; the next may have it when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets another connection in"]
pub struct ConnectionPermit {
    connections: Arc<Connections>,
    protocol: Protocol,
    number: u64,
    presence: Arc<Presence>,
    is_one_too_many: bool,
}

impl ConnectionPermit {
    /// The limit that was reached, if this is a connection too many: it is told so, and does nothing else.
    #[must_use]
    pub fn limit_reached(&self) -> Option<usize> {
        self.is_one_too_many.then(|| self.connections.max(self.protocol))
    }

    /// What its connection does.
    #[must_use]
    pub const fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }
}

impl Connections {
    /// At most `max` at once, of all ports together, and at most `clients_max` of those that are not for management.
    #[must_use]
    pub fn new(max: usize, clients_max: usize) -> Self {
        let management_max = (max / MANAGEMENT_SHARE).clamp(1, MANAGEMENT_MAX);
        Self {
            management_max,
            others_max: max.saturating_sub(management_max).min(clients_max).max(1),
            open: Mutex::default(),
            accepted: Default::default(),
            refused: Default::default(),
            warned_at: Mutex::default(),
            request_wise: Mutex::default(),
            next_number: AtomicU64::new(0),
            leaving: AtomicUsize::new(0),
            left: Notify::new(),
            turned_away: AtomicUsize::new(0),
        }
    }

    /// The most that the management port, or all others together, may have.
    #[must_use]
    pub const fn max(&self, protocol: Protocol) -> usize {
        if protocol.is_management() { self.management_max } else { self.others_max }
    }

    /// Lets a connection in, unless there are too many and none of them can go. Then it may be let in to be told so
    /// ([`ConnectionPermit::limit_reached`]).
    pub fn admit(self: &Arc<Self>, protocol: Protocol) -> Option<ConnectionPermit> {
        // One that was asked to go is gone a moment later, and until then there is one more.
        if !self.take_room(protocol) && !self.make_room(protocol) {
            self.refused[protocol.index()].fetch_add(1, Ordering::Relaxed);
            return self.turn_away(protocol);
        }
        self.accepted[protocol.index()].fetch_add(1, Ordering::Relaxed);
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let presence = Arc::new(Presence::default());
        if protocol.is_request_wise() {
            self.request_wise.lock().insert(number, (protocol, Arc::clone(&presence)));
        }
        let connections = Arc::clone(self);
        Some(ConnectionPermit { connections, protocol, number, presence, is_one_too_many: false })
    }

    /// Returns when the next connection would not be turned away only because others that make room for it are not gone yet,
    /// or when they take too long.
    pub async fn until_others_left(&self, protocol: Protocol) {
        let gone = async {
            loop {
                let mut left = std::pin::pin!(self.left.notified());
                left.as_mut().enable();
                if self.leaving.load(Ordering::Relaxed) < LEAVING_MAX
                    || self.has_room(&self.open.lock(), protocol)
                {
                    return;
                }
                left.await;
            }
        };
        // Then whoever comes next is told that there is no room.
        let _ = tokio::time::timeout(LEAVE_PATIENCE, gone).await;
    }

    /// Lets a connection too many in, if that is how its protocol can be told, and not too many of them are being told.
    fn turn_away(self: &Arc<Self>, protocol: Protocol) -> Option<ConnectionPermit> {
        if protocol.too_many_connections().is_some() {
            return None;
        }
        let one_more = |now: usize| (now < TURNED_AWAY_MAX).then_some(now + 1);
        self.turned_away.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        let (connections, number) = (Arc::clone(self), self.next_number.fetch_add(1, Ordering::Relaxed));
        let presence = Arc::new(Presence::default());
        Some(ConnectionPermit { connections, protocol, number, presence, is_one_too_many: true })
    }

    fn take_room(&self, protocol: Protocol) -> bool {
        let mut open = self.open.lock();
        let has_room = self.has_room(&open, protocol);
        open[protocol.index()] += usize::from(has_room);
        has_room
    }

    /// Whether one more fits. All but the management port share their room.
    fn has_room(&self, open: &[usize; Protocol::ALL.len()], protocol: Protocol) -> bool {
        let sharing =
            Protocol::ALL.into_iter().filter(|other| other.is_management() == protocol.is_management());
        let among: usize = sharing.map(|other| open[other.index()]).sum();
        among < self.max(protocol)
    }

    /// Asks a connection to go that waits for a request: one that never had any rather than one that may want to go on.
    fn make_room(&self, protocol: Protocol) -> bool {
        let request_wise = self.request_wise.lock();
        let shares = |other: Protocol| other.is_management() == protocol.is_management();
        let mut sharing = request_wise.values().filter(|(of, _)| shares(*of)).map(|(_, it)| it);
        if self.leaving.load(Ordering::Relaxed) >= LEAVING_MAX {
            return false;
        }
        let has_room = sharing.clone().any(|it| !it.is_known.load(Ordering::Relaxed) && it.ask_to_go())
            || sharing.any(|it| it.ask_to_go());
        if has_room {
            self.leaving.fetch_add(1, Ordering::Relaxed);
            self.open.lock()[protocol.index()] += 1;
        }
        has_room
    }

    /// Tells the log that a connection was closed for want of room, unless it was told of one a moment ago.
    pub fn note_refused(&self, protocol: Protocol, peer: SocketAddr) {
        self.warn(|| {
            let (port, max) = (protocol.name(), self.max(protocol));
            tracing::warn!(port, %peer, max, "too many connections; a new one was closed");
        });
    }

    /// Tells the log that the system gives no connection, unless it was told a moment ago.
    pub fn note_accept_failed(&self, protocol: Protocol, error: &io::Error) {
        self.warn(|| tracing::warn!(port = protocol.name(), %error, "a connection cannot be accepted"));
    }

    /// The figures of one port.
    #[must_use]
    pub fn counts(&self, protocol: Protocol) -> ConnectionCounts {
        ConnectionCounts {
            open: self.open.lock()[protocol.index()],
            accepted: self.accepted[protocol.index()].load(Ordering::Relaxed),
            refused: self.refused[protocol.index()].load(Ordering::Relaxed),
        }
    }

    fn warn(&self, say: impl FnOnce()) {
        let mut warned_at = self.warned_at.lock();
        if warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            *warned_at = Some(Instant::now());
            say();
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if self.is_one_too_many {
            self.connections.turned_away.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        if self.protocol.is_request_wise() {
            self.connections.request_wise.lock().remove(&self.number);
            let was_asked = self.presence.is_asked_to_go.load(Ordering::Relaxed);
            self.connections.leaving.fetch_sub(usize::from(was_asked), Ordering::Relaxed);
        }
        self.connections.open.lock()[self.protocol.index()] -= 1;
        self.connections.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_management_port_and_the_others_do_not_take_each_others_room() {
        let connections = Arc::new(Connections::new(16, usize::MAX));
        let busy = |permit: ConnectionPermit| {
            permit.presence().set_in_request(true);
            permit
        };
        let admitted = |protocol, times: usize| -> Vec<ConnectionPermit> {
            (0..times).filter_map(|_| connections.admit(protocol).map(busy)).collect()
        };
        let http = admitted(Protocol::Http, 20);
        let (amqp, sqs) = (admitted(Protocol::Amqp, 10), admitted(Protocol::Sqs, 10));
        assert_eq!((http.len(), amqp.len(), sqs.len()), (2, 10, 4));
        let counts = connections.counts(Protocol::Sqs);
        assert_eq!(counts, ConnectionCounts { open: 4, accepted: 4, refused: 6 });
        drop(amqp);
        assert!(connections.admit(Protocol::Grpc).is_some());
        assert!(connections.admit(Protocol::Http).is_none());
    }

    #[test]
    fn one_too_many_is_let_in_to_be_told_so_unless_many_are_being_told() {
        let connections = Arc::new(Connections::new(100, 2));
        assert_eq!((connections.max(Protocol::Amqp), connections.max(Protocol::Http)), (2, 12));
        let admit = || connections.admit(Protocol::Amqp);
        let served = [admit().unwrap(), admit().unwrap()];
        assert!(served.iter().all(|permit| permit.limit_reached().is_none()));
        let told: Vec<ConnectionPermit> = std::iter::from_fn(admit).take(100).collect();
        assert_eq!(told.len(), TURNED_AWAY_MAX);
        assert!(told.iter().all(|permit| permit.limit_reached() == Some(2)));
        assert_eq!(connections.counts(Protocol::Amqp).open, 2);
        drop((told, served));
        assert_eq!(admit().unwrap().limit_reached(), None);
    }

    #[test]
    fn who_waits_for_a_request_makes_room_and_first_who_never_had_one() {
        let connections = Arc::new(Connections::new(24, usize::MAX));
        let permits: Vec<ConnectionPermit> =
            (0..3).map(|_| connections.admit(Protocol::Http).unwrap()).collect();
        permits[0].presence().set_in_request(true);
        permits[1].presence().set_in_request(true);
        permits[1].presence().set_in_request(false);
        let asked = |permit: &ConnectionPermit| permit.presence().is_asked_to_go.load(Ordering::Relaxed);
        let fourth = connections.admit(Protocol::Http).unwrap();
        assert_eq!([0, 1, 2].map(|at| asked(&permits[at])), [false, false, true]);
        fourth.presence().set_in_request(true);
        let fifth = connections.admit(Protocol::Http).unwrap();
        assert!(asked(&permits[1]), "it had one, and waits for the next");
        fifth.presence().set_in_request(true);
        assert!(connections.admit(Protocol::Http).is_none(), "all others are at work or about to go");
        assert!(connections.admit(Protocol::Amqp).is_some());
        drop(permits);
        assert_eq!(connections.counts(Protocol::Http).open, 2);
    }

    #[test]
    fn silent_connections_of_one_port_make_room_for_another_and_not_too_many_at_once() {
        let connections = Arc::new(Connections::new(64, usize::MAX));
        let silent: Vec<ConnectionPermit> =
            (0..56).map(|_| connections.admit(Protocol::Sqs).unwrap()).collect();
        let clients: Vec<ConnectionPermit> =
            std::iter::from_fn(|| connections.admit(Protocol::Amqp)).take(100).collect();
        let served = clients.iter().filter(|client| client.limit_reached().is_none()).count();
        assert_eq!(served, LEAVING_MAX, "until some have gone");
        drop(silent);
        assert!(connections.admit(Protocol::Amqp).is_some());
    }

    #[tokio::test]
    async fn a_port_waits_for_those_that_make_room_and_turns_nobody_away_meanwhile() {
        let connections = Arc::new(Connections::new(8 * 32, usize::MAX));
        let admit = || connections.admit(Protocol::Http);
        let mut silent: Vec<ConnectionPermit> = (0..32).map(|_| admit().unwrap()).collect();
        let crowd: Vec<ConnectionPermit> = (0..LEAVING_MAX).map(|_| admit().unwrap()).collect();
        let waiting = Arc::clone(&connections);
        let mut waiting = tokio::spawn(async move { waiting.until_others_left(Protocol::Http).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "all that may go at once are on their way");
        connections.until_others_left(Protocol::Amqp).await;
        // The first that was asked goes, and another can be asked.
        drop(silent.remove(0));
        (&mut waiting).await.unwrap();
        assert!(admit().is_some());
        drop(crowd);
    }

    #[test]
    fn there_is_room_for_one_however_few_there_may_be() {
        let connections = Arc::new(Connections::new(0, usize::MAX));
        let _http = connections.admit(Protocol::Http).unwrap();
        assert!(connections.admit(Protocol::Amqp).is_some());
    }
}
