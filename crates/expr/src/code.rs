//! What an expression is compiled to: small nodes in one row, each after those it is made of.

use crate::kind::Type;
use crate::pattern::Pattern;
use crate::signature::Function;
use crate::syntax::{Id, Operator};
use crate::value::Value;

#[derive(Debug)]
pub(crate) struct Code {
    /// Never empty; the last one is the whole expression.
    pub(crate) nodes: Box<[Node]>,
    /// The operands of nodes that have many.
    pub(crate) ids: Box<[Id]>,
    pub(crate) links: Box<[(Operator, Id)]>,
    /// Names of fields.
    pub(crate) names: Box<[Box<str>]>,
    /// Texts, and lists of nothing but constants.
    pub(crate) constants: Box<[Value<'static>]>,
    pub(crate) patterns: Box<[Pattern]>,
    /// Names of the variables that occur.
    pub(crate) used: Box<[&'static str]>,
    pub(crate) variables: usize,
    pub(crate) expected: Type,
}

/// A part of one of the tables of [`Code`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) start: u16,
    pub(crate) len: u16,
}

impl Range {
    pub(crate) fn of<T>(self, table: &[T]) -> &[T] {
        let start = usize::from(self.start);
        &table[start..start + usize::from(self.len)]
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Constant(u16),
    Variable(u16),
    Field {
        of: Id,
        name: u16,
    },
    Has {
        of: Id,
        name: u16,
    },
    Index {
        of: Id,
        index: Id,
    },
    Not(Id),
    Negate(Id),
    And(Range),
    Or(Range),
    /// `+ - * / %`, of whatever it turns out to be.
    Arithmetic {
        operator: Operator,
        left: Id,
        right: Id,
    },
    /// The same, of numbers for certain.
    Numbers {
        operator: Operator,
        left: Id,
        right: Id,
    },
    /// Comparisons and `in`, of whatever it turns out to be.
    Relation {
        operator: Operator,
        left: Id,
        right: Id,
    },
    /// A comparison of numbers for certain.
    Comparison {
        operator: Operator,
        left: Id,
        right: Id,
    },
    /// Two or more operators of one rank.
    Chain {
        first: Id,
        links: Range,
    },
    /// The same, of numbers for certain, with arithmetic alone.
    Sum {
        first: Id,
        links: Range,
    },
    If {
        condition: Id,
        then: Id,
        otherwise: Id,
    },
    List(Range),
    Matches {
        text: Id,
        pattern: u16,
    },
    Unary {
        function: Function,
        of: Id,
    },
    /// A function of two texts.
    Texts {
        function: Function,
        left: Id,
        right: Id,
    },
    /// Of two arguments or more.
    Min(Range),
    /// Of two arguments or more.
    Max(Range),
}
