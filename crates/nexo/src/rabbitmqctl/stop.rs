//! How a command fails: what is said on standard error, and an exit code that scripts know from RabbitMQ.

use std::fmt;
use std::io;

use crate::management::Failure;

/// What was typed is not how the command is used.
pub(super) const USAGE: u8 = 64;
/// What was typed cannot be, or names what is not there.
pub(super) const DATA: u8 = 65;
/// There is no such user.
pub(super) const NO_USER: u8 = 67;
/// The broker is not there, or said no.
pub(super) const UNAVAILABLE: u8 = 69;
/// Something else went wrong.
pub(super) const SOFTWARE: u8 = 70;
/// It took too long.
pub(super) const TRY_LATER: u8 = 75;

/// Why a command ends before it has done what was asked.
#[derive(Debug)]
pub(super) enum Stop {
    /// With this code and these words.
    Said {
        /// The exit code.
        code: u8,
        /// All that is printed.
        text: String,
    },
    /// Standard output is gone.
    Output(io::Error),
}

impl Stop {
    /// `Error:` and what it was.
    pub(super) fn error(code: u8, text: impl fmt::Display) -> Self {
        Self::Said { code, text: format!("Error:\n{text}") }
    }

    /// Words as they are.
    pub(super) fn plain(code: u8, text: impl Into<String>) -> Self {
        Self::Said { code, text: text.into() }
    }

    pub(super) fn no_user(name: &str) -> Self {
        Self::error(NO_USER, format_args!("User \"{name}\" does not exist"))
    }

    pub(super) fn no_vhost(name: &str) -> Self {
        Self::plain(DATA, format!("Virtual host '{name}' does not exist"))
    }

    pub(super) fn unknown_command(name: &str) -> Self {
        let text = format!(
            "\nCommand '{name}' not found.\n\nUsage\n\n{}\n\n'rabbitmqctl help' lists what there is.",
            super::commands::USAGE_LINE
        );
        Self::plain(USAGE, text)
    }

    /// The exit code.
    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::Said { code, .. } => *code,
            Self::Output(_) => SOFTWARE,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said { text, .. } => f.write_str(text),
            Self::Output(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// What the broker did not answer, for commands that know no better word for it.
impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(text) => Self::plain(
                UNAVAILABLE,
                format!(
                    "Error: unable to perform an operation on the broker: {text}\n\n\
                     Is it running, and is its management API on? NEXO_MANAGEMENT or --management names another address."
                ),
            ),
            Failure::NotLoggedIn(text) => Self::plain(
                UNAVAILABLE,
                format!(
                    "Error: the broker did not let this command in: {text}\n\n\
                     It logs in as NEXO_USER with NEXO_PASSWORD, or with NEXO_TOKEN; without them as guest."
                ),
            ),
            Failure::Refused { reason, .. } => Self::error(UNAVAILABLE, reason),
            Failure::NoAnswer(text) => Self::error(SOFTWARE, text),
        }
    }
}
