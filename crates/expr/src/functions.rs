//! The functions, over values that have been evaluated.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value as JsonValue;

use crate::arithmetic::Number;
use crate::error::{EvalError, quoted};
use crate::kind::Kind;
use crate::signature::Function;
use crate::value::Value;

/// Characters of a text, entries of a list, fields of an object.
pub(crate) fn size(value: &Value<'_>) -> Result<i64, EvalError> {
    let size = match value {
        Value::String(text) => text.chars().count(),
        Value::Json(JsonValue::Object(object)) => object.len(),
        _ => match value.entries() {
            Some(entries) => entries.len(),
            None => return Err(EvalError::Operand { function: "size", found: value.kind() }),
        },
    };
    Ok(i64::try_from(size).unwrap_or(i64::MAX))
}

/// A number without its sign.
pub(crate) fn abs<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    match value {
        Value::Int(int) => int.checked_abs().map(Value::Int).ok_or(EvalError::Overflow { operator: "abs" }),
        Value::Double(double) => Ok(Value::Double(double.abs())),
        other => Err(EvalError::Operand { function: "abs", found: other.kind() }),
    }
}

/// An integer; of a double what is before the point.
pub(crate) fn int<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    match value {
        Value::Int(int) => Ok(Value::Int(*int)),
        // The bounds are exact as doubles; the upper one is the first that does not fit.
        Value::Double(double) if (-(2f64.powi(63))..2f64.powi(63)).contains(double) => {
            Ok(Value::Int(*double as i64))
        }
        Value::Double(double) => Err(conversion(&format!("{double:?}"), Kind::Int)),
        Value::String(text) => text.parse().map(Value::Int).map_err(|_| conversion(text, Kind::Int)),
        other => Err(EvalError::Operand { function: "int", found: other.kind() }),
    }
}

/// A double.
pub(crate) fn double<'a>(value: &Value<'a>) -> Result<Value<'a>, EvalError> {
    match value {
        Value::Int(int) => Ok(Value::Double(*int as f64)),
        Value::Double(double) => Ok(Value::Double(*double)),
        Value::String(text) => text.parse().map(Value::Double).map_err(|_| conversion(text, Kind::Double)),
        other => Err(EvalError::Operand { function: "double", found: other.kind() }),
    }
}

fn conversion(text: &str, to: Kind) -> EvalError {
    EvalError::Conversion { text: quoted(text), to }
}

/// A function of two texts.
pub(crate) fn texts(function: Function, left: &str, right: &str) -> bool {
    match function {
        Function::Contains => left.contains(right),
        Function::StartsWith => left.starts_with(right),
        Function::EndsWith => left.ends_with(right),
        _ => unreachable!("'{}' is no function of two texts", function.name()),
    }
}

/// A text in small letters, if that changes anything; only A to Z are changed.
pub(crate) fn lower<'a>(text: Cow<'a, str>) -> Cow<'a, str> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        text
    }
}

/// A text in capitals, if that changes anything; only a to z are changed.
pub(crate) fn upper<'a>(text: Cow<'a, str>) -> Cow<'a, str> {
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        Cow::Owned(text.to_ascii_uppercase())
    } else {
        text
    }
}

/// A text without white space at its ends.
pub(crate) fn trim<'a>(text: Cow<'a, str>) -> Cow<'a, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim()),
        Cow::Owned(mut text) => {
            text.truncate(text.trim_end().len());
            let blanks = text.len() - text.trim_start().len();
            text.drain(..blanks);
            Cow::Owned(text)
        }
    }
}

/// The least or the greatest of some numbers, as they come. NaN wins over all, as in arithmetic.
pub(crate) struct Extreme {
    function: Function,
    best: Option<Number>,
}

impl Extreme {
    #[inline]
    pub(crate) fn new(function: Function) -> Extreme {
        Extreme { function, best: None }
    }

    /// Of the entries of a list, or of a single number.
    pub(crate) fn of(function: Function, value: &Value<'_>) -> Result<Number, EvalError> {
        let mut extreme = Extreme::new(function);
        let Some(entries) = value.entries() else {
            extreme.take(extreme.expect(value)?);
            return extreme.finish();
        };
        for entry in entries.iter() {
            extreme.take(extreme.expect(&entry)?);
        }
        extreme.finish()
    }

    #[inline]
    pub(crate) fn take(&mut self, number: Number) {
        let wanted = if self.function == Function::Min { Ordering::Less } else { Ordering::Greater };
        let is_better = match self.best {
            None => true,
            Some(best) => match number.order(best) {
                Some(order) => order == wanted,
                None => !best.is_nan(),
            },
        };
        if is_better {
            self.best = Some(number);
        }
    }

    #[inline]
    pub(crate) fn finish(self) -> Result<Number, EvalError> {
        self.best.ok_or(EvalError::EmptyList { function: self.name() })
    }

    #[inline]
    pub(crate) fn name(&self) -> &'static str {
        if self.function == Function::Min { "min" } else { "max" }
    }

    fn expect(&self, value: &Value<'_>) -> Result<Number, EvalError> {
        Number::of(value).ok_or_else(|| EvalError::Operand { function: self.name(), found: value.kind() })
    }
}
