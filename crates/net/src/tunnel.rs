//! Tunnels: connections of clients that another node passes on to this one. Each comes out at the port that it was meant for
//! and is served there like one that was accepted, with the client's own address.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use nexo_broker::Protocol;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_rustls::server::TlsStream;

use crate::listeners::Listeners;
use crate::peer_stream::PeerStream;

/// Tunnels that have come and that their port has not taken yet, for each port: as many as wait on a socket. After a change
/// of leader all clients come back at once.
const BACKLOG: usize = 1024;

/// Which connection a tunnel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelHead {
    /// The port that the client came to.
    pub protocol: Protocol,
    /// Whether the client speaks TLS, and with whom.
    pub tls: TunnelTls,
    /// The client's address, as the node that took it in saw it.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub reached: SocketAddr,
}

/// Whether a client speaks TLS, and with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelTls {
    /// It does not.
    Off,
    /// With the node at the end of the tunnel: what goes through it is enciphered.
    Through,
    /// With the node that took it in, which passes single requests on.
    Before,
}

/// Why a tunnel cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TunnelRefused {
    /// Nobody serves that port here.
    #[error("this node does not serve {}", .0.name())]
    NotServed(Protocol),
    /// Too many wait already.
    #[error("{BACKLOG} tunnels wait for {} already", .0.name())]
    Busy(Protocol),
}

/// Where tunnels come out, by port.
#[derive(Clone, Debug, Default)]
pub struct Tunnels {
    ports: [Option<mpsc::Sender<Tunnel>>; Protocol::ALL.len()],
}

impl Tunnels {
    /// Has tunnels for `protocol` come out among the connections of `listeners`.
    pub fn attach(&mut self, protocol: Protocol, listeners: &mut Listeners) {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        self.ports[protocol.index()] = Some(sender);
        listeners.take_tunnels(receiver);
    }

    /// Brings a tunnel to its port. It does not wait.
    ///
    /// # Errors
    /// If the port takes none. Then the tunnel is closed.
    pub fn bring(&self, head: TunnelHead, stream: PeerStream) -> Result<(), TunnelRefused> {
        let protocol = head.protocol;
        let port = self.ports[protocol.index()].as_ref().ok_or(TunnelRefused::NotServed(protocol))?;
        port.try_send(Tunnel { head, bytes: Bytes::Open(stream) }).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => TunnelRefused::Busy(protocol),
            mpsc::error::TrySendError::Closed(_) => TunnelRefused::NotServed(protocol),
        })
    }
}

/// The end of a tunnel: what a client says, and what it is told.
#[derive(Debug)]
pub struct Tunnel {
    head: TunnelHead,
    bytes: Bytes,
}

/// What the client's bytes are.
#[derive(Debug)]
enum Bytes {
    /// As the client sends them.
    Open(PeerStream),
    /// Enciphered between the client and this node.
    Tls(Box<TlsStream<PeerStream>>),
}

impl Tunnel {
    /// Which connection it carries.
    #[must_use]
    pub const fn head(&self) -> &TunnelHead {
        &self.head
    }

    /// What it goes over.
    pub(crate) fn stream(&self) -> &PeerStream {
        match &self.bytes {
            Bytes::Open(stream) => stream,
            Bytes::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Whether TLS has been agreed on with the client.
    pub(crate) const fn is_tls(&self) -> bool {
        match self.head.tls {
            TunnelTls::Off => false,
            TunnelTls::Through => matches!(self.bytes, Bytes::Tls(_)),
            TunnelTls::Before => true,
        }
    }

    /// What it goes over, for the handshake with the client. `None` if that is over.
    pub(crate) fn into_stream(self) -> Option<PeerStream> {
        match self.bytes {
            Bytes::Open(stream) => Some(stream),
            Bytes::Tls(_) => None,
        }
    }

    /// The tunnel of a client with which TLS has been agreed on.
    pub(crate) fn secured(head: TunnelHead, stream: TlsStream<PeerStream>) -> Self {
        Self { head, bytes: Bytes::Tls(Box::new(stream)) }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().bytes {
            Bytes::Open(stream) => Pin::new(stream).poll_read(cx, buf),
            Bytes::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().bytes {
            Bytes::Open(stream) => Pin::new(stream).poll_write(cx, buf),
            Bytes::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().bytes {
            Bytes::Open(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Bytes::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.bytes {
            Bytes::Open(stream) => stream.is_write_vectored(),
            Bytes::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().bytes {
            Bytes::Open(stream) => Pin::new(stream).poll_flush(cx),
            Bytes::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().bytes {
            Bytes::Open(stream) => Pin::new(stream).poll_shutdown(cx),
            Bytes::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
