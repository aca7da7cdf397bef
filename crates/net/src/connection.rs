//! A connection that is counted and logged, and that ends when its peer does nothing for too long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nexo_broker::{Broker, ConnectionPermit, Counted, Presence, Protocol};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::stream::Stream;

/// How long a peer may do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// How long it may take to say what it has to say.
    pub read: ReadLimit,
    /// How long it may take no byte of what is written to it.
    pub write_stall: Duration,
}

/// Which bytes a peer is waited for in vain. How long it may be silent otherwise is for the protocol to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLimit {
    /// The first of a connection.
    Opening {
        /// How many.
        bytes: usize,
        /// From the beginning of the connection on.
        within: Duration,
    },
    /// The head of a request, whenever [`Presence`] says that none is being worked on.
    Head {
        /// From its first byte on.
        within: Duration,
    },
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    protocol: Protocol,
    peer: SocketAddr,
    local: SocketAddr,
    opened: Instant,
    awaited: Awaited,
    write_stall: Duration,
    /// Runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
    _counted: Counted,
    // Dropped after the stream: the next may have its descriptor.
    permit: ConnectionPermit,
}

/// What must come in time.
#[derive(Debug)]
enum Awaited {
    Nothing,
    /// The rest of the opening.
    Opening {
        missing: usize,
        deadline: Pin<Box<Sleep>>,
    },
    /// The head of a request, once it has begun.
    Head {
        within: Duration,
        deadline: Option<Pin<Box<Sleep>>>,
    },
}

impl Awaited {
    fn new(limit: ReadLimit, opened: Instant) -> Self {
        match limit {
            ReadLimit::Opening { bytes, within } => {
                Self::Opening { missing: bytes, deadline: Box::pin(sleep_until(opened + within)) }
            }
            ReadLimit::Head { within } => Self::Head { within, deadline: None },
        }
    }

    /// Notes that so many bytes came, and tells what did not come in time.
    fn note(&mut self, came: usize, presence: &Presence, cx: &mut Context<'_>) -> Poll<&'static str> {
        match self {
            Self::Nothing => Poll::Pending,
            Self::Opening { missing, deadline } => {
                *missing = missing.saturating_sub(came);
                if *missing == 0 {
                    *self = Self::Nothing;
                    return Poll::Pending;
                }
                // Also when something came: a peer that sends a byte now and then is no better.
                deadline.as_mut().poll(cx).map(|()| "the peer says nothing")
            }
            Self::Head { within, deadline } => {
                if presence.is_in_request() {
                    *deadline = None;
                } else if came > 0 && deadline.is_none() {
                    *deadline = Some(Box::pin(sleep(*within)));
                }
                let Some(deadline) = deadline else { return Poll::Pending };
                deadline.as_mut().poll(cx).map(|()| "the head of a request does not come")
            }
        }
    }
}

impl Connection {
    /// A connection that `broker` counts for `protocol`.
    ///
    /// # Errors
    /// If the peer is gone already.
    pub fn new(
        stream: Stream,
        permit: ConnectionPermit,
        broker: &Broker,
        protocol: Protocol,
        limits: TimeLimits,
    ) -> io::Result<Self> {
        let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
        // Without it a small answer may wait; it is slower then, and right all the same.
        if let Err(error) = stream.set_nodelay() {
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
        Ok(Self {
            stream,
            protocol,
            peer,
            local,
            opened,
            awaited: Awaited::new(limits.read, opened),
            write_stall: limits.write_stall,
            stalled: None,
            _counted: broker.traffic().connection(protocol),
            permit,
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

    /// Whether nobody between the two ends can read it.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        self.stream.is_tls()
    }

    /// Whether another node passes it on.
    #[must_use]
    pub const fn is_tunnel(&self) -> bool {
        self.stream.is_tunnel()
    }

    /// Where to note that a request is being worked on: bytes that come then belong to its body.
    #[must_use]
    pub fn presence(&self) -> Arc<Presence> {
        Arc::clone(self.permit.presence())
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
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if matches!(read, Poll::Ready(Err(_))) {
            return read;
        }
        let came = buf.filled().len() - before;
        match this.awaited.note(came, this.permit.presence(), cx) {
            Poll::Ready(what) => Poll::Ready(Err(this.late(what))),
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
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        // Over plain TCP there is nothing to flush, which says nothing about what waits to be written.
        if self.stream.has_to_flush() { self.watch(flushed, cx) } else { flushed }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(shut_down, cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nexo_broker::BrokerOptions;
    use nexo_log::disk::FaultyDisk;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const OPENING: ReadLimit = ReadLimit::Opening { bytes: 24, within: SHORT };
    const HEAD: ReadLimit = ReadLimit::Head { within: SHORT };

    async fn connected(read: ReadLimit) -> (Broker, Connection, TcpStream) {
        let broker = Broker::open_on(Arc::new(FaultyDisk::new()), BrokerOptions::new("faulty")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let permit = broker.connections().admit(Protocol::Grpc).unwrap();
        let limits = TimeLimits { read, write_stall: SHORT };
        let connection =
            Connection::new(Stream::Plain(stream), permit, &broker, Protocol::Grpc, limits).unwrap();
        (broker, connection, client)
    }

    /// Reads until that fails, and tells how many bytes came before.
    async fn read_until_late(connection: &mut Connection) -> (usize, io::Error) {
        let mut read = 0;
        loop {
            match connection.read_u8().await {
                Ok(_) => read += 1,
                Err(error) => return (read, error),
            }
        }
    }

    /// Sends a byte now and then.
    async fn drip(mut client: TcpStream) {
        while client.write_all(b"P").await.is_ok() {
            tokio::time::sleep(SHORT / 5).await;
        }
    }

    #[tokio::test]
    async fn a_peer_that_drips_its_opening_is_not_waited_for() {
        let (broker, mut connection, client) = connected(OPENING).await;
        assert_eq!(broker.traffic().of(Protocol::Grpc).stats().connections, 1);
        let sending = tokio::spawn(drip(client));
        let (_, error) = read_until_late(&mut connection).await;
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(connection);
        assert_eq!(broker.traffic().of(Protocol::Grpc).stats().connections, 0);
        sending.await.unwrap();
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn a_head_that_drips_is_not_waited_for_and_silence_before_it_is_allowed() {
        let (broker, mut connection, client) = connected(HEAD).await;
        let sending = tokio::spawn(async {
            tokio::time::sleep(SHORT * 3).await;
            drip(client).await;
        });
        let (read, error) = read_until_late(&mut connection).await;
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(read > 0, "it waited for the first byte");
        drop(connection);
        sending.await.unwrap();
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn a_body_may_take_its_time() {
        let (broker, mut connection, mut client) = connected(HEAD).await;
        let presence = connection.presence();
        client.write_all(b"head").await.unwrap();
        connection.read_exact(&mut [0; 4]).await.unwrap();
        presence.set_in_request(true);
        let sending = tokio::spawn(async move {
            for _ in 0..3 {
                tokio::time::sleep(SHORT * 2).await;
                client.write_all(b"x").await.unwrap();
            }
            client
        });
        for _ in 0..3 {
            connection.read_u8().await.unwrap();
        }
        presence.set_in_request(false);
        let client = sending.await.unwrap();
        let sending = tokio::spawn(drip(client));
        let (_, error) = read_until_late(&mut connection).await;
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "the head of the next request is waited for again");
        drop(connection);
        sending.await.unwrap();
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn a_peer_that_has_opened_may_be_silent() {
        let (broker, mut connection, mut client) = connected(OPENING).await;
        client.write_all(&[b'x'; 24]).await.unwrap();
        let mut buf = [0; 24];
        connection.read_exact(&mut buf).await.unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(SHORT * 3).await;
            client.write_all(b"later").await.unwrap();
            tokio::time::sleep(SHORT).await;
        });
        let mut later = [0; 5];
        connection.read_exact(&mut later).await.unwrap();
        assert_eq!(&later, b"later");
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_not_waited_for() {
        let (broker, mut connection, client) = connected(OPENING).await;
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
