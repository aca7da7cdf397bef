//! Asking a broker's management API over HTTP: one request after another on one connection.
//!
//! Commands whose answers are there in JSON already use it: `nexo connection`, `nexo rabbitmqctl` and their like. What goes
//! wrong is one of four things ([`Failure`]), so that whoever asks can choose an exit code by it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use nexo_net::{ClientTls, client_config};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::plain::without_os_error;

/// Most bytes of an answer: the definitions of a very large broker.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// How long a connection may take to be there.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long an answer may take, unless somebody says otherwise.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(60);
/// What stays as it is in a part of an address.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Why something was not answered.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// Nobody is there.
    #[error("{0}")]
    Unreachable(String),
    /// Whoever asks was not let in.
    #[error("{0}")]
    NotLoggedIn(String),
    /// The broker said no.
    #[error("{reason}")]
    Refused {
        /// The status of its answer.
        status: StatusCode,
        /// Its words.
        reason: String,
    },
    /// What came is no answer of a management API.
    #[error("{0}")]
    NoAnswer(String),
}

impl Failure {
    /// Whether what was asked for is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::NOT_FOUND)
    }
}

/// Puts what was asked before what came of it, for commands that fail with one line.
pub(crate) fn asked<T>(
    what: impl fmt::Display + Send + Sync + 'static,
    answer: Result<T, Failure>,
) -> anyhow::Result<T> {
    let hint = match &answer {
        Err(Failure::Unreachable(_)) => "; is the broker running? --management names another address",
        Err(Failure::NotLoggedIn(_)) => "; --user and --password, or --token, say who asks",
        Ok(_) | Err(Failure::Refused { .. } | Failure::NoAnswer(_)) => "",
    };
    answer.map_err(|failure| anyhow::anyhow!("{failure}{hint}")).context(what)
}

/// Where a management API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagementUrl {
    is_tls: bool,
    host: String,
    port: u16,
}

impl ManagementUrl {
    /// Where `nexo serve` listens unless told otherwise.
    pub(crate) const DEFAULT: &'static str = "http://127.0.0.1:15672";

    /// That address.
    pub(crate) fn usual() -> Self {
        Self::of_host("127.0.0.1")
    }

    /// The usual port of a machine.
    pub(crate) fn of_host(host: &str) -> Self {
        Self { is_tls: false, host: host.to_owned(), port: 15672 }
    }

    /// Host and port, as the header `Host` has them.
    fn authority(&self) -> String {
        let host = &self.host;
        if host.contains(':') { format!("[{host}]:{}", self.port) } else { format!("{host}:{}", self.port) }
    }
}

impl FromStr for ManagementUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is not the address of a management API; one looks like '{}'", Self::DEFAULT);
        let (is_tls, rest) = match text.split_once("://") {
            None => (false, text),
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(wrong()),
        };
        let rest = rest.trim_end_matches('/');
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (rest, if is_tls { 15671 } else { 15672 }),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(['/', '@', '?']) {
            return Err(wrong());
        }
        Ok(Self { is_tls, host: host.to_owned(), port })
    }
}

impl fmt::Display for ManagementUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_tls { "https" } else { "http" }, self.authority())
    }
}

/// What the header `Authorization` says.
#[derive(Clone)]
pub(crate) struct Authorization(String);

impl Authorization {
    pub(crate) fn password(user: &str, password: &str) -> Self {
        Self(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
    }

    pub(crate) fn token(token: &str) -> Self {
        Self(format!("Bearer {token}"))
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization(…)")
    }
}

/// An address under `/api`, made of parts that are quoted as they must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiPath(String);

impl ApiPath {
    /// `/api/` and these parts.
    pub(crate) fn of(parts: &[&str]) -> Self {
        let mut path = String::from("/api");
        for part in parts {
            path.push('/');
            path.extend(utf8_percent_encode(part, SEGMENT));
        }
        Self(path)
    }

    /// The same with a question.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.extend(utf8_percent_encode(name, SEGMENT));
        self.0.push('=');
        self.0.extend(utf8_percent_encode(value, SEGMENT));
        self
    }
}

/// A broker's management API.
#[derive(Debug)]
pub(crate) struct Management {
    url: ManagementUrl,
    tls: ClientTls,
    authorization: Authorization,
    patience: Duration,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl Management {
    pub(crate) const fn new(url: ManagementUrl, tls: ClientTls, authorization: Authorization) -> Self {
        Self { url, tls, authorization, patience: ANSWER_MAX, open: None }
    }

    /// The same, and an answer may take this long.
    pub(crate) const fn patient(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub(crate) const fn url(&self) -> &ManagementUrl {
        &self.url
    }

    pub(crate) async fn get(&mut self, path: &ApiPath) -> Result<Value, Failure> {
        self.ask(Method::GET, path, None, None).await
    }

    /// A list; what is no list is no answer.
    pub(crate) async fn list(&mut self, path: &ApiPath) -> Result<Vec<Value>, Failure> {
        match self.get(path).await? {
            Value::Array(items) => Ok(items),
            _ => Err(Failure::NoAnswer(format!("{} answers with something else than a list", path.0))),
        }
    }

    pub(crate) async fn put(&mut self, path: &ApiPath, body: &Value) -> Result<Value, Failure> {
        self.ask(Method::PUT, path, Some(body), None).await
    }

    pub(crate) async fn post(&mut self, path: &ApiPath, body: &Value) -> Result<Value, Failure> {
        self.ask(Method::POST, path, Some(body), None).await
    }

    pub(crate) async fn delete(&mut self, path: &ApiPath) -> Result<(), Failure> {
        self.ask(Method::DELETE, path, None, None).await.map(drop)
    }

    /// Deletes something, and says why.
    pub(crate) async fn delete_because(&mut self, path: &ApiPath, reason: &str) -> Result<(), Failure> {
        self.ask(Method::DELETE, path, None, Some(reason)).await.map(drop)
    }

    /// Asks as somebody else, once.
    pub(crate) async fn get_as(&self, path: &ApiPath, who: Authorization) -> Result<Value, Failure> {
        let mut other = Self::new(self.url.clone(), self.tls.clone(), who).patient(self.patience);
        other.get(path).await
    }

    async fn ask(
        &mut self,
        method: Method,
        path: &ApiPath,
        body: Option<&Value>,
        reason: Option<&str>,
    ) -> Result<Value, Failure> {
        let patience = self.patience;
        let asked = tokio::time::timeout(patience, self.exchange(method, path, body, reason)).await;
        let late = || Failure::Unreachable(format!("{} did not answer within {patience:?}", self.url));
        let (status, body) = asked.map_err(|_| late())??;
        if status.is_success() {
            if body.is_empty() {
                return Ok(Value::Null);
            }
            let wrong = |_| Failure::NoAnswer(format!("{} answers with something else than JSON", self.url));
            return serde_json::from_slice(&body).map_err(wrong);
        }
        let reason = said(status, &body);
        if status == StatusCode::UNAUTHORIZED {
            return Err(Failure::NotLoggedIn(reason));
        }
        Err(Failure::Refused { status, reason })
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &ApiPath,
        body: Option<&Value>,
        reason: Option<&str>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let mut request = Request::builder().method(method).uri(&path.0);
        request = request.header(HOST, self.url.authority()).header(AUTHORIZATION, &self.authorization.0);
        if let Some(reason) = reason {
            let wrong = |_| Failure::NoAnswer("a reason is one line of text".to_owned());
            let reason = HeaderValue::from_bytes(reason.as_bytes()).map_err(wrong)?;
            request = request.header("x-reason", reason);
        }
        let body = match body {
            None => Bytes::new(),
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
        };
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| Failure::NoAnswer(format!("this cannot be asked: {error}")))?;
        let lost = |url: &ManagementUrl, what: &dyn fmt::Display| {
            Failure::Unreachable(format!("the connection to {url} was lost: {}", what))
        };
        let mut open = match self.open.take() {
            // The broker may have closed it meanwhile.
            Some(mut open) => match open.ready().await {
                Ok(()) => open,
                Err(_) => self.connect().await?,
            },
            None => self.connect().await?,
        };
        let answer = open.send_request(request).await.map_err(|error| lost(&self.url, &error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| lost(&self.url, &error))?.to_bytes();
        self.open = Some(open);
        Ok((status, body))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let url = &self.url;
        let address = (url.host.as_str(), url.port);
        let reached = tokio::time::timeout(CONNECT_MAX, TcpStream::connect(address)).await;
        let socket = match reached {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => {
                let error = without_os_error(&error.to_string());
                return Err(Failure::Unreachable(format!("cannot reach {url}: {error}")));
            }
            Err(_) => return Err(Failure::Unreachable(format!("cannot reach {url}: it does not answer"))),
        };
        // Requests are small and go out one by one.
        socket.set_nodelay(true).ok();
        if !url.is_tls {
            return shake_hands(url, socket).await;
        }
        let config = client_config(&self.tls, b"http/1.1");
        let config = config.map_err(|error| Failure::Unreachable(error.to_string()))?;
        let name = ServerName::try_from(url.host.clone());
        let name = name.map_err(|_| Failure::Unreachable(format!("'{}' is no name of a host", url.host)))?;
        let agreed = TlsConnector::from(config).connect(name, socket).await;
        let socket = agreed.map_err(|error| {
            Failure::Unreachable(format!(
                "no TLS with {url}: {}; --ca names a file with certificates to trust in",
                error
            ))
        })?;
        shake_hands(url, socket).await
    }
}

async fn shake_hands(
    url: &ManagementUrl,
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, Failure> {
    let shaken = http1::handshake(TokioIo::new(socket)).await;
    let (open, connection) =
        shaken.map_err(|error| Failure::Unreachable(format!("no HTTP with {url}: {error}")))?;
    // It ends with the last handle; what goes wrong with it, whoever asks is told.
    tokio::spawn(connection);
    Ok(open)
}

/// The words of a refusal: `reason` of RabbitMQ's JSON, or the status.
fn said(status: StatusCode, body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    match &value["reason"] {
        Value::String(reason) if !reason.is_empty() => printable(reason),
        Value::Null => status.to_string(),
        other => other.to_string(),
    }
}

/// Without control characters: a refusal may hold names that others chose.
fn printable(text: &str) -> String {
    text.trim().replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_leave_out_scheme_and_port() {
        for (text, whole) in [
            ("127.0.0.1:1", "http://127.0.0.1:1"),
            ("mq.example", "http://mq.example:15672"),
            ("https://mq.example/", "https://mq.example:15671"),
            ("http://[::1]:8", "http://[::1]:8"),
            ("[::1]", "http://[::1]:15672"),
        ] {
            assert_eq!(text.parse::<ManagementUrl>().unwrap().to_string(), whole, "{text}");
        }
        for text in ["", "ftp://x", "http://", "x:y", "http://a@b", "x:99999"] {
            assert!(text.parse::<ManagementUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_quoted_in_addresses() {
        let path = ApiPath::of(&["queues", "/", "a b/ü?"]).with("columns", "name,messages");
        assert_eq!(path.0, "/api/queues/%2F/a%20b%2F%C3%BC%3F?columns=name%2Cmessages");
    }

    #[test]
    fn a_refusal_is_told_in_the_brokers_words() {
        assert_eq!(said(StatusCode::NOT_FOUND, br#"{"error":"x","reason":"Not Found"}"#), "Not Found");
        assert_eq!(said(StatusCode::BAD_REQUEST, br#"{"reason":["not_int","a"]}"#), "[\"not_int\",\"a\"]");
        assert_eq!(said(StatusCode::BAD_GATEWAY, b"<html>"), "502 Bad Gateway");
    }
}
