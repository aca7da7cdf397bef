//! Reaching a broker, and saying in one line what went wrong with what was asked of it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, anyhow};
use nexo_grpc::client::{Client, ConnectError};
use tonic::{Code, Status};

/// Where the broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server(String);

impl Server {
    /// Where `nexo serve` listens unless told otherwise.
    pub(crate) const DEFAULT: &'static str = "http://127.0.0.1:7654";

    /// Connects to it.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(&self.0).await.map_err(|error| match error {
            ConnectError::Unreachable { .. } => {
                anyhow!("{error}; is the broker running? 'nexo serve' starts one, --server names another")
            }
            ConnectError::Address { .. } => anyhow!(error),
        })
    }
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("https://") {
            return Err("the native API does not speak TLS; use http://".into());
        }
        let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        match url.strip_prefix("http://") {
            Some(rest) if !rest.is_empty() => Ok(Self(url)),
            _ => Err(format!("'{text}' is not the address of a server; one looks like '{}'", Self::DEFAULT)),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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

/// What the broker said, or what happened to the connection.
pub(crate) fn said(status: &Status) -> String {
    let lost = matches!(status.code(), Code::Unknown | Code::Unavailable | Code::Internal | Code::Cancelled)
        && std::error::Error::source(status).is_some();
    match status.message() {
        _ if lost => format!("the connection to the broker was lost ({})", status.message()),
        "" => status.code().description().to_owned(),
        message => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_may_be_left_out() {
        assert_eq!("127.0.0.1:1".parse::<Server>().unwrap().to_string(), "http://127.0.0.1:1");
        assert_eq!(Server::DEFAULT.parse::<Server>().unwrap().to_string(), Server::DEFAULT);
    }

    #[test]
    fn other_schemes_are_refused() {
        for text in ["https://x:1", "ftp://x", "http://", ""] {
            assert!(text.parse::<Server>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_says_what_was_asked_and_what_the_broker_said() {
        let refused: Result<(), Status> = Err(Status::not_found("queue 'mail' does not exist"));
        let error = refused.asked("push to 'mail'").unwrap_err();
        assert_eq!(format!("{error:#}"), "push to 'mail': queue 'mail' does not exist");
    }
}
