//! Keys that may sign.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// An access key: its id, which requests show, and its secret, which they do not.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// A text that is no access key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("an access key must be ID:SECRET, both without spaces, and the id without commas and slashes")]
pub struct AccessKeyError;

impl FromStr for AccessKey {
    type Err = AccessKeyError;

    fn from_str(text: &str) -> Result<Self, AccessKeyError> {
        let (id, secret) = text.split_once(':').ok_or(AccessKeyError)?;
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !plain(id) || !plain(secret) || id.contains([',', '/']) {
            return Err(AccessKeyError);
        }
        Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
    }
}

/// The secret stays one in logs.
impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_an_id_and_a_secret_that_is_never_shown() {
        let key: AccessKey = "AKID:se/cr:et".parse().unwrap();
        assert_eq!((&*key.id, &*key.secret), ("AKID", "se/cr:et"));
        assert!(!format!("{key:?}").contains("cr"), "{key:?}");
        for text in ["", "AKID", ":s", "AKID:", "A/B:s", "A B:s", "A:s t"] {
            assert_eq!(text.parse::<AccessKey>(), Err(AccessKeyError), "{text}");
        }
    }
}
