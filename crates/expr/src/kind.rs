//! What a value can be: [`Kind`] of a value that is there, [`Type`] of a variable or a result, and [`Kinds`], the set of
//! kinds that the check of an expression deduces.

use std::fmt;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A 64-bit integer.
    Int,
    /// A 64-bit floating-point number.
    Double,
    /// Text.
    String,
    /// A list, written out or of JSON.
    List,
    /// A JSON object: CEL's map.
    Object,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::Null, Kind::Bool, Kind::Int, Kind::Double, Kind::String, Kind::List, Kind::Object];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Null => "null",
            Kind::Bool => "a bool",
            Kind::Int => "an int",
            Kind::Double => "a double",
            Kind::String => "a string",
            Kind::List => "a list",
            Kind::Object => "an object",
        })
    }
}

/// What a variable is declared to be, and what the result of an expression is expected to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `true` or `false`
    Bool,
    /// A 64-bit integer.
    Int,
    /// A 64-bit floating-point number.
    Double,
    /// An int or a double.
    Number,
    /// Text.
    String,
    /// Anything that JSON can say; what it is shows when the expression is evaluated.
    Json,
}

impl Type {
    pub(crate) fn kinds(self) -> Kinds {
        match self {
            Type::Bool => Kinds::BOOL,
            Type::Int => Kinds::INT,
            Type::Double => Kinds::DOUBLE,
            Type::Number => Kinds::NUMBER,
            Type::String => Kinds::STRING,
            Type::Json => Kinds::ANY,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kinds().fmt(f)
    }
}

/// A set of kinds: all that a part of an expression may turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const NONE: Kinds = Kinds(0);
    pub(crate) const NULL: Kinds = Kinds::of(Kind::Null);
    pub(crate) const BOOL: Kinds = Kinds::of(Kind::Bool);
    pub(crate) const INT: Kinds = Kinds::of(Kind::Int);
    pub(crate) const DOUBLE: Kinds = Kinds::of(Kind::Double);
    pub(crate) const STRING: Kinds = Kinds::of(Kind::String);
    pub(crate) const LIST: Kinds = Kinds::of(Kind::List);
    pub(crate) const OBJECT: Kinds = Kinds::of(Kind::Object);
    pub(crate) const NUMBER: Kinds = Kinds::INT.or(Kinds::DOUBLE);
    pub(crate) const ANY: Kinds = Kinds(0x7f);

    pub(crate) const fn of(kind: Kind) -> Kinds {
        Kinds(1 << kind as u8)
    }

    pub(crate) const fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub(crate) const fn overlaps(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all of these are among those.
    pub(crate) const fn within(self, other: Kinds) -> bool {
        self.0 & !other.0 == 0
    }

    /// This set if `condition` holds, else none.
    pub(crate) const fn when(self, condition: bool) -> Kinds {
        if condition { self } else { Kinds::NONE }
    }

    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether values of these can be equal: numbers can whatever their kinds.
    pub(crate) const fn comparable(self, other: Kinds) -> bool {
        self.overlaps(other) || (self.overlaps(Kinds::NUMBER) && other.overlaps(Kinds::NUMBER))
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Kinds::ANY => return f.write_str("any value"),
            Kinds::NUMBER => return f.write_str("a number"),
            _ => {}
        }
        let mut kinds = Kind::ALL.into_iter().filter(|&kind| self.overlaps(Kinds::of(kind)));
        if let Some(first) = kinds.next() {
            write!(f, "{first}")?;
        }
        kinds.try_for_each(|kind| write!(f, " or {kind}"))
    }
}
