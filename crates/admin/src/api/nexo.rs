//! Nexo's own, under `/api/nexo`: what RabbitMQ's API has no words for. A queue with what waits in it, a look at its messages
//! without taking any, dead letters with their reasons, and pausing. Messages are moved in `redrive.rs`. What is in a queue that
//! belongs to a connection is for that connection alone, as in the rest of the API.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nexo_access::Permission;
use nexo_amqp::management::check_shared;
use nexo_broker::{BrowseState, Browsed, CreateError, DeathReason, Delivery, HeaderValue, QueueError};
use nexo_types::{Offset, Priority};
use serde_json::{Map, Value, json};

use super::Api;
use super::access::Caller;
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::names::{Vhost, of_queue};
use super::question::{Question, Word, Words};
use super::queues::found;

/// Messages in one answer, if nobody says how many.
const SHOWN_DEFAULT: usize = 50;
const SHOWN_MAX: usize = 1_000;
/// Messages that are looked at for one answer: with a filter that fits none, it says where to go on.
const LOOKED_AT_MAX: usize = 10_000;
/// The same in bytes: a filter reads all of every message.
const LOOKED_AT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// As much of a body is shown.
const BODY_SHOWN_BYTES_MAX: usize = 64 * 1024;
/// As many are looked at in one step.
const STEP: usize = 256;

pub(super) async fn queue(
    State(api): State<Api>,
    Path((vhost, name)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let name = Vhost::named(&api, &vhost)?.queue(&name)?;
    let row = api.broker.queue_row(&name).ok_or_else(ApiError::not_found)?;
    let stats = &row.stats;
    Ok(Json(json!({
        "name": name.as_str(),
        "vhost": of_queue(&name),
        "ready": stats.ready,
        "leased": stats.leased,
        "delayed": stats.delayed,
        "grouped": stats.grouped,
        "bytes": stats.bytes,
        "consumers": stats.consumers,
        "paused": stats.config.paused,
        "oldest_age_ms": stats.oldest_age.0,
        "average_wait_ms": stats.average_wait_ms,
        "totals": {
            "pushed": stats.pushed,
            "delivered": stats.delivered,
            "redelivered": stats.redelivered,
            "acked": stats.acked,
            "dead_lettered": stats.dead_lettered,
            "expired": stats.expired,
            "overflowed": stats.overflowed,
            "duplicates": stats.duplicates,
            "damaged": stats.damaged,
        },
    })))
}

/// How messages are asked for.
#[derive(Debug)]
pub(super) struct BrowseWords;

impl Words for BrowseWords {
    const WORDS: &'static [Word] = &[
        ("state", "ready (in the order of delivery), leased or delayed (by offset); ready if nobody says"),
        ("max", "how many messages (50, at most 1,000)"),
        ("header", "only those with this header: name, or name=value"),
        ("text", "only those with this in their bodies"),
        ("dead", "true: only dead letters"),
        ("after", "what the answer before had as next"),
    ];
}

/// What of a queue somebody wants to see.
#[derive(Debug)]
struct Filter {
    header: Option<(String, Option<String>)>,
    text: Option<String>,
    dead_only: bool,
}

impl Filter {
    fn of(query: &Question<BrowseWords>) -> Self {
        let header = query.get("header").map(|header| match header.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (header.to_owned(), None),
        });
        let text = query.get("text").filter(|text| !text.is_empty());
        Self { header, text: text.map(str::to_owned), dead_only: query.is_true("dead") }
    }

    /// Whether every message is wanted.
    const fn is_none(&self) -> bool {
        self.header.is_none() && self.text.is_none() && !self.dead_only
    }

    fn admits(&self, delivery: &Delivery) -> bool {
        if self.dead_only && delivery.message.origin.is_none() && delivery.told_death().is_none() {
            return false;
        }
        if let Some(text) = &self.text
            && !contains(&delivery.message.body, text.as_bytes())
        {
            return false;
        }
        let Some((name, wanted)) = &self.header else { return true };
        let headers = delivery.headers().unwrap_or_default();
        headers.0.iter().any(|(header, value)| {
            header == name && wanted.as_ref().is_none_or(|wanted| header_text(value) == *wanted)
        })
    }
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(body, part).is_some()
}

fn header_text(value: &HeaderValue) -> String {
    match value {
        HeaderValue::Text(text) | HeaderValue::Number(text) | HeaderValue::Json(text) => text.clone(),
        HeaderValue::Bytes(bytes) => BASE64_STANDARD.encode(bytes),
    }
}

/// Shows messages: those that wait, in the order of delivery, or those that are leased or delayed, by offset. `next` is where to
/// go on, if that was not all.
pub(super) async fn messages(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    query: Question<BrowseWords>,
) -> Result<Json<Value>, ApiError> {
    let name = found(&api, &Vhost::named(&api, &vhost)?, &name)?;
    caller.may_queue(Permission::Read, &name)?;
    check_shared(&api.broker, &name).await?;
    let max = query.whole("max")?.unwrap_or(SHOWN_DEFAULT).clamp(1, SHOWN_MAX);
    let mut after = query.get("after").map(parse_place).transpose()?;
    let state = query.get("state").map_or(Ok(BrowseState::Ready), parse_state)?;
    let filter = Filter::of(&query);
    let mut found = Found { state, filter, max, shown: Vec::new(), looked_at: 0, bytes: 0, read: 0 };
    let next = loop {
        let step = if found.filter.is_none() { max - found.shown.len() } else { STEP };
        let (seen, place) = api.broker.browse(&name, state, after, step).await.map_err(refused)?;
        // Bodies are searched and written down: not on a thread of the runtime, and a step at a time.
        let stopped;
        (found, stopped) = api
            .look(move |_| {
                let stopped = found.take(&seen);
                (found, stopped)
            })
            .await?;
        if stopped.is_some() {
            break stopped;
        }
        let Some(place) = place else { break None };
        after = Some(place);
        if found.looked_at >= LOOKED_AT_MAX || found.read >= LOOKED_AT_BYTES_MAX {
            break after;
        }
    };
    Ok(Json(json!({ "messages": found.shown, "looked_at": found.looked_at, "next": next.map(place_text) })))
}

/// What was found so far.
struct Found {
    state: BrowseState,
    filter: Filter,
    max: usize,
    shown: Vec<Value>,
    looked_at: usize,
    /// Of bodies that are shown.
    bytes: usize,
    /// Of bodies that were read.
    read: usize,
}

impl Found {
    /// Takes what is wanted of these. If that is enough, gives the place of the last one that was looked at.
    fn take(&mut self, seen: &[Browsed]) -> Option<(Priority, Offset)> {
        self.looked_at += seen.len();
        for one in seen {
            let delivery = &one.delivery;
            self.read += delivery.message.body.len();
            if self.filter.admits(delivery) {
                self.bytes += delivery.message.body.len().min(BODY_SHOWN_BYTES_MAX);
                self.shown.push(message_json(one, self.state));
            }
            if self.shown.len() == self.max || self.bytes >= nexo_types::limits::PEEK_BYTES_MAX {
                return Some((delivery.message.priority, delivery.offset));
            }
        }
        None
    }
}

fn place_text((priority, offset): (Priority, Offset)) -> String {
    format!("{}-{}", priority.0, offset.0)
}

fn parse_place(text: &str) -> Result<(Priority, Offset), ApiError> {
    let parsed = text.split_once('-').and_then(|(priority, offset)| {
        Some((Priority(priority.parse().ok()?), Offset(offset.parse().ok()?)))
    });
    parsed.ok_or_else(|| ApiError::bad_request("after must be what an answer had as next"))
}

fn parse_state(word: &str) -> Result<BrowseState, ApiError> {
    match word {
        "ready" => Ok(BrowseState::Ready),
        "leased" => Ok(BrowseState::Leased),
        "delayed" => Ok(BrowseState::Delayed),
        _ => Err(ApiError::bad_request("state must be ready, leased or delayed")),
    }
}

const fn state_word(state: BrowseState) -> &'static str {
    match state {
        BrowseState::Ready => "ready",
        BrowseState::Leased => "leased",
        BrowseState::Delayed => "delayed",
    }
}

fn message_json(Browsed { delivery, until }: &Browsed, state: BrowseState) -> Value {
    let message = &delivery.message;
    let body = &message.body[..message.body.len().min(BODY_SHOWN_BYTES_MAX)];
    let (payload, encoding) = match std::str::from_utf8(body) {
        Ok(text) => (text.to_owned(), "string"),
        Err(_) => (BASE64_STANDARD.encode(body), "base64"),
    };
    let headers: Map<String, Value> = delivery
        .headers()
        .unwrap_or_default()
        .0
        .into_iter()
        .map(|(name, value)| (name, header_json(&value)))
        .collect();
    let envelope = delivery.envelope();
    let mut shown = json!({
        "state": state_word(state),
        "attempts": delivery.attempt,
        "offset": delivery.offset.0,
        "priority": message.priority.0,
        "enqueued_at_ms": delivery.enqueued_at.0,
        "payload": payload,
        "payload_encoding": encoding,
        "payload_bytes": message.body.len(),
        "headers": headers,
        "group": message.group.as_ref().map(|group| group.as_str()),
        "exchange": envelope.as_ref().map(|envelope| &envelope.exchange),
        "routing_key": envelope.as_ref().map(|envelope| &envelope.routing_key),
        "dead_letter": dead_letter_json(delivery),
    });
    // A lease that ends with its connection has no moment.
    match state {
        BrowseState::Ready => {}
        BrowseState::Leased => shown["lease_until_ms"] = until.map(|until| until.0).into(),
        BrowseState::Delayed => shown["due_ms"] = until.map(|until| until.0).into(),
    }
    shown
}

/// Why a message is a dead letter. One that came through an exchange tells it in the words of its protocol.
fn dead_letter_json(delivery: &Delivery) -> Option<Value> {
    if let Some(origin) = &delivery.message.origin {
        return Some(json!({
            "reason": reason_word(origin.reason),
            "queue": origin.queue.as_str(),
            "offset": origin.offset.0,
            "attempts": origin.attempts,
            "at_ms": origin.at.0,
        }));
    }
    let told = delivery.told_death()?;
    Some(json!({
        "reason": told.reason,
        "queue": told.queue,
        "exchange": told.exchange,
        "count": told.count,
        "at_ms": told.at.map(|at| at.0),
    }))
}

fn header_json(value: &HeaderValue) -> Value {
    match value {
        HeaderValue::Number(digits) => serde_json::from_str(digits).unwrap_or_else(|_| digits.clone().into()),
        HeaderValue::Json(text) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
        HeaderValue::Text(text) => text.clone().into(),
        HeaderValue::Bytes(_) => header_text(value).into(),
    }
}

const fn reason_word(reason: DeathReason) -> &'static str {
    match reason {
        DeathReason::MaxAttempts => "max_attempts",
        DeathReason::Expired => "expired",
        DeathReason::Overflow => "overflow",
        DeathReason::Rejected => "rejected",
    }
}

/// Stops handing messages out, or goes on with it.
pub(super) async fn pause(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let name = found(&api, &Vhost::named(&api, &vhost)?, &name)?;
    caller.may_queue(Permission::Configure, &name)?;
    check_shared(&api.broker, &name).await?;
    let paused = body.object.truth("paused", true)?;
    api.broker.pause_queue(&name, paused).await.map_err(|error| match error {
        CreateError::Queue(error) => refused(error),
        other @ (CreateError::Config(_)
        | CreateError::Differs { .. }
        | CreateError::TooMany { .. }
        | CreateError::Vhost(_)) => ApiError::bad_request(other.to_string()),
    })?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) fn refused(error: QueueError) -> ApiError {
    match error {
        QueueError::NotFound { .. } => ApiError::not_found(),
        error @ (QueueError::Alarm(_) | QueueError::Busy { .. } | QueueError::Unavailable { .. }) => {
            ApiError::unavailable(error.to_string())
        }
    }
}
