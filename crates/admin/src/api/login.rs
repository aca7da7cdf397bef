//! Who asks. Every request of the management API goes through [`log_in`]; whether a login holds, `nexo_access` decides.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use nexo_access::{LoginError, Logins};

use super::access::Caller;
use super::error::ApiError;

/// Checks what a request says of who asks: a name and a password (`Authorization: Basic`), or a token (`Bearer`).
///
/// # Errors
/// If it says nothing, or what it says does not hold; the answer does not tell what was wrong.
pub(crate) async fn log_in(logins: &Logins, headers: &HeaderMap, from: IpAddr) -> Result<Caller, ApiError> {
    let failed = || ApiError::not_logged_in("Login failed");
    // Which of two counts is not for us to guess.
    if headers.get_all(header::AUTHORIZATION).iter().count() > 1 {
        return Err(failed());
    }
    let identity = match logins.authenticate(headers, from).await {
        Ok(identity) => identity,
        Err(LoginError::TooMany) => return Err(ApiError::unavailable("too many logins at once")),
        Err(LoginError::Invalid | LoginError::LoopbackOnly | LoginError::Missing) => return Err(failed()),
    };
    Ok(Caller::new(identity))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::HeaderValue;
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use nexo_access::FirstUser;
    use nexo_broker::{Broker, BrokerOptions};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn with(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())])
    }

    fn encoded(login: &str) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(login))
    }

    async fn logins() -> Logins {
        let disk = Arc::new(nexo_log::disk::FaultyDisk::new());
        let broker = Broker::open_on(disk, BrokerOptions::new("faulty")).unwrap();
        Logins::open(&broker, &FirstUser::default()).await.unwrap()
    }

    #[tokio::test]
    async fn guest_comes_in_from_here_only() {
        let logins = logins().await;
        let good = with(&encoded("guest:guest"));
        let caller = log_in(&logins, &good, HERE).await.unwrap();
        assert_eq!((caller.name(), caller.tags()), ("guest", vec!["administrator".to_owned()]));
        assert!(log_in(&logins, &good, "10.0.0.1".parse().unwrap()).await.is_err());
        assert!(log_in(&logins, &good, "::ffff:127.0.0.1".parse().unwrap()).await.is_ok());
    }

    #[tokio::test]
    async fn anything_else_stays_out() {
        let logins = logins().await;
        assert!(log_in(&logins, &HeaderMap::new(), HERE).await.is_err());
        for header in
            [&encoded("guest:"), &encoded("guest"), "Basic", "Basic !!!", "Bearer Z3Vlc3Q6Z3Vlc3Q=", ""]
        {
            assert!(log_in(&logins, &with(header), HERE).await.is_err(), "{header}");
        }
        let mut twice = with(&encoded("guest:guest"));
        twice.append(header::AUTHORIZATION, HeaderValue::from_static("Basic eDp5"));
        assert!(log_in(&logins, &twice, HERE).await.is_err());
    }
}
