//! What users may do in virtual hosts, and with which topics: list, look at, set, clear.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_access::{PermissionTexts, User};
use nexo_broker::access::{AccessRecord, Permissions, TopicPermissions};
use serde_json::{Map, Value, json};

use super::Api;
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::messages::all_given;
use super::names::Vhost;
use super::users::found;

pub(super) async fn list(State(api): State<Api>) -> Result<Response, ApiError> {
    api.look_for(|api| api.broker.access().users().flat_map(|user| permissions_json(user)).collect()).await
}

pub(super) async fn of_user(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(permissions_json(&*found(&api, &name)?).into()))
}

pub(super) async fn of_vhost(
    State(api): State<Api>,
    Path(vhost): Path<String>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    api.look_for(move |api| {
        let access = api.broker.access();
        access.users().filter_map(|user| permission_json(user, vhost.as_str())).collect()
    })
    .await
}

pub(super) async fn show(
    State(api): State<Api>,
    Path((vhost, user)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let (vhost, user) = (Vhost::named(&api, &vhost)?, found(&api, &user)?);
    permission_json(&user, vhost.as_str()).map(Json).ok_or_else(ApiError::not_found)
}

pub(super) async fn put(
    State(api): State<Api>,
    Path((vhost, user)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let (vhost, user) = both(&api, &vhost, &user)?;
    let is_new = !user.permissions.contains_key(vhost.as_str());
    let permissions = texts(&body.object)?;
    let (user, vhost) = (user.name.clone(), vhost.as_str().into());
    api.logins.change(&[AccessRecord::SetPermissions { user, vhost, permissions }]).await?;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

/// The three patterns of an object of JSON.
pub(super) fn texts(object: &Map<String, Value>) -> Result<PermissionTexts, ApiError> {
    all_given(object, &["configure", "write", "read"])?;
    let text = |name| object.text(name).map(str::to_owned);
    Ok(PermissionTexts { configure: text("configure")?, write: text("write")?, read: text("read")? })
}

pub(super) async fn delete(
    State(api): State<Api>,
    Path((vhost, user)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (vhost, user) = (Vhost::named(&api, &vhost)?, found(&api, &user)?);
    if !user.permissions.contains_key(vhost.as_str()) {
        return Err(ApiError::not_found());
    }
    let (user, vhost) = (user.name.clone(), vhost.as_str().into());
    api.logins.change(&[AccessRecord::ClearPermissions { user, vhost }]).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list_topics(State(api): State<Api>) -> Result<Response, ApiError> {
    api.look_for(|api| api.broker.access().users().flat_map(|user| topics_json(user)).collect()).await
}

pub(super) async fn topics_of_user(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(topics_json(&*found(&api, &name)?).into()))
}

pub(super) async fn topics_of_vhost(
    State(api): State<Api>,
    Path(vhost): Path<String>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    api.look_for(move |api| {
        let access = api.broker.access();
        access.users().flat_map(|user| topics_in(user, vhost.as_str())).collect()
    })
    .await
}

/// All that is said of topics of a user in a virtual host. Nothing at all is not found, as in RabbitMQ.
pub(super) async fn show_topics(
    State(api): State<Api>,
    Path((vhost, user)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let (vhost, user) = (Vhost::named(&api, &vhost)?, found(&api, &user)?);
    let topics = topics_in(&user, vhost.as_str());
    if topics.is_empty() { Err(ApiError::not_found()) } else { Ok(Json(topics.into())) }
}

pub(super) async fn put_topics(
    State(api): State<Api>,
    Path((vhost, user)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let (vhost, user) = both(&api, &vhost, &user)?;
    let is_new = topics_in(&user, vhost.as_str()).is_empty();
    let (exchange, write, read) = topic_texts(&body.object)?;
    let (user, vhost) = (user.name.clone(), vhost.as_str().into());
    api.logins.change(&[AccessRecord::SetTopics { user, vhost, exchange, write, read }]).await?;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

/// The exchange and the two patterns of an object of JSON.
pub(super) fn topic_texts(object: &Map<String, Value>) -> Result<(Arc<str>, String, String), ApiError> {
    all_given(object, &["exchange", "write", "read"])?;
    let text = |name| object.text(name).map(str::to_owned);
    Ok((object.text("exchange")?.into(), text("write")?, text("read")?))
}

pub(super) async fn delete_topics(
    State(api): State<Api>,
    Path((vhost, user)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (vhost, user) = (Vhost::named(&api, &vhost)?, found(&api, &user)?);
    if topics_in(&user, vhost.as_str()).is_empty() {
        return Err(ApiError::not_found());
    }
    let (user, vhost) = (user.name.clone(), vhost.as_str().into());
    api.logins.change(&[AccessRecord::ClearTopics { user, vhost, exchange: None }]).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The virtual host and the user that something is to be said of.
fn both(api: &Api, vhost: &str, user: &str) -> Result<(Vhost, Arc<User>), ApiError> {
    // RabbitMQ answers 400 here, although the same address is 404 to whoever looks.
    let missing = |_| ApiError::bad_request("vhost_or_user_not_found");
    Ok((Vhost::named(api, vhost).map_err(missing)?, found(api, user).map_err(missing)?))
}

pub(super) fn permissions_json(user: &User) -> Vec<Value> {
    user.permissions.iter().map(|(vhost, may)| shown(user, vhost, may)).collect()
}

fn permission_json(user: &User, vhost: &str) -> Option<Value> {
    user.permissions.get(vhost).map(|may| shown(user, vhost, may))
}

fn shown(user: &User, vhost: &str, may: &Permissions) -> Value {
    json!({
        "user": user.name.as_str(),
        "vhost": vhost,
        "configure": may.configure.as_str(),
        "write": may.write.as_str(),
        "read": may.read.as_str(),
    })
}

pub(super) fn topics_json(user: &User) -> Vec<Value> {
    user.topics.iter().map(|((vhost, exchange), may)| shown_topics(user, vhost, exchange, may)).collect()
}

fn topics_in(user: &User, vhost: &str) -> Vec<Value> {
    let own = user.topics.iter().filter(|((at, _), _)| **at == *vhost);
    own.map(|((vhost, exchange), may)| shown_topics(user, vhost, exchange, may)).collect()
}

fn shown_topics(user: &User, vhost: &str, exchange: &str, may: &TopicPermissions) -> Value {
    json!({
        "user": user.name.as_str(),
        "vhost": vhost,
        "exchange": exchange,
        "write": may.write.as_str(),
        "read": may.read.as_str(),
    })
}
