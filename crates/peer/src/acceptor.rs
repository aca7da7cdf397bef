//! The port: connections that come are strangers until their hello is over, and then go where they belong.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nexo_net::{PeerStream, SharedSocket};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::dial::{HELLO_WITHIN, prepare};
use crate::error::HelloError;
use crate::handshake::{Caller, receive};
use crate::incoming;
use crate::peers::PeersState;
use crate::purpose::Purpose;

/// How long to wait after an accept failed for want of descriptors or memory: the next one would fail as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that were refused are logged at most this often: whoever scans a network makes many.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Connections that were refused and that the log was not told of.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    told: Mutex<(u64, Option<Instant>)>,
}

impl Refusals {
    fn note(&self, peer: SocketAddr, error: &HelloError) {
        tracing::debug!(%peer, %error, "a connection to the cluster's port is refused");
        // Who asks to be let in is in no cluster yet, and the others look for whoever was at that address before.
        if matches!(error, HelloError::Cluster { other, .. } if other.is_none()) {
            return;
        }
        let mut told = self.told.lock();
        told.0 += 1;
        if told.1.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            let count = std::mem::take(&mut told.0);
            told.1 = Some(Instant::now());
            drop(told);
            tracing::warn!(%peer, %error, count, "connections to the cluster's port were refused; this is the last of them");
        }
    }
}

/// Takes connections in until the node closes.
pub(crate) async fn accept_all(shared: Arc<PeersState>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.stop.cancelled() => return,
        };
        match accepted {
            Ok((socket, peer)) => {
                tokio::spawn(meet(Arc::clone(&shared), socket, peer));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of another node cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Hears who has connected, and hands the connection on.
async fn meet(shared: Arc<PeersState>, socket: TcpStream, peer: SocketAddr) {
    prepare(&socket);
    let stranger = shared.strangers.admit();
    let greeted = tokio::select! {
        greeted = timeout(HELLO_WITHIN, greet(&shared, socket)) => greeted,
        () = stranger.sent_away() => return,
        () = shared.stop.cancelled() => return,
    };
    drop(stranger);
    let late = || HelloError::Io(std::io::ErrorKind::TimedOut.into());
    let (stream, caller) = match greeted.unwrap_or_else(|_| Err(late())) {
        Ok(greeted) => greeted,
        Err(error) => return shared.refusals.note(peer, &error),
    };
    let Caller { node, name, purpose } = caller;
    tracing::debug!(%peer, node = node.map(|node| node.0), name, purpose = purpose.name(), "another node has connected");
    match (purpose, node) {
        (Purpose::Raft, Some(node)) => incoming::run(&shared, node, stream).await,
        (Purpose::Raft, None) => {}
        (Purpose::Snapshot | Purpose::Tunnel(_) | Purpose::Request, node) => {
            // What is begun with it does not run here.
            let _elsewhere = shared.runtime.enter();
            shared.handler.stream(node, purpose, stream);
        }
    }
}

async fn greet(shared: &PeersState, socket: TcpStream) -> Result<(PeerStream, Caller), HelloError> {
    let mut stream = match &shared.security.tls {
        None => PeerStream::Plain(SharedSocket::from(socket)),
        Some(tls) => tls.server.accept_peer(socket).await?,
    };
    let caller = receive(&mut stream, &shared.identity, &shared.security.secret).await?;
    Ok((stream, caller))
}
