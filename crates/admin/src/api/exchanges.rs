//! Exchanges: list, look at, declare, delete.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_amqp::management::{By, ExchangeAsked, declare_exchange, delete_exchange, raw_table_json};
use nexo_broker::policy::PolicyPair;
use nexo_broker::topology::{DeleteIf, Destination, ExchangeSpec};
use nexo_broker::{BindingsOf, Durability};
use nexo_types::ExchangeName;
use serde_json::{Value, json};

use super::Api;
use super::access::Caller;
use super::bindings::{LISTED_MAX, binding_json};
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::listing::ListQuery;
use super::names::{Vhost, of_exchange};
use super::policies::applied_json;
use super::question::{Question, Word, Words};

pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, query, caller.vhosts(&api)).await
}

pub(super) async fn list_of_vhost(
    State(api): State<Api>,
    Path(vhost): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    answer(&api, query, vec![vhost]).await
}

async fn answer(api: &Api, query: ListQuery, vhosts: Vec<Vhost>) -> Result<Response, ApiError> {
    api.look(move |api| {
        let all = api.broker.exchanges();
        let mut shown = Vec::with_capacity(all.len() + vhosts.len());
        for vhost in &vhosts {
            shown.push(default_json(vhost));
            let own = all.iter().filter(|(name, _)| of_exchange(name) == vhost.as_str());
            shown.extend(own.map(|(name, spec)| with_policy(api, name, exchange_json(name, spec))));
        }
        query.answer(shown)
    })
    .await?
}

pub(super) async fn show(
    State(api): State<Api>,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    let name = vhost.exchange(&name)?;
    if name.is_default() {
        return Ok(Json(with_traffic(default_json(&vhost))));
    }
    let spec = api.broker.exchange(&name).ok_or_else(ApiError::not_found)?;
    Ok(Json(with_traffic(with_policy(&api, &name, exchange_json(&name, &spec)))))
}

/// As RabbitMQ shows it: the name of a policy only where one applies.
fn with_policy(api: &Api, name: &ExchangeName, mut shown: Value) -> Value {
    let pair = api.broker.policies_of_exchange(name);
    if let Some(object) = shown.as_object_mut()
        && pair != PolicyPair::default()
    {
        object.extend(applied_json(&pair).into_iter().filter(|(_, value)| !value.is_null()));
    }
    shown
}

/// RabbitMQ counts by exchange and queue; nobody does so here.
fn with_traffic(mut shown: Value) -> Value {
    shown["incoming"] = json!([]);
    shown["outgoing"] = json!([]);
    shown
}

pub(super) async fn declare(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let vhost = Vhost::to_change(&api, &vhost)?;
    let is_new = declare_from(caller.by(&api), &vhost.exchange(&name)?, &body.object).await?;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

/// Declares an exchange as an object of JSON describes it.
pub(super) async fn declare_from(
    by: By<'_>,
    name: &ExchangeName,
    object: &serde_json::Map<String, Value>,
) -> Result<bool, ApiError> {
    let arguments = object.table("arguments")?;
    let asked = ExchangeAsked {
        kind: object.text_or_nothing("type")?.unwrap_or("direct"),
        durability: object.durability()?,
        auto_delete: object.truth("auto_delete", false)?,
        internal: object.truth("internal", false)?,
        arguments: &arguments,
    };
    Ok(declare_exchange(by, name, asked).await?)
}

/// On which conditions something is deleted.
#[derive(Debug)]
pub(super) struct DeleteWords;

impl Words for DeleteWords {
    const WORDS: &'static [Word] = &[("if-unused", "true: only if nothing is bound")];
}

pub(super) async fn delete(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    query: Question<DeleteWords>,
) -> Result<StatusCode, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    let name = vhost.exchange(&name)?;
    if !name.is_default() && api.broker.exchange(&name).is_none() {
        return Err(ApiError::not_found());
    }
    let only_if = if query.is_true("if-unused") { DeleteIf::Unused } else { DeleteIf::Always };
    delete_exchange(caller.by(&api), &name, only_if).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn bindings_from(
    State(api): State<Api>,
    Path((vhost, name)): Path<(String, String)>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    let name = found(&api, &vhost, &name)?;
    api.look(move |api| {
        if name.is_default() {
            return query.answer(super::bindings::of_default(api, &[vhost]));
        }
        let bindings = api.broker.bindings(BindingsOf::Source(&name), LISTED_MAX);
        query.answer(bindings.iter().map(binding_json).collect())
    })
    .await?
}

pub(super) async fn bindings_to(
    State(api): State<Api>,
    Path((vhost, name)): Path<(String, String)>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    let destination = Destination::Exchange(found(&api, &vhost, &name)?);
    api.look(move |api| {
        let bindings = api.broker.bindings(BindingsOf::Destination(&destination), LISTED_MAX);
        query.answer(bindings.iter().map(binding_json).collect())
    })
    .await?
}

/// The name of an exchange that is there.
pub(super) fn found(api: &Api, vhost: &Vhost, name: &str) -> Result<ExchangeName, ApiError> {
    let name = vhost.exchange(name)?;
    let is_there = name.is_default() || api.broker.exchange(&name).is_some();
    if is_there { Ok(name) } else { Err(ApiError::not_found()) }
}

fn default_json(vhost: &Vhost) -> Value {
    json!({
        "name": "",
        "vhost": vhost.as_str(),
        "type": "direct",
        "durable": true,
        "auto_delete": false,
        "internal": false,
        "arguments": {},
        "user_who_performed_action": "rmq-internal",
    })
}

pub(super) fn exchange_json(name: &ExchangeName, spec: &ExchangeSpec) -> Value {
    json!({
        "name": name.as_str(),
        "vhost": of_exchange(name),
        "type": spec.kind.name(),
        "durable": spec.durability == Durability::Durable,
        "auto_delete": spec.auto_delete,
        "internal": spec.internal,
        "arguments": raw_table_json(&spec.arguments),
        "user_who_performed_action": if name.is_reserved() { "rmq-internal" } else { "" },
    })
}
