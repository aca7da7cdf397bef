//! The tree that the parser makes of the tokens: nodes in one row, each after those it is made of.

use std::borrow::Cow;

/// The place of a node in [`Syntax::nodes`].
pub(crate) type Id = u16;

#[derive(Debug)]
pub(crate) struct Syntax<'s> {
    /// Never empty; the last one is the whole expression.
    pub(crate) nodes: Vec<Node<'s>>,
}

#[derive(Debug)]
pub(crate) struct Node<'s> {
    pub(crate) expr: Expr<'s>,
    /// In bytes from the beginning of the text.
    pub(crate) place: usize,
    /// Longest way down to a leaf, with both ends.
    pub(crate) height: usize,
}

#[derive(Debug)]
pub(crate) enum Expr<'s> {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(Cow<'s, str>),
    List(Vec<Id>),
    Variable(&'s str),
    Field {
        of: Id,
        name: &'s str,
    },
    Has {
        of: Id,
        name: &'s str,
    },
    Index {
        of: Id,
        index: Id,
    },
    Not(Id),
    Negate(Id),
    /// Operands of `&&`, two or more.
    And(Vec<Id>),
    /// Operands of `||`, two or more.
    Or(Vec<Id>),
    /// Other operators of one rank, from left to right.
    Chain {
        first: Id,
        rest: Vec<Link>,
    },
    If {
        condition: Id,
        then: Id,
        otherwise: Id,
    },
    /// `f(a)`, or with a receiver `r.f(a)`; the receiver is the first argument.
    Call {
        name: &'s str,
        style: Style,
        arguments: Vec<Id>,
    },
}

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// `f(a)`
    Global,
    /// `r.f(a)`
    Method,
    /// `math.f(a)`
    Math,
}

/// An operator and what stands right of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) operator: Operator,
    pub(crate) right: Id,
    /// Of the operator.
    pub(crate) place: usize,
}

/// The operators between two values that evaluate both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

impl Operator {
    /// Whether it makes numbers, or a text, of its operands; the others make a bool.
    pub(crate) fn is_arithmetic(self) -> bool {
        match self {
            Operator::Add
            | Operator::Subtract
            | Operator::Multiply
            | Operator::Divide
            | Operator::Remainder => true,
            Operator::Equal
            | Operator::NotEqual
            | Operator::Less
            | Operator::LessOrEqual
            | Operator::Greater
            | Operator::GreaterOrEqual
            | Operator::In => false,
        }
    }

    /// As it is written.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::Remainder => "%",
            Operator::Equal => "==",
            Operator::NotEqual => "!=",
            Operator::Less => "<",
            Operator::LessOrEqual => "<=",
            Operator::Greater => ">",
            Operator::GreaterOrEqual => ">=",
            Operator::In => "in",
        }
    }
}

impl Expr<'_> {
    /// What this is made of.
    pub(crate) fn parts(&self) -> Vec<Id> {
        match self {
            Expr::Null
            | Expr::Bool(_)
            | Expr::Int(_)
            | Expr::Double(_)
            | Expr::Text(_)
            | Expr::Variable(_) => vec![],
            Expr::List(parts) | Expr::And(parts) | Expr::Or(parts) => parts.clone(),
            Expr::Call { arguments, .. } => arguments.clone(),
            Expr::Field { of, .. } | Expr::Has { of, .. } | Expr::Not(of) | Expr::Negate(of) => vec![*of],
            Expr::Index { of, index } => vec![*of, *index],
            Expr::Chain { first, rest } => {
                std::iter::once(*first).chain(rest.iter().map(|link| link.right)).collect()
            }
            Expr::If { condition, then, otherwise } => vec![*condition, *then, *otherwise],
        }
    }
}
