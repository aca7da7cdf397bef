//! Makes a tree of the tokens, in CEL's grammar, by precedence climbing.
//!
//! Only [`Parser::expression`] recurses into itself, and counts how deep. Signs, members and operators of one rank are
//! taken in loops; how high the tree grows by them is counted at each node.

use crate::error::CompileError;
use crate::limits::{DEPTH_MAX, LIST_ENTRIES_MAX, NODES_MAX};
use crate::syntax::{Expr, Id, Link, Node, Operator, Style, Syntax};
use crate::token::{Token, tokens};

type Parsed = Result<Id, CompileError>;

/// Words that are operators or literals, and cannot even name a field.
const KEYWORDS: [&str; 4] = ["false", "in", "null", "true"];
/// Words that CEL keeps for the languages around it.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];
/// CEL's macros that go over a list.
const LOOPS: [&str; 7] = ["all", "exists", "exists_one", "existsOne", "filter", "map", "transformList"];

pub(crate) fn parse(source: &str) -> Result<Syntax<'_>, CompileError> {
    let mut parser = Parser { source, tokens: tokens(source)?, at: 0, depth: 0, nodes: Vec::new() };
    let root = parser.expression()?;
    match parser.peek() {
        Token::End => {}
        _ => return parser.expected("an operator or the end"),
    }
    debug_assert_eq!(usize::from(root) + 1, parser.nodes.len(), "the whole expression is the last node");
    Ok(Syntax { nodes: parser.nodes })
}

struct Parser<'s> {
    source: &'s str,
    tokens: Vec<(Token<'s>, usize)>,
    at: usize,
    depth: usize,
    nodes: Vec<Node<'s>>,
}

/// The binary operators, and how tightly each binds.
#[derive(Clone, Copy, PartialEq)]
enum Binary {
    Or,
    And,
    Other(Operator),
}

impl Binary {
    fn of(token: &Token<'_>) -> Option<Binary> {
        let operator = match token {
            Token::Name("in") => Operator::In,
            Token::Symbol(symbol) => match *symbol {
                "||" => return Some(Binary::Or),
                "&&" => return Some(Binary::And),
                "==" => Operator::Equal,
                "!=" => Operator::NotEqual,
                "<" => Operator::Less,
                "<=" => Operator::LessOrEqual,
                ">" => Operator::Greater,
                ">=" => Operator::GreaterOrEqual,
                "+" => Operator::Add,
                "-" => Operator::Subtract,
                "*" => Operator::Multiply,
                "/" => Operator::Divide,
                "%" => Operator::Remainder,
                _ => return None,
            },
            _ => return None,
        };
        Some(Binary::Other(operator))
    }

    fn rank(self) -> u8 {
        match self {
            Binary::Or => 1,
            Binary::And => 2,
            Binary::Other(operator) => match operator {
                Operator::Equal
                | Operator::NotEqual
                | Operator::Less
                | Operator::LessOrEqual
                | Operator::Greater
                | Operator::GreaterOrEqual
                | Operator::In => 3,
                Operator::Add | Operator::Subtract => 4,
                Operator::Multiply | Operator::Divide | Operator::Remainder => 5,
            },
        }
    }
}

impl<'s> Parser<'s> {
    /// `a`, or `a ? b : c`.
    fn expression(&mut self) -> Parsed {
        if self.depth == DEPTH_MAX {
            return self.error_here(too_deep());
        }
        self.depth += 1;
        let condition = self.binary(1)?;
        let place = self.place();
        let whole = if self.eat("?") {
            let then = self.binary(1)?;
            self.expect(":")?;
            let otherwise = self.expression()?;
            self.push(place, Expr::If { condition, then, otherwise })?
        } else {
            condition
        };
        self.depth -= 1;
        Ok(whole)
    }

    /// Operators that bind at least this tightly.
    fn binary(&mut self, rank_min: u8) -> Parsed {
        let mut left = self.unary()?;
        while let Some(operator) = Binary::of(self.peek())
            && operator.rank() >= rank_min
        {
            left = self.row(left, operator.rank())?;
        }
        Ok(left)
    }

    /// Operators of one rank side by side, with `first` before them.
    fn row(&mut self, first: Id, rank: u8) -> Parsed {
        let start = self.place();
        let mut operands = vec![first];
        let mut rest = Vec::new();
        while let Some(operator) = Binary::of(self.peek())
            && operator.rank() == rank
        {
            let place = self.place();
            self.advance();
            let right = self.binary(rank + 1)?;
            match operator {
                Binary::Or | Binary::And => operands.push(right),
                Binary::Other(operator) => rest.push(Link { operator, right, place }),
            }
        }
        match rank {
            1 => self.push(start, Expr::Or(operands)),
            2 => self.push(start, Expr::And(operands)),
            _ => self.push(start, Expr::Chain { first, rest }),
        }
    }

    /// `!a` or `-a`, with any number of the same sign.
    fn unary(&mut self) -> Parsed {
        let mut places = Vec::new();
        let sign = match self.peek() {
            Token::Symbol(sign @ ("!" | "-")) => *sign,
            _ => return self.member(),
        };
        while *self.peek() == Token::Symbol(sign) {
            places.push(self.place());
            self.advance();
            if places.len() > DEPTH_MAX {
                return self.error_here(too_deep());
            }
        }
        // The minus right before a number is the number's: the least integer has no positive counterpart.
        let mut operand = match (sign, self.peek().clone(), places.last().copied()) {
            ("-", Token::Int(magnitude), Some(place)) => {
                places.pop();
                let Some(int) = 0i64.checked_sub_unsigned(magnitude) else {
                    return self.error_here(format!("the number -{magnitude} does not fit 64 bits"));
                };
                self.advance();
                let number = self.push(place, Expr::Int(int))?;
                self.members(number)?
            }
            ("-", Token::Double(double), Some(place)) => {
                places.pop();
                self.advance();
                let number = self.push(place, Expr::Double(-double))?;
                self.members(number)?
            }
            _ => self.member()?,
        };
        for place in places.into_iter().rev() {
            let expr = if sign == "!" { Expr::Not(operand) } else { Expr::Negate(operand) };
            operand = self.push(place, expr)?;
        }
        Ok(operand)
    }

    fn member(&mut self) -> Parsed {
        let first = self.primary()?;
        self.members(first)
    }

    /// `.name`, `.name(…)` and `[…]`, any number of them.
    fn members(&mut self, mut of: Id) -> Parsed {
        loop {
            let place = self.place();
            if self.eat("[") {
                let index = self.expression()?;
                self.expect("]")?;
                of = self.push(place, Expr::Index { of, index })?;
            } else if self.eat(".") {
                let place = self.place();
                let name = match self.peek() {
                    Token::Name(name) if !KEYWORDS.contains(name) => *name,
                    Token::Quoted(name) => name,
                    _ => return self.expected("the name of a field or a method"),
                };
                self.advance();
                if *self.peek() != Token::Symbol("(") {
                    of = self.push(place, Expr::Field { of, name })?;
                    continue;
                }
                if LOOPS.contains(&name) {
                    let message = format!("'{name}' is a macro with a loop, and there are no loops here");
                    return self.error(place, message);
                }
                let arguments = self.arguments(vec![of])?;
                of = self.push(place, Expr::Call { name, style: Style::Method, arguments })?;
            } else {
                return Ok(of);
            }
        }
    }

    fn primary(&mut self) -> Parsed {
        let place = self.place();
        let expr = match self.peek().clone() {
            Token::Int(magnitude) => match i64::try_from(magnitude) {
                Ok(int) => Expr::Int(int),
                Err(_) => {
                    return self.error(place, format!("the number {magnitude} does not fit 64 bits"));
                }
            },
            Token::Double(double) => Expr::Double(double),
            Token::Text(text) => Expr::Text(text),
            Token::Name("null") => Expr::Null,
            Token::Name("true") => Expr::Bool(true),
            Token::Name("false") => Expr::Bool(false),
            Token::Name("in") => return self.expected("a value"),
            Token::Name(name) if RESERVED.contains(&name) => {
                return self.error(place, format!("'{name}' is a reserved word of CEL and cannot be a name"));
            }
            Token::Name(name) => {
                self.advance();
                return self.name(name, place);
            }
            Token::Symbol("(") => {
                self.advance();
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Symbol("[") => {
                self.advance();
                return self.list(place);
            }
            Token::Symbol("{") => return self.error(place, "maps cannot be written out here"),
            Token::Symbol(_) | Token::Quoted(_) | Token::End => return self.expected("a value"),
        };
        self.advance();
        self.push(place, expr)
    }

    /// A variable, a call, or a macro; its name has been taken.
    fn name(&mut self, name: &'s str, place: usize) -> Parsed {
        if name == "math"
            && let [(Token::Symbol("."), _), (Token::Name(function), place), (Token::Symbol("("), _), ..] =
                self.tokens[self.at..]
        {
            self.at += 2;
            let arguments = self.arguments(Vec::new())?;
            return self.push(place, Expr::Call { name: function, style: Style::Math, arguments });
        }
        if *self.peek() != Token::Symbol("(") {
            return self.push(place, Expr::Variable(name));
        }
        if name == "has" {
            return self.has(place);
        }
        let arguments = self.arguments(Vec::new())?;
        self.push(place, Expr::Call { name, style: Style::Global, arguments })
    }

    /// `has(a.b)`, whose argument is no value but asks for a field.
    fn has(&mut self, place: usize) -> Parsed {
        let arguments = self.arguments(Vec::new())?;
        let [argument] = arguments[..] else {
            return self.error(place, "'has' takes one field: has(a.b)");
        };
        let asked = &self.nodes[usize::from(argument)].expr;
        let &Expr::Field { of, name } = asked else {
            return self.error(place, "'has' takes a field: has(a.b)");
        };
        // The field is the last node, and becomes the question for it.
        self.nodes[usize::from(argument)].expr = Expr::Has { of, name };
        Ok(argument)
    }

    /// `(a, b)`, after those that are there already.
    fn arguments(&mut self, mut arguments: Vec<Id>) -> Result<Vec<Id>, CompileError> {
        self.expect("(")?;
        if self.eat(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression()?);
            if !self.eat(",") {
                self.expect(")")?;
                return Ok(arguments);
            }
        }
    }

    /// `a, b]`; a comma may be the last.
    fn list(&mut self, place: usize) -> Parsed {
        let mut entries = Vec::new();
        while !self.eat("]") {
            if entries.len() == LIST_ENTRIES_MAX {
                let message = format!("the list is longer than {LIST_ENTRIES_MAX} entries");
                return self.error_here(message);
            }
            entries.push(self.expression()?);
            if !self.eat(",") {
                self.expect("]")?;
                break;
            }
        }
        self.push(place, Expr::List(entries))
    }

    fn push(&mut self, place: usize, expr: Expr<'s>) -> Parsed {
        if self.nodes.len() == NODES_MAX {
            let message = format!("the expression has more than {NODES_MAX} parts");
            return self.error(place, message);
        }
        let parts = expr.parts();
        let height = 1 + parts.iter().map(|&part| self.nodes[usize::from(part)].height).max().unwrap_or(0);
        if height > DEPTH_MAX {
            return self.error(place, too_deep());
        }
        self.nodes.push(Node { expr, place, height });
        Ok(Id::try_from(self.nodes.len() - 1).expect("there are few nodes"))
    }

    fn peek(&self) -> &Token<'s> {
        &self.tokens[self.at].0
    }

    fn place(&self) -> usize {
        self.tokens[self.at].1
    }

    /// To the next token; the end stays.
    fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn eat(&mut self, symbol: &str) -> bool {
        let is_there = matches!(self.peek(), Token::Symbol(other) if *other == symbol);
        if is_there {
            self.advance();
        }
        is_there
    }

    fn expect(&mut self, symbol: &str) -> Result<(), CompileError> {
        if self.eat(symbol) { Ok(()) } else { self.expected(&format!("'{symbol}'")) }
    }

    fn expected<T>(&self, what: &str) -> Result<T, CompileError> {
        let found = match self.peek() {
            Token::Name(name) => format!("'{name}'"),
            Token::Quoted(name) => format!("`{name}`"),
            Token::Int(_) | Token::Double(_) => "a number".to_owned(),
            Token::Text(_) => "a string".to_owned(),
            Token::Symbol(symbol) => format!("'{symbol}'"),
            Token::End => "the end".to_owned(),
        };
        self.error_here(format!("found {found} where {what} is expected"))
    }

    fn error_here<T>(&self, message: impl Into<String>) -> Result<T, CompileError> {
        self.error(self.place(), message)
    }

    fn error<T>(&self, place: usize, message: impl Into<String>) -> Result<T, CompileError> {
        Err(CompileError::new(self.source, place, message))
    }
}

fn too_deep() -> String {
    format!("the expression is nested deeper than {DEPTH_MAX} levels")
}
