//! Job queues: list, look at, make, change, delete, and what is pending in them.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use nexo_access::Permission;
use nexo_broker::JobCallError;
use nexo_broker::job_rules::{JobError, JobQueueConfig, Jobs};
use nexo_types::Timestamp;
use serde_json::{Value, json};

use super::super::Api;
use super::super::access::Caller;
use super::super::body::JsonBody;
use super::super::error::ApiError;
use super::super::listing::ListQuery;
use super::super::question::{Question, Word, Words};
use super::shown::{QueueInFull, config_of, job_json, queue_json};
use super::{Sees, list_seen, may, no_such_queue, queue_named};

/// Jobs in one answer, if nobody says how many, and at most.
const PENDING_DEFAULT: usize = 100;
const PENDING_MAX: usize = 1_000;

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
    let seen = jobs.queues().filter(|queue| sees(queue.name().vhost_str(), queue.name().as_str()));
    seen.map(|queue| queue_json(queue, now)).collect()
}

pub(super) async fn show(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let name = queue_named(&api, &caller, &vhost, &name, None)?;
    let seen =
        api.broker.look_at_jobs(|jobs, now| jobs.queue(&name).map(|queue| QueueInFull::of(queue, now)));
    seen.map(|seen| Json(seen.into_json())).ok_or_else(|| no_such_queue(&name))
}

pub(super) async fn put(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let name = queue_named(&api, &caller, &vhost, &name, Some(Permission::Configure))?;
    let change = |before: Option<&JobQueueConfig>| {
        config_of(&name.vhost(), before.cloned().unwrap_or_default(), &body.object)
    };
    if let Some(budget) = &change(None)?.budget {
        // Whoever has jobs paid spends what is in it.
        may(&caller, budget.vhost_str(), budget.as_str(), Some(Permission::Write))?;
    }
    let is_new = api.broker.change_job_queue(&name, change).await.map_err(|error| match error {
        // What is not there is a setting and not what the address names.
        JobCallError::Refused(JobError::NoSuchBudget { .. }) => ApiError::bad_request(error.to_string()),
        other => other.into(),
    })??;
    Ok(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

pub(super) async fn delete(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let name = queue_named(&api, &caller, &vhost, &name, Some(Permission::Configure))?;
    api.broker.delete_job_queue(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How pending jobs are asked for.
#[derive(Debug)]
pub(super) struct PendingWords;

impl Words for PendingWords {
    const WORDS: &'static [Word] = &[("max", "how many jobs")];
}

/// The pending jobs that would be served first, in their order.
pub(super) async fn pending(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    query: Question<PendingWords>,
) -> Result<Json<Value>, ApiError> {
    let name = queue_named(&api, &caller, &vhost, &name, Some(Permission::Read))?;
    query.refuse_unknown()?;
    let max = query.whole("max")?.unwrap_or(PENDING_DEFAULT).clamp(1, PENDING_MAX);
    let unknown = no_such_queue(&name);
    let shown = api
        .look(move |api| {
            api.broker.look_at_jobs(|jobs, _| {
                let queue = jobs.queue(&name)?;
                Some(
                    queue
                        .in_order()
                        .take(max)
                        .map(|pending| job_json(pending.id, pending.job))
                        .collect::<Vec<_>>(),
                )
            })
        })
        .await?;
    shown.map(|jobs| Json(json!({ "jobs": jobs }))).ok_or(unknown)
}
