//! Evaluation of what is a number, without the detour over [`Value`]. Scores are made of little else.

use super::{Ran, Run, fail};
use crate::arithmetic::Number;
use crate::code::{Node, Range};
use crate::error::EvalError;
use crate::functions::Extreme;
use crate::signature::Function;
use crate::syntax::Id;
use crate::value::Value;

impl<'a> Run<'a> {
    /// The number that this operand is; `asker` is the operator or function that does not take anything else.
    #[inline(always)]
    pub(super) fn number(&mut self, asker: &'static str, id: Id) -> Ran<Number> {
        match &self.code.nodes[usize::from(id)] {
            Node::Int(int) => Ok(Number::Int(*int)),
            Node::Variable(at) => match &self.arguments[usize::from(*at)] {
                Value::Int(int) => Ok(Number::Int(*int)),
                Value::Double(double) => Ok(Number::Double(*double)),
                other => expect_number(asker, &other.borrow()),
            },
            node => self.number_of(asker, node),
        }
    }

    pub(super) fn number_of(&mut self, asker: &'static str, node: &'a Node) -> Ran<Number> {
        match *node {
            Node::Double(double) => Ok(Number::Double(double)),
            Node::Numbers { operator, left, right } => {
                let left = self.number(operator.symbol(), left)?;
                let right = self.number(operator.symbol(), right)?;
                left.apply(operator, right).map_err(Box::new)
            }
            Node::Sum { first, links } => {
                let links = links.of(&self.code.links);
                let mut sum = self.number(links.first().map_or("", |link| link.0.symbol()), first)?;
                for &(operator, right) in links {
                    let right = self.number(operator.symbol(), right)?;
                    sum = sum.apply(operator, right).map_err(Box::new)?;
                }
                Ok(sum)
            }
            Node::Negate(of) => match self.number("-", of)? {
                Number::Int(int) => match int.checked_neg() {
                    Some(int) => Ok(Number::Int(int)),
                    None => fail(EvalError::Overflow { operator: "-" }),
                },
                Number::Double(double) => Ok(Number::Double(-double)),
            },
            Node::If { condition, then, otherwise } => {
                if self.truth("?", condition)? {
                    self.number(asker, then)
                } else {
                    self.number(asker, otherwise)
                }
            }
            Node::Min(operands) => self.extreme(Function::Min, operands),
            Node::Max(operands) => self.extreme(Function::Max, operands),
            _ => expect_number(asker, &self.node(node)?),
        }
    }

    fn extreme(&mut self, function: Function, operands: Range) -> Ran<Number> {
        let mut extreme = Extreme::new(function);
        for &operand in operands.of(&self.code.ids) {
            extreme.take(self.number(extreme.name(), operand)?);
        }
        extreme.finish().map_err(Box::new)
    }
}

fn expect_number(asker: &'static str, value: &Value<'_>) -> Ran<Number> {
    match Number::of(value) {
        Some(number) => Ok(number),
        None => fail(EvalError::Operand { function: asker, found: value.kind() }),
    }
}
