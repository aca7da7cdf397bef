//! A thin client: a connection and the generated stubs on it, with limits that fit the server's.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nexo_net::{TlsError, client_config};
use thiserror::Error;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::greeting::{Connector, TlsFailed, Verdict};

pub use nexo_net::ClientTls;

pub use crate::proto::admin_service_client::AdminServiceClient;
pub use crate::proto::job_service_client::JobServiceClient;
pub use crate::proto::message_service_client::MessageServiceClient;
pub use crate::proto::queue_service_client::QueueServiceClient;
pub use crate::proto::stats_service_client::StatsServiceClient;
pub use crate::proto::user_service_client::UserServiceClient;
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

/// What calls go over.
pub type Transport = InterceptedService<Channel, Credentials>;

/// Who makes the calls. Without any, a broker on the same machine takes the caller for guest, as long as guest has the password
/// that everybody knows.
#[derive(Clone, Default)]
pub struct Credentials(Option<MetadataValue<Ascii>>);

impl Credentials {
    /// A user, by name and password.
    #[must_use]
    pub fn password(user: &str, password: &str) -> Self {
        Self::of(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
    }

    /// A user, by one of its tokens.
    #[must_use]
    pub fn token(token: &str) -> Self {
        Self::of(format!("Bearer {token}"))
    }

    fn of(text: String) -> Self {
        Self(MetadataValue::try_from(text).ok().map(|mut value| {
            value.set_sensitive(true);
            value
        }))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// A connection to one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    credentials: Credentials,
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
            Verdict::Native => {
                Ok(Self { channel, credentials: Credentials::default(), vhost: String::new() })
            }
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

    /// The same connection, with calls by somebody.
    #[must_use]
    pub fn with(&self, credentials: Credentials) -> Self {
        Self { credentials, ..self.clone() }
    }

    fn transport(&self) -> Transport {
        InterceptedService::new(self.channel.clone(), self.credentials.clone())
    }

    /// Administration.
    #[must_use]
    pub fn admin(&self) -> AdminServiceClient<Transport> {
        AdminServiceClient::new(self.transport())
    }

    /// Management of queues.
    #[must_use]
    pub fn queues(&self) -> QueueServiceClient<Transport> {
        QueueServiceClient::new(self.transport()).max_decoding_message_size(usize::MAX)
    }

    /// Work with job queues and budgets.
    #[must_use]
    pub fn jobs(&self) -> JobServiceClient<Transport> {
        JobServiceClient::new(self.transport()).max_decoding_message_size(usize::MAX)
    }

    /// Work with messages.
    #[must_use]
    pub fn messages(&self) -> MessageServiceClient<Transport> {
        MessageServiceClient::new(self.transport()).max_decoding_message_size(usize::MAX)
    }

    /// Figures of the broker.
    #[must_use]
    pub fn stats(&self) -> StatsServiceClient<Transport> {
        StatsServiceClient::new(self.transport())
    }

    /// Management of users.
    #[must_use]
    pub fn users(&self) -> UserServiceClient<Transport> {
        UserServiceClient::new(self.transport()).max_decoding_message_size(usize::MAX)
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
