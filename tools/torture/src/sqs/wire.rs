//! One HTTP connection, on which one request after the other is answered. It never connects again by itself.

use std::net::SocketAddr;
use std::time::Duration;

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

/// The connection. Dropping it resets it, in the middle of a request or not.
#[derive(Debug)]
pub(super) struct Wire {
    address: SocketAddr,
    requests: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

/// The connection is over: whether the broker did what it was asked for is not known.
#[derive(Debug)]
pub(super) struct Gone;

/// What the broker answered instead of doing what it was asked for.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    /// The HTTP status.
    pub(super) status: u16,
    /// AWS's name for it, and what it says.
    pub(super) reason: String,
}

impl Wire {
    pub(super) async fn connect(address: SocketAddr) -> Result<Self, Gone> {
        let stream = TcpStream::connect(address).await.map_err(|_| Gone)?;
        stream.set_nodelay(true).map_err(|_| Gone)?;
        // Closing then sends a reset, and what is under way is gone, as when a machine dies.
        stream.set_zero_linger().map_err(|_| Gone)?;
        let (requests, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| Gone)?;
        // How it ends is seen by whoever waits for an answer.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { address, requests, driver })
    }

    /// Asks for something. An answer without a body is null.
    pub(super) async fn call(&mut self, action: &str, body: &Value) -> Result<Result<Value, Refusal>, Gone> {
        timeout(PATIENCE, self.exchange(action, body)).await.unwrap_or(Err(Gone))
    }

    async fn exchange(&mut self, action: &str, body: &Value) -> Result<Result<Value, Refusal>, Gone> {
        let request = Request::post("/")
            .header("Host", self.address.to_string())
            .header("Content-Type", "application/x-amz-json-1.0")
            .header("X-Amz-Target", format!("AmazonSQS.{action}"))
            .body(Full::from(body.to_string()))
            .map_err(|_| Gone)?;
        self.requests.ready().await.map_err(|_| Gone)?;
        let answer = self.requests.send_request(request).await.map_err(|_| Gone)?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|_| Gone)?.to_bytes();
        let said: Value = if body.is_empty() {
            Value::Null
        } else {
            // An answer that was cut short is none.
            serde_json::from_slice(&body).map_err(|_| Gone)?
        };
        if status == 200 {
            return Ok(Ok(said));
        }
        let text = |name: &str| said[name].as_str().unwrap_or_default();
        let name = text("__type").rsplit('#').next().unwrap_or_default();
        Ok(Err(Refusal { status, reason: format!("{name}: {}", text("message")) }))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Refusal {
    /// Whether the broker says that it cannot now, for want of disk or because it stops. Nothing is said about what it did.
    pub(super) const fn is_for_now(&self) -> bool {
        self.status >= 500
    }
}
