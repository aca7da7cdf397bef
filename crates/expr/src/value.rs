//! What goes into an evaluation and what comes out of it.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value as JsonValue;

use crate::kind::Kind;

/// A value. What comes from JSON or from the program is borrowed, not copied.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A 64-bit integer.
    Int(i64),
    /// A 64-bit floating-point number.
    Double(f64),
    /// Text.
    String(Cow<'a, str>),
    /// JSON. As an argument it may be anything; as a result it is a list or an object, and everything else has become one
    /// of the other variants.
    Json(&'a JsonValue),
    /// A list that is written out in the expression.
    List(Arc<[Value<'a>]>),
}

impl<'a> Value<'a> {
    /// The truth, if this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(truth) => Some(*truth),
            Value::Json(json) => json.as_bool(),
            _ => None,
        }
    }

    /// The number, if this is an int or a double.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Int(int) => Some(*int as f64),
            Value::Double(double) => Some(*double),
            Value::Json(json) => json.as_f64(),
            _ => None,
        }
    }

    /// The integer, if this is an int.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Int(int) => Some(*int),
            Value::Json(json) => json.as_i64(),
            _ => None,
        }
    }

    /// The text, if this is some.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            Value::Json(json) => json.as_str(),
            _ => None,
        }
    }

    /// What this is.
    pub fn kind(&self) -> Kind {
        match self {
            Value::Null => Kind::Null,
            Value::Bool(_) => Kind::Bool,
            Value::Int(_) => Kind::Int,
            Value::Double(_) => Kind::Double,
            Value::String(_) => Kind::String,
            Value::List(_) => Kind::List,
            Value::Json(JsonValue::Array(_)) => Kind::List,
            Value::Json(JsonValue::Object(_)) => Kind::Object,
            Value::Json(scalar) => Value::from_json(scalar).kind(),
        }
    }

    /// JSON as an expression sees it: an int if the number fits one, else a double; lists and objects as they are.
    #[inline]
    pub(crate) fn from_json(json: &'a JsonValue) -> Value<'a> {
        match json {
            JsonValue::Null => Value::Null,
            JsonValue::Bool(truth) => Value::Bool(*truth),
            JsonValue::Number(number) => match number.as_i64() {
                Some(int) => Value::Int(int),
                None => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            JsonValue::String(text) => Value::String(Cow::Borrowed(text)),
            JsonValue::Array(_) | JsonValue::Object(_) => Value::Json(json),
        }
    }

    /// The same value, borrowed.
    #[inline]
    pub(crate) fn borrow(&'a self) -> Value<'a> {
        match self {
            Value::Null => Value::Null,
            Value::Bool(truth) => Value::Bool(*truth),
            Value::Int(int) => Value::Int(*int),
            Value::Double(double) => Value::Double(*double),
            Value::String(text) => Value::String(Cow::Borrowed(text)),
            Value::Json(json) => Value::from_json(json),
            Value::List(list) => Value::List(list.clone()),
        }
    }

    /// The entries, if this is a list.
    pub(crate) fn entries(&self) -> Option<Entries<'_>> {
        match self {
            Value::List(list) => Some(Entries::Written(list)),
            Value::Json(JsonValue::Array(list)) => Some(Entries::Json(list)),
            _ => None,
        }
    }
}

impl From<bool> for Value<'_> {
    fn from(truth: bool) -> Self {
        Value::Bool(truth)
    }
}

impl From<i64> for Value<'_> {
    fn from(int: i64) -> Self {
        Value::Int(int)
    }
}

impl From<f64> for Value<'_> {
    fn from(double: f64) -> Self {
        Value::Double(double)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::String(Cow::Borrowed(text))
    }
}

impl<'a> From<&'a JsonValue> for Value<'a> {
    fn from(json: &'a JsonValue) -> Self {
        Value::from_json(json)
    }
}

/// The entries of a list, wherever they come from.
#[derive(Clone, Copy)]
pub(crate) enum Entries<'a> {
    Written(&'a [Value<'a>]),
    Json(&'a [JsonValue]),
}

impl<'a> Entries<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Entries::Written(list) => list.len(),
            Entries::Json(list) => list.len(),
        }
    }

    pub(crate) fn get(self, at: usize) -> Option<Value<'a>> {
        match self {
            Entries::Written(list) => list.get(at).map(Value::borrow),
            Entries::Json(list) => list.get(at).map(Value::from_json),
        }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Value<'a>> {
        (0..self.len()).filter_map(move |at| self.get(at))
    }
}
