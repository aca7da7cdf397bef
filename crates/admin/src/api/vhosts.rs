//! Virtual hosts and their limits.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_broker::topology::{DefaultQueueType, VhostError, VhostSpec};
use nexo_broker::{ExchangeError, VhostInfo};
use nexo_types::VhostName;
use serde_json::{Map, Value, json};

use super::Api;
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::listing::ListQuery;
use super::names::of_queue;

pub(super) async fn list(
    State(api): State<Api>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    api.look(move |api| {
        query.answer(api.broker.vhosts().iter().map(|vhost| vhost_json(api, vhost)).collect())
    })
    .await?
}

pub(super) async fn show(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let vhost = found(&api, &name)?;
    api.look(move |api| Json(vhost_json(api, &vhost))).await
}

fn found(api: &Api, name: &str) -> Result<VhostInfo, ApiError> {
    let name = VhostName::new(name).map_err(|_| ApiError::not_found())?;
    api.broker.vhost(&name).ok_or_else(ApiError::not_found)
}

fn vhost_json(api: &Api, vhost: &VhostInfo) -> Value {
    let Sums { messages, ready, unacked, stats } = sums(api, &vhost.name);
    let mut shown = vhost_definition(vhost);
    shown["tracing"] = api.broker.is_traced(&vhost.name).into();
    shown["cluster_state"] = json!({ (&*api.node): "running" });
    shown["messages"] = messages.into();
    shown["messages_ready"] = ready.into();
    shown["messages_unacknowledged"] = unacked.into();
    shown["message_stats"] = stats;
    shown
}

/// What a virtual host is told to be.
pub(super) fn vhost_definition(vhost: &VhostInfo) -> Value {
    let VhostSpec { description, tags, default_queue_type, .. } = &vhost.spec;
    let kind = default_queue_type.map_or("undefined", DefaultQueueType::as_str);
    json!({
        "name": vhost.name.as_str(),
        "description": description,
        "tags": tags,
        "default_queue_type": kind,
        "metadata": { "description": description, "tags": tags, "default_queue_type": kind },
    })
}

/// The figures of all queues of a virtual host.
struct Sums {
    messages: u64,
    ready: u64,
    unacked: u64,
    stats: Value,
}

fn sums(api: &Api, vhost: &VhostName) -> Sums {
    let (mut messages, mut ready, mut unacked) = (0, 0, 0);
    let (mut published, mut delivered, mut acked, mut redelivered) = ((0, 0.0), (0, 0.0), (0, 0.0), (0, 0.0));
    let add = |sum: &mut (u64, f64), count: u64, rate: f64| {
        sum.0 += count;
        sum.1 += rate;
    };
    for name in api.broker.queue_names() {
        if of_queue(&name) != vhost.as_str() {
            continue;
        }
        let Some(row) = api.broker.queue_row(&name) else { continue };
        let stats = row.stats;
        messages += stats.ready + stats.leased + stats.delayed + stats.grouped;
        ready += stats.ready;
        unacked += stats.leased;
        add(&mut published, stats.pushed, stats.push_rate);
        add(&mut delivered, stats.delivered, stats.deliver_rate);
        add(&mut acked, stats.acked, stats.ack_rate);
        add(&mut redelivered, stats.redelivered, stats.redeliver_rate);
    }
    let rate = |per_second: f64| json!({ "rate": per_second });
    let stats = json!({
        "publish": published.0,
        "publish_details": rate(published.1),
        "deliver_get": delivered.0,
        "deliver_get_details": rate(delivered.1),
        "ack": acked.0,
        "ack_details": rate(acked.1),
        "redeliver": redelivered.0,
        "redeliver_details": rate(redelivered.1),
    });
    Sums { messages, ready, unacked, stats }
}

pub(super) async fn put(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let is_new = put_from(&api, &name, &body.object).await?;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

/// Makes a virtual host as an object of JSON describes it, or changes what the object names.
pub(super) async fn put_from(api: &Api, name: &str, object: &Map<String, Value>) -> Result<bool, ApiError> {
    let name = VhostName::new(name)?;
    let metadata = object.table("metadata")?;
    let of = |field: &str| object.get(field).or_else(|| metadata.get(field)).filter(|given| !given.is_null());
    let description = match of("description") {
        None => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => return Err(ApiError::bad_request("description must be a text")),
    };
    let tags = of("tags").map(tags).transpose()?;
    let kind = match of("default_queue_type").and_then(Value::as_str) {
        None | Some("undefined" | "") => None,
        Some(kind) => {
            let wrong = || ApiError::bad_request(format!("{kind:?} is neither classic nor quorum"));
            Some(DefaultQueueType::parse(kind).ok_or_else(wrong)?)
        }
    };
    // The firehose, which is not kept over a restart.
    let tracing = match object.get("tracing") {
        None | Some(Value::Null) => None,
        Some(_) => Some(object.truth("tracing", false)?),
    };
    let changed = api.broker.change_vhost(&name, |spec| {
        let mut spec = spec.cloned().unwrap_or_default();
        spec.description = description.clone().unwrap_or(spec.description);
        spec.tags = tags.clone().unwrap_or(spec.tags);
        spec.default_queue_type = kind.or(spec.default_queue_type);
        Ok(spec)
    });
    let is_new = changed.await.map_err(refused)?;
    if let Some(tracing) = tracing {
        api.broker.set_tracing(&name, tracing);
    }
    Ok(is_new)
}

/// A list of texts, or one text with commas.
fn tags(given: &Value) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::bad_request("tags must be a list of texts");
    match given {
        Value::String(text) => {
            Ok(text.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect())
        }
        Value::Array(items) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
        }
        _ => Err(wrong()),
    }
}

pub(super) async fn delete(State(api): State<Api>, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    let vhost = found(&api, &name)?;
    api.broker.delete_vhost(&vhost.name).await.map_err(refused)?;
    Ok(StatusCode::NO_CONTENT)
}

fn refused(error: ExchangeError<VhostError>) -> ApiError {
    match error {
        ExchangeError::Refused(VhostError::NotFound { .. }) => ApiError::not_found(),
        ExchangeError::Refused(refused) => ApiError::bad_request(refused.to_string()),
        ExchangeError::Queue(error) => ApiError::unavailable(error.to_string()),
    }
}

pub(super) async fn limits(State(api): State<Api>) -> Json<Value> {
    let vhosts = api.broker.vhosts();
    Json(vhosts.iter().filter(|vhost| has_limits(vhost)).map(limits_json).collect())
}

pub(super) async fn limits_of(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let vhost = found(&api, &name)?;
    Ok(Json(Some(&vhost).filter(|vhost| has_limits(vhost)).into_iter().map(limits_json).collect()))
}

const fn has_limits(vhost: &VhostInfo) -> bool {
    vhost.spec.max_connections.is_some() || vhost.spec.max_queues.is_some()
}

fn limits_json(vhost: &VhostInfo) -> Value {
    json!({ "vhost": vhost.name.as_str(), "value": limits_of_vhost(vhost) })
}

/// The limits that a virtual host has, by name.
pub(super) fn limits_of_vhost(vhost: &VhostInfo) -> Map<String, Value> {
    let mut value = Map::new();
    let limits = [("max-connections", vhost.spec.max_connections), ("max-queues", vhost.spec.max_queues)];
    for (name, limit) in limits {
        if let Some(limit) = limit {
            value.insert(name.to_owned(), limit.into());
        }
    }
    value
}

/// Has a virtual host have these limits and no others. `true` if it had none.
pub(super) async fn set_limits(
    api: &Api,
    name: &VhostName,
    limits: &Map<String, Value>,
) -> Result<bool, ApiError> {
    if let Some(unknown) = limits.keys().find(|key| !matches!(&***key, "max-connections" | "max-queues")) {
        return Err(ApiError::bad_request(format!("there is no limit {unknown:?}")));
    }
    // Below 0 is no limit, as in RabbitMQ.
    let limit = |key: &str| Ok::<_, ApiError>(limits.whole(key)?.and_then(|max| u64::try_from(max).ok()));
    let (max_connections, max_queues) = (limit("max-connections")?, limit("max-queues")?);
    let had_limits = api.broker.vhost(name).is_some_and(|vhost| has_limits(&vhost));
    let changed = api.broker.change_vhost(name, |spec| {
        Ok(VhostSpec { max_connections, max_queues, ..spec.cloned().unwrap_or_default() })
    });
    changed.await.map_err(refused)?;
    Ok(!had_limits)
}

pub(super) async fn set_limit(
    State(api): State<Api>,
    Path((vhost, limit)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let value = body.object.whole("value")?.ok_or_else(|| ApiError::bad_request("[{key_missing,value}]"))?;
    // Below 0 is no limit, as in RabbitMQ.
    change_limit(&api, &vhost, &limit, u64::try_from(value).ok()).await
}

pub(super) async fn clear_limit(
    State(api): State<Api>,
    Path((vhost, limit)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    change_limit(&api, &vhost, &limit, None).await
}

async fn change_limit(
    api: &Api,
    vhost: &str,
    limit: &str,
    value: Option<u64>,
) -> Result<StatusCode, ApiError> {
    let vhost = found(api, vhost)?;
    if !matches!(limit, "max-connections" | "max-queues") {
        return Err(ApiError::bad_request(format!("there is no limit {limit:?}")));
    }
    let changed = api.broker.change_vhost(&vhost.name, |spec| {
        let mut spec = spec.cloned().unwrap_or_default();
        match limit {
            "max-connections" => spec.max_connections = value,
            _ => spec.max_queues = value,
        }
        Ok(spec)
    });
    changed.await.map_err(refused)?;
    Ok(StatusCode::NO_CONTENT)
}
