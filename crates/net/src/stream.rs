//! The bytes of a connection: plain TCP, TLS over it, or a tunnel from another node. An enum, so that plain connections pay
//! nothing for the other kinds but a branch.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::server::TlsStream;

use crate::tunnel::Tunnel;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS, after its handshake.
    Tls(Box<TlsStream<SharedSocket>>),
    /// Either of them with a client of another node, which passes it on.
    Tunnel(Box<Tunnel>),
}

impl Stream {
    /// The other end: the client, wherever it is connected.
    ///
    /// # Errors
    /// If it is gone already.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(_) | Self::Tls(_) => self.socket().peer_addr(),
            Self::Tunnel(tunnel) => Ok(tunnel.head().client),
        }
    }

    /// The address that the client connected to.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(_) | Self::Tls(_) => self.socket().local_addr(),
            Self::Tunnel(tunnel) => Ok(tunnel.head().reached),
        }
    }

    /// Has small writes go out at once.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn set_nodelay(&self) -> io::Result<()> {
        self.socket().set_nodelay(true)
    }

    /// Whether nobody between the two ends can read it.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(_) => true,
            Self::Tunnel(tunnel) => tunnel.is_tls(),
        }
    }

    /// Whether another node passes it on.
    #[must_use]
    pub const fn is_tunnel(&self) -> bool {
        matches!(self, Self::Tunnel(_))
    }

    /// Whether bytes that were written may wait to be flushed.
    pub(crate) const fn has_to_flush(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(_) | Self::Tunnel(_) => true,
        }
    }

    /// Its two directions, for use at the same time.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Plain(stream) => {
                let (reader, writer) = stream.into_split();
                (ReadHalf::Plain(reader), WriteHalf::Plain(writer))
            }
            Self::Tls(stream) => {
                let socket = stream.get_ref().0.clone();
                let (reader, writer) = tokio::io::split(*stream);
                (ReadHalf::Tls { reader, socket }, WriteHalf::Tls { writer, holds_bytes: false })
            }
            Self::Tunnel(tunnel) => {
                let socket = tunnel.stream().socket().clone();
                let (reader, writer) = tokio::io::split(*tunnel);
                (ReadHalf::Tunnel { reader, socket }, WriteHalf::Tunnel { writer, holds_bytes: false })
            }
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.get_ref().0.0,
            Self::Tunnel(tunnel) => tunnel.stream().socket().socket(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tunnel(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tunnel(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tunnel(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Tunnel(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tunnel(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tunnel(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// What comes from the peer.
#[derive(Debug)]
pub enum ReadHalf {
    /// Over plain TCP.
    Plain(OwnedReadHalf),
    /// Over TLS.
    Tls {
        /// What was deciphered.
        reader: tokio::io::ReadHalf<TlsStream<SharedSocket>>,
        /// What it comes over.
        socket: SharedSocket,
    },
    /// From another node.
    Tunnel {
        /// What the client said.
        reader: tokio::io::ReadHalf<Tunnel>,
        /// What it comes over.
        socket: SharedSocket,
    },
}

impl ReadHalf {
    /// Resolves when the connection has failed, without reading from it. What a peer has written that closed its end as it
    /// should is still there to be read.
    ///
    /// # Errors
    /// If the socket cannot be watched.
    pub async fn failed(&self) -> io::Result<()> {
        match self {
            Self::Plain(half) => half.ready(Interest::ERROR).await?,
            Self::Tls { socket, .. } | Self::Tunnel { socket, .. } => socket.0.ready(Interest::ERROR).await?,
        };
        Ok(())
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_read(cx, buf),
            Self::Tls { reader, .. } => Pin::new(reader).poll_read(cx, buf),
            Self::Tunnel { reader, .. } => Pin::new(reader).poll_read(cx, buf),
        }
    }
}

/// What goes to the peer.
#[derive(Debug)]
pub enum WriteHalf {
    /// Over plain TCP.
    Plain(OwnedWriteHalf),
    /// Over TLS.
    Tls {
        /// Enciphers it.
        writer: tokio::io::WriteHalf<TlsStream<SharedSocket>>,
        /// Whether something was written since the last flush.
        holds_bytes: bool,
    },
    /// By way of another node.
    Tunnel {
        /// Takes it there.
        writer: tokio::io::WriteHalf<Tunnel>,
        /// Whether something was written since the last flush.
        holds_bytes: bool,
    },
}

impl WriteHalf {
    /// Whether bytes that were written may not have gone out. They do when it is flushed.
    #[must_use]
    pub const fn holds_bytes(&self) -> bool {
        matches!(self, Self::Tls { holds_bytes: true, .. } | Self::Tunnel { holds_bytes: true, .. })
    }
}

/// What was written, noted in `holds_bytes`.
fn note(holds_bytes: &mut bool, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
    *holds_bytes |= matches!(written, Poll::Ready(Ok(_)));
    written
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_write(cx, buf),
            Self::Tls { writer, holds_bytes } => note(holds_bytes, Pin::new(writer).poll_write(cx, buf)),
            Self::Tunnel { writer, holds_bytes } => note(holds_bytes, Pin::new(writer).poll_write(cx, buf)),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_write_vectored(cx, bufs),
            Self::Tls { writer, holds_bytes } => {
                note(holds_bytes, Pin::new(writer).poll_write_vectored(cx, bufs))
            }
            Self::Tunnel { writer, holds_bytes } => {
                note(holds_bytes, Pin::new(writer).poll_write_vectored(cx, bufs))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(half) => half.is_write_vectored(),
            Self::Tls { writer, .. } => writer.is_write_vectored(),
            Self::Tunnel { writer, .. } => writer.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_flush(cx),
            Self::Tls { writer, holds_bytes } => {
                ready!(Pin::new(writer).poll_flush(cx))?;
                *holds_bytes = false;
                Poll::Ready(Ok(()))
            }
            Self::Tunnel { writer, holds_bytes } => {
                ready!(Pin::new(writer).poll_flush(cx))?;
                *holds_bytes = false;
                Poll::Ready(Ok(()))
            }
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_shutdown(cx),
            Self::Tls { writer, .. } => Pin::new(writer).poll_shutdown(cx),
            Self::Tunnel { writer, .. } => Pin::new(writer).poll_shutdown(cx),
        }
    }
}

/// A socket under TLS or between nodes, which can be watched by whoever reads what comes over it.
#[derive(Clone, Debug)]
pub struct SharedSocket(Arc<TcpStream>);

impl From<TcpStream> for SharedSocket {
    fn from(socket: TcpStream) -> Self {
        Self(Arc::new(socket))
    }
}

impl AsyncRead for SharedSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl SharedSocket {
    /// The socket itself.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.0
    }

    fn poll_try_write(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncWrite for SharedSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_try_write(cx, |socket| socket.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_try_write(cx, |socket| socket.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}
