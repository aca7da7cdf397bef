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
        let value = value.as_bytes();
        if value.len() > HEADER_BYTES_MAX {
            return Err(LoginError::Invalid);
        }
        let text = std::str::from_utf8(value).map_err(|_| LoginError::Invalid)?;
        let (scheme, rest) = text.split_once(' ').ok_or(LoginError::Invalid)?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.token(rest, from).await;
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Err(LoginError::Invalid);
        }
        let decoded = STANDARD.decode(rest).map_err(|_| LoginError::Invalid)?;
        let at = decoded.iter().position(|byte| *byte == b':').ok_or(LoginError::Invalid)?;
        self.password(&decoded[..at], &decoded[at + 1..], from).await
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
