//! Schedules: list, look at, set, delete, run, pause, resume. What they may be is `nexo_core::schedule`'s matter, and who may set one
//! is said in `nexo_access`.
//!
//! [`definitions`] and [`change_of`] are for definitions.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use nexo_access::{Identity, Refused};
use nexo_broker::schedule::{
    Action, AskedJob, AskedSchedule, CatchUp, Schedule, ScheduleChange, ScheduleError, ScheduledJob,
    ScheduledMessage, TimeTable, as_text, from_text,
};
use nexo_broker::{ScheduleChangeError, ScheduleInfo, ScheduleRunError};
use nexo_types::{Millis, Priority, Timestamp, VhostName};
use serde_json::{Map, Value, json};

use super::Api;
use super::access::{Caller, Visible};
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::jobs::refuse_unknown;
use super::listing::ListQuery;
use super::names::Vhost;

/// What can be said of a job.
const JOB_FIELDS: &[&str] = &["queue", "type", "key", "payload", "cost", "background"];

pub(super) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    query.answer(all(&api, &caller.visible(), caller.identity()))
}

pub(super) async fn list_of_vhost(
    State(api): State<Api>,
    caller: Caller,
    Path(vhost): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Response, ApiError> {
    let vhost = Vhost::named(&api, &vhost)?;
    query.answer(all(&api, &Visible::only(vhost.as_str()), caller.identity()))
}

pub(super) async fn show(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let info = found(&api, &vhost, &name)?;
    Ok(Json(schedule_json(&info, caller.identity()).into()))
}

pub(super) async fn put(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let vhost = Vhost::to_change(&api, &vhost)?;
    let identity = caller.identity();
    let change = change_of(vhost.name(), &name, &body.object, identity.name().as_str())?;
    if let ScheduleChange::Put { schedule, .. } = &change {
        identity.may_schedule(&schedule.action).map_err(refused_access)?;
    }
    let before = api.broker.schedule(vhost.name(), &name);
    if let Some(before) = &before {
        // Who takes another's place must be allowed to end it.
        may_stop(identity, before)?;
    }
    api.broker.change_schedules(&[change]).await?;
    Ok(if before.is_none() { StatusCode::CREATED } else { StatusCode::NO_CONTENT })
}

pub(super) async fn delete(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let info = found(&api, &vhost, &name)?;
    may_stop(caller.identity(), &info)?;
    let (vhost, name) = (info.vhost, name.into());
    api.broker.change_schedules(&[ScheduleChange::Delete { vhost, name }]).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn run(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let info = found(&api, &vhost, &name)?;
    caller.identity().may_schedule(&info.entry.schedule.action).map_err(refused_access)?;
    api.broker.run_schedule(&info.vhost, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(
    state: State<Api>,
    caller: Caller,
    path: Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    set_paused(state, caller, path, true).await
}

pub(super) async fn resume(
    state: State<Api>,
    caller: Caller,
    path: Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    set_paused(state, caller, path, false).await
}

async fn set_paused(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    is_paused: bool,
) -> Result<StatusCode, ApiError> {
    let info = found(&api, &vhost, &name)?;
    may_stop(caller.identity(), &info)?;
    let change = ScheduleChange::Pause { vhost: info.vhost, name: name.into(), is_paused };
    api.broker.change_schedules(&[change]).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn found(api: &Api, vhost: &str, name: &str) -> Result<ScheduleInfo, ApiError> {
    let vhost = Vhost::named(api, vhost)?;
    api.broker.schedule(vhost.name(), name).ok_or_else(ApiError::not_found)
}

fn may_stop(identity: &Identity, info: &ScheduleInfo) -> Result<(), ApiError> {
    let allowed = identity.may_stop_schedule(info.vhost.as_str(), &info.entry.schedule.action);
    allowed.map_err(refused_access)
}

#[allow(clippy::needless_pass_by_value, reason = "it takes the place of an error")]
fn refused_access(_: Refused) -> ApiError {
    ApiError::access_refused()
}

/// All schedules of these virtual hosts, as they are listed for somebody.
fn all(api: &Api, vhosts: &Visible, identity: &Identity) -> Vec<Value> {
    let mut schedules = api.broker.schedules();
    schedules.retain(|info| vhosts.has_name(&info.vhost));
    schedules.iter().map(|info| schedule_json(info, identity).into()).collect()
}

/// What sets a schedule as an object of JSON describes it.
pub(super) fn change_of(
    vhost: &VhostName,
    name: &str,
    object: &Map<String, Value>,
    by: &str,
) -> Result<ScheduleChange, ApiError> {
    let text = |name| object.text_or_nothing(name).map(Option::unwrap_or_default);
    let number = |name| positive(object, name);
    let priority = number("priority")?.unwrap_or(0);
    let priority = u8::try_from(priority)
        .map_err(|_| ApiError::bad_request(format!("priority is at most 255; it is {priority}")))?;
    let mut headers = Vec::new();
    for (name, value) in object.table("headers")? {
        match value {
            Value::String(text) => headers.push((name.into(), text.into())),
            Value::Number(_) | Value::Bool(_) => headers.push((name.into(), value.to_string().into())),
            _ => return Err(ApiError::bad_request(format!("header {name} must be a text"))),
        }
    }
    let message = ScheduledMessage {
        body: body_of(object)?,
        content_type: text("content_type")?.into(),
        headers,
        priority: Priority(priority),
    };
    let job = object.get("job").filter(|job| !job.is_null()).map(|_| object.table("job")).transpose()?;
    let asked = AskedSchedule {
        name,
        cron: text("cron")?,
        time_zone: text("time_zone")?,
        every: number("every_ms")?.map(Millis),
        start: moment(object, "start")?,
        queue: text("queue")?,
        exchange: text("exchange")?,
        routing_key: text("routing_key")?,
        message,
        job: job.as_ref().map(job_of).transpose()?,
        catch_up: text("catch_up")?,
        catch_up_max: number("catch_up_max")?,
        until: moment(object, "until")?,
        runs_max: number("max_runs")?,
        description: text("description")?,
    };
    let schedule = asked.schedule(vhost).map_err(refused)?;
    let is_paused = match object.get("paused") {
        None | Some(Value::Null) => None,
        Some(_) => Some(object.truth("paused", false)?),
    };
    let (vhost, schedule, set_by) = (vhost.clone(), Arc::new(schedule), by.into());
    Ok(ScheduleChange::Put { vhost, schedule, set_by, is_paused })
}

/// A whole number that is not below zero.
fn positive(object: &Map<String, Value>, name: &str) -> Result<Option<u64>, ApiError> {
    match object.whole(name)?.map(u64::try_from) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => Err(ApiError::bad_request(format!("{name} must not be negative"))),
    }
}

/// The job that a schedule is to ask for.
fn job_of(object: &Map<String, Value>) -> Result<AskedJob<'_>, ApiError> {
    refuse_unknown(object, JOB_FIELDS)?;
    let text = |name| object.text_or_nothing(name).map(Option::unwrap_or_default);
    Ok(AskedJob {
        queue: text("queue")?,
        kind: text("type")?,
        key: text("key")?,
        payload: object.get("payload").map(|payload| Bytes::from(payload.to_string())).unwrap_or_default(),
        cost: positive(object, "cost")?,
        background: Some(object.truth("background", true)?),
    })
}

fn body_of(object: &Map<String, Value>) -> Result<Bytes, ApiError> {
    let body = object.text_or_nothing("body")?.unwrap_or_default();
    match object.text_or_nothing("body_encoding")?.unwrap_or("string") {
        "string" => Ok(Bytes::copy_from_slice(body.as_bytes())),
        "base64" => match BASE64_STANDARD.decode(body) {
            Ok(bytes) => Ok(bytes.into()),
            Err(_) => Err(ApiError::bad_request("body is not in base64")),
        },
        other => {
            Err(ApiError::bad_request(format!("body_encoding is 'string' or 'base64'; it is '{other}'")))
        }
    }
}

/// A moment as RFC 3339 has it, or in milliseconds since 1970.
fn moment(object: &Map<String, Value>, name: &str) -> Result<Option<Timestamp>, ApiError> {
    let found = match object.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number.as_u64().map(Timestamp),
        Some(Value::String(text)) => from_text(text),
        Some(_) => None,
    };
    let wrong = || ApiError::bad_request(format!("{name} must be a moment like 2030-01-31T09:00:00Z"));
    found.map(Some).ok_or_else(wrong)
}

fn schedule_json(info: &ScheduleInfo, identity: &Identity) -> Map<String, Value> {
    let (schedule, status) = (&info.entry.schedule, &info.entry.status);
    let mut shown = asked_json(schedule, identity.may_schedule(&schedule.action).is_ok());
    let mut put = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    let at = |moment: Option<Timestamp>| moment.map_or(Value::Null, |moment| as_text(moment).into());
    put("vhost", info.vhost.as_str().into());
    put("paused", status.is_paused.into());
    put("set_by", (&*status.set_by).into());
    put("next", at(status.next));
    put("last_scheduled", at(status.last_scheduled));
    put("last_run", at(status.last_run));
    put("runs", status.runs.into());
    put("manual_runs", status.manual_runs.into());
    put("failures", status.failures.into());
    put("missed", status.missed.into());
    if let Some((moment, error)) = &status.last_error {
        put("last_error", (&**error).into());
        put("last_error_at", at(Some(*moment)));
    }
    if let Some(reason) = &info.waits_for {
        put("waits_for", (&**reason).into());
    }
    shown
}

/// All schedules of these virtual hosts, as what sets them again.
pub(super) fn definitions(api: &Api, vhosts: &Visible) -> Vec<Value> {
    let mut schedules = api.broker.schedules();
    schedules.retain(|info| vhosts.has_name(&info.vhost));
    let definition = |info: &ScheduleInfo| {
        let mut asked = asked_json(&info.entry.schedule, true);
        asked.insert("vhost".to_owned(), info.vhost.as_str().into());
        asked.insert("paused".to_owned(), info.entry.status.is_paused.into());
        Value::Object(asked)
    };
    schedules.iter().map(definition).collect()
}

/// What sets it again. What it says is for those who might say it themselves.
fn asked_json(schedule: &Schedule, shows_message: bool) -> Map<String, Value> {
    let mut shown = Map::new();
    let mut put = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    put("name", (&*schedule.name).into());
    match &schedule.table {
        TimeTable::Cron { expression, zone } => {
            put("cron", (&**expression).into());
            put("time_zone", (&**zone).into());
        }
        TimeTable::Every { interval, start } => {
            put("every_ms", interval.0.into());
            start.map(|start| put("start", as_text(start).into()));
        }
    }
    match &schedule.action {
        Action::Push { queue, message } => {
            put("queue", queue.as_str().into());
            show_message(&mut shown, message, shows_message);
        }
        Action::Publish { exchange, routing_key, message } => {
            put("exchange", exchange.as_str().into());
            put("routing_key", (&**routing_key).into());
            show_message(&mut shown, message, shows_message);
        }
        Action::Ask { queue, job } => {
            put("job", job_json(queue.as_str(), job, shows_message));
        }
    }
    let mut put = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    put("catch_up", schedule.catch_up.as_str().into());
    if let CatchUp::All { max } = schedule.catch_up {
        put("catch_up_max", max.into());
    }
    schedule.until.map(|until| put("until", as_text(until).into()));
    schedule.runs_max.map(|max| put("max_runs", max.into()));
    put("description", (&*schedule.description).into());
    shown
}

fn show_message(shown: &mut Map<String, Value>, message: &ScheduledMessage, shows_message: bool) {
    let mut put = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    if shows_message {
        match std::str::from_utf8(&message.body) {
            Ok(text) => put("body", text.into()),
            Err(_) => {
                put("body_encoding", "base64".into());
                put("body", BASE64_STANDARD.encode(&message.body).into())
            }
        };
        let headers = message.headers.iter().map(|(name, value)| (name.to_string(), json!(&**value)));
        put("headers", Value::Object(headers.collect()));
    }
    if !message.content_type.is_empty() {
        put("content_type", (&*message.content_type).into());
    }
    put("priority", message.priority.0.into());
}

fn job_json(queue: &str, job: &ScheduledJob, shows_payload: bool) -> Value {
    let mut shown =
        json!({ "queue": queue, "type": &*job.kind, "key": &*job.key, "background": job.background });
    if let Some(cost) = job.cost {
        shown["cost"] = cost.into();
    }
    if shows_payload && !job.payload.is_empty() {
        // It was JSON when it was set.
        shown["payload"] = serde_json::from_slice(&job.payload).unwrap_or_default();
    }
    shown
}

impl From<ScheduleChangeError> for ApiError {
    fn from(error: ScheduleChangeError) -> Self {
        match error {
            ScheduleChangeError::Refused(error) => refused(error),
            ScheduleChangeError::Queue(error) => Self::unavailable(error.to_string()),
        }
    }
}

impl From<ScheduleRunError> for ApiError {
    fn from(error: ScheduleRunError) -> Self {
        match error {
            ScheduleRunError::Refused(error) => refused(error),
            ScheduleRunError::Failed { reason } => Self::bad_request(reason),
            ScheduleRunError::Queue(error) => Self::unavailable(error.to_string()),
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it takes the place of an error")]
fn refused(error: ScheduleError) -> ApiError {
    match error {
        ScheduleError::NoSuchSchedule { .. } => ApiError::not_found(),
        ScheduleError::NoSuchVhost { .. } => ApiError::no_vhost(),
        ScheduleError::Invalid { .. }
        | ScheduleError::Target { .. }
        | ScheduleError::Cron { .. }
        | ScheduleError::Never { .. }
        | ScheduleError::Zone { .. }
        | ScheduleError::Interval { .. }
        | ScheduleError::Ended { .. }
        | ScheduleError::OutOfRange { .. }
        | ScheduleError::Name(_)
        | ScheduleError::TooLarge { .. }
        | ScheduleError::TooMany { .. } => ApiError::bad_request(error.to_string()),
    }
}
