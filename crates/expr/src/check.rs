//! Checks a tree against the types of its variables, as far as these are known, and lowers it to code.
//!
//! Each node stands after its parts, so one pass in order finds these done. Nothing recurses.

use std::borrow::Cow;

use crate::code::{Code, Node, Range};
use crate::error::CompileError;
use crate::kind::{Kinds, Type};
use crate::limits::PATTERNS_MAX;
use crate::pattern::Pattern;
use crate::schema::Schema;
use crate::signature::{Arity, Function};
use crate::syntax::{Expr, Id, Link, Operator, Style, Syntax};
use crate::value::Value;

pub(crate) fn check(
    source: &str,
    syntax: &Syntax<'_>,
    schema: &Schema,
    expected: Type,
) -> Result<Code, CompileError> {
    let mut checker = Checker { source, syntax, schema, kinds: Vec::new(), out: Lowered::default() };
    for node in &syntax.nodes {
        let (kinds, lowered) = checker.node(&node.expr, node.place)?;
        checker.kinds.push(kinds);
        checker.out.nodes.push(lowered);
    }
    let result = checker.kinds.last().copied().unwrap_or(Kinds::NONE);
    if !result.overlaps(expected.kinds()) {
        let place = checker.syntax.nodes.last().map_or(0, |node| node.place);
        return checker.error(place, format!("the result is {result}; expected {expected}"));
    }
    let out = checker.out;
    Ok(Code {
        nodes: out.nodes.into(),
        ids: out.ids.into(),
        links: out.links.into(),
        names: out.names.into(),
        constants: out.constants.into(),
        patterns: out.patterns.into(),
        used: out.used.into(),
        variables: schema.variables().len(),
        expected,
    })
}

struct Checker<'c, 's> {
    source: &'s str,
    syntax: &'c Syntax<'s>,
    schema: &'c Schema,
    /// What each node so far may turn out to be.
    kinds: Vec<Kinds>,
    out: Lowered,
}

/// The tables of [`Code`], growing.
#[derive(Default)]
struct Lowered {
    nodes: Vec<Node>,
    ids: Vec<Id>,
    links: Vec<(Operator, Id)>,
    names: Vec<Box<str>>,
    constants: Vec<Value<'static>>,
    patterns: Vec<Pattern>,
    used: Vec<&'static str>,
}

/// Length and places of tables are bounded by the number of nodes.
fn small(number: usize) -> u16 {
    u16::try_from(number).expect("an expression has few nodes")
}

impl Lowered {
    fn name(&mut self, name: &str) -> u16 {
        let at = self.names.iter().position(|other| **other == *name).unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        });
        small(at)
    }

    fn constant(&mut self, value: Value<'static>) -> Node {
        self.constants.push(value);
        Node::Constant(small(self.constants.len() - 1))
    }

    fn many(&mut self, ids: &[Id]) -> Range {
        let start = small(self.ids.len());
        self.ids.extend_from_slice(ids);
        Range { start, len: small(ids.len()) }
    }

    fn value_of_constant(&self, id: Id) -> Option<Value<'static>> {
        match self.nodes[usize::from(id)] {
            Node::Null => Some(Value::Null),
            Node::Bool(truth) => Some(Value::Bool(truth)),
            Node::Int(int) => Some(Value::Int(int)),
            Node::Double(double) => Some(Value::Double(double)),
            Node::Constant(at) => Some(self.constants[usize::from(at)].clone()),
            _ => None,
        }
    }
}

type Checked = Result<(Kinds, Node), CompileError>;

impl Checker<'_, '_> {
    fn node(&mut self, expr: &Expr<'_>, place: usize) -> Checked {
        Ok(match expr {
            Expr::Null => (Kinds::NULL, Node::Null),
            Expr::Bool(truth) => (Kinds::BOOL, Node::Bool(*truth)),
            Expr::Int(int) => (Kinds::INT, Node::Int(*int)),
            Expr::Double(double) => (Kinds::DOUBLE, Node::Double(*double)),
            Expr::Text(text) => {
                (Kinds::STRING, self.out.constant(Value::String(Cow::Owned(text.clone().into_owned()))))
            }
            Expr::List(entries) => (Kinds::LIST, self.list(entries)),
            Expr::Variable(name) => return self.variable(name, place),
            Expr::Field { of, name } => {
                self.demand_object(*of, name, place)?;
                (Kinds::ANY, Node::Field { of: *of, name: self.out.name(name) })
            }
            Expr::Has { of, name } => {
                self.demand_object(*of, name, place)?;
                (Kinds::BOOL, Node::Has { of: *of, name: self.out.name(name) })
            }
            Expr::Index { of, index } => return self.index(*of, *index, place),
            Expr::Not(of) => {
                self.demand("!", *of, Kinds::BOOL, place)?;
                (Kinds::BOOL, Node::Not(*of))
            }
            Expr::Negate(of) => {
                self.demand("-", *of, Kinds::NUMBER, place)?;
                (Function::Abs.gives(self.kinds(*of)), Node::Negate(*of))
            }
            Expr::And(operands) => {
                self.demand_bools("&&", operands)?;
                (Kinds::BOOL, Node::And(self.out.many(operands)))
            }
            Expr::Or(operands) => {
                self.demand_bools("||", operands)?;
                (Kinds::BOOL, Node::Or(self.out.many(operands)))
            }
            Expr::Chain { first, rest } => return self.chain(*first, rest),
            Expr::If { condition, then, otherwise } => {
                self.demand("?", *condition, Kinds::BOOL, place)?;
                let (left, right) = (self.kinds(*then), self.kinds(*otherwise));
                if !left.comparable(right) {
                    let message =
                        format!("the branches of '?' are {left} and {right}; they must be of one type");
                    return self.error(place, message);
                }
                let node = Node::If { condition: *condition, then: *then, otherwise: *otherwise };
                (left.or(right), node)
            }
            Expr::Call { name, style, arguments } => return self.call(name, *style, arguments, place),
        })
    }

    fn list(&mut self, entries: &[Id]) -> Node {
        let constants: Option<Vec<Value<'static>>> =
            entries.iter().map(|&entry| self.out.value_of_constant(entry)).collect();
        match constants {
            Some(constants) => self.out.constant(Value::List(constants.into())),
            None => Node::List(self.out.many(entries)),
        }
    }

    fn variable(&mut self, name: &str, place: usize) -> Checked {
        let Some((at, kind)) = self.schema.find(name) else {
            let names: Vec<&str> = self.schema.variables().iter().map(|(name, _)| *name).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return self.error(place, format!("unknown variable '{name}'; there are {there}"));
        };
        let name = self.schema.variables()[at].0;
        if !self.out.used.contains(&name) {
            self.out.used.push(name);
        }
        Ok((kind.kinds(), Node::Variable(small(at))))
    }

    fn index(&mut self, of: Id, index: Id, place: usize) -> Checked {
        let (kinds, by) = (self.kinds(of), self.kinds(index));
        let of_list = kinds.overlaps(Kinds::LIST) && by.overlaps(Kinds::NUMBER);
        let of_object = kinds.overlaps(Kinds::OBJECT) && by.overlaps(Kinds::STRING);
        if !of_list && !of_object {
            return self.error(place, format!("{kinds} cannot be indexed with {by}"));
        }
        Ok((Kinds::ANY, Node::Index { of, index }))
    }

    fn chain(&mut self, first: Id, rest: &[Link]) -> Checked {
        let mut kinds = self.kinds(first);
        for link in rest {
            let right = self.kinds(link.right);
            let result = result_of(link.operator, kinds, right);
            if result.is_none() {
                let symbol = link.operator.symbol();
                return self.error(link.place, format!("'{symbol}' does not take {kinds} and {right}"));
            }
            if link.operator == Operator::In {
                self.check_entries(kinds, link)?;
            }
            kinds = result;
        }
        let operands = rest.iter().map(|link| link.right).chain([first]);
        let all_numbers = operands.into_iter().all(|operand| self.kinds(operand).within(Kinds::NUMBER));
        let node = match *rest {
            [Link { operator, right, .. }] => binary(operator, first, right, all_numbers),
            _ => {
                let start = small(self.out.links.len());
                self.out.links.extend(rest.iter().map(|link| (link.operator, link.right)));
                let links = Range { start, len: small(rest.len()) };
                let is_sum = all_numbers && rest.iter().all(|link| link.operator.is_arithmetic());
                if is_sum { Node::Sum { first, links } } else { Node::Chain { first, links } }
            }
        };
        Ok((kinds, node))
    }

    /// A list that is written out must have an entry that can be equal to what is looked for.
    fn check_entries(&self, sought: Kinds, link: &Link) -> Result<(), CompileError> {
        let Expr::List(entries) = &self.syntax.nodes[usize::from(link.right)].expr else { return Ok(()) };
        if entries.is_empty() || entries.iter().any(|&entry| self.kinds(entry).comparable(sought)) {
            return Ok(());
        }
        self.error(link.place, format!("no entry of the list can be equal to {sought}"))
    }

    fn call(&mut self, name: &str, style: Style, arguments: &[Id], place: usize) -> Checked {
        let function = match Function::find(name, style) {
            Ok(function) => function,
            Err(message) => return self.error(place, message),
        };
        let (fits, wanted) = match function.arity() {
            Arity::One => (arguments.len() == 1, 1),
            Arity::Two => (arguments.len() == 2, 2),
            Arity::Many => (!arguments.is_empty(), 1),
        };
        if !fits {
            let receiver = usize::from(style == Style::Method);
            let found = arguments.len().saturating_sub(receiver);
            let least = if function.arity() == Arity::Many { "at least " } else { "" };
            let wanted = wanted - receiver;
            let word = if wanted == 1 { "argument" } else { "arguments" };
            let message = format!("'{name}' takes {least}{wanted} {word}, not {found}");
            return self.error(place, message);
        }
        let mut all = Kinds::NONE;
        for &argument in arguments {
            self.demand(name, argument, function.takes(arguments.len()), place)?;
            all = all.or(self.kinds(argument));
        }
        let node = match (function, arguments) {
            (Function::Matches, &[text, pattern]) => Node::Matches { text, pattern: self.pattern(pattern)? },
            (Function::Min, [_, _, ..]) => Node::Min(self.out.many(arguments)),
            (Function::Max, [_, _, ..]) => Node::Max(self.out.many(arguments)),
            (_, &[left, right]) => Node::Texts { function, left, right },
            (_, _) => Node::Unary { function, of: arguments[0] },
        };
        Ok((function.gives(all), node))
    }

    fn pattern(&mut self, id: Id) -> Result<u16, CompileError> {
        let node = &self.syntax.nodes[usize::from(id)];
        let Expr::Text(pattern) = &node.expr else {
            return self.error(node.place, "the pattern of 'matches' must be written out as a string");
        };
        if self.out.patterns.len() == PATTERNS_MAX {
            return self.error(node.place, format!("there are more than {PATTERNS_MAX} patterns"));
        }
        match Pattern::new(pattern) {
            Ok(pattern) => self.out.patterns.push(pattern),
            Err(message) => return self.error(node.place, message),
        }
        Ok(small(self.out.patterns.len() - 1))
    }

    fn demand(&self, what: &str, id: Id, wanted: Kinds, place: usize) -> Result<(), CompileError> {
        let found = self.kinds(id);
        if found.overlaps(wanted) {
            return Ok(());
        }
        self.error(place, format!("'{what}' does not take {found}; it takes {wanted}"))
    }

    fn demand_bools(&self, operator: &str, operands: &[Id]) -> Result<(), CompileError> {
        operands.iter().try_for_each(|&operand| {
            let place = self.syntax.nodes[usize::from(operand)].place;
            self.demand(operator, operand, Kinds::BOOL, place)
        })
    }

    fn demand_object(&self, id: Id, field: &str, place: usize) -> Result<(), CompileError> {
        let found = self.kinds(id);
        if found.overlaps(Kinds::OBJECT) {
            return Ok(());
        }
        self.error(place, format!("no such field '{field}': the value is {found}, not an object"))
    }

    fn kinds(&self, id: Id) -> Kinds {
        self.kinds[usize::from(id)]
    }

    fn error<T>(&self, place: usize, message: impl Into<String>) -> Result<T, CompileError> {
        Err(CompileError::new(self.source, place, message))
    }
}

fn binary(operator: Operator, left: Id, right: Id, of_numbers: bool) -> Node {
    match (operator.is_arithmetic(), of_numbers) {
        (true, false) => Node::Arithmetic { operator, left, right },
        (true, true) => Node::Numbers { operator, left, right },
        (false, false) => Node::Relation { operator, left, right },
        (false, true) => Node::Comparison { operator, left, right },
    }
}

/// What an operator can make of values that are among these; nothing if it takes none of them.
fn result_of(operator: Operator, left: Kinds, right: Kinds) -> Kinds {
    let both = |kinds: Kinds| left.overlaps(kinds) && right.overlaps(kinds);
    let ints = Kinds::INT.when(both(Kinds::INT));
    let a_double = left.overlaps(Kinds::DOUBLE) || right.overlaps(Kinds::DOUBLE);
    let doubles = Kinds::DOUBLE.when(both(Kinds::NUMBER) && a_double);
    match operator {
        Operator::Add => ints.or(doubles).or(Kinds::STRING.when(both(Kinds::STRING))),
        Operator::Subtract | Operator::Multiply | Operator::Divide => ints.or(doubles),
        Operator::Remainder => ints,
        Operator::Equal | Operator::NotEqual => Kinds::BOOL.when(left.comparable(right)),
        Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
            Kinds::BOOL.when(both(Kinds::NUMBER) || both(Kinds::STRING) || both(Kinds::BOOL))
        }
        Operator::In => Kinds::BOOL.when(
            right.overlaps(Kinds::LIST) || (right.overlaps(Kinds::OBJECT) && left.overlaps(Kinds::STRING)),
        ),
    }
}
