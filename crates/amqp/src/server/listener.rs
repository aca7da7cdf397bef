//! Takes connections in until it is told to stop, and then waits for them to end.

use std::io;
use std::sync::Arc;

use nexo_broker::{Broker, Protocol};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection;
use super::options::Options;
use super::shared::Shared;

/// Serves AMQP 0-9-1 on `listener` until `shutdown` resolves; then tells every client, and returns when they have gone.
/// The broker was opened with [`AmqpScribe`](crate::AmqpScribe).
///
/// # Errors
/// If the listener cannot be used at all.
pub async fn serve(
    broker: Broker,
    listener: TcpListener,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.local_addr()?;
    let allowed = Arc::clone(broker.connections());
    let shared = Arc::new(Shared::new(&broker, options));
    let stop = CancellationToken::new();
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (socket, peer, permit) = allowed.accept(Protocol::Amqp, &listener) => {
                let run = connection::run(Arc::clone(&shared), socket, peer, stop.clone());
                connections.spawn(async move {
                    run.await;
                    drop(permit);
                });
            }
            Some(ended) = connections.join_next(), if !connections.is_empty() => note_end(ended),
        }
    }
    drop(listener);
    stop.cancel();
    while let Some(ended) = connections.join_next().await {
        note_end(ended);
    }
    Ok(())
}

fn note_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "an AMQP connection failed");
    }
}
