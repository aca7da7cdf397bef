//! The port: from the first connection to the last.

use std::io;
use std::sync::Arc;

use nexo_access::Logins;
use nexo_broker::{Broker, Protocol};
use nexo_net::{Accepted, serve_connections};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::connection;
use super::options::Options;
use super::shared::ServerState;

/// Serves AMQP 0-9-1 on `listener` until `shutdown` resolves; then tells every client, and returns when they have gone.
/// The broker was opened with what [`register`](crate::register) gives it.
///
/// # Errors
/// If the listener cannot be used at all.
pub async fn serve(
    broker: Broker,
    logins: Logins,
    listener: TcpListener,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    listener.local_addr()?;
    let shared = Arc::new(ServerState::new(&broker, logins, options));
    let stop = CancellationToken::new();
    let serve = |Accepted { stream, peer, permit }| {
        let run = connection::run(Arc::clone(&shared), stream, peer, stop.clone());
        async move {
            run.await;
            drop(permit);
        }
    };
    serve_connections(&broker, Protocol::Amqp, listener, &stop, shutdown, serve).await;
    Ok(())
}
