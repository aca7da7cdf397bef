//! The port: from the first connection to the last.

use std::io;
use std::sync::Arc;

use axum::Router;
use nexo_access::Logins;
use nexo_broker::{Broker, Protocol};
use nexo_net::{HttpPort, Listeners};
use tokio_util::sync::CancellationToken;

use crate::http;
use crate::service::{Service, SqsOptions};

/// Serves the SQS API of `broker` on `listeners` until `shutdown` is done. Then no connection is accepted any more, receives
/// that wait are answered, and this returns when the requests that have begun are done.
///
/// # Errors
/// Never, as things are: a connection that fails is that client's matter.
pub async fn serve(
    broker: Broker,
    logins: Logins,
    listeners: impl Into<Listeners>,
    options: SqsOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let stop = CancellationToken::new();
    let broker = broker.over(Protocol::Sqs);
    let limits = options.times;
    let service = Arc::new(Service::new(broker.clone(), logins, options, stop.clone()));
    let router = Router::new().fallback(http::handle).with_state(service);
    let port = HttpPort { broker, protocol: Protocol::Sqs, router, limits, stop };
    port.serve(listeners.into(), shutdown).await;
    Ok(())
}
