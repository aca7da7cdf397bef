//! The HTTP server of the management port.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nexo_broker::{Broker, ConnectionPermit, Protocol};
use nexo_net::{Connection, TimeLimits, is_for_this_machine};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use crate::accept::Format;
use crate::health;
use crate::metrics;

/// What `GET /` says.
const INDEX: &str = "Nexo, the message broker.\n\n/health   whether it can take and confirm messages\n/metrics  figures for Prometheus\n";

/// How long a connection may take for the head of its next request, the wait for it included. Who asks every minute may
/// as well connect again.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// Requests have no body, so the head is all there is to wait for.
const TIME_LIMITS: TimeLimits =
    TimeLimits { opening_bytes: 0, opening: HEAD_MAX, write_stall: Duration::from_secs(30) };
/// Metrics that are made at the same time: each reads all queues and holds all of its text.
const RENDERS_MAX: usize = 2;

/// Settings of the management port.
#[derive(Clone, Debug, Default)]
pub struct AdminOptions {
    /// Names, besides those of this machine, by which it may be asked.
    pub hosts: Vec<String>,
}

#[derive(Clone, Debug)]
struct Port {
    broker: Broker,
    options: Arc<AdminOptions>,
    renders: Arc<Semaphore>,
}

/// The address that a client connected to.
#[derive(Clone, Copy, Debug)]
struct Local(SocketAddr);

/// Serves the management port of `broker` on `listener` until `shutdown` is done and the requests that have
/// begun are answered.
///
/// # Errors
/// Never, as things are: a connection that fails is that client's matter.
pub async fn serve(
    broker: Broker,
    listener: TcpListener,
    options: AdminOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let port = Port {
        broker: broker.over(Protocol::Http),
        options: Arc::new(options),
        renders: Arc::new(Semaphore::new(RENDERS_MAX)),
    };
    let router = Router::new()
        .route("/", get(async || INDEX))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .layer(middleware::from_fn_with_state(port.clone(), check_host))
        .with_state(port.clone());
    let allowed = Arc::clone(port.broker.connections());
    let stop = CancellationToken::new();
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (stream, _, permit) = allowed.accept(Protocol::Http, &listener) => {
                let admitted = (stream, permit);
                connections.spawn(connection(admitted, port.broker.clone(), router.clone(), stop.clone()));
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    drop(listener);
    stop.cancel();
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn connection(
    (stream, permit): (TcpStream, ConnectionPermit),
    broker: Broker,
    router: Router,
    stop: CancellationToken,
) {
    // The peer may be gone already.
    let Ok(connection) = Connection::new(stream, permit, &broker, Protocol::Http, TIME_LIMITS) else {
        return;
    };
    let router = router.layer(axum::Extension(Local(connection.local())));
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        router.clone().call(request.map(axum::body::Body::new))
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .serve_connection(TokioIo::new(connection), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of the management port failed");
    }
}

/// There are no users yet, so a web page must not be able to ask by having its name lead here.
async fn check_host(State(port): State<Port>, request: Request, next: Next) -> Response {
    if port.options.is_asked(&request) {
        return next.run(request).await;
    }
    port.broker.traffic().of(Protocol::Http).login_refused();
    tracing::debug!("a request for another host is refused");
    let text = "This host is not served. Ask for localhost or the broker's address, or name the host in http_hosts.\n";
    (StatusCode::FORBIDDEN, text).into_response()
}

impl AdminOptions {
    /// Whether a request is meant for this broker, by all the names it has for it.
    fn is_asked(&self, request: &Request) -> bool {
        let Some(local) = request.extensions().get::<Local>() else { return false };
        let mut names: Vec<&[u8]> = Vec::new();
        names.extend(request.headers().get_all(header::HOST).iter().map(|host| host.as_bytes()));
        names.extend(request.uri().authority().map(|authority| authority.as_str().as_bytes()));
        if names.is_empty() {
            // Only tools that are older than the header leave it out; no browser does.
            return request.version() <= Version::HTTP_10;
        }
        names.into_iter().all(|host| self.admits(host, *local))
    }

    fn admits(&self, host: &[u8], local: Local) -> bool {
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        is_for_this_machine(host, local.0.ip())
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host) || own.eq_ignore_ascii_case(name))
    }
}

async fn health(State(port): State<Port>) -> Response {
    health::response(&port.broker.health())
}

async fn metrics(State(port): State<Port>, headers: HeaderMap) -> Response {
    let accept: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    let Ok(_turn) = port.renders.acquire().await else { return failed() };
    let broker = port.broker.clone();
    match tokio::task::spawn_blocking(move || metrics::render(&broker, format)).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Ok(Err(_)) | Err(_) => failed(),
    }
}

fn failed() -> Response {
    tracing::error!("the metrics could not be rendered");
    (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be rendered\n").into_response()
}
