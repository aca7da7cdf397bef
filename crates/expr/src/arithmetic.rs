//! Arithmetic, order and equality of values, as CEL has them.
//!
//! Integers that overflow and integer division by zero are errors. Where an int meets a double it becomes one; here we
//! are laxer than CEL, which refuses, because a number of JSON is an int or a double by chance: `10` or `9.99`.

use std::cmp::Ordering;

use serde_json::Value as JsonValue;

use crate::error::EvalError;
use crate::syntax::Operator;
use crate::value::{Entries, Value};

/// `left operator right` of numbers; `None` if one of them is none.
#[inline]
pub(crate) fn numbers<'a>(
    operator: Operator,
    left: &Value<'_>,
    right: &Value<'_>,
) -> Option<Result<Value<'a>, EvalError>> {
    Some(match (left, right) {
        (Value::Int(left), Value::Int(right)) => ints(operator, *left, *right).map(Value::Int),
        (Value::Double(left), Value::Double(right)) => doubles(operator, *left, *right)?,
        (Value::Int(left), Value::Double(right)) => doubles(operator, *left as f64, *right)?,
        (Value::Double(left), Value::Int(right)) => doubles(operator, *left, *right as f64)?,
        _ => return None,
    })
}

#[inline]
fn ints(operator: Operator, left: i64, right: i64) -> Result<i64, EvalError> {
    let result = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide if right != 0 => left.checked_div(right),
        Operator::Remainder if right != 0 => left.checked_rem(right),
        _ => return Err(EvalError::DivisionByZero { operator: operator.symbol() }),
    };
    result.ok_or(EvalError::Overflow { operator: operator.symbol() })
}

#[inline]
fn doubles<'a>(operator: Operator, left: f64, right: f64) -> Option<Result<Value<'a>, EvalError>> {
    let result = match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide => left / right,
        // CEL has no remainder of doubles.
        _ => return None,
    };
    Some(Ok(Value::Double(result)))
}

/// Which is greater; `Some(None)` with NaN, `None` if there is no order between values of these kinds.
#[inline]
pub(crate) fn order(left: &Value<'_>, right: &Value<'_>) -> Option<Option<Ordering>> {
    Some(match (left, right) {
        (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
        (Value::Double(left), Value::Double(right)) => left.partial_cmp(right),
        (Value::Int(left), Value::Double(right)) => int_to_double(*left, *right),
        (Value::Double(left), Value::Int(right)) => int_to_double(*right, *left).map(Ordering::reverse),
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        _ => return None,
    })
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

/// Values of different kinds are not equal, except numbers.
pub(crate) fn equal(left: &Value<'_>, right: &Value<'_>) -> bool {
    if let Some(order) = order(left, right) {
        return order == Some(Ordering::Equal);
    }
    match (left, right) {
        (Value::Null, Value::Null) => true,
        (Value::Json(JsonValue::Object(left)), Value::Json(JsonValue::Object(right))) => {
            let same = |(name, value): (&String, &JsonValue)| {
                right.get(name).is_some_and(|other| equal(&Value::from_json(value), &Value::from_json(other)))
            };
            left.len() == right.len() && left.iter().all(same)
        }
        _ => match (left.entries(), right.entries()) {
            (Some(left), Some(right)) => lists_equal(left, right),
            _ => false,
        },
    }
}

fn lists_equal(left: Entries<'_>, right: Entries<'_>) -> bool {
    left.len() == right.len() && left.iter().zip(right.iter()).all(|(left, right)| equal(&left, &right))
}
