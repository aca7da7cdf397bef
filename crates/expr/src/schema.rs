//! The variables that an expression may name.

use crate::kind::Type;

/// The variables that an expression may name, and what each is. Their order is the order of the arguments of
/// [`Program::eval`](crate::Program::eval).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema {
    variables: &'static [(&'static str, Type)],
}

impl Schema {
    /// These variables, in this order.
    pub const fn new(variables: &'static [(&'static str, Type)]) -> Schema {
        Schema { variables }
    }

    /// The variables, in order.
    pub const fn variables(&self) -> &'static [(&'static str, Type)] {
        self.variables
    }

    pub(crate) fn find(&self, name: &str) -> Option<(usize, Type)> {
        let at = self.variables.iter().position(|(other, _)| *other == name)?;
        Some((at, self.variables[at].1))
    }
}
