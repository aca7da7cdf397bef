//! What every request of the management API must pass: no page of another origin asks, and whoever asks has logged in.
//!
//! A browser sends the login that it remembers with whatever a page asks for. It cannot be kept from a request that changes
//! something by not answering it afterwards, so the request is refused by what the browser says of where it comes from.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use nexo_access::claimed_user;
use nexo_broker::{Actor, LoginFacts, Protocol, acting};
use nexo_net::Ends;

use super::Api;
use super::access::Caller;
use super::error::ApiError;
use super::login::log_in;
use super::sessions;

/// Lets a request through to its handler, which finds its [`Caller`](super::access::Caller) among the extensions.
pub(super) async fn guard(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let mut answer = match admit(&api, &mut request).await {
        Ok(Some(actor)) => acting(actor, next.run(request)).await,
        Ok(None) => next.run(request).await,
        Err(error) => {
            api.broker.traffic().of(Protocol::Http).login_refused();
            error.into_response()
        }
    };
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'"));
    answer
}

/// Gives back who asks, for those who are told what he does; `None` for somebody who is about to log in.
async fn admit(api: &Api, request: &mut Request) -> Result<Option<Actor>, ApiError> {
    if !is_own_origin(request.headers()) {
        tracing::debug!("a request of a page of another origin is refused");
        return Err(ApiError::forbidden("pages of other origins are not served"));
    }
    let Some(ends) = request.extensions().get::<Ends>().copied() else {
        return Err(ApiError::not_logged_in("Login failed"));
    };
    let headers = request.headers().clone();
    let is_unnamed = !headers.contains_key(header::AUTHORIZATION);
    if is_unnamed && is_login(request) {
        return Ok(None);
    }
    if is_unnamed && let Some(caller) = sessions::caller(api, &headers, ends) {
        if !request.method().is_safe() && !tells_origin(&headers) {
            return Err(ApiError::forbidden("a page that changes something says where it comes from"));
        }
        return Ok(Some(known(request, caller?, ends)));
    }
    let caller = log_in(&api.logins, &headers, ends.peer.ip()).await.inspect_err(|_| {
        if headers.contains_key(header::AUTHORIZATION) {
            tell_refused(api, &claimed_user(headers.get(header::AUTHORIZATION)), ends);
        }
    })?;
    api.broker.traffic().of(Protocol::Http).logged_in();
    Ok(Some(known(request, caller, ends)))
}

/// Tells the log and whoever wants to know that somebody was not let in.
pub(super) fn tell_refused(api: &Api, user: &str, ends: Ends) {
    let Ends { peer, is_tls, .. } = ends;
    tracing::warn!(protocol = "http", user, %peer, "login refused");
    let login = LoginFacts { user, protocol: "http", mechanism: "", peer, is_tls };
    api.broker.events().login_refused(&login, "invalid credentials");
}

/// Has the handler find who asks.
fn known(request: &mut Request, caller: Caller, ends: Ends) -> Actor {
    let actor = Actor { user: caller.name().to_owned(), from: Some(ends.peer) };
    request.extensions_mut().insert(caller);
    actor
}

/// Whether it is the one request that needs no login, because it is one. Every other address refuses whom nobody knows.
fn is_login(request: &Request) -> bool {
    request.method() == Method::POST && request.uri().path().ends_with("/nexo/session")
}

/// Whether a browser says where a request comes from, which [`is_own_origin`] has looked at. Those that do not are too old to
/// keep a cookie to their own site as well.
fn tells_origin(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
        || headers.get("sec-fetch-site").map(HeaderValue::as_bytes) == Some(b"same-origin")
}

/// Whether no page asks, or one that came from here. Tools send neither header.
fn is_own_origin(headers: &HeaderMap) -> bool {
    let fetch_site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if !matches!(fetch_site, None | Some(b"same-origin" | b"none")) {
        return false;
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    headers.get_all(header::ORIGIN).iter().all(|origin| {
        let Ok(origin) = origin.to_str() else { return false };
        let named = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        named.is_some() && host.is_some_and(|host| named.is_some_and(|name| name.eq_ignore_ascii_case(host)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&'static str, &'static str)]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost:15672"));
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        is_own_origin(&headers)
    }

    #[test]
    fn tools_and_pages_from_here_may_ask() {
        assert!(asked(&[]));
        assert!(asked(&[("origin", "http://localhost:15672")]));
        assert!(asked(&[("origin", "https://LOCALHOST:15672"), ("sec-fetch-site", "same-origin")]));
        assert!(asked(&[("sec-fetch-site", "none")]));
    }

    #[test]
    fn pages_from_elsewhere_may_not() {
        for origin in
            ["http://evil.example", "null", "", "http://localhost", "http://localhost:15672.evil", "file://"]
        {
            assert!(!asked(&[("origin", origin)]), "{origin}");
        }
        assert!(!asked(&[("origin", "http://localhost:15672"), ("origin", "http://evil.example")]));
        assert!(!asked(&[("sec-fetch-site", "cross-site")]));
        assert!(!asked(&[("sec-fetch-site", "same-site"), ("origin", "http://localhost:15672")]));
    }
}
