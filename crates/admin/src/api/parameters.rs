//! Runtime parameters of virtual hosts and of the whole broker: list, look at, set, delete. They are kept for whoever asks for
//! them; nothing here acts on them. As in RabbitMQ, operator policies and limits of virtual hosts are among them.
//!
//! [`all_that`], [`change_of`] and [`globals`] are for definitions as well.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_broker::policy::{PolicyKind, PolicyRecord};
use nexo_types::VhostName;
use serde_json::{Map, Value, json};

use super::Api;
use super::access::Caller;
use super::body::JsonBody;
use super::error::ApiError;
use super::listing::ListQuery;
use super::overview::CLUSTER_NAME;
use super::policies::{self, vhost_named};
use super::vhosts;

/// Parameters that are kept as something else.
const POLICY: &str = "policy";
const OPERATOR_POLICY: &str = "operator_policy";
const VHOST_LIMITS: &str = "vhost-limits";
/// The name of the limits of a virtual host.
const LIMITS: &str = "limits";
/// What the broker is called, which is a parameter as well.
const CLUSTER_NAME_PARAMETER: &str = "cluster_name";

pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, query, caller, None, None).await
}

pub(super) async fn list_of_component(
    State(api): State<Api>,
    caller: Caller,
    Path(component): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, query, caller, Some(component), None).await
}

pub(super) async fn list_of_vhost(
    State(api): State<Api>,
    caller: Caller,
    Path((component, vhost)): Path<(String, String)>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let vhost = vhost_named(&api, &vhost)?;
    answer(&api, query, caller, Some(component), Some(vhost)).await
}

/// Those that somebody may look at, of a component and a virtual host if so asked.
async fn answer(
    api: &Api,
    query: ListQuery,
    caller: Caller,
    component: Option<String>,
    vhost: Option<VhostName>,
) -> Result<Response, ApiError> {
    api.look(move |api| {
        query.answer(all_that(api, |own, of, _| {
            component.as_ref().is_none_or(|component| component == of)
                && vhost.as_ref().is_none_or(|vhost| vhost.as_str() == own)
                && caller.makes_policies_in(own)
        }))
    })
    .await?
}

pub(super) async fn show(
    State(api): State<Api>,
    caller: Caller,
    Path((component, vhost, name)): Path<(String, String, String)>,
) -> Result<Json<Value>, ApiError> {
    api.look(move |api| {
        let is_it = |own: &str, of: &str, called: &str| own == vhost && of == component && called == name;
        let found = if caller.makes_policies_in(&vhost) { all_that(api, is_it).pop() } else { None };
        found.map(Json).ok_or_else(ApiError::not_found)
    })
    .await?
}

/// All parameters of virtual hosts that this is true of, by virtual host, component and name; as they are listed and exported.
pub(super) fn all_that(api: &Api, is_wanted: impl Fn(&str, &str, &str) -> bool) -> Vec<Value> {
    let policies = api.broker.policies();
    let kept = policies.parameters();
    let kept = kept.filter(|(vhost, component, name, _)| is_wanted(vhost.as_str(), component, name));
    let kept = kept.map(|(vhost, component, name, value)| {
        // What is kept was JSON when it came.
        let value: Value = serde_json::from_str(value).unwrap_or_default();
        parameter_json(vhost.as_str(), component, name, &value)
    });
    let bounds = policies.policies(PolicyKind::Operator);
    let bounds = bounds.filter(|(vhost, policy)| is_wanted(vhost.as_str(), OPERATOR_POLICY, &policy.name));
    let bounds = bounds.map(|(vhost, policy)| {
        let value = Value::Object(policies::terms_json(policy));
        parameter_json(vhost.as_str(), OPERATOR_POLICY, &policy.name, &value)
    });
    let vhosts = api.broker.vhosts();
    let limits = vhosts.iter().filter(|vhost| is_wanted(vhost.name.as_str(), VHOST_LIMITS, LIMITS));
    let limits = limits.filter_map(|vhost| {
        let value = vhosts::limits_of_vhost(vhost);
        (!value.is_empty()).then(|| parameter_json(vhost.name.as_str(), VHOST_LIMITS, LIMITS, &value.into()))
    });
    kept.chain(bounds).chain(limits).collect()
}

fn parameter_json(vhost: &str, component: &str, name: &str, value: &Value) -> Value {
    json!({ "vhost": vhost, "component": component, "name": name, "value": value })
}

pub(super) async fn put(
    State(api): State<Api>,
    caller: Caller,
    Path((component, vhost, name)): Path<(String, String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    may_change(&caller, &component)?;
    let is_new = set(&api, &vhost, &component, &name, value_of(&body.object)?).await?;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

/// What bounds others, only administrators set.
fn may_change(caller: &Caller, component: &str) -> Result<(), ApiError> {
    match component {
        OPERATOR_POLICY | VHOST_LIMITS => caller.check_administrator(),
        _ => Ok(()),
    }
}

pub(super) fn value_of(object: &Map<String, Value>) -> Result<&Value, ApiError> {
    object.get("value").ok_or_else(|| ApiError::bad_request("[{key_missing,value}]"))
}

/// Sets a parameter, or what is one. `true` if there was none of the name.
async fn set(api: &Api, vhost: &str, component: &str, name: &str, value: &Value) -> Result<bool, ApiError> {
    let at = vhost_named(api, vhost).map_err(|_| ApiError::no_vhost())?;
    let is_there = {
        let policies = api.broker.policies();
        match component {
            OPERATOR_POLICY => policies.policy(PolicyKind::Operator, &at, name).is_some(),
            _ => policies.parameter(&at, component, name).is_some(),
        }
    };
    match change_of(at.clone(), component, name, value)? {
        ParameterChange::Policies(change) => {
            api.broker.change_policies(&[change]).await?;
            Ok(!is_there)
        }
        ParameterChange::Limits(limits) => vhosts::set_limits(&api.broker, &at, &limits).await,
    }
}

/// What comes of setting a parameter.
#[derive(Clone, Debug)]
pub(super) enum ParameterChange {
    /// One of the policies and parameters.
    Policies(PolicyRecord),
    /// All limits of a virtual host.
    Limits(Map<String, Value>),
}

/// What setting a parameter comes to, if it can be set.
pub(super) fn change_of(
    vhost: VhostName,
    component: &str,
    name: &str,
    value: &Value,
) -> Result<ParameterChange, ApiError> {
    let object = || {
        let wrong = || ApiError::bad_request(format!("the value of {component} must be an object"));
        value.as_object().ok_or_else(wrong)
    };
    Ok(match component {
        POLICY => return Err(ApiError::bad_request("policies may not be set using this method")),
        OPERATOR_POLICY => {
            let policy = policies::policy_of(PolicyKind::Operator, name, object()?)?.into();
            ParameterChange::Policies(PolicyRecord::Put { kind: PolicyKind::Operator, vhost, policy })
        }
        VHOST_LIMITS => {
            vhosts::read_limits(object()?)?;
            ParameterChange::Limits(object()?.clone())
        }
        _ => {
            let (component, name, value) = (component.into(), name.into(), value.to_string().into());
            ParameterChange::Policies(PolicyRecord::PutParameter { vhost, component, name, value })
        }
    })
}

pub(super) async fn delete(
    State(api): State<Api>,
    caller: Caller,
    Path((component, vhost, name)): Path<(String, String, String)>,
) -> Result<StatusCode, ApiError> {
    may_change(&caller, &component)?;
    let vhost = vhost_named(&api, &vhost)?;
    let change = match &*component {
        OPERATOR_POLICY => PolicyRecord::Delete { kind: PolicyKind::Operator, vhost, name: (&*name).into() },
        VHOST_LIMITS => {
            vhosts::set_limits(&api.broker, &vhost, &Map::new()).await?;
            return Ok(StatusCode::NO_CONTENT);
        }
        _ => PolicyRecord::DeleteParameter { vhost, component: (&*component).into(), name: (&*name).into() },
    };
    api.broker.change_policies(&[change]).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list_global(
    State(api): State<Api>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    api.look(move |api| query.answer(globals(api))).await?
}

pub(super) async fn show_global(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let kept = api.broker.policies().globals().get(&*name).cloned();
    let value: Value = match kept {
        Some(value) => serde_json::from_str(&value).unwrap_or_default(),
        None if name == CLUSTER_NAME_PARAMETER => CLUSTER_NAME.into(),
        None => return Err(ApiError::not_found()),
    };
    Ok(Json(global_json(&name, &value)))
}

fn global_json(name: &str, value: &Value) -> Value {
    json!({ "name": name, "value": value })
}

/// All parameters of the whole broker, as they are listed and exported.
pub(super) fn globals(api: &Api) -> Vec<Value> {
    let policies = api.broker.policies();
    let mut shown: Vec<Value> = policies
        .globals()
        .iter()
        .map(|(name, value)| global_json(name, &serde_json::from_str(value).unwrap_or_default()))
        .collect();
    if !policies.globals().contains_key(CLUSTER_NAME_PARAMETER) {
        shown.push(global_json(CLUSTER_NAME_PARAMETER, &CLUSTER_NAME.into()));
    }
    shown
}

/// What the broker is called.
pub(super) fn cluster_name(api: &Api) -> String {
    let kept = api.broker.policies().globals().get(CLUSTER_NAME_PARAMETER).cloned();
    let kept = kept.and_then(|value| serde_json::from_str(&value).ok());
    kept.unwrap_or_else(|| CLUSTER_NAME.to_owned())
}

/// Calls the broker otherwise.
pub(super) async fn set_cluster_name(api: &Api, name: &str) -> Result<(), ApiError> {
    set_global(api, CLUSTER_NAME_PARAMETER, &name.into()).await.map(drop)
}

pub(super) async fn put_global(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let is_new = set_global(&api, &name, value_of(&body.object)?).await?;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

/// Sets a parameter of the whole broker. `true` if there was none of the name.
async fn set_global(api: &Api, name: &str, value: &Value) -> Result<bool, ApiError> {
    let is_new = name != CLUSTER_NAME_PARAMETER && !api.broker.policies().globals().contains_key(name);
    let change = PolicyRecord::PutGlobal { name: name.into(), value: value.to_string().into() };
    api.broker.change_policies(&[change]).await?;
    Ok(is_new)
}

pub(super) async fn delete_global(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    api.broker.change_policies(&[PolicyRecord::DeleteGlobal { name: name.into() }]).await?;
    Ok(StatusCode::NO_CONTENT)
}
