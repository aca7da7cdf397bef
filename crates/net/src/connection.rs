//! A connection that is counted and logged, and that ends when its peer does nothing for too long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nexo_broker::{Broker, ConnectionPermit, Counted, Protocol};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// How long a peer may do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// How many bytes a peer must say at the beginning.
    pub opening_bytes: usize,
    /// How long it may take for them.
    pub opening: Duration,
    /// How long it may take no byte of what is written to it.
    pub write_stall: Duration,
}

/// A TCP connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    protocol: Protocol,
    peer: SocketAddr,
    local: SocketAddr,
    write_stall: Duration,
    opened: Instant,
    /// Bytes that are still missing from the opening, and the time until when they must have come.
    opening: Option<(usize, Pin<Box<Sleep>>)>,
    /// Runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
    _counted: Counted,
    // Dropped after the stream: the next may have its descriptor.
    _permit: ConnectionPermit,
}

impl Connection {
    /// A connection that `broker` counts for `protocol`.
    ///
    /// # Errors
    /// If the peer is gone already.
    pub fn new(
        stream: TcpStream,
        permit: ConnectionPermit,
        broker: &Broker,
        protocol: Protocol,
        limits: TimeLimits,
    ) -> io::Result<Self> {
        let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
        // Without it a small answer may wait; it is slower then, and right all the same.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        match protocol {
            // Their clients ask and go: nobody wants to read of each.
            Protocol::Http | Protocol::Sqs => {
                tracing::debug!(protocol = protocol.name(), %peer, "connection opened")
            }
            Protocol::Amqp | Protocol::Grpc => {
                tracing::info!(protocol = protocol.name(), %peer, "connection opened")
            }
        }
        let opened = Instant::now();
        let deadline = Box::pin(sleep_until(opened + limits.opening));
        Ok(Self {
            stream,
            protocol,
            peer,
            local,
            write_stall: limits.write_stall,
            opened,
            opening: (limits.opening_bytes > 0).then_some((limits.opening_bytes, deadline)),
            stalled: None,
            _counted: broker.traffic().connection(protocol),
            _permit: permit,
        })
    }

    /// Who is at the other end.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address that the peer connected to.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    fn late(&self, what: &'static str) -> io::Error {
        tracing::info!(protocol = self.protocol.name(), peer = %self.peer, "connection ended: {what}");
        io::Error::new(io::ErrorKind::TimedOut, what)
    }

    /// What came of a write, or the end if there is no progress for too long.
    fn watch<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(self.write_stall)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(self.late("the peer does not read")))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let (protocol, peer) = (self.protocol.name(), self.peer);
        let seconds = self.opened.elapsed().as_secs();
        match self.protocol {
            Protocol::Http | Protocol::Sqs => tracing::debug!(protocol, %peer, seconds, "connection closed"),
            Protocol::Amqp | Protocol::Grpc => tracing::info!(protocol, %peer, seconds, "connection closed"),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some((missing, deadline)) = &mut self.opening else { return read };
        *missing = missing.saturating_sub(buf.filled().len() - before);
        if *missing == 0 || matches!(read, Poll::Ready(Err(_))) {
            self.opening = None;
            return read;
        }
        // Also when something came: a peer that sends a byte now and then is no better.
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(self.late("the peer says nothing"))),
            Poll::Pending => read,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nexo_broker::BrokerOptions;
    use nexo_log::disk::FaultyDisk;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const LIMITS: TimeLimits = TimeLimits {
        opening_bytes: 24,
        opening: Duration::from_millis(100),
        write_stall: Duration::from_millis(100),
    };

    async fn connected() -> (Broker, Connection, TcpStream) {
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("faulty")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let permit = broker.connections().admit(Protocol::Grpc).unwrap();
        let connection = Connection::new(stream, permit, &broker, Protocol::Grpc, LIMITS).unwrap();
        (broker, connection, client)
    }

    #[tokio::test]
    async fn a_peer_that_drips_its_opening_is_not_waited_for() {
        let (broker, mut connection, mut client) = connected().await;
        assert_eq!(broker.traffic().of(Protocol::Grpc).stats().connections, 1);
        let drip = tokio::spawn(async move {
            while client.write_all(b"P").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let mut buf = [0; 64];
        let error = loop {
            match connection.read(&mut buf).await {
                Ok(count) => assert_ne!(count, 0),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(connection);
        assert_eq!(broker.traffic().of(Protocol::Grpc).stats().connections, 0);
        drip.await.unwrap();
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn a_peer_that_has_opened_may_be_silent() {
        let (broker, mut connection, mut client) = connected().await;
        client.write_all(&[b'x'; 24]).await.unwrap();
        let mut buf = [0; 24];
        connection.read_exact(&mut buf).await.unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(LIMITS.opening * 3).await;
            client.write_all(b"later").await.unwrap();
            tokio::time::sleep(LIMITS.opening).await;
        });
        let mut later = [0; 5];
        connection.read_exact(&mut later).await.unwrap();
        assert_eq!(&later, b"later");
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_not_waited_for() {
        let (broker, mut connection, client) = connected().await;
        let error = loop {
            if let Err(error) = connection.write_all(&[0; 1 << 16]).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
        broker.shutdown().await;
    }
}
