//! Users and what they may do, to be looked at. They are changed over the native API, by `nexo user` and `nexo permission`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use nexo_access::{User, shown_hash};
use serde_json::{Map, Value, json};

use super::Api;
use super::error::ApiError;

pub(super) async fn list(State(api): State<Api>) -> Json<Value> {
    Json(api.broker.access().users().map(|user| user_json(user)).collect())
}

pub(super) async fn show(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    Ok(Json(user_json(&*found(&api, &name)?)))
}

pub(super) async fn permissions(State(api): State<Api>) -> Json<Value> {
    Json(api.broker.access().users().flat_map(|user| permissions_json(user)).collect())
}

pub(super) async fn permissions_of(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(permissions_json(&*found(&api, &name)?).into()))
}

pub(super) async fn topic_permissions(State(api): State<Api>) -> Json<Value> {
    Json(api.broker.access().users().flat_map(|user| topics_json(user)).collect())
}

pub(super) async fn topic_permissions_of(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(topics_json(&*found(&api, &name)?).into()))
}

pub(super) async fn limits(State(api): State<Api>) -> Json<Value> {
    let access = api.broker.access();
    let limited =
        access.users().map(|user| (user, limits_json(user))).filter(|(_, limits)| !limits.is_empty());
    Json(limited.map(|(user, limits)| json!({ "user": user.name.as_str(), "value": limits })).collect())
}

fn found(api: &Api, name: &str) -> Result<Arc<User>, ApiError> {
    api.broker.access().user(name).cloned().ok_or_else(ApiError::not_found)
}

/// With the hash, as RabbitMQ shows it to administrators: definitions are made of it.
fn user_json(user: &User) -> Value {
    let tags: Vec<&str> = user.tags.iter().map(|tag| tag.as_str()).collect();
    let (algorithm, hash) = user.password.as_ref().map(shown_hash).unwrap_or_default();
    json!({
        "name": user.name.as_str(),
        "password_hash": hash,
        "hashing_algorithm": algorithm,
        "tags": tags,
        "limits": limits_json(user),
    })
}

fn limits_json(user: &User) -> Map<String, Value> {
    let all = [("max-connections", user.limits.max_connections), ("max-channels", user.limits.max_channels)];
    all.into_iter().filter_map(|(name, max)| Some((name.to_owned(), max?.into()))).collect()
}

fn permissions_json(user: &User) -> Vec<Value> {
    let of = |(vhost, may): (&Arc<str>, &nexo_broker::access::Permissions)| {
        json!({
            "user": user.name.as_str(),
            "vhost": &**vhost,
            "configure": may.configure.as_str(),
            "write": may.write.as_str(),
            "read": may.read.as_str(),
        })
    };
    user.permissions.iter().map(of).collect()
}

fn topics_json(user: &User) -> Vec<Value> {
    let of = |((vhost, exchange), may): (&(Arc<str>, Arc<str>), &nexo_broker::access::TopicPermissions)| {
        json!({
            "user": user.name.as_str(),
            "vhost": &**vhost,
            "exchange": &**exchange,
            "write": may.write.as_str(),
            "read": may.read.as_str(),
        })
    };
    user.topics.iter().map(of).collect()
}
