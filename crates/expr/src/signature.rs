//! The functions that there are: how they are called, what they take, and what they give.

use crate::kind::Kinds;
use crate::syntax::Style;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Size,
    Contains,
    StartsWith,
    EndsWith,
    Matches,
    LowerAscii,
    UpperAscii,
    Trim,
    Int,
    Double,
    String,
    Min,
    Max,
    Abs,
}

/// How many arguments a function takes, with the receiver of a method.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arity {
    One,
    Two,
    /// One or more.
    Many,
}

const GLOBAL: &[Style] = &[Style::Global];
const METHOD: &[Style] = &[Style::Method];
const BOTH: &[Style] = &[Style::Global, Style::Method];
const MATH: &[Style] = &[Style::Math];

const FUNCTIONS: [(&str, &[Style], Function); 17] = [
    ("size", BOTH, Function::Size),
    ("contains", METHOD, Function::Contains),
    ("startsWith", METHOD, Function::StartsWith),
    ("endsWith", METHOD, Function::EndsWith),
    ("matches", BOTH, Function::Matches),
    ("lowerAscii", METHOD, Function::LowerAscii),
    ("upperAscii", METHOD, Function::UpperAscii),
    ("trim", METHOD, Function::Trim),
    ("int", GLOBAL, Function::Int),
    ("double", GLOBAL, Function::Double),
    ("string", GLOBAL, Function::String),
    ("min", GLOBAL, Function::Min),
    ("max", GLOBAL, Function::Max),
    ("abs", GLOBAL, Function::Abs),
    ("least", MATH, Function::Min),
    ("greatest", MATH, Function::Max),
    ("abs", MATH, Function::Abs),
];

/// What CEL and its usual extensions have besides, for an error that says so.
const ELSEWHERE: [&str; 29] = [
    "bool",
    "bytes",
    "ceil",
    "charAt",
    "dyn",
    "duration",
    "floor",
    "format",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
    "indexOf",
    "join",
    "lastIndexOf",
    "replace",
    "reverse",
    "round",
    "split",
    "substring",
    "timestamp",
    "type",
    "uint",
];

impl Function {
    /// The function of this name, or what is wrong with it.
    pub(crate) fn find(name: &str, style: Style) -> Result<Function, String> {
        let named = || FUNCTIONS.iter().filter(|(other, _, _)| *other == name);
        if let Some((_, _, function)) = named().find(|(_, styles, _)| styles.contains(&style)) {
            return Ok(*function);
        }
        if let Some((_, styles, _)) = named().next() {
            return Err(match styles[0] {
                Style::Method => format!("'{name}' is a method; write text.{name}(…)"),
                Style::Global => format!("'{name}' is a function; write {name}(…)"),
                Style::Math => format!("'{name}' is a function; write math.{name}(…)"),
            });
        }
        if ELSEWHERE.contains(&name) {
            return Err(format!("CEL's function '{name}' is not supported here"));
        }
        let names = FUNCTIONS.iter().map(|(name, styles, _)| match styles[0] {
            Style::Math => format!("math.{name}"),
            Style::Global | Style::Method => (*name).to_owned(),
        });
        let names = names.collect::<Vec<_>>().join(", ");
        Err(format!("unknown function '{name}'; there are {names} and has"))
    }

    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        let named = FUNCTIONS.iter().find(|(_, _, function)| *function == self);
        named.map_or("", |(name, _, _)| name)
    }

    pub(crate) fn arity(self) -> Arity {
        match self {
            Function::Min | Function::Max => Arity::Many,
            Function::Contains | Function::StartsWith | Function::EndsWith | Function::Matches => Arity::Two,
            Function::Size
            | Function::LowerAscii
            | Function::UpperAscii
            | Function::Trim
            | Function::Int
            | Function::Double
            | Function::String
            | Function::Abs => Arity::One,
        }
    }

    /// What each of this many arguments may be.
    pub(crate) fn takes(self, arguments: usize) -> Kinds {
        match self {
            Function::Size => Kinds::STRING.or(Kinds::LIST).or(Kinds::OBJECT),
            Function::Contains
            | Function::StartsWith
            | Function::EndsWith
            | Function::Matches
            | Function::LowerAscii
            | Function::UpperAscii
            | Function::Trim => Kinds::STRING,
            Function::Int | Function::Double => Kinds::NUMBER.or(Kinds::STRING),
            Function::String => Kinds::NUMBER.or(Kinds::STRING).or(Kinds::BOOL),
            // One list stands for its entries.
            Function::Min | Function::Max if arguments == 1 => Kinds::NUMBER.or(Kinds::LIST),
            Function::Min | Function::Max | Function::Abs => Kinds::NUMBER,
        }
    }

    /// What comes of arguments that are among these kinds.
    pub(crate) fn gives(self, arguments: Kinds) -> Kinds {
        match self {
            Function::Size | Function::Int => Kinds::INT,
            Function::Double => Kinds::DOUBLE,
            Function::Contains | Function::StartsWith | Function::EndsWith | Function::Matches => Kinds::BOOL,
            Function::LowerAscii | Function::UpperAscii | Function::Trim | Function::String => Kinds::STRING,
            Function::Min | Function::Max if arguments.overlaps(Kinds::LIST) => Kinds::NUMBER,
            Function::Min | Function::Max | Function::Abs => Kinds::INT
                .when(arguments.overlaps(Kinds::INT))
                .or(Kinds::DOUBLE.when(arguments.overlaps(Kinds::DOUBLE))),
        }
    }
}
