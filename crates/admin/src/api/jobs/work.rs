//! Work: asking for it, taking it, completing it, and answers.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use nexo_access::{Permission, Resource};
use nexo_broker::job_rules::{AskedState, Reply, Settled};
use nexo_broker::{JobRequest, WaiterAnswer, WaiterRequest};
use nexo_types::{JobQueueName, QueueName, limits};
use serde_json::{Map, Value, json};

use super::super::Api;
use super::super::access::Caller;
use super::super::body::{Fields, JsonBody};
use super::super::error::ApiError;
use super::super::question::{Question, Word, Words};
use super::budgets::{REPORTED, report_of};
use super::shown::{handed_json, job_json, waiters_json};
use super::{
    count, job_of, millis, moment, queue_named, queue_of_job, receipt_of, refuse_unknown, text, truth,
};

/// The longest that a request may wait: some proxies end one that is silent for a minute.
const WAIT_MAX_MS: u64 = 50_000;
/// Waiters that are shown of one job.
const WAITERS_SHOWN_MAX: usize = 100;

const ASKED: &[&str] =
    &["type", "key", "payload", "cost", "deadline_ms", "deadline_in_ms", "waiter", "wait_ms"];
const WAITER: &[&str] = &["id", "user", "class", "due_ms", "due_in_ms", "filter", "reply_to"];

pub(super) async fn ask(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let queue = queue_named(&api, &caller, &vhost, &name, Some(Permission::Write))?;
    let object = &body.object;
    refuse_unknown(object, ASKED)?;
    let waiter = match object.get("waiter") {
        None | Some(Value::Null) => None,
        Some(_) => Some(waiter_of(&api, &caller, &queue, &object.table("waiter")?)?),
    };
    let wait = wait_of(count(object, "wait_ms")?);
    if waiter.is_none() && !wait.is_zero() {
        return Err(ApiError::bad_request("wait_ms needs a waiter: without one nobody gets an answer"));
    }
    let waits_as = waiter.as_ref().map(|waiter| waiter.id.clone()).filter(|_| !wait.is_zero());
    let request = JobRequest {
        kind: object.text_or_nothing("type")?.unwrap_or("job").to_owned(),
        key: text(object, "key")?.to_owned(),
        payload: object.get("payload").map(|payload| Bytes::from(payload.to_string())).unwrap_or_default(),
        cost: count(object, "cost")?,
        deadline: moment(&api, object, "deadline_ms", "deadline_in_ms")?,
        waiter,
    };
    let asked = api.broker.ask_job(&queue, &request).await?;
    let shown = json!({
        "job": asked.job.0.to_string(),
        "state": match asked.state {
            AskedState::Created => "created",
            AskedState::Joined => "joined",
            AskedState::JoinedRunning => "joined_running",
            AskedState::Cached => "cached",
            AskedState::Known => "known",
        },
    });
    match waits_as {
        None => Ok(Json(shown).into_response()),
        Some(waiter) => {
            let answer = until_answered(&api, &caller, &queue, &waiter, wait).await?;
            Ok(with_answer(&shown, answer.as_ref()))
        }
    }
}

/// An object with a waiter's answer, which is JSON already and may be large.
fn with_answer(object: &Value, answer: Option<&WaiterAnswer>) -> Response {
    let mut text = object.to_string();
    text.pop();
    if text.len() > 1 {
        text.push(',');
    }
    text.push_str("\"answer\":");
    text.push_str(&answer.map_or_else(|| "null".to_owned(), WaiterAnswer::to_json));
    text.push('}');
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

fn waiter_of(
    api: &Api,
    caller: &Caller,
    queue: &JobQueueName,
    object: &Map<String, Value>,
) -> Result<WaiterRequest, ApiError> {
    refuse_unknown(object, WAITER)?;
    let reply = match object.text_or_nothing("reply_to")? {
        None => Reply::Call,
        Some(name) => {
            let name = QueueName::at(&queue.vhost(), name)?;
            caller.may_queue(Permission::Write, &name)?;
            Reply::Queue(name)
        }
    };
    let word = |name: &str| object.text_or_nothing(name).map(|word| word.unwrap_or_default().to_owned());
    Ok(WaiterRequest {
        id: text(object, "id")?.to_owned(),
        user: word("user")?,
        class: word("class")?,
        due: moment(api, object, "due_ms", "due_in_ms")?,
        filter: word("filter")?,
        reply,
    })
}

pub(super) async fn take(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let queue = queue_named(&api, &caller, &vhost, &name, Some(Permission::Read))?;
    let object = &body.object;
    refuse_unknown(object, &["worker", "max", "wait_ms", "lease_ms"])?;
    let worker = object.text_or_nothing("worker")?.unwrap_or(caller.name()).to_owned();
    let max = count(object, "max")?.unwrap_or(1);
    if !(1..=limits::JOB_TAKE_MAX as u64).contains(&max) {
        return Err(ApiError::bad_request(format!(
            "max is a number from 1 to {}; it is {max}",
            limits::JOB_TAKE_MAX
        )));
    }
    let max = max as usize;
    let wait = wait_of(count(object, "wait_ms")?);
    let lease = millis(object, "lease_ms")?;
    let taken = api.broker.take_jobs(&queue, &worker, lease, max, wait);
    let jobs = tokio::select! {
        taken = taken => taken?,
        () = refused(&caller, &queue, Permission::Read) => return Err(ApiError::access_refused()),
    };
    Ok(Json(json!({ "jobs": jobs.iter().map(handed_json).collect::<Vec<_>>() })))
}

pub(super) async fn complete(
    State(api): State<Api>,
    caller: Caller,
    Path(receipt): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let receipt = receipt_of(&receipt)?;
    queue_of_job(&api, &caller, receipt.job, Some(Permission::Read))?;
    let object = &body.object;
    refuse_unknown(object, &[&["result", "used"], REPORTED].concat())?;
    let result = object.get("result").cloned().unwrap_or(Value::Null);
    let (used, report) = (count(object, "used")?, report_of(object)?);
    api.broker.complete_job(receipt, Bytes::from(result.to_string()), used, report).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn fail(
    State(api): State<Api>,
    caller: Caller,
    Path(receipt): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let receipt = receipt_of(&receipt)?;
    queue_of_job(&api, &caller, receipt.job, Some(Permission::Read))?;
    let object = &body.object;
    refuse_unknown(object, &[&["error", "retry", "used"], REPORTED].concat())?;
    let error = object.text_or_nothing("error")?.unwrap_or("the worker gave no reason");
    let (used, report) = (count(object, "used")?, report_of(object)?);
    let settled = api.broker.fail_job(receipt, error, used, report, truth(object, "retry", true)?).await?;
    Ok(Json(match settled {
        Settled::Retried(at) => json!({ "retried": true, "ready_ms": at.0 }),
        Settled::Finished | Settled::Held(_) | Settled::Returned => json!({ "retried": false }),
    }))
}

pub(super) async fn extend(
    State(api): State<Api>,
    caller: Caller,
    Path(receipt): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let receipt = receipt_of(&receipt)?;
    queue_of_job(&api, &caller, receipt.job, Some(Permission::Read))?;
    refuse_unknown(&body.object, &["lease_ms", "progress"])?;
    let progress = body.object.get("progress").map(|progress| Bytes::from(progress.to_string()));
    let until = api.broker.extend_job(receipt, millis(&body.object, "lease_ms")?, progress).await?;
    Ok(Json(json!({ "lease_until_ms": until.0 })))
}

pub(super) async fn give_back(
    State(api): State<Api>,
    caller: Caller,
    Path(receipt): Path<String>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let receipt = receipt_of(&receipt)?;
    queue_of_job(&api, &caller, receipt.job, Some(Permission::Read))?;
    refuse_unknown(&body.object, &[])?;
    api.broker.give_back_job(receipt).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn show(
    State(api): State<Api>,
    caller: Caller,
    Path(job): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let job = job_of(&job)?;
    queue_of_job(&api, &caller, job, None)?;
    let shown = api.broker.look_at_jobs(|jobs, _| {
        jobs.job(job).map(|(queue, found)| {
            let mut shown = job_json(job, found);
            shown["queue"] = json!(queue.name().as_str());
            shown["vhost"] = json!(queue.name().vhost_str());
            shown["waiting"] = json!(waiters_json(found, WAITERS_SHOWN_MAX));
            shown
        })
    });
    shown.map(Json).ok_or_else(ApiError::not_found)
}

pub(super) async fn cancel(
    State(api): State<Api>,
    caller: Caller,
    Path(job): Path<String>,
) -> Result<StatusCode, ApiError> {
    let job = job_of(&job)?;
    queue_of_job(&api, &caller, job, Some(Permission::Write))?;
    api.broker.cancel_job(job).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn leave(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name, waiter)): Path<(String, String, String)>,
) -> Result<StatusCode, ApiError> {
    let queue = queue_named(&api, &caller, &vhost, &name, Some(Permission::Write))?;
    api.broker.leave_job(&queue, &waiter).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How an answer is asked for.
#[derive(Debug)]
pub(super) struct AnswerWords;

impl Words for AnswerWords {
    const WORDS: &'static [Word] = &[("wait_ms", "for how long to wait for it, in milliseconds")];
}

pub(super) async fn answer(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name, waiter)): Path<(String, String, String)>,
    query: Question<AnswerWords>,
) -> Result<Response, ApiError> {
    let queue = queue_named(&api, &caller, &vhost, &name, Some(Permission::Write))?;
    query.refuse_unknown()?;
    let wait = wait_of(query.whole("wait_ms")?);
    let answer = until_answered(&api, &caller, &queue, &waiter, wait).await?;
    Ok(with_answer(&json!({}), answer.as_ref()))
}

pub(super) async fn result(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name, key)): Path<(String, String, String)>,
) -> Result<Json<Value>, ApiError> {
    let queue = queue_named(&api, &caller, &vhost, &name, Some(Permission::Write))?;
    let cached = api.broker.cached_result(&queue, &key)?;
    let (result, at, until) =
        cached.ok_or_else(|| ApiError::not_found().with_reason(format!("no result of '{key}' is cached")))?;
    let parsed = api.look(move |_| serde_json::from_slice::<Value>(&result).unwrap_or(Value::Null)).await?;
    Ok(Json(json!({ "result": parsed, "done_ms": at.0, "fresh_until_ms": until.0 })))
}

async fn until_answered(
    api: &Api,
    caller: &Caller,
    queue: &JobQueueName,
    waiter: &str,
    wait: Duration,
) -> Result<Option<WaiterAnswer>, ApiError> {
    tokio::select! {
        answer = api.broker.job_answer(queue, waiter, wait) => Ok(answer?),
        () = refused(caller, queue, Permission::Write) => Err(ApiError::access_refused()),
    }
}

/// Resolves when somebody who waits may no longer.
async fn refused(caller: &Caller, queue: &JobQueueName, permission: Permission) {
    let check = |identity: &nexo_access::Identity| {
        identity.may(queue.vhost_str(), permission, Resource::queue(queue.as_str()))
    };
    caller.identity().until_refused(check).await;
}

fn wait_of(wait_ms: Option<u64>) -> Duration {
    Duration::from_millis(wait_ms.unwrap_or(0).min(WAIT_MAX_MS))
}
