//! The port: from the first connection to the last.

use std::io;
use std::sync::Arc;

use nexo_access::Logins;
use nexo_broker::{Broker, Protocol};
use nexo_net::{Accepted, Listeners, serve_connections};
use tokio_util::sync::CancellationToken;

use super::connection::{self, Terms};
use super::login::Origin;
use super::options::Options;
use super::shared::ServerState;

/// Serves AMQP 0-9-1 on `listeners` until `shutdown` resolves; then tells every client, and returns when they have gone.
/// The broker was opened with what [`register`](crate::register) gives it.
///
/// # Errors
/// If a listener cannot be used at all.
pub async fn serve(
    broker: Broker,
    logins: Logins,
    listeners: impl Into<Listeners>,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let listeners = listeners.into();
    listeners.addresses()?;
    let shared = Arc::new(ServerState::new(&broker, logins, options));
    let stop = CancellationToken::new();
    let to_stop = stop.clone();
    let serve = move |Accepted { stream, peer, tls, permit, tenure, unserved }| {
        let origin = Origin { address: peer, tls };
        // Clients of a leader that is deposed connect again, as those of one that stops.
        let stop = tenure.as_ref().map_or_else(|| to_stop.clone(), |tenure| tenure.over_or_closed.clone());
        let terms = Terms { limit_reached: permit.limit_reached(), unserved, tenure, stop };
        let run = connection::run(Arc::clone(&shared), stream, origin, terms);
        async move {
            run.await;
            drop(permit);
        }
    };
    serve_connections(&broker, Protocol::Amqp, listeners, &stop, shutdown, serve).await;
    Ok(())
}
