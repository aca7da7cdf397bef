//! Connections as they come, with their limits of time.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nexo_broker::{Broker, Protocol};
use nexo_net::{Accepted, Connection, Listeners, ReadLimit, Tenure, TimeLimits, Unserved, serve_connections};
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

/// How long a connection that is not served may take to be told so.
const TURNED_AWAY_WITHIN: Duration = Duration::from_secs(5);
/// How long the calls of a leader that is deposed may take to be told so. Clients wait for the end of the connection before they look
/// for the next leader.
const DEPOSED_WITHIN: Duration = Duration::from_millis(250);

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Whether over TLS.
    pub(crate) is_tls: bool,
    /// How many connections there may be, if this is one too many.
    pub(crate) limit_reached: Option<usize>,
    /// Why no node of the cluster serves it, if that is so.
    pub(crate) unserved: Option<Unserved>,
    /// How long this node leads, in a cluster.
    pub(crate) tenure: Option<Arc<Tenure>>,
}

/// A connection whose calls know their [`Peer`].
pub(crate) struct Caller {
    connection: Connection,
    peer: Peer,
    /// When it ends, if it is not served, or not any more.
    ends: Option<Pin<Box<Sleep>>>,
    /// In a cluster: this node leads no more.
    deposed: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Caller {
    fn new(
        connection: Connection,
        limit_reached: Option<usize>,
        unserved: Option<Unserved>,
        tenure: Option<Tenure>,
    ) -> Self {
        let is_turned_away = limit_reached.is_some() || unserved.is_some();
        let ends = is_turned_away.then(|| Box::pin(sleep(TURNED_AWAY_WITHIN)));
        let tenure = tenure.map(|tenure| Arc::new(tenure.of_one()));
        let deposed = tenure.as_ref().map(|tenure| Box::pin(tenure.over.clone().cancelled_owned()));
        let (address, is_tls) = (connection.peer(), connection.is_tls());
        let peer = Peer { address, is_tls, limit_reached, unserved, tenure };
        Self { connection, peer, ends, deposed }
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
    let serve = move |Accepted { stream, permit, tenure, unserved, .. }| {
        let (broker, callers) = (counting.clone(), callers.clone());
        async move {
            let limit_reached = permit.limit_reached();
            match Connection::new(stream, permit, &broker, Protocol::Grpc, TIME_LIMITS) {
                Ok(connection) => {
                    let caller = Caller::new(connection, limit_reached, unserved, tenure);
                    // A server that ends takes no more.
                    let _ = callers.send(Ok(caller)).await;
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
        self.peer.clone()
    }
}

impl AsyncRead for Caller {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(deposed) = &mut self.deposed
            && deposed.as_mut().poll(cx).is_ready()
        {
            self.deposed = None;
            self.ends = Some(Box::pin(sleep(DEPOSED_WITHIN)));
        }
        if let Some(ends) = &mut self.ends
            && ends.as_mut().poll(cx).is_ready()
        {
            // It was told, and others may be waiting to be.
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
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
