//! Clients of this node that another one serves: the ports' gate, over the connections between nodes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nexo_net::{Gate, OpeningTunnel, Place, TunnelHead};
use nexo_types::NodeId;
use tokio::sync::watch;

use crate::error::PeerError;
use crate::peers::Peers;
use crate::purpose::Purpose;

/// Leads clients to where they are served.
#[derive(Debug)]
pub struct Forwarder {
    peers: Peers,
    places: watch::Receiver<Place>,
    opened: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

impl Forwarder {
    /// Opens tunnels through `peers`, to where `places` says.
    #[must_use]
    pub const fn new(peers: Peers, places: watch::Receiver<Place>) -> Self {
        let (opened, bytes, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { peers, places, opened, bytes, failed }
    }

    /// Tunnels that were ever opened, one for each connection or request of a client.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Bytes that went through them, both ways. Requests to the management port are not among them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Tunnels that could not be opened.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Gate for Forwarder {
    fn note_passed_on(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn places(&self) -> watch::Receiver<Place> {
        self.places.clone()
    }

    fn open(&self, to: NodeId, head: TunnelHead) -> OpeningTunnel<'_> {
        Box::pin(async move {
            let opened = self.peers.open(to, Purpose::Tunnel(head)).await;
            let counter = if opened.is_ok() { &self.opened } else { &self.failed };
            counter.fetch_add(1, Ordering::Relaxed);
            opened.map_err(|error| match error {
                PeerError::Connect { source, .. } => source,
                other => io::Error::other(other),
            })
        })
    }
}

/// The places that follow from something else that is watched, such as a node's role.
pub fn follow<R, P>(mut watched: watch::Receiver<R>, place: P) -> watch::Receiver<Place>
where
    R: Send + Sync + 'static,
    P: Fn(&R) -> Place + Send + 'static,
{
    let sender = watch::Sender::new(place(&watched.borrow_and_update()));
    let receiver = sender.subscribe();
    tokio::spawn(async move {
        while watched.changed().await.is_ok() {
            let now = place(&watched.borrow_and_update());
            sender.send_if_modified(|before| std::mem::replace(before, now) != now);
        }
        // Nobody says any more who leads: the broker is closed, and serves nobody.
        sender.send_replace(Place::Nowhere);
    });
    receiver
}
