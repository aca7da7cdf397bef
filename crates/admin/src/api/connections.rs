//! Who is connected: connections, channels and consumers.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use nexo_amqp::management::raw_table_json;
use nexo_broker::{OnBehalf, OpenChannel, OpenConnection, OpenConsumer, QueueRow};
use nexo_types::QueueName;
use serde_json::{Value, json};

use super::Api;
use super::access::Caller;
use super::error::ApiError;
use super::listing::ListQuery;
use super::names::{Vhost, of_queue};

/// What a client is told if nobody gave a reason.
const CLOSED: &str = "Closed via management plugin";
/// As much of a reason as fits into the reply text of a client with the name of the code before it.
const REASON_BYTES_MAX: usize = 200;

pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, caller, query, |_| true, connection_json).await
}

pub(super) async fn of_vhost(
    State(api): State<Api>,
    caller: Caller,
    Path(vhost): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    answer(&api, caller, query, move |connection| connection.facts().vhost == vhost.as_str(), connection_json)
        .await
}

pub(super) async fn of_user(
    State(api): State<Api>,
    caller: Caller,
    Path(user): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    caller.check_user(&user)?;
    answer(&api, caller, query, move |connection| connection.facts().user == user, connection_json).await
}

pub(super) async fn channels(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    answer_channels(&api, caller, query, |_| true).await
}

pub(super) async fn channels_of_vhost(
    State(api): State<Api>,
    caller: Caller,
    Path(vhost): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    answer_channels(&api, caller, query, move |connection| connection.facts().vhost == vhost.as_str()).await
}

pub(super) async fn channels_of(
    State(api): State<Api>,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    found(&api, &caller, &name)?;
    answer_channels(&api, caller, query, move |connection| connection.name() == name).await
}

async fn answer(
    api: &Api,
    caller: Caller,
    query: ListQuery,
    wanted: impl Fn(&OpenConnection) -> bool + Send + 'static,
    shown: fn(&Api, &OpenConnection) -> Value,
) -> Result<Response, ApiError> {
    api.look(move |api| {
        let all = api.broker.open_connections().all();
        let wanted = all.iter().filter(|one| wanted(one) && caller.sees_user(&one.facts().user));
        query.answer(wanted.map(|connection| shown(api, connection)).collect())
    })
    .await?
}

async fn answer_channels(
    api: &Api,
    caller: Caller,
    query: ListQuery,
    wanted: impl Fn(&OpenConnection) -> bool + Send + 'static,
) -> Result<Response, ApiError> {
    api.look(move |api| {
        let all = api.broker.open_connections().all();
        let wanted = all.iter().filter(|one| wanted(one) && caller.sees_user(&one.facts().user));
        let channels = wanted.flat_map(|connection| {
            let channels = connection.channels();
            channels.into_iter().map(|channel| channel_json(api, connection, &channel))
        });
        query.answer(channels.collect())
    })
    .await?
}

pub(super) async fn show(
    State(api): State<Api>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let connection = found(&api, &caller, &name)?;
    Ok(Json(connection_json(&api, &connection)))
}

/// Ends a connection. Its client is told the reason in the header `X-Reason`.
pub(super) async fn close(
    State(api): State<Api>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, ApiError> {
    let connection = found(&api, &caller, &name)?;
    caller.may_end(&connection.facts().user)?;
    end(&connection, &headers);
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn close_of_user(
    State(api): State<Api>,
    caller: Caller,
    Path(user): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, ApiError> {
    caller.may_end(&user)?;
    for connection in api.broker.open_connections().all() {
        if connection.facts().user == user {
            end(&connection, &headers);
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// A connection that is there, and that he may see.
fn found(api: &Api, caller: &Caller, name: &str) -> Result<Arc<OpenConnection>, ApiError> {
    let connection = api.broker.open_connections().named(name).ok_or_else(ApiError::not_found)?;
    caller.check_user(&connection.facts().user)?;
    Ok(connection)
}

fn end(connection: &OpenConnection, headers: &HeaderMap) {
    let given = headers.get("x-reason").map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
    let given = given.filter(|reason| !reason.trim().is_empty());
    let mut reason = given.unwrap_or_else(|| CLOSED.to_owned());
    let end = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
    reason.truncate(end.unwrap_or(0));
    let by = OnBehalf::now();
    tracing::info!(connection = connection.name(), ?reason, %by, "a connection is closed by an operator");
    connection.close(&reason);
}

/// The details of one channel, whose name is that of its connection with its number in brackets.
pub(super) async fn channel(
    State(api): State<Api>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (of, number) = name
        .strip_suffix(')')
        .and_then(|name| name.rsplit_once(" ("))
        .and_then(|(of, number)| Some((of, number.parse::<u16>().ok()?)))
        .ok_or_else(ApiError::not_found)?;
    let connection = found(&api, &caller, of)?;
    let channels = connection.channels();
    let channel = channels.iter().find(|channel| channel.number == number).ok_or_else(ApiError::not_found)?;
    let mut shown = channel_json(&api, &connection, channel);
    let consumers: Value = channel
        .consumers()
        .iter()
        .map(|consumer| consumer_json(&api, &connection, channel, consumer))
        .collect();
    shown["consumer_details"] = consumers;
    Ok(Json(shown))
}

pub(super) async fn consumers(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    api.look(move |api| query.answer(all_consumers(api, |user, _| caller.sees_user(user)))).await?
}

pub(super) async fn consumers_of_vhost(
    State(api): State<Api>,
    caller: Caller,
    Path(vhost): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    let wanted = move |user: &str, queue: &QueueName| caller.sees_user(user) && vhost.has_queue(queue);
    api.look(move |api| query.answer(all_consumers(api, wanted))).await?
}

/// The consumers of a queue.
pub(super) fn consumers_of_queue(api: &Api, queue: &QueueName) -> Vec<Value> {
    all_consumers(api, |_, name| name == queue)
}

fn all_consumers(api: &Api, wanted: impl Fn(&str, &QueueName) -> bool) -> Vec<Value> {
    let mut shown = Vec::new();
    for connection in api.broker.open_connections().all() {
        for channel in connection.channels() {
            let user = &connection.facts().user;
            for consumer in channel.consumers().iter().filter(|consumer| wanted(user, &consumer.queue)) {
                shown.push(consumer_json(api, &connection, &channel, consumer));
            }
        }
    }
    shown
}

/// The connection that a queue belongs to, in few words.
pub(super) fn owner_json(api: &Api, row: &QueueRow) -> Option<Value> {
    let connection: Arc<OpenConnection> = api.broker.open_connections().get(row.owner?)?;
    Some(connection_details(&connection))
}

fn connection_details(connection: &OpenConnection) -> Value {
    let peer = connection.facts().peer;
    json!({ "name": connection.name(), "peer_host": peer.ip().to_string(), "peer_port": peer.port() })
}

fn connection_json(api: &Api, connection: &OpenConnection) -> Value {
    let facts = connection.facts();
    let properties = raw_table_json(&facts.client_properties);
    let own_name = properties.get("connection_name").cloned().unwrap_or(Value::Null);
    json!({
        "name": connection.name(),
        "node": &*api.node,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "state": if connection.is_blocked() { "blocked" } else { "running" },
        "user": facts.user,
        "user_who_performed_action": facts.user,
        "user_provided_name": own_name,
        "vhost": facts.vhost,
        "auth_mechanism": facts.mechanism,
        "host": facts.local.ip().to_string(),
        "port": facts.local.port(),
        "peer_host": facts.peer.ip().to_string(),
        "peer_port": facts.peer.port(),
        "ssl": facts.is_tls,
        "ssl_protocol": null,
        "ssl_key_exchange": null,
        "ssl_cipher": null,
        "ssl_hash": null,
        "peer_cert_subject": null,
        "peer_cert_issuer": null,
        "peer_cert_validity": null,
        "client_properties": properties,
        "connected_at": facts.connected_at.0,
        "channels": connection.channel_count(),
        "channel_max": facts.channel_max,
        "frame_max": facts.frame_max,
        "timeout": facts.heartbeat_s,
        "recv_oct": connection.received_bytes.get(),
        "recv_cnt": connection.received_count.get(),
        "send_oct": connection.sent_bytes.get(),
        "send_cnt": connection.sent_count.get(),
        "send_pend": 0,
    })
}

fn channel_name(connection: &OpenConnection, channel: &OpenChannel) -> String {
    format!("{} ({})", connection.name(), channel.number)
}

fn channel_json(api: &Api, connection: &OpenConnection, channel: &OpenChannel) -> Value {
    let facts = connection.facts();
    let delivered = channel.delivered.get();
    json!({
        "name": channel_name(connection, channel),
        "number": channel.number,
        "node": &*api.node,
        "user": facts.user,
        "user_who_performed_action": facts.user,
        "vhost": facts.vhost,
        "state": "running",
        "connection_details": connection_details(connection),
        "confirm": channel.confirms(),
        "transactional": channel.is_transactional(),
        "consumer_count": channel.consumer_count(),
        "messages_unacknowledged": channel.unacked.get(),
        "messages_unconfirmed": channel.unconfirmed(),
        "messages_uncommitted": channel.uncommitted.get(),
        "acks_uncommitted": channel.acks_uncommitted.get(),
        "prefetch_count": channel.prefetch.get(),
        "global_prefetch_count": channel.prefetch_together.get(),
        "pending_raft_commands": 0,
        "message_stats": {
            "publish": channel.published.get(),
            "confirm": channel.confirmed.get(),
            "return_unroutable": channel.returned.get(),
            "deliver_get": delivered,
            "deliver": delivered.saturating_sub(channel.got.get()),
            "get": channel.got.get(),
            "ack": channel.acked.get(),
        },
    })
}

fn consumer_json(
    api: &Api,
    connection: &OpenConnection,
    channel: &OpenChannel,
    consumer: &OpenConsumer,
) -> Value {
    // Where only one consumer is served, the others wait.
    let row = api.broker.queue_row(&consumer.queue);
    let active = row.and_then(|row| row.stats.config.single_active_consumer.then_some(row.active_consumer));
    let activity = match active {
        None => "up",
        Some(active) if active == consumer.id => "single_active",
        Some(_) => "waiting",
    };
    let peer = connection.facts().peer;
    json!({
        "consumer_tag": String::from_utf8_lossy(&consumer.tag),
        "queue": { "name": consumer.queue.as_str(), "vhost": of_queue(&consumer.queue) },
        "ack_required": consumer.acknowledges,
        "exclusive": consumer.is_exclusive,
        "active": activity != "waiting",
        "activity_status": activity,
        "prefetch_count": consumer.prefetch,
        "arguments": raw_table_json(&consumer.arguments),
        "consumer_timeout": "undefined",
        "channel_details": {
            "name": channel_name(connection, channel),
            "number": channel.number,
            "node": &*api.node,
            "user": connection.facts().user,
            "connection_name": connection.name(),
            "peer_host": peer.ip().to_string(),
            "peer_port": peer.port(),
        },
    })
}
