//! How many clients may be connected. A process has a number of descriptors, and the log must always get those that it
//! needs; so every port asks here before it serves a connection, and one too many is closed at once.
//!
//! The management port has a share of its own: clients cannot keep a health check out, and whoever fills the management
//! port keeps no client out.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};

use crate::traffic::Protocol;

/// The management port's share of all connections: one in eight.
const HTTP_SHARE: usize = 8;
/// And at most this many: health checks, scrapers and a few people.
const HTTP_MAX: usize = 256;
/// How long to wait after an accept failed for want of descriptors or memory: the next one would fail as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Refused and failed connections are logged at most this often.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// What an HTTP client is told when there are too many.
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 21\r\n\r\ntoo many connections\n";

/// The connections of all ports.
#[derive(Debug)]
pub struct Connections {
    http_max: usize,
    others_max: usize,
    open: Mutex<[usize; Protocol::ALL.len()]>,
    accepted: [AtomicU64; Protocol::ALL.len()],
    refused: [AtomicU64; Protocol::ALL.len()],
    warned_at: Mutex<Option<Instant>>,
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
}

impl Connections {
    /// At most `max` at once, of all ports together.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let http_max = (max / HTTP_SHARE).clamp(1, HTTP_MAX);
        Self {
            http_max,
            others_max: max.saturating_sub(http_max).max(1),
            open: Mutex::default(),
            accepted: Default::default(),
            refused: Default::default(),
            warned_at: Mutex::default(),
        }
    }

    /// The most that the management port, or all others together, may have.
    #[must_use]
    pub const fn max(&self, protocol: Protocol) -> usize {
        match protocol {
            Protocol::Http => self.http_max,
            Protocol::Amqp | Protocol::Grpc | Protocol::Sqs => self.others_max,
        }
    }

    /// Lets a connection in, unless there are too many.
    pub fn admit(self: &Arc<Self>, protocol: Protocol) -> Option<ConnectionPermit> {
        {
            let mut open = self.open.lock();
            let http = open[Protocol::Http as usize];
            let among = match protocol {
                Protocol::Http => http,
                Protocol::Amqp | Protocol::Grpc | Protocol::Sqs => open.iter().sum::<usize>() - http,
            };
            if among >= self.max(protocol) {
                drop(open);
                self.refused[protocol as usize].fetch_add(1, Ordering::Relaxed);
                return None;
            }
            open[protocol as usize] += 1;
        }
        self.accepted[protocol as usize].fetch_add(1, Ordering::Relaxed);
        Some(ConnectionPermit { connections: Arc::clone(self), protocol })
    }

    /// The next connection that may be served. Those that there is no room for are closed, and an accept that fails is
    /// tried again after a pause. May be dropped while it waits: no connection is lost.
    pub async fn accept(
        self: &Arc<Self>,
        protocol: Protocol,
        listener: &TcpListener,
    ) -> (TcpStream, SocketAddr, ConnectionPermit) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => match self.admit(protocol) {
                    Some(permit) => return (stream, peer, permit),
                    None => {
                        self.warn(|| {
                            let (port, max) = (protocol.name(), self.max(protocol));
                            tracing::warn!(port, %peer, max, "too many connections; a new one was closed");
                        });
                        refuse(protocol, stream);
                    }
                },
                Err(error) => {
                    self.warn(|| {
                        tracing::warn!(port = protocol.name(), %error, "a connection cannot be accepted");
                    });
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The figures of one port.
    #[must_use]
    pub fn counts(&self, protocol: Protocol) -> ConnectionCounts {
        ConnectionCounts {
            open: self.open.lock()[protocol as usize],
            accepted: self.accepted[protocol as usize].load(Ordering::Relaxed),
            refused: self.refused[protocol as usize].load(Ordering::Relaxed),
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
        self.connections.open.lock()[self.protocol as usize] -= 1;
    }
}

/// Closes a connection. One that speaks HTTP is told why, as far as that goes without waiting.
fn refuse(protocol: Protocol, stream: TcpStream) {
    let told = match protocol {
        Protocol::Amqp | Protocol::Grpc => Ok(()),
        Protocol::Sqs | Protocol::Http => tell(stream),
    };
    if let Err(error) = told {
        tracing::debug!(%error, "a refused connection could not be told why");
    }
}

fn tell(stream: TcpStream) -> io::Result<()> {
    // It does not block: the socket is as tokio made it.
    stream.into_std()?.write_all(BUSY)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn the_management_port_and_the_others_do_not_take_each_others_room() {
        let connections = Arc::new(Connections::new(16));
        let admitted = |protocol, times: usize| -> Vec<ConnectionPermit> {
            (0..times).filter_map(|_| connections.admit(protocol)).collect()
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
    fn there_is_room_for_one_however_few_there_may_be() {
        let connections = Arc::new(Connections::new(0));
        let _http = connections.admit(Protocol::Http).unwrap();
        assert!(connections.admit(Protocol::Amqp).is_some());
    }

    #[tokio::test]
    async fn one_too_many_is_told_and_closed_and_the_next_one_served() {
        let connections = Arc::new(Connections::new(8));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _first = TcpStream::connect(address).await.unwrap();
        let (stream, _, permit) = connections.accept(Protocol::Http, &listener).await;
        let mut second = TcpStream::connect(address).await.unwrap();
        let next = tokio::spawn({
            let connections = Arc::clone(&connections);
            async move { connections.accept(Protocol::Http, &listener).await }
        });
        let mut told = String::new();
        second.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 503 ") && told.ends_with("too many connections\n"), "{told}");
        drop((stream, permit));
        let third = TcpStream::connect(address).await.unwrap();
        assert_eq!(next.await.unwrap().1, third.local_addr().unwrap());
        assert_eq!(connections.counts(Protocol::Http), ConnectionCounts { open: 0, accepted: 2, refused: 1 });
    }
}
