//! Runs the code of an expression.
//!
//! A node returns a value or an error. Errors of `&&` and `||` are absorbed where the other side decides, in either
//! order, as CEL demands. Recursion is as deep as the tree, which the parser has bounded.

use std::borrow::Cow;

use serde_json::Value as JsonValue;

use crate::arithmetic::{equal, numbers, order};
use crate::code::{Code, Node, Range};
use crate::error::{EvalError, quoted};
use crate::functions::{self, Extreme};
use crate::kind::Kinds;
use crate::limits::TEXT_BYTES_MAX;
use crate::signature::Function;
use crate::syntax::{Id, Operator};
use crate::value::Value;

type Evaluated<'a> = Result<Value<'a>, EvalError>;

pub(crate) fn eval<'a>(code: &'a Code, arguments: &'a [Value<'a>]) -> Evaluated<'a> {
    if arguments.len() != code.variables {
        return Err(EvalError::Arguments { expected: code.variables, found: arguments.len() });
    }
    let mut run = Run { code, arguments, text_bytes: 0 };
    let result = run.node(&code.nodes[code.nodes.len() - 1])?;
    let found = result.kind();
    if code.expected.kinds().overlaps(Kinds::of(found)) {
        Ok(result)
    } else {
        Err(EvalError::Result { expected: code.expected, found })
    }
}

struct Run<'a> {
    code: &'a Code,
    arguments: &'a [Value<'a>],
    /// How much text has been built.
    text_bytes: usize,
}

impl<'a> Run<'a> {
    /// The value of an operand. Leaves are the most frequent ones, and need no call.
    #[inline(always)]
    fn operand(&mut self, id: Id) -> Evaluated<'a> {
        match &self.code.nodes[usize::from(id)] {
            Node::Int(int) => Ok(Value::Int(*int)),
            Node::Variable(at) => Ok(self.arguments[usize::from(*at)].borrow()),
            node => self.node(node),
        }
    }

    fn node(&mut self, node: &'a Node) -> Evaluated<'a> {
        match *node {
            Node::Null => Ok(Value::Null),
            Node::Bool(truth) => Ok(Value::Bool(truth)),
            Node::Int(int) => Ok(Value::Int(int)),
            Node::Double(double) => Ok(Value::Double(double)),
            Node::Constant(at) => Ok(self.code.constants[usize::from(at)].borrow()),
            Node::Variable(at) => Ok(self.arguments[usize::from(at)].borrow()),
            Node::Field { of, name } => {
                let name = &self.code.names[usize::from(name)];
                match self.operand(of)? {
                    Value::Json(JsonValue::Object(object)) => match object.get(&**name) {
                        Some(value) => Ok(Value::from_json(value)),
                        None => Err(EvalError::NoSuchField { field: name.clone() }),
                    },
                    other => Err(EvalError::NotAnObject { field: name.clone(), found: other.kind() }),
                }
            }
            Node::Has { of, name } => {
                let name = &self.code.names[usize::from(name)];
                match self.operand(of)? {
                    Value::Json(JsonValue::Object(object)) => Ok(Value::Bool(object.contains_key(&**name))),
                    other => Err(EvalError::NotAnObject { field: name.clone(), found: other.kind() }),
                }
            }
            Node::Index { of, index } => {
                let of = self.operand(of)?;
                let index = self.operand(index)?;
                at_index(&of, &index)
            }
            Node::Not(of) => match self.operand(of)? {
                Value::Bool(truth) => Ok(Value::Bool(!truth)),
                other => Err(EvalError::Operand { function: "!", found: other.kind() }),
            },
            Node::Negate(of) => match self.operand(of)? {
                Value::Int(int) => match int.checked_neg() {
                    Some(int) => Ok(Value::Int(int)),
                    None => Err(EvalError::Overflow { operator: "-" }),
                },
                Value::Double(double) => Ok(Value::Double(-double)),
                other => Err(EvalError::Operand { function: "-", found: other.kind() }),
            },
            Node::And(operands) => self.bools(operands, "&&", false),
            Node::Or(operands) => self.bools(operands, "||", true),
            Node::Binary { operator, left, right } => {
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
            Node::If { condition, then, otherwise } => match self.operand(condition)? {
                Value::Bool(true) => self.operand(then),
                Value::Bool(false) => self.operand(otherwise),
                other => Err(EvalError::Operand { function: "?", found: other.kind() }),
            },
            Node::List(entries) => {
                let entries = entries.of(&self.code.ids).iter().map(|&entry| self.operand(entry));
                Ok(Value::List(entries.collect::<Result<_, _>>()?))
            }
            Node::Matches { text, pattern } => {
                let text = self.text("matches", text)?;
                Ok(Value::Bool(self.code.patterns[usize::from(pattern)].is_match(&text)))
            }
            Node::Unary { function, of } => self.unary(function, of),
            Node::Texts { function, left, right } => {
                let left = self.text(function.name(), left)?;
                let right = self.text(function.name(), right)?;
                Ok(Value::Bool(functions::texts(function, &left, &right)))
            }
            Node::Min(operands) => self.extreme(Function::Min, operands),
            Node::Max(operands) => self.extreme(Function::Max, operands),
        }
    }

    /// `&&`, which `false` decides, or `||`, which `true` decides: whatever stands before that, errors too.
    fn bools(&mut self, operands: Range, operator: &'static str, decides: bool) -> Evaluated<'a> {
        let mut failed = None;
        for &operand in operands.of(&self.code.ids) {
            let error = match self.operand(operand) {
                Ok(Value::Bool(truth)) if truth == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => continue,
                Ok(other) => EvalError::Operand { function: operator, found: other.kind() },
                Err(error) => error,
            };
            failed.get_or_insert(error);
        }
        failed.map_or(Ok(Value::Bool(!decides)), Err)
    }

    #[inline]
    fn binary(&mut self, operator: Operator, left: Value<'a>, right: Id) -> Evaluated<'a> {
        if operator == Operator::In
            && let Node::Constant(at) = self.code.nodes[usize::from(right)]
        {
            return is_in(&left, &self.code.constants[usize::from(at)]);
        }
        let right = self.operand(right)?;
        let ordering = match operator {
            Operator::Add
            | Operator::Subtract
            | Operator::Multiply
            | Operator::Divide
            | Operator::Remainder => {
                return match numbers(operator, &left, &right) {
                    Some(result) => result,
                    None => self.join(operator, left, right),
                };
            }
            Operator::Equal => return Ok(Value::Bool(equal(&left, &right))),
            Operator::NotEqual => return Ok(Value::Bool(!equal(&left, &right))),
            Operator::In => return is_in(&left, &right),
            Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
                order(&left, &right)
            }
        };
        let Some(ordering) = ordering else { return Err(operands(operator, &left, &right)) };
        Ok(Value::Bool(ordering.is_some_and(|ordering| match operator {
            Operator::Less => ordering.is_lt(),
            Operator::LessOrEqual => ordering.is_le(),
            Operator::Greater => ordering.is_gt(),
            _ => ordering.is_ge(),
        })))
    }

    /// `+` of texts.
    fn join(&mut self, operator: Operator, left: Value<'a>, right: Value<'a>) -> Evaluated<'a> {
        match (operator, left, right) {
            (Operator::Add, Value::String(left), Value::String(right)) => {
                // What has been built here already is appended to, and was counted.
                let built = if matches!(left, Cow::Owned(_)) { 0 } else { left.len() };
                self.build(built + right.len())?;
                let mut text = left.into_owned();
                text.push_str(&right);
                Ok(Value::String(Cow::Owned(text)))
            }
            (_, left, right) => Err(operands(operator, &left, &right)),
        }
    }

    fn unary(&mut self, function: Function, of: Id) -> Evaluated<'a> {
        match function {
            Function::Size => functions::size(&self.operand(of)?).map(Value::Int),
            Function::Abs => functions::abs(&self.operand(of)?),
            Function::Int => functions::int(&self.operand(of)?),
            Function::Double => functions::double(&self.operand(of)?),
            Function::String => {
                let text = match self.operand(of)? {
                    Value::String(text) => return Ok(Value::String(text)),
                    Value::Int(int) => int.to_string(),
                    Value::Double(double) => double.to_string(),
                    Value::Bool(truth) => truth.to_string(),
                    other => return Err(EvalError::Operand { function: "string", found: other.kind() }),
                };
                self.build(text.len())?;
                Ok(Value::String(Cow::Owned(text)))
            }
            Function::LowerAscii | Function::UpperAscii => {
                let text = self.text(function.name(), of)?;
                self.build(text.len())?;
                let changed = if function == Function::LowerAscii {
                    functions::lower(text)
                } else {
                    functions::upper(text)
                };
                Ok(Value::String(changed))
            }
            Function::Trim => Ok(Value::String(functions::trim(self.text("trim", of)?))),
            Function::Contains
            | Function::StartsWith
            | Function::EndsWith
            | Function::Matches
            | Function::Min
            | Function::Max => unreachable!("'{}' has nodes of its own", function.name()),
        }
    }

    fn extreme(&mut self, function: Function, operands: Range) -> Evaluated<'a> {
        let operands = operands.of(&self.code.ids);
        let mut extreme = Extreme::new(function);
        if let [only] = *operands {
            let only = self.operand(only)?;
            let Some(entries) = only.entries() else {
                extreme.take(only)?;
                return extreme.finish();
            };
            let mut extreme = Extreme::new(function);
            entries.iter().try_for_each(|entry| extreme.take(entry))?;
            return match extreme.finish()? {
                Value::Int(int) => Ok(Value::Int(int)),
                Value::Double(double) => Ok(Value::Double(double)),
                other => Err(EvalError::Operand { function: function.name(), found: other.kind() }),
            };
        }
        for &operand in operands {
            extreme.take(self.operand(operand)?)?;
        }
        extreme.finish()
    }

    fn text(&mut self, function: &'static str, of: Id) -> Result<Cow<'a, str>, EvalError> {
        match self.operand(of)? {
            Value::String(text) => Ok(text),
            other => Err(EvalError::Operand { function, found: other.kind() }),
        }
    }

    /// Counts text that is about to be built.
    fn build(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.text_bytes = self.text_bytes.saturating_add(bytes);
        if self.text_bytes > TEXT_BYTES_MAX { Err(EvalError::TooMuchText) } else { Ok(()) }
    }
}

fn operands(operator: Operator, left: &Value<'_>, right: &Value<'_>) -> EvalError {
    EvalError::Operands { operator: operator.symbol(), left: left.kind(), right: right.kind() }
}

/// `left in right`: an entry of a list, or the name of a field.
fn is_in<'a>(left: &Value<'_>, right: &Value<'_>) -> Evaluated<'a> {
    if let Value::Json(JsonValue::Object(object)) = right {
        return Ok(Value::Bool(matches!(left, Value::String(name) if object.contains_key(&**name))));
    }
    match right.entries() {
        Some(entries) => Ok(Value::Bool(entries.iter().any(|entry| equal(left, &entry)))),
        None => Err(operands(Operator::In, left, right)),
    }
}

fn at_index<'a>(of: &Value<'a>, index: &Value<'_>) -> Evaluated<'a> {
    match (of, index) {
        (Value::Json(JsonValue::Object(object)), Value::String(name)) => match object.get(&**name) {
            Some(value) => Ok(Value::from_json(value)),
            None => Err(EvalError::NoSuchField { field: quoted(name) }),
        },
        (Value::Json(JsonValue::Array(list)), Value::Int(_) | Value::Double(_)) => {
            let at = place(index, list.len())?;
            Ok(Value::from_json(&list[at]))
        }
        (Value::List(list), Value::Int(_) | Value::Double(_)) => {
            let at = place(index, list.len())?;
            Ok(list[at].clone())
        }
        _ => Err(EvalError::NotIndexable { of: of.kind(), index: index.kind() }),
    }
}

/// A number as a place in a list of this size. As in CEL, a double without a fraction will do.
fn place(index: &Value<'_>, size: usize) -> Result<usize, EvalError> {
    let int = match index {
        Value::Double(double) if double.fract() != 0.0 => {
            return Err(EvalError::NotIndexable { of: crate::Kind::List, index: crate::Kind::Double });
        }
        Value::Double(double) => *double as i64,
        _ => index.as_i64().unwrap_or(-1),
    };
    match usize::try_from(int) {
        Ok(at) if at < size => Ok(at),
        _ => Err(EvalError::IndexOutOfRange { index: int, size }),
    }
}
