//! Where a way in listens.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use tokio::net::TcpListener;

/// An address to listen on, or none.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Listen {
    /// Not at all.
    Off,
    /// On this `HOST:PORT`.
    At(String),
}

impl Listen {
    /// Opens the port, if there is to be one. `what` is who will use it.
    pub(crate) async fn bind(&self, what: &str) -> anyhow::Result<Option<TcpListener>> {
        match self {
            Self::Off => Ok(None),
            Self::At(address) => {
                let listener = TcpListener::bind(address).await;
                listener.map(Some).with_context(|| format!("cannot listen on {address} for {what}"))
            }
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::At(text.to_owned()))
            }
            _ => Err(format!(
                "'{text}' is not an address; it must be HOST:PORT (port 0 picks a free one) or off"
            )),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => f.write_str(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_off_is_understood() {
        assert_eq!("off".parse(), Ok(Listen::Off));
        for text in ["127.0.0.1:0", "localhost:7654", "[::1]:7654"] {
            assert_eq!(text.parse(), Ok(Listen::At(text.into())));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "7654", ":7654", "localhost", "localhost:", "localhost:70000", "none"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}
