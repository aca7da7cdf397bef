//! Names that clients choose. Checked once, at the edge; cheap to copy afterwards.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::limits;
use crate::vhost::VhostName;

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

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
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

/// Stands before and behind the virtual host in the stored form of a name outside "/". No name can hold it.
const MARK: char = '\u{1}';

/// A name in a virtual host, as one text: the name alone in "/", otherwise with the virtual host before it.
fn stored(vhost: &VhostName, name: &str) -> Arc<str> {
    if vhost.is_default() { name.into() } else { format!("{MARK}{vhost}{MARK}{name}").into() }
}

/// The virtual host and the name in a stored form.
fn parts(stored: &str) -> (&str, &str) {
    let marked = stored.strip_prefix(MARK).and_then(|rest| rest.split_once(MARK));
    marked.unwrap_or((VhostName::DEFAULT_TEXT, stored))
}

/// A name as the log shows it: with its virtual host where that is not "/".
#[derive(Clone, Copy, Debug)]
pub struct InFull<'a> {
    vhost: &'a str,
    name: &'a str,
}

impl fmt::Display for InFull<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if self.vhost == VhostName::DEFAULT_TEXT { Ok(()) } else { write!(f, " in vhost '{}'", self.vhost) }
    }
}

macro_rules! resource_name {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        ///
        /// It belongs to a virtual host, and is another than one of the same text elsewhere.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` and takes it as a name in "/".
            ///
            /// # Errors
            /// Says which rule the text breaks.
            pub fn new(text: &str) -> Result<Self, NameError> {
                Self::at(&VhostName::DEFAULT, text)
            }

            /// Checks `text` and takes it as a name in a virtual host.
            ///
            /// # Errors
            /// Says which rule the text breaks.
            pub fn at(vhost: &VhostName, text: &str) -> Result<Self, NameError> {
                $check(text)?;
                Ok(Self(stored(vhost, text)))
            }

            /// Reads the form that is written down.
            ///
            /// # Errors
            /// Says which rule a part of it breaks.
            pub fn from_stored(text: &str) -> Result<Self, NameError> {
                match parts(text) {
                    (VhostName::DEFAULT_TEXT, name) => Self::new(name),
                    (vhost, name) => Self::at(&VhostName::new(vhost)?, name),
                }
            }

            /// The form that is written down: in "/" the text alone.
            #[must_use]
            pub fn stored(&self) -> &str {
                &self.0
            }

            /// The text itself, without the virtual host.
            #[must_use]
            pub fn as_str(&self) -> &str {
                parts(&self.0).1
            }

            /// The virtual host that it belongs to.
            #[must_use]
            pub fn vhost(&self) -> VhostName {
                VhostName::of_part(parts(&self.0).0)
            }

            /// The text of [`Self::vhost`].
            #[must_use]
            pub fn vhost_str(&self) -> &str {
                parts(&self.0).0
            }

            /// The name with its virtual host, for the log.
            #[must_use]
            pub fn in_full(&self) -> InFull<'_> {
                let (vhost, name) = parts(&self.0);
                InFull { vhost, name }
            }
        }

        /// Without the virtual host: a client knows its own.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.in_full())
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

resource_name! {
    /// The name of a queue.
    QueueName, |text| check(text, "queue name", limits::QUEUE_NAME_BYTES_MAX)
}

resource_name! {
    /// The name of an exchange, or nothing: the default exchange of a virtual host has an empty one.
    ExchangeName, |text: &str| match text {
        "" => Ok(()),
        text => check(text, "exchange name", limits::EXCHANGE_NAME_BYTES_MAX),
    }
}

impl ExchangeName {
    /// What the exchange of each virtual host is called to which traced messages are copied. Tools look for this name.
    pub const TRACE: &str = "amq.rabbitmq.trace";
    /// What the exchange in "/" is called to which events are published.
    pub const EVENTS: &str = "amq.rabbitmq.event";

    /// The name of the default exchange of "/".
    #[must_use]
    pub fn default_exchange() -> Self {
        Self("".into())
    }

    /// Whether it names the default exchange of its virtual host.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.as_str().is_empty()
    }

    /// Whether AMQP keeps it for exchanges that a broker brings with it.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.as_str().starts_with("amq.")
    }
}

resource_name! {
    /// The name of a job queue. Job queues and queues have names of their own: one of each may be called the same.
    JobQueueName, |text| check(text, "job queue name", limits::JOB_QUEUE_NAME_BYTES_MAX)
}

resource_name! {
    /// The name of a budget of tokens.
    BudgetName, |text| check(text, "budget name", limits::BUDGET_NAME_BYTES_MAX)
}

name! {
    /// The name of a user.
    UserName, "user name", limits::USER_NAME_BYTES_MAX
}

name! {
    /// What a user is besides: `administrator`, `monitoring`, `policymaker`, `management`, or a word of the operator's own.
    Tag, "tag", limits::USER_TAG_BYTES_MAX
}

impl Tag {
    /// May do everything over the management API.
    pub const ADMINISTRATOR: &str = "administrator";
    /// May see everything over the management API.
    pub const MONITORING: &str = "monitoring";
    /// May set policies.
    pub const POLICYMAKER: &str = "policymaker";
    /// May log in over the management API.
    pub const MANAGEMENT: &str = "management";
}

name! {
    /// What people call a node of a cluster.
    NodeName, "node name", limits::NODE_NAME_BYTES_MAX
}

name! {
    /// Names the group of messages that must be worked on one at a time and in order.
    GroupId, "group id", limits::GROUP_ID_BYTES_MAX
}

name! {
    /// Names a message so that a second push of the same one is recognised.
    DedupId, "deduplication id", limits::DEDUP_ID_BYTES_MAX
}

/// Whether a text of this kind has the right length and no control characters.
///
/// # Errors
/// Says which rule the text breaks.
pub fn check(text: &str, what: &'static str, max: usize) -> Result<(), NameError> {
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
    fn a_name_belongs_to_its_virtual_host() {
        let acme = VhostName::new("acme").unwrap();
        let (here, there) = (QueueName::new("q").unwrap(), QueueName::at(&acme, "q").unwrap());
        assert_ne!(here, there);
        assert_eq!((here.as_str(), there.as_str()), ("q", "q"));
        assert_eq!((here.vhost(), there.vhost()), (VhostName::DEFAULT, acme.clone()));
        assert_eq!(
            (there.to_string(), there.in_full().to_string()),
            ("q".into(), "q in vhost 'acme'".into())
        );
        assert_eq!(here.in_full().to_string(), "q");
        let default = ExchangeName::at(&acme, "").unwrap();
        assert!(default.is_default() && default != ExchangeName::default_exchange());
        assert!(ExchangeName::at(&acme, "amq.topic").unwrap().is_reserved());
    }

    #[test]
    fn a_stored_name_reads_back_and_in_the_default_is_the_text_alone() {
        assert_eq!(QueueName::new("q").unwrap().stored(), "q");
        for vhost in ["/", "acme", "a b", "//"] {
            let vhost = VhostName::new(vhost).unwrap();
            let name = QueueName::at(&vhost, "q").unwrap();
            assert_eq!(QueueName::from_stored(name.stored()), Ok(name));
            let name = ExchangeName::at(&vhost, "").unwrap();
            assert_eq!(ExchangeName::from_stored(name.stored()), Ok(name));
        }
        for text in ["\u{1}", "\u{1}a", "\u{1}\u{1}q", "\u{1}a\u{1}", "\u{1}a\u{1}q\u{1}", "a\u{1}q"] {
            assert!(QueueName::from_stored(text).is_err(), "{text:?}");
        }
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
