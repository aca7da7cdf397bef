//! The name of a virtual host: a name space of its own for queues, exchanges and bindings.

use std::fmt;
use std::sync::Arc;

use crate::limits;
use crate::name::{NameError, check};

/// The name of a virtual host. The default is "/", which costs nothing to make or copy.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VhostName(Option<Arc<str>>);

impl VhostName {
    /// The virtual host "/", in which everything is that does not name another.
    pub const DEFAULT: Self = Self(None);

    pub(crate) const DEFAULT_TEXT: &'static str = "/";

    /// Checks `text` and takes it as a name.
    ///
    /// # Errors
    /// Says which rule the text breaks.
    pub fn new(text: &str) -> Result<Self, NameError> {
        check(text, "virtual host name", limits::VHOST_NAME_BYTES_MAX)?;
        Ok(Self::of_part(text))
    }

    /// A text that was checked.
    pub(crate) fn of_part(text: &str) -> Self {
        Self((text != Self::DEFAULT_TEXT).then(|| text.into()))
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or(Self::DEFAULT_TEXT)
    }

    /// Whether it is "/".
    #[must_use]
    pub const fn is_default(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Display for VhostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for VhostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl std::str::FromStr for VhostName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_slash() {
        assert_eq!(VhostName::new("/"), Ok(VhostName::DEFAULT));
        assert_eq!((VhostName::default().as_str(), VhostName::default().is_default()), ("/", true));
        assert_eq!(VhostName::new("//").unwrap().as_str(), "//");
        assert!(!VhostName::new("acme").unwrap().is_default());
    }

    #[test]
    fn a_name_is_checked_like_others() {
        assert_eq!(VhostName::new(""), Err(NameError::Empty { what: "virtual host name" }));
        assert!(VhostName::new("a\u{1}b").is_err());
        assert!(VhostName::new(&"x".repeat(256)).is_err());
    }
}
