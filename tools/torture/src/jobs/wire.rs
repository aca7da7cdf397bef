//! One HTTP connection to `/api/jobs`, on which one request after the other is answered. It never connects again by itself.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long an answer may take, a frozen broker and a full disk included.
const PATIENCE: Duration = Duration::from_secs(60);
const LOGIN: &str = "guest:guest";

/// The connection. Dropping it resets it, in the middle of a request or not.
#[derive(Debug)]
pub(crate) struct Wire {
    address: SocketAddr,
    requests: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

/// The connection is over: whether the broker did what it was asked for is not known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone;

/// What the broker answered.
#[derive(Clone, Debug)]
pub(crate) struct Replied {
    pub(crate) status: u16,
    /// Null if there is none.
    pub(crate) body: Value,
}

impl Replied {
    /// Whether the broker says that it cannot now, for want of disk or memory or because it stops. Nothing is said about what
    /// it did.
    pub(crate) const fn is_for_now(&self) -> bool {
        self.status >= 500 || self.status == 429
    }

    pub(crate) const fn is_ok(&self) -> bool {
        self.status >= 200 && self.status < 300
    }
}

impl Wire {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self, Gone> {
        let stream = TcpStream::connect(address).await.map_err(|_| Gone)?;
        stream.set_nodelay(true).map_err(|_| Gone)?;
        // Closing then sends a reset, and what is under way is gone, as when a machine dies.
        stream.set_zero_linger().map_err(|_| Gone)?;
        let (requests, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| Gone)?;
        // How it ends is seen by whoever waits for an answer.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { address, requests, driver })
    }

    /// Asks for something.
    pub(crate) async fn call(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Replied, Gone> {
        timeout(PATIENCE, self.exchange(method, path, body)).await.unwrap_or(Err(Gone))
    }

    async fn exchange(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Replied, Gone> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Host", self.address.to_string())
            .header("Authorization", format!("Basic {}", STANDARD.encode(LOGIN)))
            .header("Content-Type", "application/json")
            .body(Full::from(body))
            .map_err(|_| Gone)?;
        self.requests.ready().await.map_err(|_| Gone)?;
        let answer = self.requests.send_request(request).await.map_err(|_| Gone)?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|_| Gone)?.to_bytes();
        let body = if body.is_empty() {
            Value::Null
        } else {
            // An answer that was cut short is none.
            serde_json::from_slice(&body).map_err(|_| Gone)?
        };
        Ok(Replied { status, body })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
