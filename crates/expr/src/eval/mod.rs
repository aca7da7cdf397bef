//! Runs the code of an expression.
//!
//! A node has a value or an error. There are three ways to ask a node: for any value, here; for a number, in `number`;
//! for a truth, in `truth`, where errors of `&&` and `||` are absorbed if another operand decides, in any order, as CEL
//! demands. Recursion is as deep as the tree, which the parser has bounded.
//!
//! Steps are counted: the nodes at the beginning, since none is evaluated twice, and what depends on the data where it is
//! looked at, before that if its length is known.

mod number;
mod truth;

use std::borrow::Cow;

use serde_json::Value as JsonValue;

use crate::arithmetic::Number;
use crate::code::{Code, Node};
use crate::error::{EvalError, quoted};
use crate::functions::{self, Extreme};
use crate::kind::{Kind, Kinds};
use crate::limits::{BYTES_PER_STEP, TEXT_BYTES_MAX};
use crate::signature::Function;
use crate::syntax::{Id, Operator};
use crate::value::{Entries, Value};

/// Errors are boxed on their way out, so that results are small.
type Ran<T> = Result<T, Box<EvalError>>;

pub(crate) fn eval<'a>(
    code: &'a Code,
    arguments: &'a [Value<'a>],
    steps_left: &mut u64,
) -> Result<Value<'a>, EvalError> {
    if arguments.len() != code.variables {
        return Err(EvalError::Arguments { expected: code.variables, found: arguments.len() });
    }
    let steps_max = *steps_left;
    let mut run = Run { code, arguments, text_bytes: 0, steps_max, steps_left: steps_max };
    let result = run.whole();
    *steps_left = run.steps_left;
    let result = result.map_err(|error| *error)?;
    let found = result.kind();
    if code.expected.kinds().overlaps(Kinds::of(found)) {
        Ok(result)
    } else {
        Err(EvalError::Result { expected: code.expected, found })
    }
}

#[cold]
fn fail<T>(error: EvalError) -> Ran<T> {
    Err(Box::new(error))
}

struct Run<'a> {
    code: &'a Code,
    arguments: &'a [Value<'a>],
    /// How much text has been built.
    text_bytes: usize,
    steps_max: u64,
    steps_left: u64,
}

impl<'a> Run<'a> {
    fn whole(&mut self) -> Ran<Value<'a>> {
        self.charge(self.code.nodes.len() as u64)?;
        self.node(&self.code.nodes[self.code.nodes.len() - 1])
    }

    /// Counts steps that are about to be taken. If they are too many they are not taken, and do not count.
    #[inline]
    fn charge(&mut self, steps: u64) -> Ran<()> {
        match self.steps_left.checked_sub(steps) {
            Some(left) => {
                self.steps_left = left;
                Ok(())
            }
            None => fail(EvalError::TooMuchWork { max: self.steps_max }),
        }
    }

    /// The same for steps that were taken: how many was not known before.
    fn charge_taken(&mut self, steps: u64) -> Ran<()> {
        let is_within = self.steps_left >= steps;
        self.steps_left = self.steps_left.saturating_sub(steps);
        if is_within { Ok(()) } else { fail(EvalError::TooMuchWork { max: self.steps_max }) }
    }

    /// Counts text that is about to be looked at.
    #[inline]
    fn charge_text(&mut self, bytes: usize) -> Ran<()> {
        self.charge((bytes / BYTES_PER_STEP) as u64)
    }

    /// The value of an operand. Leaves are the most frequent ones, and need no call.
    #[inline(always)]
    fn operand(&mut self, id: Id) -> Ran<Value<'a>> {
        match &self.code.nodes[usize::from(id)] {
            Node::Int(int) => Ok(Value::Int(*int)),
            Node::Variable(at) => Ok(self.arguments[usize::from(*at)].borrow()),
            node => self.node(node),
        }
    }

    fn node(&mut self, node: &'a Node) -> Ran<Value<'a>> {
        match *node {
            Node::Null => Ok(Value::Null),
            Node::Int(int) => Ok(Value::Int(int)),
            Node::Double(double) => Ok(Value::Double(double)),
            Node::Constant(at) => Ok(self.code.constants[usize::from(at)].borrow()),
            Node::Variable(at) => Ok(self.arguments[usize::from(at)].borrow()),
            Node::Field { of, name } => {
                let name = &self.code.names[usize::from(name)];
                match self.operand(of)? {
                    Value::Json(JsonValue::Object(object)) => match object.get(&**name) {
                        Some(value) => Ok(Value::from_json(value)),
                        None => fail(EvalError::NoSuchField { field: name.clone() }),
                    },
                    other => fail(EvalError::NotAnObject { field: name.clone(), found: other.kind() }),
                }
            }
            Node::Index { of, index } => {
                let of = self.operand(of)?;
                let index = self.operand(index)?;
                if let Value::String(name) = &index {
                    self.charge_text(name.len())?;
                }
                let entry = at_index(&of, &index)?;
                if let Value::String(Cow::Owned(text)) = &entry {
                    // A text that was built is copied out of its list.
                    self.charge_text(text.len())?;
                }
                Ok(entry)
            }
            Node::Arithmetic { operator, left, right } => {
                let left = self.operand(left)?;
                self.binary(operator, left, right)
            }
            Node::Chain { first, links } => {
                let mut left = self.operand(first)?;
                for &(operator, right) in links.of(&self.code.links) {
                    left = self.binary(operator, left, right)?;
                }
                Ok(left)
            }
            Node::If { condition, then, otherwise } => {
                if self.truth("?", condition)? {
                    self.operand(then)
                } else {
                    self.operand(otherwise)
                }
            }
            Node::List(entries) => {
                let entries = entries.of(&self.code.ids).iter().map(|&entry| self.operand(entry));
                Ok(Value::List(entries.collect::<Result<_, _>>()?))
            }
            Node::Unary { function, of } => self.unary(function, of),
            Node::Numbers { .. } | Node::Sum { .. } | Node::Negate(_) | Node::Min(_) | Node::Max(_) => {
                self.number_of("", node).map(Value::from)
            }
            Node::Bool(_)
            | Node::Not(_)
            | Node::And(_)
            | Node::Or(_)
            | Node::Comparison { .. }
            | Node::Relation { .. }
            | Node::Has { .. }
            | Node::Texts { .. }
            | Node::Matches { .. } => self.truth_of("", node).map(Value::Bool),
        }
    }

    /// An operator between values of which nothing is known.
    fn binary(&mut self, operator: Operator, left: Value<'a>, right: Id) -> Ran<Value<'a>> {
        if !operator.is_arithmetic() {
            return self.relation(operator, &left, right).map(Value::Bool);
        }
        let right = self.operand(right)?;
        if let (Some(left), Some(right)) = (Number::of(&left), Number::of(&right)) {
            return left.apply(operator, right).map(Value::from).map_err(Box::new);
        }
        match (operator, left, right) {
            (Operator::Add, Value::String(left), Value::String(right)) => self.join(left, &right),
            (_, left, right) => {
                let operator = operator.symbol();
                fail(EvalError::Operands { operator, left: left.kind(), right: right.kind() })
            }
        }
    }

    fn join(&mut self, left: Cow<'a, str>, right: &str) -> Ran<Value<'a>> {
        // What has been built already is appended to, and was counted.
        let copied = if matches!(left, Cow::Owned(_)) { 0 } else { left.len() };
        self.build(copied + right.len())?;
        let mut text = left.into_owned();
        text.push_str(right);
        Ok(Value::String(Cow::Owned(text)))
    }

    fn unary(&mut self, function: Function, of: Id) -> Ran<Value<'a>> {
        let value = self.operand(of)?;
        if let Value::String(text) = &value {
            self.charge_text(text.len())?;
        }
        match function {
            Function::Size => functions::size(&value).map(Value::Int).map_err(Box::new),
            Function::Abs => functions::abs(&value).map_err(Box::new),
            Function::Int => functions::int(&value).map_err(Box::new),
            Function::Double => functions::double(&value).map_err(Box::new),
            Function::Min | Function::Max => {
                self.charge(value.entries().map_or(0, Entries::len) as u64)?;
                Extreme::of(function, &value).map(Value::from).map_err(Box::new)
            }
            Function::String => {
                let text = match value {
                    Value::String(text) => return Ok(Value::String(text)),
                    Value::Int(int) => int.to_string(),
                    Value::Double(double) => double.to_string(),
                    Value::Bool(truth) => truth.to_string(),
                    other => return fail(EvalError::Operand { function: "string", found: other.kind() }),
                };
                self.build(text.len())?;
                Ok(Value::String(Cow::Owned(text)))
            }
            Function::LowerAscii | Function::UpperAscii | Function::Trim => {
                let text = expect_text(function.name(), value)?;
                if function == Function::Trim {
                    return Ok(Value::String(functions::trim(text)));
                }
                self.build(text.len())?;
                let is_lower = function == Function::LowerAscii;
                Ok(Value::String(if is_lower { functions::lower(text) } else { functions::upper(text) }))
            }
            Function::Contains | Function::StartsWith | Function::EndsWith | Function::Matches => {
                unreachable!("'{}' has nodes of its own", function.name())
            }
        }
    }

    fn text(&mut self, function: &'static str, of: Id) -> Ran<Cow<'a, str>> {
        expect_text(function, self.operand(of)?)
    }

    /// Counts text that is about to be built.
    fn build(&mut self, bytes: usize) -> Ran<()> {
        self.charge_text(bytes)?;
        self.text_bytes = self.text_bytes.saturating_add(bytes);
        if self.text_bytes > TEXT_BYTES_MAX { fail(EvalError::TooMuchText) } else { Ok(()) }
    }
}

fn expect_text<'a>(function: &'static str, value: Value<'a>) -> Ran<Cow<'a, str>> {
    match value {
        Value::String(text) => Ok(text),
        other => fail(EvalError::Operand { function, found: other.kind() }),
    }
}

fn at_index<'a>(of: &Value<'a>, index: &Value<'_>) -> Ran<Value<'a>> {
    match (of, index) {
        (Value::Json(JsonValue::Object(object)), Value::String(name)) => match object.get(&**name) {
            Some(value) => Ok(Value::from_json(value)),
            None => fail(EvalError::NoSuchField { field: quoted(name) }),
        },
        (Value::Json(JsonValue::Array(list)), Value::Int(_) | Value::Double(_)) => {
            let at = place(index, list.len())?;
            Ok(Value::from_json(&list[at]))
        }
        (Value::List(list), Value::Int(_) | Value::Double(_)) => {
            let at = place(index, list.len())?;
            Ok(list[at].clone())
        }
        _ => fail(EvalError::NotIndexable { of: of.kind(), index: index.kind() }),
    }
}

/// A number as a place in a list of this size. As in CEL, a double without a fraction will do.
fn place(index: &Value<'_>, size: usize) -> Ran<usize> {
    let int = match index {
        Value::Double(double) if double.fract() != 0.0 => {
            return fail(EvalError::NotIndexable { of: Kind::List, index: Kind::Double });
        }
        Value::Double(double) => *double as i64,
        _ => index.as_i64().unwrap_or(-1),
    };
    match usize::try_from(int) {
        Ok(at) if at < size => Ok(at),
        _ => fail(EvalError::IndexOutOfRange { index: int, size }),
    }
}
