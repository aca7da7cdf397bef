//! Why a change of users or permissions is refused.

use nexo_types::NameError;
use thiserror::Error;

use super::name::UserName;
use super::pattern::PatternError;

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// There is one of that name.
    #[error("user '{name}' exists already")]
    Exists {
        /// One that somebody has.
        name: UserName,
    },
    /// There is no such user.
    #[error("there is no user '{name}'")]
    NoSuchUser {
        /// As it was asked for.
        name: UserName,
    },
    /// There is no such virtual host.
    #[error("there is no virtual host '{name}'")]
    NoSuchVhost {
        /// As it was asked for.
        name: String,
    },
    /// Another key or token has this id.
    #[error("the {what} '{id}' exists already")]
    IdTaken {
        /// A key or a token.
        what: &'static str,
        /// As it was given.
        id: String,
    },
    /// There is no such key or token.
    #[error("user '{name}' has no {what} '{id}'")]
    NoSuchId {
        /// The user who was said to own it.
        name: UserName,
        /// A key or a token.
        what: &'static str,
        /// As it was given.
        id: String,
    },
    /// No regular expression.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A text that is no name, or too long.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A limit was met.
    #[error("there are at most {max} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many, or how many bytes, there may be.
        max: usize,
    },
}
