//! Connections as they come, with their limits of time.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nexo_broker::{Broker, Protocol};
use nexo_net::{Accepted, Connection, Listeners, ReadLimit, Tenure, TimeLimits, serve_connections};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::limits::{PREFACE_BYTES, PREFACE_MAX, WRITE_STALL_MAX};

const TIME_LIMITS: TimeLimits = TimeLimits {
    read: ReadLimit::Opening { bytes: PREFACE_BYTES, within: PREFACE_MAX },
    write_stall: WRITE_STALL_MAX,
};

/// How long a connection too many may take to be told so.
const TURNED_AWAY_WITHIN: Duration = Duration::from_secs(5);

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Whether over TLS.
    pub(crate) is_tls: bool,
    /// How many connections there may be, if this is one too many.
    pub(crate) limit_reached: Option<usize>,
}

/// A connection whose calls know their [`Peer`].
pub(crate) struct Caller {
    connection: Connection,
    limit_reached: Option<usize>,
    /// When it ends, if it is one too many.
    ends: Option<Pin<Box<Sleep>>>,
    /// When it ends in a cluster: this node leads no more.
    deposed: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Caller {
    fn new(connection: Connection, limit_reached: Option<usize>, tenure: Option<Tenure>) -> Self {
        let ends = limit_reached.map(|_| Box::pin(sleep(TURNED_AWAY_WITHIN)));
        let deposed = tenure.map(|tenure| Box::pin(tenure.over.cancelled_owned()));
        Self { connection, limit_reached, ends, deposed }
    }
}

/// Takes connections in until `stop` is cancelled, and hands them on.
pub(crate) async fn accept_callers(
    broker: &Broker,
    listeners: Listeners,
    stop: &CancellationToken,
    callers: mpsc::Sender<io::Result<Caller>>,
) {
    let counting = broker.clone();
    let serve = move |Accepted { stream, permit, tenure, .. }| {
        let (broker, callers) = (counting.clone(), callers.clone());
        async move {
            let limit_reached = permit.limit_reached();
            match Connection::new(stream, permit, &broker, Protocol::Grpc, TIME_LIMITS) {
                Ok(connection) => {
                    // A server that ends takes no more.
                    let _ = callers.send(Ok(Caller::new(connection, limit_reached, tenure))).await;
                }
                // The peer is gone already.
                Err(error) => tracing::debug!(%error, "a connection of the native API ended at once"),
            }
        }
    };
    serve_connections(broker, Protocol::Grpc, listeners, stop, stop.cancelled(), serve).await;
}

impl Connected for Caller {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer {
            address: self.connection.peer(),
            is_tls: self.connection.is_tls(),
            limit_reached: self.limit_reached,
        }
    }
}

impl AsyncRead for Caller {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(ends) = &mut self.ends
            && ends.as_mut().poll(cx).is_ready()
        {
            // It was told, and others may be waiting to be.
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if let Some(deposed) = &mut self.deposed
            && deposed.as_mut().poll(cx).is_ready()
        {
            // Its calls end without an answer, as with a leader that is lost: what came of them is not known.
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.connection).poll_read(cx, buf)
    }
}

impl AsyncWrite for Caller {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}
