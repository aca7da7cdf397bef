//! Where the connections of one port come from: a socket for each of its addresses, some of them with TLS; and in a cluster,
//! tunnels from other nodes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::gate::Gate;
use crate::stream::Stream;
use crate::tls::TlsServer;
use crate::tunnel::{Tunnel, TunnelHead, TunnelTls};

/// The sockets of a port.
#[derive(Debug, Default)]
pub struct Listeners {
    sockets: Vec<Listener>,
    /// Which of them is asked first.
    turn: usize,
    /// Says where connections are served, in a cluster.
    gate: Option<Arc<dyn Gate>>,
    tunnels: Option<mpsc::Receiver<Tunnel>>,
}

#[derive(Debug)]
struct Listener {
    socket: TcpListener,
    tls: Option<Arc<TlsServer>>,
}

/// A connection that came.
#[derive(Debug)]
pub(crate) struct Arrival<F> {
    pub(crate) from: F,
    pub(crate) peer: SocketAddr,
    /// Who speaks TLS with it, if it is to be spoken.
    pub(crate) tls: Option<Arc<TlsServer>>,
}

/// What a connection came by.
#[derive(Debug)]
pub(crate) enum Source {
    Socket(TcpStream),
    Tunnel(Tunnel),
}

impl From<Source> for Stream {
    fn from(source: Source) -> Self {
        match source {
            Source::Socket(socket) => Self::Plain(socket),
            Source::Tunnel(tunnel) => Self::Tunnel(Box::new(tunnel)),
        }
    }
}

impl Listeners {
    /// Adds a socket.
    pub fn add(&mut self, socket: TcpListener) {
        self.sockets.push(Listener { socket, tls: None });
    }

    /// The same sockets, on which TLS is spoken.
    #[must_use]
    pub fn over_tls(mut self, tls: &Arc<TlsServer>) -> Self {
        for listener in &mut self.sockets {
            listener.tls = Some(Arc::clone(tls));
        }
        self
    }

    /// Adds all sockets of another.
    pub fn join(&mut self, other: Self) {
        self.sockets.extend(other.sockets);
    }

    /// Has `gate` say where connections are served.
    pub fn set_gate(&mut self, gate: Arc<dyn Gate>) {
        self.gate = Some(gate);
    }

    pub(crate) fn gate(&self) -> Option<Arc<dyn Gate>> {
        self.gate.clone()
    }

    pub(crate) fn take_tunnels(&mut self, tunnels: mpsc::Receiver<Tunnel>) {
        self.tunnels = Some(tunnels);
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// The addresses.
    ///
    /// # Errors
    /// If the system does not tell one.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets.iter().map(|listener| listener.socket.local_addr()).collect()
    }

    /// The next connection of any of them. They take turns, so that a busy address does not keep others out. May be
    /// dropped while it waits: no connection is lost.
    pub(crate) async fn accept(&mut self) -> io::Result<Arrival<Source>> {
        std::future::poll_fn(|context| {
            // One more than there are sockets: the tunnels.
            let count = self.sockets.len() + 1;
            for at in (self.turn..count).chain(0..self.turn.min(count)) {
                let accepted = match self.sockets.get(at) {
                    Some(listener) => listener.socket.poll_accept(context).map(|accepted| {
                        let tls = listener.tls.clone();
                        accepted.map(|(socket, peer)| Arrival { from: Source::Socket(socket), peer, tls })
                    }),
                    None => self.poll_tunnels(context).map(Ok),
                };
                if accepted.is_ready() {
                    self.turn = at + 1;
                    return accepted;
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next tunnel. One that carries what no socket of this port takes is closed: the other node has ports that this one
    /// has not.
    fn poll_tunnels(&mut self, context: &mut Context<'_>) -> Poll<Arrival<Source>> {
        let Some(tunnels) = &mut self.tunnels else { return Poll::Pending };
        while let Some(tunnel) = ready!(tunnels.poll_recv(context)) {
            let TunnelHead { protocol, tls, client: peer, .. } = *tunnel.head();
            let mut sockets = self.sockets.iter();
            let taken = match tls {
                TunnelTls::Off => sockets.find(|listener| listener.tls.is_none()).map(|_| None),
                TunnelTls::Through => sockets.find_map(|listener| listener.tls.clone()).map(Some),
                TunnelTls::Before => Some(None),
            };
            let Some(tls) = taken else {
                let protocol = protocol.name();
                tracing::warn!(
                    protocol,
                    ?tls,
                    "a connection that another node passed on is closed: no such port here"
                );
                continue;
            };
            return Poll::Ready(Arrival { from: Source::Tunnel(tunnel), peer, tls });
        }
        // Nobody brings any more.
        Poll::Pending
    }
}

impl From<TcpListener> for Listeners {
    fn from(socket: TcpListener) -> Self {
        let mut listeners = Self::default();
        listeners.add(socket);
        listeners
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_busy_address_does_not_keep_others_out() {
        let mut listeners = Listeners::default();
        for _ in 0..3 {
            listeners.add(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses = listeners.addresses().unwrap();
        let mut clients = Vec::new();
        for at in [0, 0, 0, 0, 1, 2] {
            clients.push(TcpStream::connect(addresses[at]).await.unwrap());
        }
        let mut came = Vec::new();
        for _ in 0..clients.len() {
            let Source::Socket(socket) = listeners.accept().await.unwrap().from else {
                panic!("there are no tunnels");
            };
            let local = socket.local_addr().unwrap();
            came.push(addresses.iter().position(|address| *address == local).unwrap());
        }
        assert_eq!(came, [0, 1, 2, 0, 0, 0]);
    }
}
