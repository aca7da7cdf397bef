//! Why a change of schedules is refused.

use nexo_types::{Millis, NameError, Timestamp, VhostName};
use thiserror::Error;

use super::timetable::as_text;

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// There is none of that name.
    #[error("there is no schedule '{name}' in virtual host '{vhost}'")]
    NoSuchSchedule {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// As it was asked for.
        name: String,
    },
    /// The virtual host is not there, or on its way out.
    #[error("virtual host '{name}' does not exist")]
    NoSuchVhost {
        /// As it was asked for.
        name: VhostName,
    },
    /// It contradicts itself, or lacks something.
    #[error("{reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// What it sends to is not there, or takes nothing from clients.
    #[error("{reason}")]
    Target {
        /// What is wrong with it.
        reason: String,
    },
    /// It is not a cron expression.
    #[error("'{expression}' is not a cron expression: {reason}")]
    Cron {
        /// What was given.
        expression: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such moment.
    #[error("the cron expression '{expression}' names a moment that never comes")]
    Never {
        /// What was given.
        expression: String,
    },
    /// Nobody knows of such a time zone.
    #[error(
        "there is no time zone '{zone}'; zones have names like 'Europe/Berlin' or 'UTC', from the IANA database"
    )]
    Zone {
        /// What was given.
        zone: String,
    },
    /// An interval outside its range.
    #[error("an interval is at least {min} and at most {max}; this one is {interval}")]
    Interval {
        /// What was given.
        interval: Millis,
        /// The shortest interval, in milliseconds.
        min: Millis,
        /// The longest interval, in milliseconds.
        max: Millis,
    },
    /// Its end comes before its first time.
    #[error("the schedule ends at {}, before it would be fired for the first time", as_text(*until))]
    Ended {
        /// The end that it was given: its first time would come later.
        until: Timestamp,
    },
    /// A number outside its range.
    #[error("{field} must be between {min} and {max}; it is {value}")]
    OutOfRange {
        /// As clients call it.
        field: &'static str,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
        /// What was given.
        value: u64,
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

/// Whether so many bytes are not too many.
pub(super) const fn within(what: &'static str, max: usize, bytes: usize) -> Result<(), ScheduleError> {
    if bytes > max { Err(ScheduleError::TooLarge { what, max, bytes }) } else { Ok(()) }
}
