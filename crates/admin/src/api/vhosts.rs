//! Virtual hosts and their limits.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_broker::topology::{DefaultQueueType, VhostError, VhostSpec};
use nexo_broker::{Broker, ExchangeError, QueueStats, VhostInfo};
use nexo_types::VhostName;
use serde_json::{Map, Value, json};

use super::Api;
use super::access::{Caller, Visible};
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::listing::ListQuery;
use super::names::of_queue;

pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let visible = caller.visible();
    api.look(move |api| {
        // All queues are looked at once, however many virtual hosts there are.
        let mut sums: BTreeMap<VhostName, Sums> = BTreeMap::new();
        for name in api.broker.queue_names().iter().filter(|name| visible.has(of_queue(name))) {
            if let Some(row) = api.broker.queue_row(name) {
                sums.entry(name.vhost()).or_default().add(&row.stats);
            }
        }
        let mut shown = api.broker.vhosts();
        shown.retain(|vhost| visible.has_name(&vhost.name));
        let none = Sums::default();
        let of = |vhost: &VhostInfo| vhost_json(api, vhost, sums.get(&vhost.name).unwrap_or(&none));
        query.answer(shown.iter().map(of).collect())
    })
    .await?
}

pub(super) async fn show(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let vhost = found(&api, &name)?;
    api.look(move |api| {
        let sums = Sums::of(api, &Visible::only(vhost.name.as_str()));
        Json(vhost_json(api, &vhost, &sums))
    })
    .await
}

/// RabbitMQ starts a virtual host by this that failed on a node. All of them run wherever the broker does, so there is nothing to
/// do.
pub(super) async fn start(
    State(api): State<Api>,
    Path((name, node)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    // Anything else is 404, but RabbitMQ answers 400 here.
    if found(&api, &name).is_err() {
        return Err(ApiError::bad_request(format!("there is no virtual host '{name}'")));
    }
    if node != *api.node {
        return Err(ApiError::bad_request(format!("there is no node '{node}'; this is '{}'", api.node)));
    }
    Ok(StatusCode::NO_CONTENT)
}

fn found(api: &Api, name: &str) -> Result<VhostInfo, ApiError> {
    let name = VhostName::new(name).map_err(|_| ApiError::not_found())?;
    api.broker.vhost(&name).ok_or_else(ApiError::not_found)
}

fn vhost_json(api: &Api, vhost: &VhostInfo, sums: &Sums) -> Value {
    let mut shown = vhost_definition(vhost);
    shown["tracing"] = api.broker.is_traced(&vhost.name).into();
    shown["cluster_state"] = json!({ (&*api.node): "running" });
    if let Some(object) = shown.as_object_mut() {
        object.extend(sums.lengths());
    }
    shown["message_stats"] = sums.stats();
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

/// The figures of several queues together.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) queues: usize,
    messages: u64,
    ready: u64,
    unacked: u64,
    published: (u64, f64),
    delivered: (u64, f64),
    acked: (u64, f64),
    redelivered: (u64, f64),
}

impl Sums {
    /// Those of all queues in some virtual hosts.
    pub(super) fn of(api: &Api, vhosts: &Visible) -> Self {
        let mut sums = Self::default();
        for name in api.broker.queue_names().iter().filter(|name| vhosts.has(of_queue(name))) {
            if let Some(row) = api.broker.queue_row(name) {
                sums.add(&row.stats);
            }
        }
        sums
    }

    fn add(&mut self, stats: &QueueStats) {
        let add = |sum: &mut (u64, f64), count: u64, rate: f64| {
            sum.0 += count;
            sum.1 += rate;
        };
        self.queues += 1;
        self.messages += stats.ready + stats.leased + stats.delayed + stats.grouped;
        self.ready += stats.ready;
        self.unacked += stats.leased;
        add(&mut self.published, stats.pushed, stats.push_rate);
        add(&mut self.delivered, stats.delivered, stats.deliver_rate);
        add(&mut self.acked, stats.acked, stats.ack_rate);
        add(&mut self.redelivered, stats.redelivered, stats.redeliver_rate);
    }

    /// How many messages there are.
    pub(super) fn lengths(&self) -> Map<String, Value> {
        Map::from_iter([
            ("messages".to_owned(), self.messages.into()),
            ("messages_ready".to_owned(), self.ready.into()),
            ("messages_unacknowledged".to_owned(), self.unacked.into()),
        ])
    }

    /// What was done.
    pub(super) fn stats(&self) -> Value {
        let rate = |per_second: f64| json!({ "rate": per_second });
        json!({
            "publish": self.published.0,
            "publish_details": rate(self.published.1),
            "deliver_get": self.delivered.0,
            "deliver_get_details": rate(self.delivered.1),
            "ack": self.acked.0,
            "ack_details": rate(self.acked.1),
            "redeliver": self.redelivered.0,
            "redeliver_details": rate(self.redelivered.1),
        })
    }
}

/// Makes a virtual host, or changes one. As in RabbitMQ, who makes one may do everything in it.
pub(super) async fn put(
    State(api): State<Api>,
    caller: Caller,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let name = VhostName::new(&name)?;
    let is_new = put_from(&api.broker, &name, &VhostAsked::of(&body.object)?).await?;
    if is_new {
        api.logins.own_vhost(caller.identity(), name.as_str()).await?;
    }
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

/// What an object of JSON says of a virtual host. What it does not name stays as it is.
#[derive(Clone, Debug)]
pub(super) struct VhostAsked {
    description: Option<String>,
    tags: Option<Vec<String>>,
    kind: Option<DefaultQueueType>,
    /// Whether the firehose is on, which is not kept over a restart.
    tracing: Option<bool>,
}

impl VhostAsked {
    pub(super) fn of(object: &Map<String, Value>) -> Result<Self, ApiError> {
        let metadata = object.table("metadata")?;
        let of =
            |field: &str| object.get(field).or_else(|| metadata.get(field)).filter(|given| !given.is_null());
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
        let tracing = match object.get("tracing") {
            None | Some(Value::Null) => None,
            Some(_) => Some(object.truth("tracing", false)?),
        };
        Ok(Self { description, tags, kind, tracing })
    }
}

/// Makes a virtual host, or changes what is named. `true` if it is new.
pub(super) async fn put_from(
    broker: &Broker,
    name: &VhostName,
    asked: &VhostAsked,
) -> Result<bool, ApiError> {
    let VhostAsked { description, tags, kind, tracing } = asked;
    let changed = broker.change_vhost(name, |spec| {
        let mut spec = spec.cloned().unwrap_or_default();
        spec.description = description.clone().unwrap_or(spec.description);
        spec.tags = tags.clone().unwrap_or(spec.tags);
        spec.default_queue_type = kind.or(spec.default_queue_type);
        Ok(spec)
    });
    let is_new = changed.await.map_err(refused)?;
    if let Some(tracing) = *tracing {
        broker.set_tracing(name, tracing);
    }
    Ok(is_new)
}

/// A list of texts, or one text with commas.
pub(super) fn tags(given: &Value) -> Result<Vec<String>, ApiError> {
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

pub(super) async fn limits(State(api): State<Api>, caller: Caller) -> Result<Response, ApiError> {
    api.look_for(move |api| {
        let (visible, vhosts) = (caller.visible(), api.broker.vhosts());
        let seen = vhosts.iter().filter(|vhost| has_limits(vhost) && visible.has_name(&vhost.name));
        seen.map(limits_json).collect()
    })
    .await
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
    let limits = [("max-connections", vhost.spec.max_connections), ("max-queues", vhost.spec.max_queues)];
    limits.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), limit?.into()))).collect()
}

/// Has a virtual host have these limits and no others. `true` if it had none.
pub(super) async fn set_limits(
    broker: &Broker,
    name: &VhostName,
    limits: &Map<String, Value>,
) -> Result<bool, ApiError> {
    let (max_connections, max_queues) = read_limits(limits)?;
    let had_limits = broker.vhost(name).is_some_and(|vhost| has_limits(&vhost));
    let changed = broker.change_vhost(name, |spec| {
        Ok(VhostSpec { max_connections, max_queues, ..spec.cloned().unwrap_or_default() })
    });
    changed.await.map_err(refused)?;
    Ok(!had_limits)
}

/// The limits of an object of JSON: of connections, and of queues.
pub(super) fn read_limits(limits: &Map<String, Value>) -> Result<(Option<u64>, Option<u64>), ApiError> {
    if let Some(unknown) = limits.keys().find(|key| !matches!(&***key, "max-connections" | "max-queues")) {
        return Err(ApiError::bad_request(format!("there is no limit {unknown:?}")));
    }
    // Below 0 is no limit, as in RabbitMQ.
    let limit = |key: &str| Ok::<_, ApiError>(limits.whole(key)?.and_then(|max| u64::try_from(max).ok()));
    Ok((limit("max-connections")?, limit("max-queues")?))
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
