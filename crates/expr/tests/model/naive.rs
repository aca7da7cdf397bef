//! A model of the language that copies everything and is written for reading.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::Value as JsonValue;

use crate::ast::Ast;

#[derive(Clone, Debug)]
pub(crate) enum Model {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
    List(Vec<Model>),
    Object(BTreeMap<String, Model>),
}

use Model::{Bool, Double, Int, List, Null, Object, Text};

impl Model {
    pub(crate) fn from_json(json: &JsonValue) -> Model {
        match json {
            JsonValue::Null => Null,
            JsonValue::Bool(truth) => Bool(*truth),
            JsonValue::Number(number) => {
                number.as_i64().map_or_else(|| Double(number.as_f64().unwrap()), Int)
            }
            JsonValue::String(text) => Text(text.clone()),
            JsonValue::Array(list) => List(list.iter().map(Model::from_json).collect()),
            JsonValue::Object(object) => {
                Object(object.iter().map(|(name, value)| (name.clone(), Model::from_json(value))).collect())
            }
        }
    }

    /// The same kind and value; NaN is the same as NaN.
    pub(crate) fn is_same(&self, other: &Model) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }

    fn equals(&self, other: &Model) -> bool {
        match (self, other) {
            (Null, Null) => true,
            (Bool(a), Bool(b)) => a == b,
            (Text(a), Text(b)) => a == b,
            (List(a), List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b)),
            (Object(a), Object(b)) => {
                a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| a.equals(b)))
            }
            _ => self.compare(other) == Some(Some(Ordering::Equal)),
        }
    }

    /// `None` if there is no order between these kinds, `Some(None)` with NaN.
    fn compare(&self, other: &Model) -> Option<Option<Ordering>> {
        Some(match (self, other) {
            (Int(a), Int(b)) => Some(a.cmp(b)),
            (Double(a), Double(b)) => a.partial_cmp(b),
            // Rounding keeps the order, so only if both are the same as doubles the integer must be looked at.
            (Int(a), Double(b)) => {
                (*a as f64).partial_cmp(b).map(|order| order.then((*a as i128).cmp(&(*b as i128))))
            }
            (Double(_), Int(_)) => other.compare(self)?.map(Ordering::reverse),
            (Text(a), Text(b)) => Some(a.chars().cmp(b.chars())),
            (Bool(a), Bool(b)) => Some(a.cmp(b)),
            _ => return None,
        })
    }
}

pub(crate) type Variables<'v> = BTreeMap<&'v str, Model>;

/// The value, or `None` for an error.
pub(crate) fn eval(tree: &Ast, variables: &Variables<'_>) -> Option<Model> {
    let value = |tree: &Ast| eval(tree, variables);
    Some(match tree {
        Ast::Null => Null,
        Ast::Bool(truth) => Bool(*truth),
        Ast::Int(int) => Int(*int),
        Ast::Double(double) => Double(*double),
        Ast::Text(text) => Text((*text).to_owned()),
        Ast::Variable(name) => variables[name].clone(),
        Ast::List(entries) => List(entries.iter().map(value).collect::<Option<_>>()?),
        Ast::Field(of, name) => match value(of)? {
            Object(object) => object.get(*name)?.clone(),
            _ => return None,
        },
        Ast::Has(of, name) => match value(of)? {
            Object(object) => Bool(object.contains_key(*name)),
            _ => return None,
        },
        Ast::Index(of, index) => match (value(of)?, value(index)?) {
            (Object(object), Text(name)) => object.get(&name)?.clone(),
            (List(list), Int(at)) => list.get(usize::try_from(at).ok()?)?.clone(),
            (List(list), Double(at)) if at >= 0.0 && at.fract() == 0.0 => list.get(at as usize)?.clone(),
            _ => return None,
        },
        Ast::Not(of) => match value(of)? {
            Bool(truth) => Bool(!truth),
            _ => return None,
        },
        Ast::Negate(of) => match value(of)? {
            Int(int) => Int(int.checked_neg()?),
            Double(double) => Double(-double),
            _ => return None,
        },
        Ast::Binary(operator @ ("&&" | "||"), left, right) => {
            let decides = *operator == "||";
            match (value(left), value(right)) {
                (Some(Bool(truth)), _) | (_, Some(Bool(truth))) if truth == decides => Bool(decides),
                (Some(Bool(_)), Some(Bool(_))) => Bool(!decides),
                _ => return None,
            }
        }
        Ast::Binary(operator, left, right) => return binary(operator, &value(left)?, &value(right)?),
        Ast::If(condition, then, otherwise) => match value(condition)? {
            Bool(true) => value(then)?,
            Bool(false) => value(otherwise)?,
            _ => return None,
        },
        Ast::Call(name, arguments) | Ast::Method(name, arguments) => {
            let arguments: Vec<Model> = arguments.iter().map(value).collect::<Option<_>>()?;
            return call(name, arguments);
        }
    })
}

fn binary(operator: &str, left: &Model, right: &Model) -> Option<Model> {
    Some(match (operator, left, right) {
        ("==", _, _) => Bool(left.equals(right)),
        ("!=", _, _) => Bool(!left.equals(right)),
        ("<", _, _) => Bool(left.compare(right)?.is_some_and(Ordering::is_lt)),
        ("<=", _, _) => Bool(left.compare(right)?.is_some_and(Ordering::is_le)),
        (">", _, _) => Bool(left.compare(right)?.is_some_and(Ordering::is_gt)),
        (">=", _, _) => Bool(left.compare(right)?.is_some_and(Ordering::is_ge)),
        ("in", _, List(list)) => Bool(list.iter().any(|entry| entry.equals(left))),
        ("in", _, Object(object)) => Bool(matches!(left, Text(name) if object.contains_key(name))),
        ("+", Text(left), Text(right)) => Text(format!("{left}{right}")),
        ("+", Int(left), Int(right)) => Int(left.checked_add(*right)?),
        ("-", Int(left), Int(right)) => Int(left.checked_sub(*right)?),
        ("*", Int(left), Int(right)) => Int(left.checked_mul(*right)?),
        ("/", Int(left), Int(right)) => Int(left.checked_div(*right)?),
        ("%", Int(left), Int(right)) => Int(left.checked_rem(*right)?),
        ("+", _, _) => Double(double(left)? + double(right)?),
        ("-", _, _) => Double(double(left)? - double(right)?),
        ("*", _, _) => Double(double(left)? * double(right)?),
        ("/", _, _) => Double(double(left)? / double(right)?),
        _ => return None,
    })
}

fn double(model: &Model) -> Option<f64> {
    match model {
        Int(int) => Some(*int as f64),
        Double(double) => Some(*double),
        _ => None,
    }
}

fn call(name: &str, mut arguments: Vec<Model>) -> Option<Model> {
    if let ("min" | "max" | "math.least" | "math.greatest", [List(list)]) = (name, &arguments[..]) {
        arguments = list.clone();
    }
    Some(match (name, &arguments[..]) {
        ("min" | "math.least", all) => extreme(all, Ordering::Less)?,
        ("max" | "math.greatest", all) => extreme(all, Ordering::Greater)?,
        ("abs", [Int(int)]) => Int(int.checked_abs()?),
        ("abs", [Double(double)]) => Double(double.abs()),
        ("int", [Int(int)]) => Int(*int),
        ("int", [Double(double)]) => Int(whole(*double)?),
        ("int", [Text(text)]) => Int(text.parse().ok()?),
        ("double", [Text(text)]) => Double(text.parse().ok()?),
        ("double", [number]) => Double(double(number)?),
        ("string", [Text(text)]) => Text(text.clone()),
        ("string", [Int(int)]) => Text(int.to_string()),
        ("string", [Double(double)]) => Text(double.to_string()),
        ("string", [Bool(truth)]) => Text(truth.to_string()),
        ("size", [Text(text)]) => Int(text.chars().count() as i64),
        ("size", [List(list)]) => Int(list.len() as i64),
        ("size", [Object(object)]) => Int(object.len() as i64),
        ("contains", [Text(text), Text(part)]) => Bool(text.contains(part)),
        ("startsWith", [Text(text), Text(part)]) => Bool(text.starts_with(part)),
        ("endsWith", [Text(text), Text(part)]) => Bool(text.ends_with(part)),
        ("trim", [Text(text)]) => Text(text.trim().to_owned()),
        ("lowerAscii", [Text(text)]) => Text(text.to_ascii_lowercase()),
        ("upperAscii", [Text(text)]) => Text(text.to_ascii_uppercase()),
        _ => return None,
    })
}

/// What is before the point, if it fits.
fn whole(double: f64) -> Option<i64> {
    if double.is_finite() { i64::try_from(double as i128).ok() } else { None }
}

fn extreme(all: &[Model], wanted: Ordering) -> Option<Model> {
    let doubles: Vec<f64> = all.iter().map(double).collect::<Option<_>>()?;
    if doubles.iter().any(|double| double.is_nan()) {
        return Some(Double(f64::NAN));
    }
    let mut best = all.first()?;
    for model in all {
        if model.compare(best)? == Some(wanted) {
            best = model;
        }
    }
    Some(best.clone())
}
