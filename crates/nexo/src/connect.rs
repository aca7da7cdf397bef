//! Reaching a broker, and saying in one line what went wrong with what was asked of it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, anyhow};
use nexo_grpc::client::{Client, ClientTls, ConnectError};
use tonic::{Code, Status};

use crate::plain::{plain, without_os_error};

/// Where the broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    url: String,
    /// Whom to trust, if it speaks TLS.
    tls: ClientTls,
}

impl Server {
    /// Where `nexo serve` listens unless told otherwise.
    pub(crate) const DEFAULT: &'static str = "http://127.0.0.1:7654";

    /// The same, where these are trusted.
    pub(crate) fn trusting(self, tls: ClientTls) -> Self {
        Self { tls, ..self }
    }

    /// Whoever names certificates wants TLS, and must not find that his password went over the network as it is.
    fn refuse_unused_certificates(&self) -> anyhow::Result<()> {
        let is_plain = !self.url.starts_with("https://");
        if is_plain && self.tls != ClientTls::default() {
            let secure = self.url.replacen("http://", "https://", 1);
            anyhow::bail!(
                "--ca, --cert and --key are for TLS, and {} is without; --server {secure} is with it",
                self.url
            );
        }
        Ok(())
    }

    /// Connects to it.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        self.refuse_unused_certificates()?;
        Client::connect_trusting(&self.url, &self.tls).await.map_err(|error| match error {
            ConnectError::Unreachable { .. } => anyhow!(
                "{}; is the broker running? 'nexo serve' starts one, --server names another",
                without_os_error(&error.to_string())
            ),
            ConnectError::Refused { .. } => anyhow!(
                "{error}; --ca names a file with certificates to trust in, --cert and --key show the broker one"
            ),
            ConnectError::Address { .. } | ConnectError::OtherProtocol { .. } | ConnectError::Tls(_) => {
                anyhow!(error)
            }
        })
    }
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("amqp://") || text.starts_with("sqs://") {
            let hint = "only 'nexo bench --url' takes that; this option takes the native API's address";
            return Err(format!("{hint}, like '{}'", Self::DEFAULT));
        }
        let malformed =
            || format!("'{text}' is not the address of a server; one looks like '{}'", Self::DEFAULT);
        let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let rest = rest.ok_or_else(malformed)?.trim_end_matches('/');
        match rest.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self { url, tls: ClientTls::default() })
            }
            Some((host, port)) if !host.is_empty() && !port.ends_with(']') => Err(malformed()),
            _ if rest.is_empty() => Err(malformed()),
            _ => Err(format!("'{text}' has no port; the native API is on port 7654 unless told otherwise")),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// Puts what was asked before what the broker said.
pub(crate) trait Asked<T> {
    fn asked(self, what: impl fmt::Display + Send + Sync + 'static) -> anyhow::Result<T>;
}

impl<T> Asked<T> for Result<T, Status> {
    fn asked(self, what: impl fmt::Display + Send + Sync + 'static) -> anyhow::Result<T> {
        self.map_err(|status| anyhow!(said(&status))).context(what)
    }
}

/// Whether the connection is gone, or the broker for now; then it may help to try again.
pub(crate) fn is_lost(status: &Status) -> bool {
    let broken = matches!(status.code(), Code::Unknown | Code::Internal | Code::Cancelled)
        && std::error::Error::source(status).is_some();
    broken || status.code() == Code::Unavailable
}

/// What the broker said, or what happened to the connection.
pub(crate) fn said(status: &Status) -> String {
    let lost = is_lost(status) && std::error::Error::source(status).is_some();
    match status.message() {
        _ if lost => "the connection to the broker was lost".to_owned(),
        // Somebody speaks HTTP/2 there and knows nothing of gRPC.
        message if message.starts_with("grpc-status header missing") => {
            "this is an HTTP port and not Nexo's native API; 'nexo serve' shows the right address as grpc= in its ready \
             line (7654 unless told otherwise)"
                .to_owned()
        }
        "" => status.code().description().to_owned(),
        message => plain(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_may_be_left_out() {
        assert_eq!("127.0.0.1:1".parse::<Server>().unwrap().to_string(), "http://127.0.0.1:1");
        assert_eq!(Server::DEFAULT.parse::<Server>().unwrap().to_string(), Server::DEFAULT);
        assert_eq!("https://x:1".parse::<Server>().unwrap().to_string(), "https://x:1");
        assert_eq!("http://[::1]:7654/".parse::<Server>().unwrap().to_string(), "http://[::1]:7654/");
    }

    #[test]
    fn other_schemes_and_missing_or_impossible_ports_are_refused() {
        for text in
            ["https://x", "ftp://x", "http://", "", "amqp://x:5672", "x", "x:99999", "x:y", "[::1]", ":7654"]
        {
            assert!(text.parse::<Server>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn certificates_without_tls_are_refused_before_anything_is_sent() {
        let tls = ClientTls { ca: Some("ca.pem".into()), identity: None };
        let server = "127.0.0.1:1".parse::<Server>().unwrap().trusting(tls);
        let error = server.connect().await.unwrap_err().to_string();
        assert_eq!(
            error,
            "--ca, --cert and --key are for TLS, and http://127.0.0.1:1 is without; --server https://127.0.0.1:1 is with it"
        );
    }

    #[test]
    fn an_error_says_what_was_asked_and_what_the_broker_said() {
        let refused: Result<(), Status> = Err(Status::not_found("queue 'mail' does not exist"));
        let error = refused.asked("push to 'mail'").unwrap_err();
        assert_eq!(format!("{error:#}"), "push to 'mail': queue 'mail' does not exist");
    }
}
