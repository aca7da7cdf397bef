//! Logins that were let in and refused, over each protocol, since the start or since somebody had them counted from the beginning.
//! RabbitMQ can count them for each address too, and does not unless it is told to; here they never are.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use nexo_broker::Protocol;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Api;
use super::error::ApiError;

/// What was counted before it was counted from the beginning: the counters themselves are metrics, and never go back.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<[Logins; Protocol::ALL.len()]>);

/// Logins over one protocol.
#[derive(Clone, Copy, Debug, Default)]
struct Logins {
    accepted: u64,
    refused: u64,
}

impl Logins {
    fn now(api: &Api, protocol: Protocol) -> Self {
        let stats = api.broker.traffic().of(protocol).stats();
        Self { accepted: stats.logins, refused: stats.refused_logins }
    }
}

pub(super) async fn list(State(api): State<Api>, Path(node): Path<String>) -> Result<Json<Value>, ApiError> {
    check(&api, &node)?;
    let before = *api.attempts.0.lock();
    let shown = Protocol::ALL.iter().map(|protocol| {
        let (now, before) = (Logins::now(&api, *protocol), before[protocol.index()]);
        let (accepted, refused) = (now.accepted - before.accepted, now.refused - before.refused);
        json!({
            "protocol": shown_protocol(*protocol),
            "auth_attempts": accepted + refused,
            "auth_attempts_failed": refused,
            "auth_attempts_succeeded": accepted,
        })
    });
    Ok(Json(shown.collect()))
}

/// In RabbitMQ's words, where it has any.
const fn shown_protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Amqp => "amqp091",
        Protocol::Grpc | Protocol::Sqs | Protocol::Http => protocol.name(),
    }
}

pub(super) async fn reset(State(api): State<Api>, Path(node): Path<String>) -> Result<StatusCode, ApiError> {
    check(&api, &node)?;
    *api.attempts.0.lock() = Protocol::ALL.map(|protocol| Logins::now(&api, protocol));
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn by_source(
    State(api): State<Api>,
    Path(node): Path<String>,
) -> Result<Json<Value>, ApiError> {
    check(&api, &node)?;
    Ok(Json(json!([])))
}

pub(super) async fn reset_source(
    State(api): State<Api>,
    Path(node): Path<String>,
) -> Result<StatusCode, ApiError> {
    check(&api, &node)?;
    Ok(StatusCode::NO_CONTENT)
}

fn check(api: &Api, node: &str) -> Result<(), ApiError> {
    if node == &*api.node { Ok(()) } else { Err(ApiError::not_found()) }
}
