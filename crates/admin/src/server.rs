//! The HTTP server of the management port.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::{Listener, ListenerExt};
use nexo_broker::{Admitted, Broker, Connections, Protocol};
use tokio::net::TcpListener;

use crate::health;
use crate::metrics;

/// What `GET /` says.
const INDEX: &str = "Nexo, the message broker.\n\n/health   whether it can take and confirm messages\n/metrics  figures for Prometheus\n";

/// Serves the management port of `broker` on `listener` until `shutdown` is done and the requests that have
/// begun are answered.
///
/// # Errors
/// If the server cannot go on.
pub async fn serve(
    broker: Broker,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let listener = Limited { listener, connections: Arc::clone(broker.connections()) };
    let router = Router::new()
        .route("/", get(async || INDEX))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .with_state(broker);
    let listener = listener.tap_io(|connection| {
        // Without it a small answer may wait; it is slower then, and right all the same.
        if let Err(error) = connection.stream().set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
    });
    axum::serve(listener, router).with_graceful_shutdown(shutdown).await
}

/// A listener that lets in as many connections as there may be.
struct Limited {
    listener: TcpListener,
    connections: Arc<Connections>,
}

impl Listener for Limited {
    type Io = Admitted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Admitted, SocketAddr) {
        let (stream, peer, permit) = self.connections.accept(Protocol::Http, &self.listener).await;
        (Admitted::new(stream, permit), peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

async fn health(State(broker): State<Broker>) -> Response {
    health::response(&broker.health())
}

async fn metrics(State(broker): State<Broker>) -> Response {
    let rendered = tokio::task::spawn_blocking(move || metrics::render(&broker)).await;
    match rendered {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Ok(Err(_)) | Err(_) => {
            tracing::error!("the metrics could not be rendered");
            (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be rendered\n").into_response()
        }
    }
}
