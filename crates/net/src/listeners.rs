//! The sockets that one port listens on: one for each of its addresses, some of them with TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use tokio::net::{TcpListener, TcpStream};

use crate::tls::TlsServer;

/// The sockets of a port.
#[derive(Debug, Default)]
pub struct Listeners {
    sockets: Vec<Listener>,
    /// Which of them is asked first.
    turn: usize,
}

#[derive(Debug)]
struct Listener {
    socket: TcpListener,
    tls: Option<Arc<TlsServer>>,
}

/// A connection that came.
pub(crate) struct Arrival {
    pub(crate) socket: TcpStream,
    pub(crate) peer: SocketAddr,
    /// Who speaks TLS with it, if it is to be spoken.
    pub(crate) tls: Option<Arc<TlsServer>>,
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
    pub(crate) async fn accept(&mut self) -> io::Result<Arrival> {
        std::future::poll_fn(|context| {
            let count = self.sockets.len();
            for at in (self.turn..count).chain(0..self.turn.min(count)) {
                let listener = &self.sockets[at];
                if let Poll::Ready(accepted) = listener.socket.poll_accept(context) {
                    self.turn = at + 1;
                    let tls = listener.tls.clone();
                    return Poll::Ready(accepted.map(|(socket, peer)| Arrival { socket, peer, tls }));
                }
            }
            Poll::Pending
        })
        .await
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
            let local = listeners.accept().await.unwrap().socket.local_addr().unwrap();
            came.push(addresses.iter().position(|address| *address == local).unwrap());
        }
        assert_eq!(came, [0, 1, 2, 0, 0, 0]);
    }
}
