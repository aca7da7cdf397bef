//! The HTTP server of the management port.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use nexo_access::Logins;
use nexo_broker::{Broker, Health, Protocol};
use nexo_net::{Ends, Gate, HttpLimits, HttpPort, Listeners, TlsServer, is_for_this_machine};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::accept::Format;
use crate::api::{self, Api, Listener};
use crate::cluster::ClusterControl;
use crate::forward;
use crate::health;
use crate::metrics;

/// What `GET /` says.
const INDEX: &str = "Nexo, the message broker.\n\n/health   whether it can take and confirm messages\n/metrics  figures for Prometheus\n/api      RabbitMQ's management API\n";

/// Who asks every minute may as well connect again. What a body may take, its reader says.
const LIMITS: HttpLimits = HttpLimits {
    idle: Duration::from_secs(30),
    head: Duration::from_secs(30),
    write_stall: Duration::from_secs(30),
};
/// Why a node of a cluster takes nothing.
const NO_LEADER: &str = "no node is known to lead the cluster";
/// Metrics that are made at the same time: each reads all queues and holds all of its text.
const RENDERS_MAX: usize = 2;

/// Settings of the management port.
#[derive(Clone, Debug, Default)]
pub struct AdminOptions {
    /// Names, besides those of this machine, by which it may be asked.
    pub hosts: Vec<String>,
    /// The ports of the broker, for those who ask which there are.
    pub listeners: Vec<Listener>,
    /// What speaks TLS there, for those who ask how long its certificates are valid.
    pub tls: Option<Arc<TlsServer>>,
    /// The cluster that the broker is in, if it is in one.
    pub cluster: Option<Arc<dyn ClusterControl>>,
    /// Says which node answers, in a cluster.
    pub gate: Option<Arc<dyn Gate>>,
}

#[derive(Clone, Debug)]
struct Port {
    broker: Broker,
    options: Arc<AdminOptions>,
    renders: Arc<Semaphore>,
}

/// Serves the management port of `broker` on `listeners` until `shutdown` is done and the requests that have
/// begun are answered.
///
/// # Errors
/// Never, as things are: a connection that fails is that client's matter.
pub async fn serve(
    broker: Broker,
    logins: Logins,
    listeners: impl Into<Listeners>,
    options: AdminOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let broker = broker.over(Protocol::Http);
    let stop = CancellationToken::new();
    let api = Api::new(broker.clone(), logins, options.listeners.clone())
        .over_tls(options.tls.clone())
        .in_cluster(options.cluster.clone())
        .until(stop.clone());
    let gate = options.gate.clone();
    let port = Port {
        broker: broker.clone(),
        options: Arc::new(options),
        renders: Arc::new(Semaphore::new(RENDERS_MAX)),
    };
    let router = Router::new()
        .route("/", get(async || INDEX))
        .route("/health", get(health))
        .route("/health/ready", get(ready))
        .route("/health/live", get(live))
        .route("/metrics", get(metrics))
        .with_state(port.clone())
        .nest("/api", api::router(api.clone()));
    let router = match gate {
        None => router,
        Some(gate) => {
            let answering = forward::Answering { gate, broker: broker.clone() };
            router.layer(middleware::from_fn_with_state(answering, forward::forward))
        }
    };
    let router = router.layer(middleware::from_fn_with_state(port, check_host));
    let port = HttpPort { broker, protocol: Protocol::Http, router, limits: LIMITS, stop };
    tokio::select! {
        () = port.serve(listeners.into(), shutdown) => {}
        () = api.sample() => {}
    }
    Ok(())
}

/// Health and metrics need no login, so a web page must not be able to ask by having its name lead here.
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
        let Some(ends) = request.extensions().get::<Ends>() else { return false };
        // The node that passes it on has looked, by the names that it has.
        if ends.is_tunnel {
            return true;
        }
        let mut names: Vec<&[u8]> = Vec::new();
        names.extend(request.headers().get_all(header::HOST).iter().map(|host| host.as_bytes()));
        names.extend(request.uri().authority().map(|authority| authority.as_str().as_bytes()));
        if names.is_empty() {
            // Only tools that are older than the header leave it out; no browser does.
            return request.version() <= Version::HTTP_10;
        }
        names.into_iter().all(|host| self.admits(host, ends.local.ip()))
    }

    fn admits(&self, host: &[u8], local: IpAddr) -> bool {
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        is_for_this_machine(host, local)
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host) || own.eq_ignore_ascii_case(name))
    }
}

async fn health(State(port): State<Port>) -> Response {
    health::response(&port.health())
}

/// Whether clients should be sent here.
async fn ready(State(port): State<Port>) -> Response {
    match port.options.cluster.as_ref().and_then(|cluster| cluster.unready()) {
        Some(reason) => health::response(&Health::Unhealthy { reason }),
        None => health::response(&port.broker.health()),
    }
}

/// Whether there is no reason to start the process again. A node that knows no leader waits for others.
async fn live(State(port): State<Port>) -> Response {
    match port.broker.health() {
        ill @ Health::Unhealthy { .. } if port.options.cluster.is_none() => health::response(&ill),
        _ => health::response(&Health::Ok),
    }
}

impl Port {
    /// A node of a cluster takes and confirms messages while it knows who leads.
    fn health(&self) -> Health {
        let own = self.broker.health();
        match &self.options.cluster {
            Some(cluster) if !cluster.figures().has_leader => {
                Health::Unhealthy { reason: NO_LEADER.to_owned() }
            }
            Some(_) | None => own,
        }
    }
}

async fn metrics(State(port): State<Port>, headers: HeaderMap) -> Response {
    let accept: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    let Ok(_turn) = port.renders.acquire().await else { return failed() };
    let broker = port.broker.clone();
    let cluster = port.options.cluster.as_ref().map(|cluster| cluster.figures());
    match tokio::task::spawn_blocking(move || metrics::render(&broker, cluster, format)).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Ok(Err(_)) | Err(_) => failed(),
    }
}

fn failed() -> Response {
    tracing::error!("the metrics could not be rendered");
    (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be rendered\n").into_response()
}
