//! Names that clients choose. Checked once, at the edge; cheap to copy afterwards.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::limits;

/// Why a text cannot be a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing was given.
    #[error("a {what} must not be empty")]
    Empty {
        /// The kind of name.
        what: &'static str,
    },
    /// More bytes than the limit.
    #[error("a {what} has at most {max} bytes; this one has {len}")]
    TooLong {
        /// The kind of name.
        what: &'static str,
        /// The limit.
        max: usize,
        /// What was given.
        len: usize,
    },
    /// A control character, which would make logs and listings lie.
    #[error("a {what} must not contain control characters; byte {at} is one")]
    Control {
        /// The kind of name.
        what: &'static str,
        /// Where in the text.
        at: usize,
    },
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` and takes it as a name.
            ///
            /// # Errors
            /// Says which rule the text breaks.
            pub fn new(text: &str) -> Result<Self, NameError> {
                check(text, $what, $max)?;
                Ok(Self(text.into()))
            }

            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }
    };
}

name! {
    /// The name of a queue.
    QueueName, "queue name", limits::QUEUE_NAME_BYTES_MAX
}

/// The name of an exchange, or nothing: the default exchange has an empty one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeName(Arc<str>);

impl ExchangeName {
    /// Checks `text` and takes it as a name.
    ///
    /// # Errors
    /// Says which rule the text breaks.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if !text.is_empty() {
            check(text, "exchange name", limits::EXCHANGE_NAME_BYTES_MAX)?;
        }
        Ok(Self(text.into()))
    }

    /// The name of the default exchange.
    #[must_use]
    pub fn default_exchange() -> Self {
        Self("".into())
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names the default exchange.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether AMQP keeps it for exchanges that a broker brings with it.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with("amq.")
    }
}

impl fmt::Display for ExchangeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ExchangeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl std::str::FromStr for ExchangeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

name! {
    /// Names the group of messages that must be worked on one at a time and in order.
    GroupId, "group id", limits::GROUP_ID_BYTES_MAX
}

name! {
    /// Names a message so that a second push of the same one is recognised.
    DedupId, "deduplication id", limits::DEDUP_ID_BYTES_MAX
}

fn check(text: &str, what: &'static str, max: usize) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > max {
        return Err(NameError::TooLong { what, max, len: text.len() });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(NameError::Control { what, at }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_at_the_edge() {
        assert_eq!(QueueName::new(""), Err(NameError::Empty { what: "queue name" }));
        assert_eq!(
            QueueName::new(&"x".repeat(256)),
            Err(NameError::TooLong { what: "queue name", max: 255, len: 256 })
        );
        assert_eq!(QueueName::new("a\nb"), Err(NameError::Control { what: "queue name", at: 1 }));
        assert_eq!(QueueName::new("grüße 🚀").unwrap().as_str(), "grüße 🚀");
    }

    #[test]
    fn only_an_exchange_may_have_an_empty_name() {
        assert!(ExchangeName::new("").unwrap().is_default());
        assert_eq!(ExchangeName::new("").unwrap(), ExchangeName::default_exchange());
        assert_eq!(ExchangeName::new("a\nb"), Err(NameError::Control { what: "exchange name", at: 1 }));
        assert!(ExchangeName::new(&"x".repeat(256)).is_err());
        assert!(ExchangeName::new("amq.topic").unwrap().is_reserved());
        assert!(!ExchangeName::new("amqp").unwrap().is_reserved());
    }
}
