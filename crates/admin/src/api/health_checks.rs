//! Health checks: 200 if all is well, 503 with the reason if not.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use nexo_amqp::management::{self, AckMode, By, Publish, QueueAsked, Refused, declare_queue, publish};
use nexo_broker::topology::DefaultQueueType;
use nexo_broker::{Alarm, Durability, Health};
use nexo_types::{ExchangeName, QueueName};
use serde_json::{Map, Value, json};

use super::access::Caller;
use super::error::ApiError;
use super::names::Vhost;
use super::{Api, Listener};
use crate::cluster::is_critical;

/// The queue that a message is sent through. It stays: who asks every few seconds would make and delete one each time.
const ALIVENESS_QUEUE: &str = "aliveness-test";

fn ok() -> Response {
    Json(json!({ "status": "ok" })).into_response()
}

fn failed(mut more: Value, reason: &str) -> Response {
    more["status"] = "failed".into();
    more["reason"] = reason.into();
    (StatusCode::SERVICE_UNAVAILABLE, Json(more)).into_response()
}

/// What runs short on any node.
pub(super) async fn alarms(State(api): State<Api>) -> Response {
    in_effect(&api, "There are alarms in effect in the cluster")
}

/// What runs short on this node.
pub(super) async fn local_alarms(State(api): State<Api>) -> Response {
    in_effect(&api, "There are alarms in effect on the node")
}

fn in_effect(api: &Api, reason: &str) -> Response {
    let alarms = api.broker.alarms();
    if alarms.is_empty() {
        return ok();
    }
    let shown = |alarm: &Alarm| json!({ "node": &*api.node, "resource": alarm.resource.name() });
    failed(json!({ "alarms": alarms.iter().map(shown).collect::<Value>() }), reason)
}

pub(super) async fn vhosts(State(api): State<Api>) -> Response {
    match api.broker.health() {
        Health::Unhealthy { reason } => {
            let down: Value = Vhost::all(&api).iter().map(|vhost| Value::from(vhost.as_str())).collect();
            failed(json!({ "virtual-hosts": down }), &reason)
        }
        Health::Ok | Health::Degraded { .. } | Health::MemoryHigh { .. } | Health::DiskFull { .. } => ok(),
    }
}

pub(super) async fn ready(State(api): State<Api>) -> Response {
    let health = api.broker.health();
    match health.reason() {
        Some(reason) if !health.can_serve() => failed(json!({}), reason),
        Some(_) | None => ok(),
    }
}

/// Whether this node can be stopped without stopping the cluster.
pub(super) async fn quorum(State(api): State<Api>) -> Response {
    let Some(cluster) = &api.cluster else { return not_critical().await };
    let report = cluster.report().await;
    if report.nodes.len() > 1 && is_critical(&report.node, &report.nodes) {
        return failed(
            json!({ "queues": [] }),
            &format!("without this node the cluster stops: {}", report.risk),
        );
    }
    ok()
}

/// There is one node; none waits for another.
pub(super) async fn not_critical() -> Response {
    Json(json!({ "status": "ok", "reason": "single node cluster" })).into_response()
}

pub(super) async fn port(State(api): State<Api>, Path(port): Path<String>) -> Result<Response, ApiError> {
    let wanted: u16 = port.parse().map_err(|_| ApiError::bad_request("Invalid port"))?;
    let ports: Vec<u16> = api.listeners.iter().map(|listener| listener.address.port()).collect();
    if ports.contains(&wanted) {
        return Ok(Json(json!({ "status": "ok", "port": wanted })).into_response());
    }
    Ok(failed(json!({ "missing": wanted, "ports": ports }), "No active listener"))
}

pub(super) async fn protocol(State(api): State<Api>, Path(protocol): Path<String>) -> Response {
    let wanted = protocol.to_lowercase();
    let speaks = |listener: &Listener| match listener.protocol {
        "amqp" => matches!(wanted.as_str(), "amqp" | "amqp091" | "amqp0-9-1" | "amqp-0-9-1"),
        own => own == wanted,
    };
    if api.listeners.iter().any(speaks) {
        let known = if wanted.starts_with("amqp") { "amqp" } else { &wanted };
        return Json(json!({ "status": "ok", "protocol": known })).into_response();
    }
    let protocols: Vec<&str> = api.listeners.iter().map(|listener| listener.protocol).collect();
    failed(json!({ "missing": protocol, "protocols": protocols }), "No active listener")
}

const DAY_S: u64 = 24 * 3600;

/// Whether no certificate that is in use expires soon.
pub(super) async fn certificates(
    State(api): State<Api>,
    Path((within, unit)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let within: u64 = within.parse().map_err(|_| ApiError::bad_request("Invalid expiration value."))?;
    let seconds = match unit.to_lowercase().as_str() {
        "days" => DAY_S,
        "weeks" => 7 * DAY_S,
        "months" => 365 * DAY_S / 12,
        "years" => 365 * DAY_S,
        _ => {
            let reason = "Time unit not recognised. Use: days, weeks, months, years.";
            return Err(ApiError::bad_request(reason));
        }
    };
    let files = api.tls.as_ref().map(|tls| tls.files()).unwrap_or_default();
    let mut expiring = Map::new();
    for file in files {
        let soon = file.expiries.iter().filter(|one| one.is_within(within.saturating_mul(seconds)));
        let dates: Vec<&str> = soon.map(|one| one.until.as_str()).collect();
        if !dates.is_empty() {
            let kind = if file.is_of_clients { "cacertfile" } else { "certfile" };
            expiring.insert(kind.to_owned(), file.path.display().to_string().into());
            expiring.insert(format!("{kind}_expires_on"), dates.into());
        }
    }
    let secure: Vec<&Listener> = api.listeners.iter().filter(|listener| listener.is_tls()).collect();
    if expiring.is_empty() || secure.is_empty() {
        return Ok(ok());
    }
    let shown = secure.iter().map(|listener| {
        let mut shown = expiring.clone();
        shown.insert("node".to_owned(), (&*api.node).into());
        shown.insert("protocol".to_owned(), listener.protocol.into());
        shown.insert("interface".to_owned(), listener.address.ip().to_string().into());
        shown.insert("port".to_owned(), listener.address.port().into());
        Value::Object(shown)
    });
    Ok(failed(json!({ "expired": shown.collect::<Value>() }), "Certificates expiring"))
}

/// An older check, which many still have: whether a message gets through a queue of the virtual host, in the name of whoever
/// asks.
pub(super) async fn aliveness(
    State(api): State<Api>,
    caller: Caller,
    Path(vhost): Path<String>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    let (queue, exchange) = (vhost.queue(ALIVENESS_QUEUE)?, vhost.exchange("amq.default")?);
    match comes_through(&api, caller.by(&api), &queue, &exchange).await {
        Ok(true) => Ok(ok()),
        Ok(false) => Ok(failed(json!({}), "a message was published and could not be got")),
        Err(refused) if refused.is_of_broker() => Ok(failed(json!({}), &refused.text)),
        Err(refused) => Err(refused.into()),
    }
}

/// Declares the queue, publishes to it and gets from it. Checks at the same time may get each other's messages.
async fn comes_through(
    api: &Api,
    by: By<'_>,
    queue: &QueueName,
    exchange: &ExchangeName,
) -> Result<bool, Refused> {
    let default_type = api.broker.vhost(&queue.vhost()).and_then(|vhost| vhost.spec.default_queue_type);
    let arguments = match default_type {
        // A quorum queue would have to be durable.
        Some(DefaultQueueType::Quorum) => Map::from_iter([("x-queue-type".to_owned(), "classic".into())]),
        Some(DefaultQueueType::Classic) | None => Map::new(),
    };
    let asked = QueueAsked { durability: Durability::Transient, auto_delete: false, arguments: &arguments };
    declare_queue(by, queue, asked).await?;
    let properties = management::properties(&Map::new())?;
    let message = Publish {
        exchange,
        routing_key: ALIVENESS_QUEUE,
        properties: &properties,
        body: Bytes::from_static(b"test_message"),
    };
    publish(by, message).await?;
    let got = management::get(by, queue, 1, usize::MAX, AckMode::Take).await?;
    Ok(!got.is_empty())
}

pub(super) async fn node(State(api): State<Api>) -> Response {
    ready(State(api)).await
}
