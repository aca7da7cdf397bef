//! Tokens that somebody else has signed (OAuth 2): whoever brings a JWT that a known key has signed is let in with what its
//! scopes grant, without being a user here.
//!
//! - `keys.rs`: the public keys, from a PEM or a JWKS file. `token.rs`: what a token says, once its signature holds.
//!
//! The rules are those of RabbitMQ's plugin `rabbitmq_auth_backend_oauth2`; what the scopes mean is `nexo_core`'s.

mod keys;
mod token;

use std::path::PathBuf;
use std::time::SystemTime;

use thiserror::Error;

use keys::Keys;
pub(crate) use token::Verified;

/// Whose tokens are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuthOptions {
    /// The file with public keys: PEM, or a JWKS.
    pub keys: PathBuf,
    /// What a token's `aud` must name, and its scopes begin with, followed by a dot. RabbitMQ calls it `resource_server_id`.
    pub audience: String,
    /// What a token's `iss` must be; any, if it is not given.
    pub issuer: Option<String>,
}

/// Keys that cannot be used.
#[derive(Debug, Error)]
pub enum OAuthError {
    /// The file cannot be read.
    #[error("cannot read the keys '{path}': {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// There are none in it.
    #[error("the keys '{path}' cannot be used: {reason}")]
    Keys {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        reason: String,
    },
}

/// Checks tokens.
#[derive(Debug)]
pub struct OAuth {
    keys: Keys,
    audience: String,
    /// What its own scopes begin with.
    prefix: String,
    issuer: Option<String>,
}

impl OAuth {
    /// Reads the keys.
    ///
    /// # Errors
    /// If there are none that can be used.
    pub fn load(options: &OAuthOptions) -> Result<Self, OAuthError> {
        let path = || options.keys.clone();
        let bytes =
            std::fs::read(&options.keys).map_err(|source| OAuthError::Read { path: path(), source })?;
        let keys = Keys::parse(&bytes).map_err(|reason| OAuthError::Keys { path: path(), reason })?;
        let prefix = format!("{}.", options.audience);
        Ok(Self { keys, audience: options.audience.clone(), prefix, issuer: options.issuer.clone() })
    }
}

/// The time, as tokens tell it: seconds since 1970.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether a text has the form of a token: three parts, of which the first is a JSON object.
pub(crate) fn is_token(text: &[u8]) -> bool {
    text.starts_with(b"eyJ") && text.iter().filter(|byte| **byte == b'.').count() == 2
}
