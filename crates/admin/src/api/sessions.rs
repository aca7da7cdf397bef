//! Sessions of a web page: whoever logs in with a name and a password gets a cookie, and need not send the password again.
//!
//! The cookie is of no use to scripts of the page (`HttpOnly`) and is not sent with what another site asks for
//! (`SameSite=Strict`); `guard` refuses what a page of another origin asks for in any case. Only the hash of a cookie is kept, in
//! memory: a restart ends all sessions. So does the end of the user, and another password.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use nexo_access::{Identity, LoginError, UserName};
use nexo_broker::access::PasswordHash;
use nexo_broker::{Broker, Protocol};
use nexo_net::Ends;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Api;
use super::access::Caller;
use super::body::{Fields, LoginBody};
use super::error::ApiError;
use super::guard::tell_refused;

/// A working day; then one logs in again.
const LIFETIME: Duration = Duration::from_secs(8 * 3600);
/// A page that is open asks more often than this.
const IDLE_MAX: Duration = Duration::from_secs(3600);
/// Sessions at a time, some 200 bytes each. The one that was used the longest ago makes room.
const SESSIONS_MAX: usize = 1_000;
/// Sessions of one user: some people share a name, and each has some browsers.
const OF_USER_MAX: usize = 32;

/// What the cookie is called.
const COOKIE: &str = "nexo_session";
/// What it is called where nobody can read it on its way. A browser takes it from this host alone.
const SECURE_COOKIE: &str = "__Host-nexo_session";

type Mark = [u8; 32];

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: Mutex<HashMap<Mark, Session>>,
}

#[derive(Debug)]
struct Session {
    user: UserName,
    /// As it was at the login.
    password: Option<PasswordHash>,
    began: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.began) >= LIFETIME || now.duration_since(self.used) >= IDLE_MAX
    }
}

impl Sessions {
    /// Begins a session, and gives what stands for it.
    fn begin(&self, identity: &Identity, now: Instant) -> String {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        let token = BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let user = identity.name().clone();
        let password = identity.user().and_then(|user| user.password.clone());
        let mut open = self.open.lock();
        open.retain(|_, session| !session.is_over(now));
        let of_user = open.values().filter(|session| session.user == user).count();
        if of_user >= OF_USER_MAX {
            forget_oldest(&mut open, |session| session.user == user);
        } else if open.len() >= SESSIONS_MAX {
            forget_oldest(&mut open, |_| true);
        }
        open.insert(mark(&token), Session { user, password, began: now, used: now });
        token
    }

    /// Whose session it is, if it goes on.
    fn find(&self, token: &str, broker: &Broker, now: Instant) -> Option<UserName> {
        let mut open = self.open.lock();
        let mark = mark(token);
        let session = open.get_mut(&mark)?;
        let access = broker.access();
        let user = access.user(session.user.as_str());
        if session.is_over(now) || user.is_none_or(|user| user.password != session.password) {
            open.remove(&mark);
            return None;
        }
        session.used = now;
        Some(session.user.clone())
    }

    fn end(&self, token: &str) {
        self.open.lock().remove(&mark(token));
    }
}

fn forget_oldest(open: &mut HashMap<Mark, Session>, which: impl Fn(&Session) -> bool) {
    let oldest = open.iter().filter(|(_, session)| which(session)).min_by_key(|(_, session)| session.used);
    if let Some(mark) = oldest.map(|(mark, _)| *mark) {
        open.remove(&mark);
    }
}

fn mark(token: &str) -> Mark {
    Sha256::digest(token.as_bytes()).into()
}

const fn cookie_name(ends: Ends) -> &'static str {
    if ends.is_tls { SECURE_COOKIE } else { COOKIE }
}

/// What a request says of its session.
fn token(headers: &HeaderMap, ends: Ends) -> Option<&str> {
    let pairs = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut named = pairs.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    named.find(|(name, _)| *name == cookie_name(ends)).map(|(_, value)| value)
}

/// Who sends a request with a cookie, if its session goes on.
pub(super) fn caller(api: &Api, headers: &HeaderMap, ends: Ends) -> Option<Result<Caller, ApiError>> {
    let token = token(headers, ends)?;
    let user = api.sessions.find(token, &api.broker, Instant::now());
    let identity = user.and_then(|user| api.logins.signed(&user, ends.peer.ip()).ok());
    Some(identity.ok_or_else(|| ApiError::not_logged_in("Login failed")).and_then(Caller::admitted))
}

fn set_cookie(ends: Ends, token: &str, lifetime: Duration) -> Result<HeaderValue, ApiError> {
    let (name, seconds) = (cookie_name(ends), lifetime.as_secs());
    let secure = if ends.is_tls { "; Secure" } else { "" };
    let text = format!("{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&text).map_err(|_| ApiError::bad_request("no cookie can be made"))
}

fn session_json(caller: &Caller) -> Value {
    json!({ "name": caller.name(), "tags": caller.tags(), "lifetime_s": LIFETIME.as_secs() })
}

/// Logs in: with `Authorization: Basic`, or with `username` and `password` in the body.
pub(super) async fn begin(
    State(api): State<Api>,
    Extension(ends): Extension<Ends>,
    caller: Result<Caller, ApiError>,
    headers: HeaderMap,
    body: LoginBody,
) -> Result<Response, ApiError> {
    let caller = match caller {
        Ok(caller) => {
            let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
            if !given.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"basic ")) {
                return Err(ApiError::bad_request("a session begins with a name and a password"));
            }
            caller
        }
        Err(_) => with_password(&api, ends, &body).await?,
    };
    // A signed token holds for a time of its own, and not for a user of the same name.
    if caller.identity().user().is_none() {
        return Err(ApiError::bad_request("a session begins with the password of a user"));
    }
    let token = api.sessions.begin(caller.identity(), Instant::now());
    tracing::info!(user = caller.name(), peer = %ends.peer, "a session begins");
    let cookie = set_cookie(ends, &token, LIFETIME)?;
    Ok(([(header::SET_COOKIE, cookie)], Json(session_json(&caller))).into_response())
}

async fn with_password(api: &Api, ends: Ends, body: &LoginBody) -> Result<Caller, ApiError> {
    let (name, password) = (body.0.text("username")?, body.0.text("password")?);
    let checked = api.logins.password(name.as_bytes(), password.as_bytes(), ends.peer.ip()).await;
    let admitted = match checked {
        Ok(identity) => Caller::admitted(identity),
        Err(LoginError::TooMany) => Err(ApiError::unavailable("too many logins at once")),
        Err(LoginError::Invalid | LoginError::LoopbackOnly | LoginError::Missing) => {
            Err(ApiError::not_logged_in("Login failed"))
        }
    };
    if admitted.is_ok() {
        api.broker.traffic().of(Protocol::Http).logged_in();
    }
    admitted.inspect_err(|_| {
        api.broker.traffic().of(Protocol::Http).login_refused();
        tell_refused(api, name, ends);
    })
}

/// Whose session it is, for a page that is opened again.
pub(super) async fn show(caller: Caller) -> Json<Value> {
    Json(session_json(&caller))
}

/// Logs out.
pub(super) async fn end(
    State(api): State<Api>,
    Extension(ends): Extension<Ends>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if let Some(token) = token(&headers, ends) {
        api.sessions.end(token);
    }
    let cookie = set_cookie(ends, "", Duration::ZERO)?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use nexo_access::{Logins, NewPassword};
    use nexo_broker::BrokerOptions;

    use super::*;

    async fn identity(logins: &Logins, name: &str) -> Identity {
        let user = UserName::new(name).unwrap();
        logins.add_user(&user, NewPassword::None, BTreeSet::new()).await.unwrap();
        logins.signed(&user, "127.0.0.1".parse().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn sessions_are_bounded_in_number_and_time() {
        let disk = Arc::new(nexo_log::disk::FaultyDisk::new());
        let broker = Broker::open_on(disk, BrokerOptions::new("faulty")).unwrap();
        let logins = Logins::new(&broker);
        let (ann, bob) = (identity(&logins, "ann").await, identity(&logins, "bob").await);
        let (sessions, start) = (Sessions::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let of_bob = sessions.begin(&bob, at(0));
        let first = sessions.begin(&ann, at(0));
        for n in 0..OF_USER_MAX as u64 {
            sessions.begin(&ann, at(1 + n));
        }
        assert_eq!(sessions.open.lock().len(), OF_USER_MAX + 1);
        assert!(sessions.find(&first, &broker, at(60)).is_none(), "the oldest made room");
        let mut now = 60;
        while now < LIFETIME.as_secs() {
            assert!(sessions.find(&of_bob, &broker, at(now)).is_some(), "{now}");
            now += IDLE_MAX.as_secs() - 1;
        }
        assert!(sessions.find(&of_bob, &broker, at(LIFETIME.as_secs())).is_none());
        let idle = sessions.begin(&bob, at(0));
        assert!(sessions.find(&idle, &broker, at(IDLE_MAX.as_secs())).is_none());
        let left = sessions.begin(&bob, at(now));
        assert_eq!(sessions.open.lock().len(), 1, "what is over is forgotten");
        sessions.end(&left);
        assert!(sessions.find(&left, &broker, at(now)).is_none());
    }
}
