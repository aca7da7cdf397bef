//! Tables and properties as JSON, in the shape in which RabbitMQ's management API has them.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nexo_broker::topology::HeaderValue;
use serde_json::{Map, Number, Value as Json};
use thiserror::Error;

use crate::codec::{ArrayBuf, Properties, PropertiesBuilder, ShortStr, Table, TableBuf, Value};

/// Arguments and headers travel in one frame, and clients negotiate 128 KiB for one.
const TABLE_BYTES_MAX: usize = 100 * 1024;

/// JSON that is no table, or no property.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JsonError {
    /// A name that is too long.
    #[error("the name of an argument or header has at most 255 bytes; one has {bytes}")]
    LongName {
        /// What was given.
        bytes: usize,
    },
    /// A null where a value is wanted. RabbitMQ takes none either.
    #[error("null_not_allowed")]
    Null,
    /// Too large as a whole.
    #[error("arguments and headers have at most {TABLE_BYTES_MAX} bytes together; these have {bytes}")]
    TooLarge {
        /// What was given.
        bytes: usize,
    },
    /// Too many levels.
    #[error("arguments and headers are nested too deep")]
    TooDeep,
    /// A number that AMQP has no type for.
    #[error("{number} is beyond the whole numbers of AMQP")]
    Number {
        /// What was given.
        number: String,
    },
    /// A property of the wrong type.
    #[error("the property {name} must be {wanted}")]
    Property {
        /// The name of the property.
        name: &'static str,
        /// What it must be.
        wanted: &'static str,
    },
    /// A property that must be a number.
    #[error("the property {name} must be a whole number, and no larger than AMQP has room for")]
    NoNumber {
        /// The name of the property.
        name: &'static str,
    },
}

/// A table in the types that RabbitMQ gives to JSON's: a text is a long string, a whole number a long, any other a double.
pub(super) fn table(object: &Map<String, Json>) -> Result<TableBuf, JsonError> {
    let table = build(object, crate::codec::TABLE_DEPTH_MAX)?;
    let bytes = table.as_raw().len();
    if bytes > TABLE_BYTES_MAX {
        return Err(JsonError::TooLarge { bytes });
    }
    Ok(table)
}

fn build(object: &Map<String, Json>, depth_left: usize) -> Result<TableBuf, JsonError> {
    let depth_left = depth_left.checked_sub(1).ok_or(JsonError::TooDeep)?;
    let mut table = TableBuf::new();
    for (name, value) in object {
        let name =
            ShortStr::new(name.as_bytes()).map_err(|error| JsonError::LongName { bytes: error.bytes })?;
        match value {
            Json::Array(items) => table.put(name, list(items, depth_left)?.as_array()),
            Json::Object(inner) => table.put(name, build(inner, depth_left)?.as_table()),
            plain => table.put(name, scalar(plain)?),
        };
    }
    Ok(table)
}

fn list(items: &[Json], depth_left: usize) -> Result<ArrayBuf, JsonError> {
    let depth_left = depth_left.checked_sub(1).ok_or(JsonError::TooDeep)?;
    let mut array = ArrayBuf::new();
    for item in items {
        match item {
            Json::Array(items) => array.push(list(items, depth_left)?.as_array()),
            Json::Object(inner) => array.push(build(inner, depth_left)?.as_table()),
            plain => array.push(scalar(plain)?),
        };
    }
    Ok(array)
}

/// A value that holds no others.
fn scalar(value: &Json) -> Result<Value<'_>, JsonError> {
    Ok(match value {
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => match (number.as_i64(), number.is_f64()) {
            (Some(whole), _) => Value::I64(whole),
            (None, true) => Value::F64(number.as_f64().unwrap_or_default()),
            (None, false) => return Err(JsonError::Number { number: number.to_string() }),
        },
        Json::String(text) => Value::LongStr(text.as_bytes()),
        Json::Null => return Err(JsonError::Null),
        // Those hold others, and are looked at before.
        Json::Array(_) | Json::Object(_) => Value::Void,
    })
}

/// The bytes of a table as JSON; empty if they are none.
#[must_use]
pub fn raw_table_json(raw: &[u8]) -> Json {
    table_json(Table::parse(raw).unwrap_or(Table::EMPTY))
}

pub(super) fn table_json(table: Table<'_>) -> Json {
    let mut object = Map::new();
    for (name, value) in table.iter() {
        // Of two with one name the first counts.
        object.entry(text(&name)).or_insert_with(|| value_json(value));
    }
    Json::Object(object)
}

fn value_json(value: Value<'_>) -> Json {
    match value {
        Value::Bool(truth) => truth.into(),
        Value::I8(_)
        | Value::U8(_)
        | Value::I16(_)
        | Value::U16(_)
        | Value::I32(_)
        | Value::U32(_)
        | Value::I64(_) => value.as_integer().into(),
        Value::F32(number) => float(number.into()),
        Value::F64(number) => float(number),
        Value::Decimal { scale, digits } => float(f64::from(digits) / 10f64.powi(scale.into())),
        Value::Timestamp(seconds) => seconds.into(),
        Value::LongStr(bytes) | Value::Bytes(bytes) => text_or_base64(bytes),
        Value::Array(array) => array.iter().map(value_json).collect(),
        Value::Table(table) => table_json(table),
        Value::Void => Json::Null,
    }
}

/// The argument of a binding.
#[must_use]
pub fn argument_json(value: &HeaderValue) -> Json {
    match value {
        HeaderValue::Bool(truth) => (*truth).into(),
        HeaderValue::Signed(number) => (*number).into(),
        HeaderValue::Unsigned(number) | HeaderValue::Timestamp(number) => (*number).into(),
        HeaderValue::Float(bits) => float(f64::from_bits(*bits)),
        HeaderValue::Text(bytes) => text_or_base64(bytes),
        HeaderValue::Void => Json::Null,
        HeaderValue::Other(bytes) => match Table::parse(bytes) {
            Ok(table) => table_json(table),
            Err(_) => BASE64_STANDARD.encode(bytes).into(),
        },
    }
}

fn float(number: f64) -> Json {
    Number::from_f64(number).map_or_else(|| number.to_string().into(), Json::Number)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn text_or_base64(bytes: &[u8]) -> Json {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => BASE64_STANDARD.encode(bytes).into(),
    }
}

/// The properties of a message, without those that it does not have.
pub(super) fn properties_json(properties: &Properties<'_>) -> Json {
    let mut object = Map::new();
    let mut put = |name: &str, value: Option<Json>| {
        if let Some(value) = value {
            object.insert(name.to_owned(), value);
        }
    };
    let short = |text: Option<ShortStr<'_>>| text.map(|text| text_or_base64(&text));
    put("type", short(properties.kind()));
    put("app_id", short(properties.app_id()));
    put("cluster_id", short(properties.cluster_id()));
    put("user_id", short(properties.user_id()));
    put("timestamp", properties.timestamp().map(Json::from));
    put("message_id", short(properties.message_id()));
    put("expiration", short(properties.expiration()));
    put("reply_to", short(properties.reply_to()));
    put("correlation_id", short(properties.correlation_id()));
    put("priority", properties.priority().map(Json::from));
    put("delivery_mode", properties.delivery_mode().map(Json::from));
    put("headers", properties.headers().map(table_json));
    put("content_encoding", short(properties.content_encoding()));
    put("content_type", short(properties.content_type()));
    Json::Object(object)
}

/// The properties that JSON asks for, as they are stored. Names that are no property are passed over.
///
/// # Errors
/// If one is of another type than AMQP has for it.
pub fn properties(object: &Map<String, Json>) -> Result<Vec<u8>, JsonError> {
    let headers = match object.get("headers") {
        None | Some(Json::Null) => None,
        Some(Json::Object(headers)) => Some(table(headers)?),
        // The empty table of a client that knows no difference.
        Some(Json::Array(items)) if items.is_empty() => Some(TableBuf::new()),
        Some(_) => return Err(JsonError::Property { name: "headers", wanted: "an object" }),
    };
    let mut built = PropertiesBuilder::new();
    if let Some(headers) = &headers {
        built = built.headers(headers.as_table());
    }
    macro_rules! put_text {
        ($($property:ident: $name:literal),*) => {
            $(if let Some(text) = short(object, $name)? {
                built = built.$property(text);
            })*
        };
    }
    put_text! {
        content_type: "content_type", content_encoding: "content_encoding", correlation_id: "correlation_id",
        reply_to: "reply_to", expiration: "expiration", message_id: "message_id", kind: "type",
        user_id: "user_id", app_id: "app_id", cluster_id: "cluster_id"
    }
    if let Some(mode) = number(object, "delivery_mode", u8::MAX.into())? {
        built = built.delivery_mode(mode as u8);
    }
    if let Some(priority) = number(object, "priority", u8::MAX.into())? {
        built = built.priority(priority as u8);
    }
    if let Some(seconds) = number(object, "timestamp", u64::MAX)? {
        built = built.timestamp(seconds);
    }
    Ok(built.to_vec())
}

fn short<'a>(object: &'a Map<String, Json>, name: &'static str) -> Result<Option<ShortStr<'a>>, JsonError> {
    let wrong = || JsonError::Property { name, wanted: "a text of at most 255 bytes" };
    match object.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(text)) => ShortStr::new(text.as_bytes()).map(Some).map_err(|_| wrong()),
        Some(_) => Err(wrong()),
    }
}

fn number(object: &Map<String, Json>, name: &'static str, max: u64) -> Result<Option<u64>, JsonError> {
    let given = match object.get(name) {
        None | Some(Json::Null) => return Ok(None),
        Some(given) => given.as_u64(),
    };
    given.filter(|number| *number <= max).map(Some).ok_or(JsonError::NoNumber { name })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Json) -> Map<String, Json> {
        match value {
            Json::Object(object) => object,
            other => panic!("{other} is no object"),
        }
    }

    #[test]
    fn a_table_comes_back_as_it_was_given() {
        let given = json!({"a": "text", "b": -7, "c": 1.5, "d": true, "f": [1, ["x", {"y": 2}]], "g": {}});
        let built = table(&object(given.clone())).unwrap();
        assert_eq!(raw_table_json(built.as_raw()), given);
        assert_eq!(built.as_table().get("b"), Some(Value::I64(-7)));
        assert_eq!(raw_table_json(b"garbage"), json!({}));
    }

    #[test]
    fn what_amqp_cannot_hold_is_refused() {
        let mut deep = json!(1);
        for _ in 0..120 {
            deep = json!([deep]);
        }
        assert_eq!(table(&object(json!({ "a": deep }))), Err(JsonError::TooDeep));
        assert_eq!(table(&object(json!({"a": [null]}))), Err(JsonError::Null));
        let long = "x".repeat(256);
        assert_eq!(table(&object(json!({ long: 1 }))), Err(JsonError::LongName { bytes: 256 }));
        let large = "x".repeat(TABLE_BYTES_MAX);
        assert!(matches!(table(&object(json!({ "a": large }))), Err(JsonError::TooLarge { .. })));
        assert!(matches!(table(&object(json!({ "a": u64::MAX }))), Err(JsonError::Number { .. })));
    }

    #[test]
    fn bytes_that_are_no_text_are_base64_and_no_number_is_text() {
        let mut table = TableBuf::new();
        table.put(ShortStr::from_static("b"), Value::Bytes(&[0, 255]));
        table.put(ShortStr::from_static("n"), Value::F64(f64::NAN));
        table.put(ShortStr::from_static("q"), Value::LongStr(b"\"<script>\x01"));
        let shown = table_json(table.as_table());
        assert_eq!(shown, json!({"b": "AP8=", "n": "NaN", "q": "\"<script>\u{1}"}));
        assert!(!shown.to_string().contains('\u{1}'), "control characters are escaped");
    }

    #[test]
    fn properties_come_back_as_they_were_given() {
        let given = json!({
            "type": "t", "app_id": "a", "cluster_id": "c", "user_id": "guest", "timestamp": 1_700_000_000u64,
            "message_id": "m", "expiration": "1000", "reply_to": "r", "correlation_id": "c", "priority": 3,
            "delivery_mode": 2, "headers": {"h": 1}, "content_encoding": "utf-8", "content_type": "text/plain",
        });
        let raw = properties(&object(given.clone())).unwrap();
        assert_eq!(properties_json(&Properties::parse(&raw).unwrap()), given);
        assert_eq!(properties_json(&Properties::EMPTY), json!({}));
        let raw = properties(&object(json!({"delivery_mode": 2, "headers": [], "unknown": 1}))).unwrap();
        assert_eq!(Properties::parse(&raw).unwrap().delivery_mode(), Some(2));
        for wrong in
            [json!({"priority": 256}), json!({"priority": "3"}), json!({"type": 1}), json!({"headers": 1})]
        {
            assert!(properties(&object(wrong.clone())).is_err(), "{wrong}");
        }
    }
}
