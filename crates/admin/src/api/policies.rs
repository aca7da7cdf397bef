//! Policies and operator policies: list, look at, set, delete. What they may say is `nexo_core::policy`'s matter, and so are the
//! words in which they are refused.
//!
//! [`all_in`] and [`policy_of`] are for definitions as well.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_broker::PolicyChangeError;
use nexo_broker::policy::{ApplyTo, Policy, PolicyError, PolicyKind, PolicyPair, PolicyRecord};
use nexo_types::VhostName;
use serde_json::{Map, Value, json};

use super::Api;
use super::access::{Caller, Needs};
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::listing::ListQuery;
use super::routes::Routes;

/// The addresses of one kind of policy. What bounds others, only administrators set.
pub(super) fn routes(routes: Routes, kind: PolicyKind) -> Routes {
    let (all, of_vhost, one, change) = match kind {
        PolicyKind::Regular => {
            ("/policies", "/policies/{vhost}", "/policies/{vhost}/{name}", Needs::Policymaker)
        }
        PolicyKind::Operator => (
            "/operator-policies",
            "/operator-policies/{vhost}",
            "/operator-policies/{vhost}/{name}",
            Needs::Administrator,
        ),
    };
    let list_all = move |State(api): State<Api>, caller: Caller, Query(query): Query<ListQuery>| {
        list(api, caller, kind, None, query)
    };
    let list_one =
        move |State(api): State<Api>,
              caller: Caller,
              Path(vhost): Path<String>,
              Query(query): Query<ListQuery>| list(api, caller, kind, Some(vhost), query);
    let show_one = move |State(api): State<Api>, Path((vhost, name)): Path<(String, String)>| async move {
        show(&api, kind, &vhost, &name)
    };
    let put_one = move |State(api): State<Api>,
                        Path((vhost, name)): Path<(String, String)>,
                        body: JsonBody| async move {
        let is_new = put(&api, kind, &vhost, &name, &body.object).await?;
        Ok::<_, ApiError>(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
    };
    let delete_one = move |State(api): State<Api>, Path((vhost, name)): Path<(String, String)>| async move {
        delete(&api, kind, &vhost, &name).await
    };
    routes
        .get(all, Needs::Management, list_all)
        .get(of_vhost, Needs::VisibleVhost, list_one)
        .get(one, Needs::Policymaker, show_one)
        .put(one, change, put_one)
        .delete(one, change, delete_one)
}

pub(super) async fn list(
    api: Api,
    caller: Caller,
    kind: PolicyKind,
    vhost: Option<String>,
    query: ListQuery,
) -> Result<Response, ApiError> {
    let vhost = vhost.map(|name| vhost_named(&api, &name)).transpose()?;
    api.look(move |api| {
        let is_wanted = |own: &VhostName| {
            caller.makes_policies_in(own.as_str()) && vhost.as_ref().is_none_or(|vhost| vhost == own)
        };
        query.answer(all_in(api, kind, is_wanted))
    })
    .await?
}

/// All policies of a kind in some virtual hosts, as they are listed and exported.
pub(super) fn all_in(api: &Api, kind: PolicyKind, is_wanted: impl Fn(&VhostName) -> bool) -> Vec<Value> {
    let policies = api.broker.policies();
    let wanted = policies.policies(kind).filter(|(vhost, _)| is_wanted(vhost));
    wanted.map(|(vhost, policy)| policy_json(vhost, policy)).collect()
}

fn show(api: &Api, kind: PolicyKind, vhost: &str, name: &str) -> Result<Json<Value>, ApiError> {
    let vhost = vhost_named(api, vhost)?;
    let policies = api.broker.policies();
    let policy = policies.policy(kind, &vhost, name).ok_or_else(ApiError::not_found)?;
    Ok(Json(policy_json(&vhost, policy)))
}

/// Sets a policy as an object of JSON describes it. `true` if there was none of the name.
async fn put(
    api: &Api,
    kind: PolicyKind,
    vhost: &str,
    name: &str,
    object: &Map<String, Value>,
) -> Result<bool, ApiError> {
    let vhost = vhost_named(api, vhost).map_err(|_| ApiError::no_vhost())?;
    let policy = policy_of(kind, name, object)?;
    let is_new = api.broker.policies().policy(kind, &vhost, name).is_none();
    let change = PolicyRecord::Put { kind, vhost, policy: policy.into() };
    api.broker.change_policies(&[change]).await?;
    Ok(is_new)
}

/// A policy as an object of JSON describes it.
pub(super) fn policy_of(
    kind: PolicyKind,
    name: &str,
    object: &Map<String, Value>,
) -> Result<Policy, ApiError> {
    let pattern = object.text("pattern")?;
    let definition = match object.get("definition") {
        Some(Value::Object(terms)) => terms.clone(),
        // The empty table of a client that knows no difference.
        Some(Value::Array(items)) if items.is_empty() => Map::new(),
        None | Some(Value::Null) => return Err(ApiError::bad_request("[{key_missing,definition}]")),
        Some(_) => return Err(ApiError::bad_request("definition must be an object")),
    };
    let priority = object.whole("priority")?.unwrap_or(0);
    let apply_to = object.text_or_nothing("apply-to")?.filter(|word| !word.is_empty());
    let apply_to = apply_to.map_or(Ok(ApplyTo::All), ApplyTo::parse).map_err(refused)?;
    Policy::new(kind, name, pattern, priority, apply_to, definition).map_err(refused)
}

async fn delete(api: &Api, kind: PolicyKind, vhost: &str, name: &str) -> Result<StatusCode, ApiError> {
    let vhost = vhost_named(api, vhost)?;
    let change = PolicyRecord::Delete { kind, vhost, name: name.into() };
    api.broker.change_policies(&[change]).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) fn vhost_named(api: &Api, name: &str) -> Result<VhostName, ApiError> {
    let name = VhostName::new(name).ok().filter(|name| api.broker.vhost(name).is_some());
    name.ok_or_else(ApiError::not_found)
}

fn policy_json(vhost: &VhostName, policy: &Policy) -> Value {
    let mut shown = Value::Object(terms_json(policy));
    shown["vhost"] = vhost.as_str().into();
    shown["name"] = (&*policy.name).into();
    shown
}

/// What a policy says, without its name.
pub(super) fn terms_json(policy: &Policy) -> Map<String, Value> {
    Map::from_iter([
        ("pattern".to_owned(), policy.pattern.as_str().into()),
        ("apply-to".to_owned(), policy.apply_to.as_str().into()),
        ("definition".to_owned(), Value::Object(policy.definition.terms().clone())),
        ("priority".to_owned(), policy.priority.into()),
    ])
}

/// The fields of a queue or an exchange that tell which policies apply to it.
pub(super) fn applied_json(pair: &PolicyPair) -> Map<String, Value> {
    let name = |policy: &Option<std::sync::Arc<Policy>>| {
        policy.as_ref().map_or(Value::Null, |policy| (&*policy.name).into())
    };
    let definition = pair.definition().map(|definition| definition.terms().clone()).unwrap_or_default();
    Map::from_iter([
        ("policy".to_owned(), name(&pair.regular)),
        ("operator_policy".to_owned(), name(&pair.operator)),
        ("effective_policy_definition".to_owned(), json!(definition)),
    ])
}

impl From<PolicyChangeError> for ApiError {
    fn from(error: PolicyChangeError) -> Self {
        match error {
            PolicyChangeError::Refused(error) => refused(error),
            PolicyChangeError::Queue(error) => Self::unavailable(error.to_string()),
        }
    }
}

pub(super) fn refused(error: PolicyError) -> ApiError {
    match error {
        PolicyError::Invalid { faults } => {
            ApiError::bad_request(format!("Validation failed\n\n{}\n", faults.join("\n")))
        }
        PolicyError::NoSuchPolicy { .. } | PolicyError::NoSuchParameter { .. } => ApiError::not_found(),
        PolicyError::NoSuchVhost { .. } => ApiError::no_vhost(),
        PolicyError::Name(_) | PolicyError::TooLarge { .. } | PolicyError::TooMany { .. } => {
            ApiError::bad_request(error.to_string())
        }
    }
}
