//! The JSON that a request brings. What it may take is bounded: each has a largest size, few large ones are read at a time,
//! and none is waited for long.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use nexo_broker::Durability;
use serde_json::{Map, Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::Api;
use super::access::Asked;
use super::error::ApiError;

/// The largest request: a message of 16 MiB in base64, or the definitions of a hundred thousand queues.
pub(super) const BODY_BYTES_MAX: usize = 24 * 1024 * 1024;
/// Larger ones take turns.
const SMALL_BYTES_MAX: usize = 64 * 1024;
/// How many large ones are in memory at a time.
pub(super) const LARGE_BODIES_MAX: usize = 2;
/// How long a request may take to come whole: a slow line needs a while for 24 MiB.
const WITHIN: Duration = Duration::from_secs(60);

/// The largest body with a name and a password. A signed token in place of the password is the longest.
const LOGIN_BYTES_MAX: usize = 32 * 1024;
/// How long it may take to come.
const LOGIN_WITHIN: Duration = Duration::from_secs(10);

/// A JSON object that a request brought. Nothing at all is an empty one.
#[derive(Debug)]
pub(super) struct JsonBody {
    pub(super) object: Map<String, Value>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl FromRequest<Api> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Api) -> Result<Self, ApiError> {
        let (bytes, turn) = read(request, api).await?;
        let object = if bytes.is_empty() {
            Map::new()
        } else if bytes.len() <= SMALL_BYTES_MAX {
            parse(&bytes)?
        } else {
            // Megabytes take a while, which is not the runtime's.
            let parsed = tokio::task::spawn_blocking(move || parse(&bytes)).await;
            parsed.map_err(|_| ApiError::bad_request("not_json"))??
        };
        Ok(Self { object, _turn: turn })
    }
}

/// What somebody says who logs in, before anybody knows him: little, and soon.
#[derive(Debug)]
pub(super) struct LoginBody(pub(super) Map<String, Value>);

impl<S: Sync> FromRequest<S> for LoginBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let read = axum::body::to_bytes(request.into_body(), LOGIN_BYTES_MAX);
        let bytes = tokio::time::timeout(LOGIN_WITHIN, read).await.map_err(|_| ApiError::too_slow())?;
        let bytes = bytes.map_err(|_| ApiError::too_large(LOGIN_BYTES_MAX))?;
        Ok(Self(if bytes.is_empty() { Map::new() } else { parse(&bytes)? }))
    }
}

/// The bytes of a request, and the turn of a large one, to be kept as long as they are.
pub(super) async fn read(
    request: Request,
    api: &Api,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let length: Option<usize> = length.and_then(|length| length.parse().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(ApiError::too_large(BODY_BYTES_MAX));
    }
    let has_body =
        length != Some(0) && (length.is_some() || request.headers().contains_key(header::TRANSFER_ENCODING));
    if !has_body {
        return Ok((Bytes::new(), None));
    }
    let asked = request.extensions().get::<Asked>().cloned();
    let is_small = length.is_some_and(|length| length <= SMALL_BYTES_MAX);
    let read = async {
        let turn = match is_small {
            true => None,
            false => api.large_bodies.clone().acquire_owned().await.ok(),
        };
        let bytes = collect(request.into_body()).await?;
        // Who was deleted meanwhile, or lost a tag, has asked in vain.
        asked.map_or(Ok(()), |asked| asked.check(api))?;
        Ok((bytes, turn))
    };
    tokio::time::timeout(WITHIN, read).await.unwrap_or_else(|_| Err(ApiError::too_slow()))
}

async fn collect(body: Body) -> Result<Bytes, ApiError> {
    // It fails if the client goes as well; then nobody reads the answer.
    axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| ApiError::too_large(BODY_BYTES_MAX))
}

/// A text as a JSON object.
pub(super) fn parse(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) | Err(_) => Err(ApiError::bad_request("not_json")),
    }
}

/// Reading fields as RabbitMQ does: scripts give everything as text.
pub(super) trait Fields {
    /// A text; what is missing is an error.
    fn text(&self, name: &str) -> Result<&str, ApiError>;
    /// A text, if it is there.
    fn text_or_nothing(&self, name: &str) -> Result<Option<&str>, ApiError>;
    /// True or false.
    fn truth(&self, name: &str, default: bool) -> Result<bool, ApiError>;
    /// A whole number.
    fn whole(&self, name: &str) -> Result<Option<i64>, ApiError>;
    /// An object; nothing is an empty one.
    fn table(&self, name: &str) -> Result<Map<String, Value>, ApiError>;
    /// The field `durable`. As in RabbitMQ, what is not said to be durable is not.
    fn durability(&self) -> Result<Durability, ApiError> {
        let durable = self.truth("durable", false)?;
        Ok(if durable { Durability::Durable } else { Durability::Transient })
    }
}

impl Fields for Map<String, Value> {
    fn text(&self, name: &str) -> Result<&str, ApiError> {
        let found = self.text_or_nothing(name)?;
        found.ok_or_else(|| ApiError::bad_request(format!("[{{key_missing,{name}}}]")))
    }

    fn text_or_nothing(&self, name: &str) -> Result<Option<&str>, ApiError> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::bad_request(format!("{name} must be a text"))),
        }
    }

    fn truth(&self, name: &str, default: bool) -> Result<bool, ApiError> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(truth)) => Ok(*truth),
            Some(Value::String(text)) if text == "true" => Ok(true),
            Some(Value::String(text)) if text == "false" => Ok(false),
            Some(other) => Err(ApiError::bad_request(json!(["not_boolean", other]))),
        }
    }

    fn whole(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let found = match self.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Number(number)) => number.as_i64(),
            Some(Value::String(text)) => text.parse().ok(),
            Some(_) => None,
        };
        found.map(Some).ok_or_else(|| ApiError::bad_request(json!(["not_integer", self.get(name)])))
    }

    fn table(&self, name: &str) -> Result<Map<String, Value>, ApiError> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(object)) => Ok(object.clone()),
            // The empty table of a client that knows no difference.
            Some(Value::Array(items)) if items.is_empty() => Ok(Map::new()),
            Some(_) => Err(ApiError::bad_request(format!("{name} must be an object"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_scripts_write_them() {
        let object =
            parse(br#"{"a": "true", "b": false, "n": "7", "t": [], "o": {"x": 1}, "z": null}"#).unwrap();
        assert_eq!((object.truth("a", false), object.truth("b", true)), (Ok(true), Ok(false)));
        assert_eq!((object.truth("none", true), object.truth("z", true)), (Ok(true), Ok(true)));
        assert!(object.truth("n", true).is_err());
        assert_eq!((object.whole("n"), object.whole("none")), (Ok(Some(7)), Ok(None)));
        assert!(object.whole("a").is_err());
        assert_eq!(object.table("t"), Ok(Map::new()));
        assert_eq!(object.table("o").unwrap().get("x"), Some(&json!(1)));
        assert!(object.table("a").is_err() && object.text("none").is_err() && object.text("b").is_err());
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["", "[]", "1", "{", "nope", "{\"a\":}", "\u{1}"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
