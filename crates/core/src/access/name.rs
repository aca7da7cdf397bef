//! Names of users, tags and virtual hosts: texts that were checked.

use std::fmt;
use std::sync::Arc;

use nexo_types::{NameError, limits};

macro_rules! checked {
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
    };
}

checked! {
    /// The name of a user.
    UserName, "user name", limits::USER_NAME_BYTES_MAX
}

checked! {
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

/// Checks a text that is to name a virtual host.
///
/// # Errors
/// Says which rule the text breaks.
pub fn check_vhost(text: &str) -> Result<(), NameError> {
    check(text, "virtual host name", limits::EXCHANGE_NAME_BYTES_MAX)
}

pub(super) fn check(text: &str, what: &'static str, max: usize) -> Result<(), NameError> {
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
