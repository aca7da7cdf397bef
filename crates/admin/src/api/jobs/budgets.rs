//! Budgets: list, look at, make, change, delete; what an API has said, tokens that come once, and who used how many.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_access::Permission;
use nexo_broker::JobCallError;
use nexo_broker::job_rules::{BudgetConfig, JobError, Jobs, TokenReport};
use nexo_types::Timestamp;
use serde_json::{Map, Value, json};

use super::super::Api;
use super::super::access::Caller;
use super::super::body::JsonBody;
use super::super::error::ApiError;
use super::super::listing::ListQuery;
use super::super::question::{Question, Word, Words};
use super::shown::{budget_config_of, budget_json, use_json};
use super::{Sees, budget_named, count, list_seen, may, millis, moment, refuse_unknown, whole};

/// Uses of tokens in one answer, if nobody says how many, and at most.
const USES_DEFAULT: usize = 100;
const USES_MAX: usize = 10_000;

pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    list_seen(&api, caller, None, query, seen).await
}

pub(super) async fn list_of_vhost(
    State(api): State<Api>,
    caller: Caller,
    Path(vhost): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    list_seen(&api, caller, Some(&vhost), query, seen).await
}

fn seen(jobs: &Jobs, now: Timestamp, sees: Sees<'_>) -> Vec<Value> {
    let seen = jobs.budgets().filter(|budget| sees(budget.name().vhost_str(), budget.name().as_str()));
    seen.map(|budget| budget_json(budget, now)).collect()
}

pub(super) async fn show(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let name = budget_named(&api, &caller, &vhost, &name, None)?;
    let unknown = || JobCallError::Refused(JobError::NoSuchBudget { name: name.clone() });
    let (budget, now) = api.broker.budget(&name).ok_or_else(unknown)?;
    Ok(Json(budget_json(&budget, now)))
}

pub(super) async fn put(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let name = budget_named(&api, &caller, &vhost, &name, Some(Permission::Configure))?;
    let change =
        |before: Option<&BudgetConfig>| budget_config_of(before.copied().unwrap_or_default(), &body.object);
    let is_new = api.broker.change_budget(&name, change).await??;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

pub(super) async fn delete(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let name = budget_named(&api, &caller, &vhost, &name, Some(Permission::Configure))?;
    api.broker.delete_budget(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn report(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let name = budget_named(&api, &caller, &vhost, &name, Some(Permission::Write))?;
    refuse_unknown(&body.object, REPORTED)?;
    api.broker.report_tokens(&name, report_of(&body.object)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn grant(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let name = budget_named(&api, &caller, &vhost, &name, Some(Permission::Configure))?;
    refuse_unknown(&body.object, &["tokens", "at_ms", "in_ms"])?;
    let tokens = count(&body.object, "tokens")?.ok_or_else(|| ApiError::bad_request("tokens is missing"))?;
    let when = moment(&api, &body.object, "at_ms", "in_ms")?;
    api.broker.grant_tokens(&name, tokens, when).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How uses of tokens are asked for.
#[derive(Debug)]
pub(super) struct UseWords;

impl Words for UseWords {
    const WORDS: &'static [Word] = &[
        ("since_ms", "from when on, in milliseconds since 1970"),
        ("until_ms", "until when, in milliseconds since 1970"),
        ("budget", "only those of the budget of this name"),
        ("key", "only those of jobs with this key"),
        ("max", "how many"),
    ];
}

/// The latest uses of tokens that whoever asks may see, the latest first.
pub(super) async fn tokens(
    State(api): State<Api>,
    caller: Caller,
    query: Question<UseWords>,
) -> Result<Json<Value>, ApiError> {
    query.refuse_unknown()?;
    let since = Timestamp(query.whole("since_ms")?.unwrap_or(0));
    let until = Timestamp(query.whole("until_ms")?.unwrap_or(u64::MAX));
    let max = query.whole("max")?.unwrap_or(USES_DEFAULT).clamp(1, USES_MAX);
    let (budget, key) = (query.get("budget").map(str::to_owned), query.get("key").map(str::to_owned));
    let uses = api
        .look(move |api| {
            api.broker.look_at_jobs(|jobs, _| {
                let named = jobs.token_log(since, until).map(|used| {
                    (used, jobs.budget_by_id(used.budget).map(nexo_broker::job_rules::Budget::name))
                });
                let seen = named.filter(|(used, name)| {
                    let is_own = name.map_or(caller.is_monitor(), |name| {
                        may(&caller, name.vhost_str(), name.as_str(), None).is_ok()
                    });
                    is_own
                        && budget
                            .as_deref()
                            .is_none_or(|budget| name.is_some_and(|name| name.as_str() == budget))
                        && key.as_deref().is_none_or(|key| key == &*used.key)
                });
                seen.take(max).map(|(used, name)| use_json(used, name)).collect::<Vec<Value>>()
            })
        })
        .await?;
    Ok(Json(json!({ "uses": uses })))
}

/// What an API says of its count, among the fields of a request.
pub(super) const REPORTED: &[&str] = &["tokens_left", "refill_in_ms", "refill_tokens"];

pub(super) fn report_of(object: &Map<String, Value>) -> Result<TokenReport, ApiError> {
    Ok(TokenReport {
        tokens_left: whole(object, "tokens_left")?,
        refill_in: millis(object, "refill_in_ms")?,
        refill_tokens: count(object, "refill_tokens")?,
    })
}
