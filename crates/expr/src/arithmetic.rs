//! Arithmetic, order and equality, as CEL has them.
//!
//! Integers that overflow and integer division by zero are errors. Where an int meets a double it becomes one; here we
//! are laxer than CEL, which refuses, because a number of JSON is an int or a double by chance: `10` or `9.99`.

use std::cmp::Ordering;

use serde_json::Value as JsonValue;

use crate::error::EvalError;
use crate::kind::Kind;
use crate::limits::BYTES_PER_STEP;
use crate::syntax::Operator;
use crate::value::{Entries, Value};

#[derive(Clone, Copy)]
pub(crate) enum Number {
    Int(i64),
    Double(f64),
}

impl Number {
    #[inline]
    pub(crate) fn of(value: &Value<'_>) -> Option<Number> {
        match value {
            Value::Int(int) => Some(Number::Int(*int)),
            Value::Double(double) => Some(Number::Double(*double)),
            _ => None,
        }
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Number::Int(_) => Kind::Int,
            Number::Double(_) => Kind::Double,
        }
    }

    pub(crate) fn is_nan(self) -> bool {
        matches!(self, Number::Double(double) if double.is_nan())
    }

    /// `self operator right`, for `+ - * / %`.
    #[inline]
    pub(crate) fn apply(self, operator: Operator, right: Number) -> Result<Number, EvalError> {
        match (self, right) {
            (Number::Int(left), Number::Int(right)) => ints(operator, left, right),
            (Number::Double(left), Number::Double(right)) => doubles(operator, left, right),
            (Number::Int(left), Number::Double(right)) => doubles(operator, left as f64, right),
            (Number::Double(left), Number::Int(right)) => doubles(operator, left, right as f64),
        }
        .ok_or_else(|| failed(operator, self, right))
    }

    /// Which is greater; `None` with NaN.
    #[inline]
    pub(crate) fn order(self, right: Number) -> Option<Ordering> {
        match (self, right) {
            (Number::Int(left), Number::Int(right)) => Some(left.cmp(&right)),
            (Number::Double(left), Number::Double(right)) => left.partial_cmp(&right),
            (Number::Int(left), Number::Double(right)) => int_to_double(left, right),
            (Number::Double(left), Number::Int(right)) => int_to_double(right, left).map(Ordering::reverse),
        }
    }
}

impl From<Number> for Value<'_> {
    #[inline]
    fn from(number: Number) -> Self {
        match number {
            Number::Int(int) => Value::Int(int),
            Number::Double(double) => Value::Double(double),
        }
    }
}

#[inline]
fn ints(operator: Operator, left: i64, right: i64) -> Option<Number> {
    let result = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide => left.checked_div(right),
        Operator::Remainder => left.checked_rem(right),
        _ => None,
    };
    result.map(Number::Int)
}

#[inline]
fn doubles(operator: Operator, left: f64, right: f64) -> Option<Number> {
    let result = match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide => left / right,
        // CEL has no remainder of doubles.
        _ => return None,
    };
    Some(Number::Double(result))
}

/// Why arithmetic of two numbers has no result.
#[cold]
fn failed(operator: Operator, left: Number, right: Number) -> EvalError {
    let symbol = operator.symbol();
    match (left, right) {
        (Number::Int(_), Number::Int(0)) if matches!(operator, Operator::Divide | Operator::Remainder) => {
            EvalError::DivisionByZero { operator: symbol }
        }
        (Number::Int(_), Number::Int(_)) => EvalError::Overflow { operator: symbol },
        _ => EvalError::Operands { operator: symbol, left: left.kind(), right: right.kind() },
    }
}

/// Compares without rounding, as CEL demands: 2^53 + 1 is greater than 2^53 as a double.
fn int_to_double(int: i64, double: f64) -> Option<Ordering> {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    if double.is_nan() {
        return None;
    }
    if double >= TWO_TO_63 {
        return Some(Ordering::Less);
    }
    if double < -TWO_TO_63 {
        return Some(Ordering::Greater);
    }
    let whole = double.trunc();
    Some(int.cmp(&(whole as i64)).then_with(|| 0.0f64.total_cmp(&(double - whole + 0.0))))
}

/// Whether an ordering is what a comparison asks for. With NaN nothing but `!=` holds.
#[inline]
pub(crate) fn holds(operator: Operator, order: Option<Ordering>) -> bool {
    match operator {
        Operator::NotEqual => order != Some(Ordering::Equal),
        Operator::Equal => order == Some(Ordering::Equal),
        Operator::Less => order.is_some_and(Ordering::is_lt),
        Operator::LessOrEqual => order.is_some_and(Ordering::is_le),
        Operator::Greater => order.is_some_and(Ordering::is_gt),
        Operator::GreaterOrEqual => order.is_some_and(Ordering::is_ge),
        _ => false,
    }
}

/// Which is greater; `Some(None)` with NaN, `None` if there is no order between values of these kinds.
#[inline]
pub(crate) fn order(left: &Value<'_>, right: &Value<'_>) -> Option<Option<Ordering>> {
    match (left, right) {
        (Value::String(left), Value::String(right)) => Some(Some(left.cmp(right))),
        (Value::Bool(left), Value::Bool(right)) => Some(Some(left.cmp(right))),
        _ => Some(Number::of(left)?.order(Number::of(right)?)),
    }
}

/// Values of different kinds are not equal, except numbers. Adds the steps that it takes: for text, entries and fields.
pub(crate) fn equal(left: &Value<'_>, right: &Value<'_>, steps: &mut u64) -> bool {
    match (left, right) {
        (Value::String(left), Value::String(right)) => {
            *steps += (left.len().min(right.len()) / BYTES_PER_STEP) as u64;
            left == right
        }
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Null, Value::Null) => true,
        (Value::Json(JsonValue::Object(left)), Value::Json(JsonValue::Object(right))) => {
            let same = |(name, value): (&String, &JsonValue)| {
                *steps += 1 + (name.len() / BYTES_PER_STEP) as u64;
                let (value, other) = (Value::from_json(value), right.get(name).map(Value::from_json));
                other.is_some_and(|other| equal(&value, &other, steps))
            };
            left.len() == right.len() && left.iter().all(same)
        }
        _ => match (Number::of(left), Number::of(right)) {
            (Some(left), Some(right)) => left.order(right) == Some(Ordering::Equal),
            _ => match (left.entries(), right.entries()) {
                (Some(left), Some(right)) => lists_equal(left, right, steps),
                _ => false,
            },
        },
    }
}

fn lists_equal(left: Entries<'_>, right: Entries<'_>, steps: &mut u64) -> bool {
    let same = |(left, right): (Value<'_>, Value<'_>)| {
        *steps += 1;
        equal(&left, &right, steps)
    };
    left.len() == right.len() && left.iter().zip(right.iter()).all(same)
}
