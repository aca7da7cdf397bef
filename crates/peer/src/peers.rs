//! The other nodes, as one handle.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use nexo_net::PeerStream;
use nexo_types::NodeId;
use nexo_types::limits::PEER_ENVELOPE_BYTES_MAX;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::acceptor::{Refusals, accept_all};
use crate::dial::{Security, dial};
use crate::error::PeerError;
use crate::figures::PeerStatus;
use crate::identity::{PeerIdentity, PeerOptions, PeerSecurity};
use crate::link::Link;
use crate::own_thread::OwnThread;
use crate::purpose::Purpose;
use crate::strangers::Strangers;

/// What is done with that which comes from other nodes. All of it is quick, and never wait.
pub trait PeerHandler: Send + Sync {
    /// An envelope has come.
    fn envelope(&self, from: NodeId, envelope: Bytes);

    /// The connection over which envelopes came from a node has ended, and no other has taken its place: its process may be gone.
    /// Whoever does not care need not hear.
    fn lost_contact(&self, _from: NodeId) {}

    /// A connection has come, for anything but envelopes. `from` is none if the other is in no cluster yet; then it asks a
    /// question.
    fn stream(&self, from: Option<NodeId>, purpose: Purpose, stream: PeerStream);
}

/// All connections to other nodes. Cheap to clone. They stay until [`close`](Self::close).
#[derive(Clone, Debug)]
pub struct Peers {
    shared: Arc<PeersState>,
}

/// What the connections of a node share.
pub(crate) struct PeersState {
    pub(crate) identity: PeerIdentity,
    pub(crate) security: Security,
    pub(crate) handler: Arc<dyn PeerHandler>,
    pub(crate) stop: CancellationToken,
    pub(crate) strangers: Arc<Strangers>,
    pub(crate) refusals: Refusals,
    addresses: Vec<SocketAddr>,
    links: Mutex<BTreeMap<NodeId, Arc<Link>>>,
    /// By whom envelopes come, and how each is ended.
    incoming: Mutex<BTreeMap<NodeId, CancellationToken>>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
    /// Envelopes have a thread of their own. Those that serve clients may be held up until a majority has answered, and the answers
    /// must not wait behind them.
    thread: OwnThread,
    /// Where everything else goes on.
    pub(crate) runtime: Handle,
}

impl Peers {
    /// Listens for other nodes. Nobody is connected to before [`set_peers`](Self::set_peers) says whom.
    ///
    /// # Errors
    /// If an address cannot be listened on, or a file of certificates cannot be used.
    pub async fn start(options: PeerOptions, handler: Arc<dyn PeerHandler>) -> Result<Self, PeerError> {
        let security = Security::load(&options.security)?;
        let thread = OwnThread::start().map_err(PeerError::Thread)?;
        let mut listeners = Vec::new();
        for address in &options.listen {
            let bound = thread.bind(address.clone()).await;
            listeners.push(bound.map_err(|source| PeerError::Listen { address: address.clone(), source })?);
        }
        let addresses: io::Result<Vec<SocketAddr>> = listeners.iter().map(TcpListener::local_addr).collect();
        let addresses =
            addresses.map_err(|source| PeerError::Listen { address: options.listen.join(", "), source })?;
        let shared = Arc::new(PeersState {
            identity: options.identity,
            security,
            handler,
            stop: CancellationToken::new(),
            strangers: Arc::default(),
            refusals: Refusals::default(),
            addresses,
            links: Mutex::default(),
            incoming: Mutex::default(),
            acceptors: Mutex::default(),
            thread,
            runtime: Handle::current(),
        });
        let accept = |listener| shared.thread.handle.spawn(accept_all(Arc::clone(&shared), listener));
        let acceptors = listeners.into_iter().map(accept);
        *shared.acceptors.lock() = acceptors.collect();
        Ok(Self { shared })
    }

    /// Who this node is.
    #[must_use]
    pub fn identity(&self) -> &PeerIdentity {
        &self.shared.identity
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.shared.addresses
    }

    /// Says which nodes there are, and at which `HOST:PORT`. Those that are new or have moved are connected to; those that have
    /// left are disconnected. This node itself may be among them.
    pub fn set_peers(&self, peers: &BTreeMap<NodeId, String>) {
        let shared = &self.shared;
        if shared.stop.is_cancelled() {
            return;
        }
        let mut links = shared.links.lock();
        let mut incoming = shared.incoming.lock();
        links.retain(|node, link| {
            let stays = peers.get(node) == Some(&link.address);
            if !stays {
                link.stop.cancel();
            }
            if !peers.contains_key(node)
                && let Some(from) = incoming.remove(node)
            {
                from.cancel();
            }
            stays
        });
        drop(incoming);
        let own = shared.identity.node;
        for (node, address) in peers.iter().filter(|(node, _)| **node != own) {
            links.entry(*node).or_insert_with(|| {
                let link = Arc::new(Link::new(*node, address.clone(), shared.stop.child_token()));
                shared.thread.handle.spawn(Arc::clone(&link).run(Arc::clone(shared)));
                link
            });
        }
    }

    /// Sends an envelope to a node, behind those that were sent before. It never waits: what cannot be sent is dropped and
    /// counted.
    ///
    /// # Panics
    /// In debug builds, if the envelope is longer than any may be.
    pub fn send(&self, to: NodeId, envelope: Vec<u8>) {
        debug_assert!(envelope.len() <= PEER_ENVELOPE_BYTES_MAX, "{} bytes", envelope.len());
        if envelope.len() > PEER_ENVELOPE_BYTES_MAX {
            tracing::error!(node = %to, bytes = envelope.len(), "an envelope is too long to be sent");
            return;
        }
        if let Some(link) = self.shared.link(to) {
            link.send(envelope);
        }
    }

    /// Opens a connection of its own to a node.
    ///
    /// # Errors
    /// If it cannot be reached, or refuses.
    pub async fn open(&self, to: NodeId, purpose: Purpose) -> Result<PeerStream, PeerError> {
        let link = self.shared.link(to).ok_or(PeerError::Unknown(to))?;
        let opening = async {
            let _turn = link.dials.acquire().await.map_err(|_| PeerError::Closed)?;
            let identity = Some(&self.shared.identity);
            dial(&self.shared.security, identity, &link.address, purpose, Some(to)).await
        };
        tokio::select! {
            opened = opening => opened.map(|(stream, _)| stream),
            () = link.stop.cancelled() => Err(PeerError::Closed),
        }
    }

    /// Opens a connection to an address, as somebody who is in no cluster yet. Only questions are answered then.
    ///
    /// # Errors
    /// If it cannot be reached, or refuses, or a file of certificates cannot be used.
    pub async fn open_address(
        security: &PeerSecurity,
        address: &str,
        purpose: Purpose,
    ) -> Result<PeerStream, PeerError> {
        let security = Security::load(security)?;
        dial(&security, None, address, purpose, None).await.map(|(stream, _)| stream)
    }

    /// How the other nodes are reached.
    #[must_use]
    pub fn status(&self) -> Vec<PeerStatus> {
        self.shared.links.lock().values().map(|link| link.status()).collect()
    }

    /// Ends all connections for envelopes, and listens no more when this returns. Streams that were
    /// handed out stay as long as this handle does: those that came from others are read by its thread.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        let acceptors = std::mem::take(&mut *self.shared.acceptors.lock());
        for acceptor in acceptors {
            // One that has failed listens no more either.
            let _ = acceptor.await;
        }
    }
}

impl PeersState {
    pub(crate) fn link(&self, node: NodeId) -> Option<Arc<Link>> {
        self.links.lock().get(&node).cloned()
    }

    /// Notes that envelopes of a node come over another connection from now on. What is returned says when that ends.
    pub(crate) fn receives_from(&self, node: NodeId) -> CancellationToken {
        let token = self.stop.child_token();
        if let Some(before) = self.incoming.lock().insert(node, token.clone()) {
            before.cancel();
        }
        token
    }
}

impl fmt::Debug for PeersState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeersState").field("identity", &self.identity).finish_non_exhaustive()
    }
}
