//! Who asks. Every request of the management API goes through [`log_in`], and nobody else decides.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::error::ApiError;

/// The one user there is, who may come from this machine only.
const USER: &str = "guest";
const PASSWORD: &str = "guest";

/// Whoever asks, known by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) tags: Vec<&'static str>,
}

/// Checks what a request says of who asks: a name and a password (`Authorization: Basic`).
///
/// # Errors
/// If it says nothing, or what it says does not hold. The answer does not tell what was wrong.
pub(crate) fn log_in(headers: &HeaderMap, from: IpAddr) -> Result<Caller, ApiError> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(given), None) = (given.next(), given.next()) else {
        return Err(ApiError::not_logged_in("Login failed"));
    };
    let holds = basic(given.as_bytes()).is_some_and(|(user, password)| user == USER && password == PASSWORD);
    if holds && from.to_canonical().is_loopback() {
        return Ok(Caller { name: USER.to_owned(), tags: vec!["administrator"] });
    }
    Err(ApiError::not_logged_in("Login failed"))
}

/// The name and the password of a `Basic` login.
fn basic(given: &[u8]) -> Option<(String, String)> {
    let (scheme, rest) = given.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(rest.trim_ascii()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn with(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())])
    }

    fn encoded(login: &str) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(login))
    }

    #[test]
    fn guest_comes_in_from_here_only() {
        let good = with(&encoded("guest:guest"));
        assert_eq!(log_in(&good, HERE).unwrap().name, "guest");
        assert!(log_in(&good, "10.0.0.1".parse().unwrap()).is_err());
        assert!(log_in(&good, "::ffff:127.0.0.1".parse().unwrap()).is_ok());
        assert!(log_in(&with(&encoded("guest:guest").replacen('B', "b", 1)), HERE).is_ok());
    }

    #[test]
    fn anything_else_stays_out() {
        assert!(log_in(&HeaderMap::new(), HERE).is_err());
        for login in ["guest:", "guest", ":guest", "other:guest", "guest:guest:"] {
            assert!(log_in(&with(&encoded(login)), HERE).is_err(), "{login}");
        }
        for header in ["Basic", "Basic !!!", "Bearer Z3Vlc3Q6Z3Vlc3Q=", ""] {
            assert!(log_in(&with(header), HERE).is_err(), "{header}");
        }
        let mut twice = with(&encoded("guest:guest"));
        twice.append(header::AUTHORIZATION, HeaderValue::from_static("Basic eDp5"));
        assert!(log_in(&twice, HERE).is_err(), "which of two counts is not for us to guess");
    }
}
