//! What is answered instead of what was asked for, in the shape of RabbitMQ's management API: `{"error": …, "reason": …}`.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use nexo_amqp::management::{JsonError, Refused};
use nexo_types::NameError;
use serde_json::{Value, json};

/// A request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    error: &'static str,
    reason: Value,
}

impl ApiError {
    fn new(status: StatusCode, error: &'static str, reason: impl Into<Value>) -> Self {
        Self { status, error, reason: reason.into() }
    }

    pub(crate) fn bad_request(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// The same with RabbitMQ's word for the kind of mistake.
    pub(crate) fn bad(error: &'static str, reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, reason)
    }

    /// What the address names is not there.
    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "Object Not Found", "Not Found")
    }

    /// Whoever asks did not say who it is, or not rightly.
    pub(crate) fn not_logged_in(reason: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorized", reason)
    }

    /// Whoever asks is known, and may not.
    pub(crate) fn not_authorised(reason: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorised", reason)
    }

    /// AMQP would refuse access. RabbitMQ tells no more.
    pub(crate) fn access_refused() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorised", "Access refused.")
    }

    /// The vhost that something is to be made in is not there.
    pub(crate) fn no_vhost() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "vhost_not_found")
    }

    /// It may not be done at all, or not from there.
    pub(crate) fn forbidden(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed", "\"Method Not Allowed\"\n")
    }

    pub(crate) fn too_large(max: usize) -> Self {
        let reason = format!("a request has at most {max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", reason)
    }

    pub(crate) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the request did not come whole in time")
    }

    /// The broker cannot do it now.
    pub(crate) fn unavailable(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
    }

    /// It is not as whoever asks thinks.
    pub(crate) fn conflict(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", reason)
    }

    /// There is no room for more of it.
    pub(crate) fn too_many(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many", reason)
    }

    /// Whether something is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// What is answered, or told where the answer has begun.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "error": self.error, "reason": self.reason })
    }

    /// Its words.
    pub(crate) const fn reason(&self) -> &Value {
        &self.reason
    }

    /// The same in other words.
    pub(crate) fn with_reason(self, reason: impl Into<Value>) -> Self {
        Self { reason: reason.into(), ..self }
    }

    /// A refusal of something that RabbitMQ's API publishes over a channel: the words are the channel's, with the code.
    pub(crate) fn of_publish(refused: &Refused) -> Self {
        if refused.is_of_broker() {
            return Self::unavailable(refused.text.clone());
        }
        // RabbitMQ answers 400 here, and 401 to everything else that somebody may not do.
        if refused.is_of_permissions() {
            return Self::access_refused();
        }
        Self::bad_request(refused.to_string())
    }

    /// The same of something that it gets.
    pub(crate) fn of_get(refused: &Refused) -> Self {
        let words = format!("{} - {}", refused.name, refused.text);
        match refused.code {
            404 => Self::new(StatusCode::NOT_FOUND, "not_found", words),
            403 => Self::new(StatusCode::UNAUTHORIZED, "not_authorised", words),
            _ => Self::of_publish(refused),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Json(self.to_json());
        if self.status == StatusCode::UNAUTHORIZED {
            let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"RabbitMQ Management\"")];
            return (self.status, ask, body).into_response();
        }
        (self.status, body).into_response()
    }
}

/// AMQP's refusals as RabbitMQ's management API tells of them where something is declared, bound or deleted.
impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        match refused.code {
            _ if refused.is_of_broker() => Self::unavailable(refused.text),
            404 => Self::new(StatusCode::NOT_FOUND, "not_found", refused.text),
            403 => Self::access_refused(),
            _ => Self::bad_request(refused.text),
        }
    }
}

impl From<JsonError> for ApiError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::NoNumber { name } => Self::bad_request(json!(["not_int", name])),
            other => Self::bad_request(other.to_string()),
        }
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        Self::bad_request(error.to_string())
    }
}
