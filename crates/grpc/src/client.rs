//! A thin client: a connection and the generated stubs on it, with limits that fit the server's.

use std::time::Duration;

use nexo_net::{TlsError, client_config};
use thiserror::Error;
use tonic::transport::{Channel, Endpoint};

use crate::greeting::{Connector, TlsFailed, Verdict};

pub use nexo_net::ClientTls;

pub use crate::proto::admin_service_client::AdminServiceClient;
pub use crate::proto::message_service_client::MessageServiceClient;
pub use crate::proto::queue_service_client::QueueServiceClient;
pub use crate::proto::stats_service_client::StatsServiceClient;
pub use tonic_health::pb::health_client::HealthClient;

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// As on the server: a stream may run this far ahead.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// The same for all streams of the connection together.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// How long the connection may be silent before it is asked whether the server is still there.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// A server that cannot be reached.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address makes no sense.
    #[error("'{url}' is not the address of a server; one looks like 'http://127.0.0.1:7654'")]
    Address {
        /// What was given.
        url: String,
    },
    /// The files of TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Somebody answers there, and cannot be trusted or does not trust us.
    #[error("cannot agree on TLS with {url}: {reason}")]
    Refused {
        /// The address that was dialled.
        url: String,
        /// Why not.
        reason: String,
    },
    /// Somebody answers there, in other words.
    #[error(
        "{url} is not Nexo's native API: it speaks {speaks}; 'nexo serve' shows the right address as grpc= in its ready line \
         (7654 unless told otherwise)"
    )]
    OtherProtocol {
        /// The address that was dialled.
        url: String,
        /// What it speaks instead.
        speaks: &'static str,
    },
    /// Nobody answers there.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// The address that was dialled.
        url: String,
        /// Why not, as the operating system says.
        reason: String,
    },
}

/// A connection to one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    vhost: String,
}

impl Client {
    /// Connects to `url`, which is `http://HOST:PORT`, or `https://HOST:PORT` of a server whose certificate this machine
    /// trusts in.
    ///
    /// # Errors
    /// If the address is none, or nobody answers there.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_trusting(url, &ClientTls::default()).await
    }

    /// As [`Self::connect`]; over `https` it trusts whom `tls` names.
    ///
    /// # Errors
    /// As [`Self::connect`], or if the files that `tls` names cannot be used.
    pub async fn connect_trusting(url: &str, tls: &ClientTls) -> Result<Self, ConnectError> {
        let address = || ConnectError::Address { url: url.to_owned() };
        let tls = match url.split_once("://") {
            Some(("http", _)) => None,
            Some(("https", _)) => Some(client_config(tls, b"h2")?),
            Some(_) | None => return Err(address()),
        };
        let endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(|_| address())?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .tcp_nodelay(true);
        let (connector, greeting) = Connector::new(tls);
        let channel =
            endpoint.connect_with_connector(connector).await.map_err(|error| failed(url, &error))?;
        match greeting.verdict().await {
            Verdict::Native => Ok(Self { channel, vhost: String::new() }),
            Verdict::Other(speaks) => Err(ConnectError::OtherProtocol { url: url.to_owned(), speaks }),
            Verdict::Refused(reason) => Err(ConnectError::Refused { url: url.to_owned(), reason }),
        }
    }

    /// The same, for one who works in a virtual host.
    #[must_use]
    pub fn in_vhost(self, vhost: &str) -> Self {
        Self { vhost: vhost.to_owned(), ..self }
    }

    /// The virtual host for the requests of whoever has this; empty for "/".
    #[must_use]
    pub fn vhost(&self) -> String {
        self.vhost.clone()
    }

    /// Administration.
    #[must_use]
    pub fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    /// Management of queues.
    #[must_use]
    pub fn queues(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Work with messages.
    #[must_use]
    pub fn messages(&self) -> MessageServiceClient<Channel> {
        MessageServiceClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Figures of the broker.
    #[must_use]
    pub fn stats(&self) -> StatsServiceClient<Channel> {
        StatsServiceClient::new(self.channel.clone())
    }

    /// Whether the broker says that it serves.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn is_serving(&self) -> Result<bool, tonic::Status> {
        let reply = HealthClient::new(self.channel.clone()).check(HealthCheckRequest::default()).await?;
        Ok(reply.get_ref().status() == ServingStatus::Serving)
    }
}

fn failed(url: &str, error: &(dyn std::error::Error + 'static)) -> ConnectError {
    let url = url.to_owned();
    match TlsFailed::find(error) {
        Some(failed) => ConnectError::Refused { url, reason: failed.to_string() },
        None => ConnectError::Unreachable { url, reason: root_cause(error) },
    }
}

/// The innermost error, which is the one that says what happened.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
