//! A compiled expression.

use std::fmt;
use std::sync::Arc;

use crate::check::check;
use crate::code::Code;
use crate::error::{CompileError, EvalError};
use crate::eval::eval;
use crate::kind::Type;
use crate::limits::EVAL_STEPS_MAX;
use crate::parse::parse;
use crate::schema::Schema;
use crate::value::Value;

/// A compiled expression. Cheap to clone; two are equal if their texts are.
#[derive(Clone)]
pub struct Program {
    inner: Arc<Inner>,
}

struct Inner {
    source: Box<str>,
    code: Code,
}

impl Program {
    /// Compiles an expression over the variables of `schema`, whose result is to be `expected`.
    ///
    /// What is certain to fail whatever the arguments are is refused here: a variable or a function that does not exist,
    /// `1 + "x"`, a result of another type. JSON may be anything until it is there.
    pub fn compile(source: &str, schema: &Schema, expected: Type) -> Result<Program, CompileError> {
        let syntax = parse(source)?;
        let code = check(source, &syntax, schema, expected)?;
        Ok(Program { inner: Arc::new(Inner { source: source.into(), code }) })
    }

    /// The text it was compiled from.
    pub fn source(&self) -> &str {
        &self.inner.source
    }

    /// Whether the variable occurs in it.
    pub fn uses(&self, variable: &str) -> bool {
        self.inner.code.used.contains(&variable)
    }

    /// The result over these arguments, one for each variable of the schema, in its order.
    pub fn eval<'a>(&'a self, arguments: &'a [Value<'a>]) -> Result<Value<'a>, EvalError> {
        self.eval_within(arguments, &mut { EVAL_STEPS_MAX })
    }

    /// The same in at most so many steps. Those that were taken are subtracted, whether there is a result or not.
    ///
    /// How many an evaluation takes follows from the program and the arguments alone, not from the machine.
    pub fn eval_within<'a>(
        &'a self,
        arguments: &'a [Value<'a>],
        steps_left: &mut u64,
    ) -> Result<Value<'a>, EvalError> {
        eval(&self.inner.code, arguments, steps_left)
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        self.source() == other.source()
    }
}

impl Eq for Program {}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Program").field(&self.source()).finish()
    }
}
