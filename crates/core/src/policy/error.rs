//! Why a change of policies or parameters is refused.

use nexo_types::{NameError, VhostName};
use thiserror::Error;

use super::policy::PolicyKind;

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// It says what cannot be. The words are RabbitMQ's.
    #[error("{}", faults.join("; "))]
    Invalid {
        /// All that is wrong.
        faults: Vec<String>,
    },
    /// There is none of that name.
    #[error("there is no {kind} '{name}' in virtual host '{vhost}'")]
    NoSuchPolicy {
        /// Which kind.
        kind: PolicyKind,
        /// The virtual host that it is in.
        vhost: VhostName,
        /// As it was asked for.
        name: String,
    },
    /// There is no such parameter.
    #[error("there is no parameter '{name}'")]
    NoSuchParameter {
        /// The name, behind its component if it has one.
        name: String,
    },
    /// The virtual host is not there, or on its way out.
    #[error("virtual host '{name}' does not exist")]
    NoSuchVhost {
        /// As it was asked for.
        name: VhostName,
    },
    /// A text that is no name, or too long.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Too large.
    #[error("{what} has at most {max} bytes; this one has {bytes}")]
    TooLarge {
        /// What kind of thing it is.
        what: &'static str,
        /// In bytes.
        max: usize,
        /// What was given.
        bytes: usize,
    },
    /// A limit was met.
    #[error("there are at most {max} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        max: usize,
    },
}

impl PolicyError {
    pub(super) fn fault(words: impl Into<String>) -> Self {
        Self::Invalid { faults: vec![words.into()] }
    }
}
