//! What can be wrong with an expression, and with an evaluation. Each is told in one line.

use crate::kind::{Kind, Type};
use crate::limits::TEXT_BYTES_MAX;

/// Why an expression was refused, and where in its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct CompileError {
    message: String,
    offset: usize,
    line: usize,
    column: usize,
}

impl CompileError {
    pub(crate) fn new(source: &str, offset: usize, message: impl Into<String>) -> CompileError {
        debug_assert!(source.is_char_boundary(offset), "an error points at a character");
        let before = source.get(..offset).unwrap_or(source);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        CompileError { message: message.into(), offset, line, column }
    }

    /// The reason without the place.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The place in bytes from the beginning.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The character of the line, from 1.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The line in question, and under it a caret below the place. `source` is what was compiled.
    pub fn caret(&self, source: &str) -> String {
        let line = source.lines().nth(self.line - 1).unwrap_or_default();
        // A tab stays one, so that the caret stands right whatever its width.
        let before = line.chars().take(self.column - 1);
        let indent: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        format!("{line}\n{indent}^")
    }
}

/// Why an evaluation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A JSON object lacks the field.
    #[error("no such field '{}'", field.escape_debug())]
    NoSuchField {
        /// Its name, or the beginning of a long one.
        field: Box<str>,
    },
    /// A field was asked of what is no JSON object.
    #[error("no such field '{}': the value is {found}, not an object", field.escape_debug())]
    NotAnObject {
        /// The field's name.
        field: Box<str>,
        /// What the value is.
        found: Kind,
    },
    /// A list is shorter.
    #[error("index {index} is out of range for a list of {size}")]
    IndexOutOfRange {
        /// What was asked for.
        index: i64,
        /// How many there are.
        size: usize,
    },
    /// `a[b]` with an `a` that has no entries or a `b` that cannot name one.
    #[error("{of} cannot be indexed with {index}")]
    NotIndexable {
        /// What `a` is.
        of: Kind,
        /// What `b` is.
        index: Kind,
    },
    /// An operator between values that it does not take.
    #[error("'{operator}' does not take {left} and {right}")]
    Operands {
        /// As it is written.
        operator: &'static str,
        /// What stands to the left.
        left: Kind,
        /// What stands to the right.
        right: Kind,
    },
    /// A function or an operator with one operand that it does not take.
    #[error("'{function}' does not take {found}")]
    Operand {
        /// As it is written.
        function: &'static str,
        /// What it was given.
        found: Kind,
    },
    /// The result does not fit 64 bits.
    #[error("the result of '{operator}' does not fit a 64-bit integer")]
    Overflow {
        /// As it is written.
        operator: &'static str,
    },
    /// An integer was divided by zero.
    #[error("'{operator}' divides an integer by zero")]
    DivisionByZero {
        /// `/` or `%`
        operator: &'static str,
    },
    /// `int` or `double` of what is none.
    #[error("'{}' cannot be converted to {to}", text.escape_debug())]
    Conversion {
        /// What was to be converted, or its beginning.
        text: Box<str>,
        /// What it should have become.
        to: Kind,
    },
    /// The least or the greatest of nothing.
    #[error("'{function}' of an empty list")]
    EmptyList {
        /// As it is written.
        function: &'static str,
    },
    /// More text was built than an evaluation may.
    #[error("the evaluation builds more than {TEXT_BYTES_MAX} bytes of text")]
    TooMuchText,
    /// More steps were needed than an evaluation may take.
    #[error("the evaluation takes more than {max} steps of work")]
    TooMuchWork {
        /// How many it may take.
        max: u64,
    },
    /// The result is not what was expected.
    #[error("the result is {found}; expected {expected}")]
    Result {
        /// What is expected.
        expected: Type,
        /// What came out.
        found: Kind,
    },
    /// The number of arguments is not that of the schema's variables.
    #[error("{found} arguments for {expected} variables")]
    Arguments {
        /// How many variables there are.
        expected: usize,
        /// How many arguments were given.
        found: usize,
    },
}

/// Characters of a text from the data that an error repeats.
const QUOTED_MAX: usize = 40;

/// A text from the data, for an error: its beginning.
pub(crate) fn quoted(text: &str) -> Box<str> {
    text.chars().take(QUOTED_MAX).collect()
}
