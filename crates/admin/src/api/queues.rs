//! Queues: list, look at, declare, empty, delete.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_amqp::management::{
    By, QueueAsked, declare_queue, delete_queue, purge_queue, queue_type, raw_table_json,
};
use nexo_broker::topology::Destination;
use nexo_broker::{BindingsOf, DeleteIf, Durability, QueueRow};
use nexo_types::QueueName;
use serde_json::{Map, Value, json};

use super::Api;
use super::access::{Caller, Visible};
use super::bindings::{LISTED_MAX, binding_json, default_json};
use super::body::{Fields, JsonBody};
use super::connections::{consumers_of_queue, owner_json};
use super::consumer_tags::ConsumerTags;
use super::error::ApiError;
use super::listing::ListQuery;
use super::names::{Vhost, of_queue};
use super::policies::applied_json;
use super::question::{Question, Word, Words};
use super::rates::{HistoryWords, Wanted};

pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
    figures: Question<FigureWords>,
) -> Result<Response, ApiError> {
    answer(&api, query, &figures, caller.visible()).await
}

pub(super) async fn list_of_vhost(
    State(api): State<Api>,
    Path(vhost): Path<String>,
    Query(query): Query<ListQuery>,
    figures: Question<FigureWords>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    answer(&api, query, &figures, Visible::only(vhost.as_str())).await
}

/// Which figures a list shows.
#[derive(Debug)]
pub(super) struct FigureWords;

impl Words for FigureWords {
    const WORDS: &'static [Word] = &[
        ("disable_stats", "true: only what costs nothing"),
        ("enable_queue_totals", "true: with disable_stats, the numbers of messages all the same"),
    ];
}

async fn answer(
    api: &Api,
    query: ListQuery,
    figures: &Question<FigureWords>,
    wanted: Visible,
) -> Result<Response, ApiError> {
    let (is_plain, has_totals) = (figures.is_true("disable_stats"), figures.is_true("enable_queue_totals"));
    api.look(move |api| {
        let mut names = api.broker.queue_names();
        names.retain(|name| wanted.has(of_queue(name)));
        let tags = ConsumerTags::default();
        let shown = |name: &QueueName| {
            let row = api.broker.queue_row(name)?;
            Some(match (is_plain, has_totals) {
                (false, _) => whole_json(api, &row, &tags),
                (true, false) => Value::Object(plain(api, &row)),
                (true, true) => {
                    let mut shown = plain(api, &row);
                    shown.extend(totals(&row));
                    Value::Object(shown)
                }
            })
        };
        if query.is_by_name() {
            // Only those of the page are looked at.
            return query.answer_by_name(names, QueueName::as_str, shown);
        }
        query.answer(names.iter().filter_map(shown).collect())
    })
    .await?
}

pub(super) async fn show(
    State(api): State<Api>,
    Path((vhost, name)): Path<(String, String)>,
    query: Question<HistoryWords>,
) -> Result<Json<Value>, ApiError> {
    let (vhost, wanted) = (Vhost::named(&api, &vhost)?, Wanted::of(&query)?);
    let row = api.broker.queue_row(&vhost.queue(&name)?).ok_or_else(ApiError::not_found)?;
    api.look(move |api| {
        let mut shown = whole_json(api, &row, &ConsumerTags::default());
        shown["consumer_details"] = consumers_of_queue(api, &row.stats.name).into();
        shown["deliveries"] = json!([]);
        shown["incoming"] = json!([]);
        if let Some(figures) = api.rates.queue(&row.stats, api.broker.now().0, wanted)
            && let Some(object) = shown.as_object_mut()
        {
            object.extend(figures.lengths);
            object.insert("message_stats".to_owned(), Value::Object(figures.rates));
        }
        Json(shown)
    })
    .await
}

pub(super) async fn declare(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let vhost = Vhost::to_change(&api, &vhost)?;
    let is_new = declare_from(caller.by(&api), &vhost.queue(&name)?, &body.object).await?;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

/// Declares a queue as an object of JSON describes it.
pub(super) async fn declare_from(
    by: By<'_>,
    name: &QueueName,
    object: &Map<String, Value>,
) -> Result<bool, ApiError> {
    let arguments = object.table("arguments")?;
    let asked = QueueAsked {
        durability: object.durability()?,
        auto_delete: object.truth("auto_delete", false)?,
        arguments: &arguments,
    };
    Ok(declare_queue(by, name, asked).await?)
}

/// On which conditions a queue is deleted.
#[derive(Debug)]
pub(super) struct DeleteWords;

impl Words for DeleteWords {
    const WORDS: &'static [Word] = &[
        ("if-empty", "true: only if it has no messages"),
        ("if-unused", "true: only if it has no consumers"),
    ];
}

pub(super) async fn delete(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    query: Question<DeleteWords>,
) -> Result<StatusCode, ApiError> {
    let name = found(&api, &Vhost::named(&api, &vhost)?, &name)?;
    let only_if = DeleteIf { unused: query.is_true("if-unused"), empty: query.is_true("if-empty") };
    delete_queue(caller.by(&api), &name, only_if).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn purge(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let name = found(&api, &Vhost::named(&api, &vhost)?, &name)?;
    purge_queue(caller.by(&api), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// RabbitMQ has mirrors brought up to date by this. There are none, so there is nothing to do.
pub(super) async fn act(
    State(api): State<Api>,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    found(&api, &Vhost::named(&api, &vhost)?, &name)?;
    match body.object.text("action")? {
        "sync" | "cancel_sync" => Ok(StatusCode::NO_CONTENT),
        other => Err(ApiError::bad_request(json!(["unknown", other]))),
    }
}

/// RabbitMQ spreads the leaders of queues over its nodes by this. No queue has a leader of its own, so there is nothing to do.
pub(super) async fn rebalance() -> StatusCode {
    StatusCode::NO_CONTENT
}

pub(super) async fn bindings(
    State(api): State<Api>,
    Path((vhost, name)): Path<(String, String)>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let name = found(&api, &Vhost::named(&api, &vhost)?, &name)?;
    api.look(move |api| {
        let mut shown = vec![default_json(&name)];
        let destination = Destination::Queue(name);
        let bindings = api.broker.bindings(BindingsOf::Destination(&destination), LISTED_MAX);
        shown.extend(bindings.iter().map(binding_json));
        query.answer(shown)
    })
    .await?
}

/// The name of a queue that is there.
pub(super) fn found(api: &Api, vhost: &Vhost, name: &str) -> Result<QueueName, ApiError> {
    let name = vhost.queue(name)?;
    if api.broker.queue(&name).is_some() { Ok(name) } else { Err(ApiError::not_found()) }
}

/// What a queue is told to be.
fn plain(api: &Api, row: &QueueRow) -> Map<String, Value> {
    let config = &row.stats.config;
    let shown = json!({
        "name": row.stats.name.as_str(),
        "vhost": of_queue(&row.stats.name),
        "type": queue_type(config.base()),
        "durable": row.durability == Durability::Durable,
        "auto_delete": config.auto_delete,
        "exclusive": row.owner.is_some(),
        "arguments": raw_table_json(&config.arguments),
        "node": &*api.node,
        "state": "running",
    });
    match shown {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// How many messages are in it. Those that wait for their time, or for one of their group, count among all of them only.
fn totals(row: &QueueRow) -> Map<String, Value> {
    let stats = &row.stats;
    let all = stats.ready + stats.leased + stats.delayed + stats.grouped;
    Map::from_iter([
        ("messages".to_owned(), all.into()),
        ("messages_ready".to_owned(), stats.ready.into()),
        ("messages_unacknowledged".to_owned(), stats.leased.into()),
    ])
}

fn whole_json(api: &Api, row: &QueueRow, tags: &ConsumerTags) -> Value {
    let stats = &row.stats;
    let rate = |per_second: f64| json!({ "rate": per_second });
    let mut shown = plain(api, row);
    shown.extend(totals(row));
    shown.extend(applied_json(&api.broker.policies_of_queue(&stats.name, row.kind)));
    let more = json!({
        "consumers": stats.consumers,
        "consumer_capacity": if stats.consumers > 0 { 1.0 } else { 0.0 },
        "consumer_utilisation": if stats.consumers > 0 { 1.0 } else { 0.0 },
        "exclusive_consumer_tag": tags.exclusive(api, row),
        "single_active_consumer_tag": tags.active(api, row),
        "memory": row.memory_bytes,
        "message_bytes": stats.bytes,
        "messages_details": rate(stats.push_rate - stats.ack_rate),
        "messages_ready_details": rate(stats.push_rate - stats.deliver_rate),
        "messages_unacknowledged_details": rate(stats.deliver_rate - stats.ack_rate),
        "messages_delayed": stats.delayed,
        "message_stats": {
            "publish": stats.pushed,
            "publish_details": rate(stats.push_rate),
            "deliver_get": stats.delivered,
            "deliver_get_details": rate(stats.deliver_rate),
            "deliver": stats.delivered,
            "deliver_details": rate(stats.deliver_rate),
            "ack": stats.acked,
            "ack_details": rate(stats.ack_rate),
            "redeliver": stats.redelivered,
            "redeliver_details": rate(stats.redeliver_rate),
        },
    });
    if let Value::Object(more) = more {
        shown.extend(more);
    }
    if let Some(owner) = owner_json(api, row) {
        shown.insert("owner_pid_details".to_owned(), owner);
    }
    Value::Object(shown)
}
