//! Takes connections in until it is told to stop, and then waits for them to end.

use std::net::SocketAddr;

use nexo_broker::{Broker, ConnectionPermit, Protocol};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// A connection that came, and that there is room for.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: TcpStream,
    /// Who is at the other end.
    pub peer: SocketAddr,
    /// To be kept as long as the connection is open.
    pub permit: ConnectionPermit,
}

/// Runs `serve` for every connection of `listener` until `shutdown` is done. Then closes the listener, cancels `stop`,
/// which the connections look at, and returns when the last of them has ended.
pub async fn serve_connections<S, F>(
    broker: &Broker,
    protocol: Protocol,
    listener: TcpListener,
    stop: &CancellationToken,
    shutdown: impl Future<Output = ()>,
    serve: S,
) where
    S: Fn(Accepted) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let allowed = broker.connections();
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (stream, peer, permit) = allowed.accept(protocol, &listener) => {
                connections.spawn(serve(Accepted { stream, peer, permit }));
            }
            Some(ended) = connections.join_next(), if !connections.is_empty() => note_end(protocol, ended),
        }
    }
    drop(listener);
    stop.cancel();
    while let Some(ended) = connections.join_next().await {
        note_end(protocol, ended);
    }
}

/// A connection that fails is its client's matter, but not one whose task panics.
fn note_end(protocol: Protocol, ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(protocol = protocol.name(), %error, "a connection failed");
    }
}
