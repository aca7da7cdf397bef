//! Publishing one message, and getting some: for trying things out, not for work.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use nexo_amqp::management::{self, AckMode, Got, Publish};
use serde_json::{Map, Value, json};

use super::Api;
use super::access::Caller;
use super::body::{Fields, JsonBody};
use super::error::ApiError;
use super::names::Vhost;

/// Messages in one answer: they are out of their queue meanwhile.
const GET_MAX: i64 = 10_000;
/// Bytes of messages in one answer, unless the last one brings more: the answer is in memory as a whole.
const GET_BYTES_MAX: usize = 16 * 1024 * 1024;

pub(super) async fn publish(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let object = &body.object;
    let exchange = Vhost::named(&api, &vhost)?.exchange(&name)?;
    all_given(object, &["properties", "routing_key", "payload", "payload_encoding"])?;
    let properties = management::properties(&object.table("properties")?)?;
    let routing_key = object.text("routing_key")?;
    let payload = object.text("payload")?;
    let body = match object.text("payload_encoding")? {
        "string" => Bytes::copy_from_slice(payload.as_bytes()),
        "base64" => match BASE64_STANDARD.decode(payload) {
            Ok(bytes) => bytes.into(),
            Err(_) => return Err(ApiError::bad_request(json!(["not_base64", payload]))),
        },
        other => return Err(ApiError::bad_request(json!(["unsupported_encoding", other]))),
    };
    let asked = Publish { exchange: &exchange, routing_key, properties: &properties, body };
    let routed = management::publish(caller.by(&api), asked).await;
    let routed = routed.map_err(|refused| ApiError::of_publish(&refused))?;
    Ok(Json(json!({ "routed": routed })))
}

pub(super) async fn get(
    State(api): State<Api>,
    caller: Caller,
    Path((vhost, name)): Path<(String, String)>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let object = &body.object;
    let name = Vhost::named(&api, &vhost)?.queue(&name)?;
    all_given(object, &["ackmode", "count", "encoding"])?;
    let ack_mode = match object.text("ackmode")? {
        "ack_requeue_true" => AckMode::Requeue,
        "ack_requeue_false" => AckMode::Take,
        "reject_requeue_true" => AckMode::RejectRequeue,
        "reject_requeue_false" => AckMode::Reject,
        other => return Err(ApiError::bad_request(json!(["unknown_ackmode", other]))),
    };
    let encoding = match object.text("encoding")? {
        "auto" => Encoding::Auto,
        "base64" => Encoding::Base64,
        _ => return Err(ApiError::bad_request("Unsupported encoding. Please use auto or base64.")),
    };
    let count = object.whole("count")?.unwrap_or(0);
    let truncate = object.whole("truncate")?.and_then(|bytes| usize::try_from(bytes).ok());
    let count = usize::try_from(count.clamp(0, GET_MAX)).unwrap_or(0);
    let stopping = || ApiError::unavailable("the broker is stopping");
    let _turn = api.gets.acquire().await.map_err(|_| stopping())?;
    let got = management::get(caller.by(&api), &name, count, GET_BYTES_MAX, ack_mode).await;
    let got = got.map_err(|refused| ApiError::of_get(&refused))?;
    // All of it is written down: not on a thread of the runtime.
    api.look(move |_| {
        let shown: Vec<Value> = got.into_iter().map(|one| message_json(one, encoding, truncate)).collect();
        Json(shown).into_response()
    })
    .await
}

/// Refuses an object that lacks fields, and names all of them.
pub(super) fn all_given(object: &Map<String, Value>, names: &[&str]) -> Result<(), ApiError> {
    let missing: Vec<String> = names
        .iter()
        .filter(|name| !object.contains_key(**name))
        .map(|name| format!("{{key_missing,{name}}}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("[{}]", missing.join(",\n "))))
}

/// How a body is written in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// As text if it is text.
    Auto,
    Base64,
}

fn message_json(got: Got, encoding: Encoding, truncate: Option<usize>) -> Value {
    let shown = &got.body[..got.body.len().min(truncate.unwrap_or(usize::MAX))];
    let text = std::str::from_utf8(shown).ok().filter(|_| encoding == Encoding::Auto);
    let (payload, payload_encoding) = match text {
        Some(text) => (text.to_owned(), "string"),
        None => (BASE64_STANDARD.encode(shown), "base64"),
    };
    json!({
        "payload": payload,
        "payload_bytes": got.body.len(),
        "payload_encoding": payload_encoding,
        // What has none shows an empty list: RabbitMQ's encoder knows no difference, and its clients are used to it.
        "properties": if got.properties == json!({}) { json!([]) } else { got.properties },
        "exchange": got.exchange,
        "routing_key": got.routing_key,
        "redelivered": got.redelivered,
        "message_count": got.left,
    })
}
