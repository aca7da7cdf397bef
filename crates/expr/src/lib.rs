//! Expressions over numbers and JSON, in the grammar of CEL, the Common Expression Language, without its loops.
//!
//! A [`Program`] is compiled once, against a [`Schema`] of variables, and evaluated often. The language, its limits and
//! what was measured are in `docs/expressions.md`.
//!
//! The way of a text: `token` cuts it into tokens, `parse` makes a tree of them (`syntax`), `check` finds out types and
//! lowers the tree to flat nodes (`code`), `eval` runs these with `arithmetic` and `functions`. Each step is bounded by
//! `limits`, and none recurses deeper than these say, so the text can come from anybody. An evaluation passes over every
//! node at most once, and a node over its data at most once. Patterns (`pattern`) may cost their size for each byte. So steps
//! are counted, and an evaluation that takes too many fails.

mod arithmetic;
mod check;
mod code;
mod error;
mod eval;
mod functions;
mod kind;
pub mod limits;
mod parse;
mod pattern;
mod program;
mod schema;
mod signature;
mod syntax;
mod token;
mod value;

pub use error::{CompileError, EvalError};
pub use kind::{Kind, Type};
pub use program::Program;
pub use schema::Schema;
pub use value::Value;
