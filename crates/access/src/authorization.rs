//! The header by which requests over HTTP and gRPC say who sends them.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};

use crate::identity::Identity;
use crate::limits::BEARER_BYTES_MAX;
use crate::logins::{LoginError, Logins};

/// Longer than any name and password, or token, also where that is written as base64.
const HEADER_BYTES_MAX: usize = 2 * BEARER_BYTES_MAX;
/// As much is told of a name that nobody has checked: names of users are no longer.
const CLAIMED_BYTES_MAX: usize = 255;

/// What a header shows.
enum Shown<'a> {
    Token(&'a str),
    Password { name: Vec<u8>, password: Vec<u8> },
}

impl<'a> Shown<'a> {
    fn of(value: &'a HeaderValue) -> Option<Self> {
        let value = Some(value.as_bytes()).filter(|value| value.len() <= HEADER_BYTES_MAX)?;
        let (scheme, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(Self::Token(rest));
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let mut name = STANDARD.decode(rest).ok()?;
        let at = name.iter().position(|byte| *byte == b':')?;
        let password = name.split_off(at + 1);
        name.pop();
        Some(Self::Password { name, password })
    }
}

/// Who somebody says that he is, for those who are told that he was not let in. A token does not say it before it is
/// checked: then this is nothing.
#[must_use]
pub fn claimed_user(value: Option<&HeaderValue>) -> String {
    match value.and_then(Shown::of) {
        Some(Shown::Password { name, .. }) => {
            let name = &name[..name.len().min(CLAIMED_BYTES_MAX)];
            String::from_utf8_lossy(name).into_owned()
        }
        Some(Shown::Token(_)) | None => String::new(),
    }
}

impl Logins {
    /// Who sends a request with these headers: by `Basic`, a user's name and password; by `Bearer`, a token, ours or one that
    /// somebody else has signed.
    ///
    /// # Errors
    /// [`LoginError::Missing`] if they say nothing; otherwise why what they say does not hold.
    pub async fn authenticate(&self, headers: &HeaderMap, from: IpAddr) -> Result<Identity, LoginError> {
        self.authorize(headers.get(AUTHORIZATION), from).await
    }

    /// The same, with the value of the header alone.
    ///
    /// # Errors
    /// As there.
    pub async fn authorize(&self, value: Option<&HeaderValue>, from: IpAddr) -> Result<Identity, LoginError> {
        let Some(value) = value else { return Err(LoginError::Missing) };
        match Shown::of(value) {
            Some(Shown::Token(token)) => self.token(token, from).await,
            Some(Shown::Password { name, password }) => self.password(&name, &password, from).await,
            None => Err(LoginError::Invalid),
        }
    }

    /// As [`Self::authorize`]; who says nothing and comes from this machine is guest, as long as guest's password is the
    /// one that everybody knows (see [`Self::anonymous`]).
    ///
    /// # Errors
    /// As there.
    pub async fn authorize_or_guest(
        &self,
        value: Option<&HeaderValue>,
        from: IpAddr,
    ) -> Result<Identity, LoginError> {
        match self.authorize(value, from).await {
            Err(LoginError::Missing) => self.anonymous(from).await,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_claimed_by_whoever_gives_a_password() {
        let claimed = |text: &str| claimed_user(Some(&HeaderValue::from_str(text).unwrap()));
        let basic = |login: &[u8]| claimed(&format!("bAsIc {}", STANDARD.encode(login)));
        assert_eq!(
            (basic(b"ann:a:b"), basic(b"ann:"), basic(b":x")),
            ("ann".into(), "ann".into(), "".into())
        );
        assert_eq!((basic(b"ann"), claimed("Bearer nexo_a_b"), claimed("Basic !")), Default::default());
        assert_eq!(claimed_user(None), "");
        assert_eq!(
            basic(&[b'x'; 1_000].iter().chain(b":").copied().collect::<Vec<_>>()).len(),
            CLAIMED_BYTES_MAX
        );
        assert_eq!(basic(b"\xff:p"), "\u{fffd}");
    }
}
