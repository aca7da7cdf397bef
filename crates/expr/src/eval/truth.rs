//! Evaluation of what is true or false, without the detour over [`Value`]. Filters are made of it.

use serde_json::Value as JsonValue;

use super::{Ran, Run, fail};
use crate::arithmetic::{equal, holds, order};
use crate::code::{Node, Range};
use crate::error::EvalError;
use crate::functions;
use crate::syntax::{Id, Operator};
use crate::value::Value;

impl<'a> Run<'a> {
    /// The truth that this operand is; `asker` is the operator that does not take anything else.
    #[inline(always)]
    pub(super) fn truth(&mut self, asker: &'static str, id: Id) -> Ran<bool> {
        match &self.code.nodes[usize::from(id)] {
            Node::Variable(at) => match &self.arguments[usize::from(*at)] {
                Value::Bool(truth) => Ok(*truth),
                other => expect_truth(asker, &other.borrow()),
            },
            node => self.truth_of(asker, node),
        }
    }

    pub(super) fn truth_of(&mut self, asker: &'static str, node: &'a Node) -> Ran<bool> {
        match *node {
            Node::Bool(truth) => Ok(truth),
            Node::Not(of) => Ok(!self.truth("!", of)?),
            Node::And(operands) => self.logic("&&", operands, false),
            Node::Or(operands) => self.logic("||", operands, true),
            Node::Comparison { operator, left, right } => {
                let left = self.number(operator.symbol(), left)?;
                let right = self.number(operator.symbol(), right)?;
                Ok(holds(operator, left.order(right)))
            }
            Node::Relation { operator, left, right } => {
                let left = self.operand(left)?;
                self.relation(operator, &left, right)
            }
            Node::Has { of, name } => {
                let name = &self.code.names[usize::from(name)];
                match self.operand(of)? {
                    Value::Json(JsonValue::Object(object)) => Ok(object.contains_key(&**name)),
                    other => fail(EvalError::NotAnObject { field: name.clone(), found: other.kind() }),
                }
            }
            Node::Texts { function, left, right } => {
                let left = self.text(function.name(), left)?;
                let right = self.text(function.name(), right)?;
                Ok(functions::texts(function, &left, &right))
            }
            Node::Matches { text, pattern } => {
                let text = self.text("matches", text)?;
                Ok(self.code.patterns[usize::from(pattern)].is_match(&text))
            }
            Node::If { condition, then, otherwise } => {
                if self.truth("?", condition)? {
                    self.truth(asker, then)
                } else {
                    self.truth(asker, otherwise)
                }
            }
            _ => expect_truth(asker, &self.node(node)?),
        }
    }

    /// `&&`, which `false` decides, or `||`, which `true` decides: whatever stands before that, errors too.
    fn logic(&mut self, operator: &'static str, operands: Range, decides: bool) -> Ran<bool> {
        let mut failed = None;
        for &operand in operands.of(&self.code.ids) {
            match self.truth(operator, operand) {
                Ok(truth) if truth == decides => return Ok(decides),
                Ok(_) => {}
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(!decides), Err)
    }

    pub(super) fn relation(&mut self, operator: Operator, left: &Value<'a>, right: Id) -> Ran<bool> {
        if let Node::Constant(at) = self.code.nodes[usize::from(right)] {
            return related(operator, left, &self.code.constants[usize::from(at)]);
        }
        let right = self.operand(right)?;
        related(operator, left, &right)
    }
}

fn related(operator: Operator, left: &Value<'_>, right: &Value<'_>) -> Ran<bool> {
    match operator {
        Operator::Equal => return Ok(equal(left, right)),
        Operator::NotEqual => return Ok(!equal(left, right)),
        Operator::In => {
            if let Value::Json(JsonValue::Object(object)) = right {
                return Ok(matches!(left, Value::String(name) if object.contains_key(&**name)));
            }
            if let Some(entries) = right.entries() {
                return Ok(entries.iter().any(|entry| equal(left, &entry)));
            }
        }
        _ => {
            if let Some(order) = order(left, right) {
                return Ok(holds(operator, order));
            }
        }
    }
    fail(EvalError::Operands { operator: operator.symbol(), left: left.kind(), right: right.kind() })
}

fn expect_truth(asker: &'static str, value: &Value<'_>) -> Ran<bool> {
    match value {
        Value::Bool(truth) => Ok(*truth),
        other => fail(EvalError::Operand { function: asker, found: other.kind() }),
    }
}
