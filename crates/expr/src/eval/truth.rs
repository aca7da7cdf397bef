//! Evaluation of what is true or false, without the detour over [`Value`]. Filters are made of it.

use serde_json::Value as JsonValue;

use super::{Ran, Run, fail};
use crate::arithmetic::{equal, holds, order};
use crate::code::{Node, Range};
use crate::error::EvalError;
use crate::functions;
use crate::syntax::{Id, Operator};
use crate::value::{Entries, Value};

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
                self.charge_text(left.len().max(right.len()))?;
                Ok(functions::texts(function, &left, &right))
            }
            Node::Matches { text, pattern } => {
                let text = self.text("matches", text)?;
                let pattern = &self.code.patterns[usize::from(pattern)];
                self.charge(pattern.steps(&text))?;
                Ok(pattern.is_match(&text))
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

    /// `&&`, which `false` decides, or `||`, which `true` decides: whatever stands before that, errors too. But who has no steps
    /// left stops.
    fn logic(&mut self, operator: &'static str, operands: Range, decides: bool) -> Ran<bool> {
        let mut failed = None;
        for &operand in operands.of(&self.code.ids) {
            match self.truth(operator, operand) {
                Ok(truth) if truth == decides => return Ok(decides),
                Ok(_) => {}
                Err(error) if matches!(*error, EvalError::TooMuchWork { .. }) => return Err(error),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        failed.map_or(Ok(!decides), Err)
    }

    pub(super) fn relation(&mut self, operator: Operator, left: &Value<'a>, right: Id) -> Ran<bool> {
        if let Node::Constant(at) = self.code.nodes[usize::from(right)] {
            return self.related(operator, left, &self.code.constants[usize::from(at)]);
        }
        let right = self.operand(right)?;
        self.related(operator, left, &right)
    }

    fn related(&mut self, operator: Operator, left: &Value<'_>, right: &Value<'_>) -> Ran<bool> {
        match operator {
            Operator::Equal => return self.equal(left, right),
            Operator::NotEqual => return self.equal(left, right).map(|is_equal| !is_equal),
            Operator::In => {
                if let Value::Json(JsonValue::Object(object)) = right {
                    let Value::String(name) = left else { return Ok(false) };
                    self.charge_text(name.len())?;
                    return Ok(object.contains_key(&**name));
                }
                if let Some(entries) = right.entries() {
                    return self.is_among(left, entries);
                }
            }
            _ => {
                if let (Value::String(left), Value::String(right)) = (left, right) {
                    self.charge_text(left.len().min(right.len()))?;
                }
                if let Some(order) = order(left, right) {
                    return Ok(holds(operator, order));
                }
            }
        }
        fail(EvalError::Operands { operator: operator.symbol(), left: left.kind(), right: right.kind() })
    }

    fn equal(&mut self, left: &Value<'_>, right: &Value<'_>) -> Ran<bool> {
        let mut steps = 0;
        let is_equal = equal(left, right, &mut steps);
        self.charge_taken(steps)?;
        Ok(is_equal)
    }

    fn is_among(&mut self, sought: &Value<'_>, entries: Entries<'_>) -> Ran<bool> {
        for entry in entries.iter() {
            self.charge(1)?;
            if self.equal(sought, &entry)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn expect_truth(asker: &'static str, value: &Value<'_>) -> Ran<bool> {
    match value {
        Value::Bool(truth) => Ok(*truth),
        other => fail(EvalError::Operand { function: asker, found: other.kind() }),
    }
}
