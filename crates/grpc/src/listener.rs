//! Connections as they come, with their limits of time.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream;
use nexo_broker::{Broker, Protocol};
use nexo_net::{Connection, ReadLimit, TimeLimits};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tonic::transport::server::Connected;

use crate::limits::{PREFACE_BYTES, PREFACE_MAX, WRITE_STALL_MAX};

const TIME_LIMITS: TimeLimits = TimeLimits {
    read: ReadLimit::Opening { bytes: PREFACE_BYTES, within: PREFACE_MAX },
    write_stall: WRITE_STALL_MAX,
};

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// A connection whose calls know their [`Peer`].
pub(crate) struct Caller(Connection);

/// The connections of `listener`.
pub(crate) fn callers(
    listener: TcpListener,
    broker: Broker,
) -> impl Stream<Item = Result<Caller, io::Error>> {
    stream::unfold((listener, broker), |(listener, broker)| async {
        loop {
            let (stream, _, permit) = broker.connections().accept(Protocol::Grpc, &listener).await;
            match Connection::new(stream, permit, &broker, Protocol::Grpc, TIME_LIMITS) {
                Ok(connection) => return Some((Ok(Caller(connection)), (listener, broker))),
                // The peer is gone already.
                Err(error) => tracing::debug!(%error, "a connection of the native API ended at once"),
            }
        }
    })
}

impl Connected for Caller {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer(self.0.peer())
    }
}

impl AsyncRead for Caller {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Caller {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
