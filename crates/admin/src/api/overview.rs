//! The broker as a whole: the overview, its one node, and what never changes.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use nexo_broker::Protocol;
use serde_json::{Value, json};

use super::access::Caller;
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::names::of_exchange;
use super::parameters;
use super::question::Question;
use super::rates::{HistoryWords, Wanted};
use super::vhosts::Sums;
use super::{Api, Listener};

/// The release of RabbitMQ that this API is like. Tools look at it to know what they can ask for.
pub(super) const RABBITMQ_VERSION: &str = "3.13.7";
pub(super) const PRODUCT: &str = "Nexo";
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// As AMQP clients are told.
pub(super) const CLUSTER_NAME: &str = "nexo";
/// There is none; tools that show one show this.
const NO_ERLANG: &str = "none";

const EXCHANGE_TYPES: [(&str, &str); 6] = [
    ("direct", "AMQP direct exchange, as per the AMQP specification"),
    ("fanout", "AMQP fanout exchange, as per the AMQP specification"),
    ("headers", "AMQP headers exchange, as per the AMQP specification"),
    ("topic", "AMQP topic exchange, as per the AMQP specification"),
    ("x-consistent-hash", "Consistent Hashing Exchange"),
    ("x-delayed-message", "Delayed Message Exchange."),
];

pub(super) async fn overview(
    State(api): State<Api>,
    caller: Caller,
    query: Question<HistoryWords>,
) -> Result<Json<Value>, ApiError> {
    let wanted = Wanted::of(&query)?;
    api.look(move |api| Json(if caller.is_monitor() { whole(api, wanted) } else { part(api, &caller) })).await
}

/// What somebody sees who may not see everything: the figures of his virtual hosts and of his own connections, as they are
/// now, and nothing of the node.
fn part(api: &Api, caller: &Caller) -> Value {
    let visible = caller.visible();
    let sums = Sums::of(api, &visible);
    let exchanges = api.broker.exchanges();
    let exchanges = exchanges.iter().filter(|(name, _)| visible.has(of_exchange(name))).count();
    let connections = api.broker.open_connections().all();
    let own: Vec<_> = connections.iter().filter(|one| caller.sees_user(&one.facts().user)).collect();
    let channels: Vec<_> = own.iter().flat_map(|connection| connection.channels()).collect();
    let mut shown = about(api);
    shown["message_stats"] = sums.stats();
    shown["queue_totals"] = sums.lengths().into();
    shown["object_totals"] = json!({
        "channels": channels.len(),
        "connections": own.len(),
        "consumers": channels.iter().map(|channel| channel.consumer_count()).sum::<usize>(),
        // Each virtual host has a default exchange besides.
        "exchanges": exchanges + caller.vhosts(api).len(),
        "queues": sums.queues,
    });
    shown
}

/// What the broker is.
fn about(api: &Api) -> Value {
    json!({
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "basic",
        "sample_retention_policies": { "global": [600, 3600], "basic": [600, 3600], "detailed": [600] },
        "exchange_types": exchange_types(),
        "product_version": VERSION,
        "product_name": PRODUCT,
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": parameters::cluster_name(api),
        "erlang_version": NO_ERLANG,
        "erlang_full_version": NO_ERLANG,
        "release_series_support_status": "supported",
        "disable_stats": false,
        "default_queue_type": "classic",
        "is_op_policy_updating_enabled": true,
        "enable_queue_totals": false,
        "statistics_db_event_queue": 0,
    })
}

fn whole(api: &Api, wanted: Wanted) -> Value {
    let broker = &api.broker;
    let figures = api.rates.whole(broker, wanted);
    let counts = broker.object_counts();
    let (mut consumers, mut channels) = (0, 0);
    let connections = broker.open_connections().all();
    for channel in connections.iter().flat_map(|connection| connection.channels()) {
        channels += 1;
        consumers += channel.consumer_count();
    }
    let mut churn = BTreeMap::new();
    let opened: u64 = Protocol::ALL
        .into_iter()
        .map(|protocol| broker.traffic().of(protocol).stats().connections_opened)
        .sum();
    churn.insert("connection_created", opened);
    let mut shown = about(api);
    shown["message_stats"] = figures.rates.into();
    shown["churn_rates"] = json!(churn);
    shown["queue_totals"] = figures.lengths.into();
    shown["object_totals"] = json!({
        "channels": channels,
        "connections": connections.len(),
        "consumers": consumers,
        "exchanges": counts.exchanges,
        "queues": counts.queues,
    });
    shown["node"] = (&*api.node).into();
    shown["listeners"] = api.listeners.iter().map(|listener| listener_json(api, listener)).collect();
    shown["contexts"] = contexts(api);
    shown
}

fn exchange_types() -> Value {
    let shown = EXCHANGE_TYPES
        .iter()
        .map(|(name, description)| json!({ "name": name, "description": description, "enabled": true }));
    shown.collect()
}

fn listener_json(api: &Api, listener: &Listener) -> Value {
    json!({
        "node": &*api.node,
        "protocol": listener.protocol,
        "ip_address": listener.address.ip().to_string(),
        "port": listener.address.port(),
        "socket_opts": { "nodelay": true },
    })
}

/// The ports that speak HTTP.
fn contexts(api: &Api) -> Value {
    let http = api.listeners.iter().filter(|listener| matches!(listener.protocol, "http" | "https"));
    let shown = http.map(|listener| {
        json!({
            "node": &*api.node,
            "description": "Nexo management",
            "path": "/",
            "ip": listener.address.ip().to_string(),
            "port": listener.address.port().to_string(),
            "ssl_opts": [],
        })
    });
    shown.collect()
}

pub(super) async fn cluster_name(State(api): State<Api>) -> Json<Value> {
    Json(json!({ "name": parameters::cluster_name(&api) }))
}

/// As RabbitMQ, by the global parameter of that name.
pub(super) async fn set_cluster_name(State(api): State<Api>, body: JsonBody) -> Result<StatusCode, ApiError> {
    parameters::set_cluster_name(&api, body.object.text("name")?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn nodes(State(api): State<Api>) -> Result<Json<Value>, ApiError> {
    api.look(|api| Json(json!([node_json(api)]))).await
}

pub(super) async fn node(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    if name != *api.node {
        return Err(ApiError::not_found());
    }
    api.look(|api| Json(node_json(api))).await
}

pub(super) async fn memory(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if name != *api.node {
        return Err(ApiError::not_found());
    }
    api.look(|api| {
        let stats = api.broker.stats();
        let total = stats.process.resident_bytes;
        let messages = stats.message_memory_bytes;
        Json(json!({
            "memory": {
                "queue_procs": messages,
                "other_proc": total.saturating_sub(messages),
                "total": { "rss": total, "allocated": total, "erlang": 0 },
                "strategy": "rss",
            }
        }))
    })
    .await
}

fn node_json(api: &Api) -> Value {
    let stats = api.broker.stats();
    let process = stats.process;
    let sockets: usize = Protocol::ALL.into_iter().map(|of| api.broker.connections().counts(of).open).sum();
    let sockets_max =
        api.broker.connections().max(Protocol::Amqp) + api.broker.connections().max(Protocol::Http);
    let now_s = api.broker.now().0 as f64 / 1000.0;
    let uptime_ms = ((now_s - process.started_at_s).max(0.0) * 1000.0) as u64;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    json!({
        "name": &*api.node,
        "type": "disc",
        "running": true,
        "being_drained": false,
        "uptime": uptime_ms,
        "os_pid": std::process::id().to_string(),
        "processors": processors,
        "run_queue": 0,
        "rates_mode": "basic",
        "net_ticktime": 60,
        "mem_used": process.resident_bytes,
        "mem_limit": stats.memory.limit_bytes,
        "mem_alarm": stats.memory.is_alarm,
        "mem_calculation_strategy": "rss",
        "disk_free": stats.disk_free_bytes,
        "disk_free_limit": api.broker.disk_free_min(),
        "disk_free_alarm": stats.disk_alarm,
        "fd_used": process.open_fds,
        "fd_total": process.max_fds,
        "sockets_used": sockets,
        "sockets_total": sockets_max,
        "proc_used": 0,
        "proc_total": 0,
        "partitions": [],
        "cluster_links": [],
        "metrics_gc_queue_length": {},
        "log_files": [],
        "db_dir": api.broker.data_dir().display().to_string(),
        "config_files": [],
        "enabled_plugins": ["rabbitmq_management"],
        "applications": [{ "name": "nexo", "description": PRODUCT, "version": VERSION }],
        "auth_mechanisms": [
            { "name": "PLAIN", "description": "SASL PLAIN authentication mechanism", "enabled": true },
            { "name": "AMQPLAIN", "description": "QPid AMQPLAIN mechanism", "enabled": true },
        ],
        "exchange_types": exchange_types(),
        "contexts": contexts(api),
    })
}

/// The page of RabbitMQ loads these; there is none here.
pub(super) async fn extensions() -> Json<Value> {
    Json(json!([]))
}

/// There are none of what was asked for.
pub(super) async fn nothing() -> Json<Value> {
    Json(json!([]))
}

pub(super) async fn whoami(caller: Caller) -> Json<Value> {
    Json(json!({ "name": caller.name(), "tags": caller.tags(), "is_internal_user": true }))
}

pub(super) async fn auth() -> Json<Value> {
    Json(json!({ "oauth_enabled": false }))
}
