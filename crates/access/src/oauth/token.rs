//! One token: its signature first, then what it says.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nexo_broker::access::{Scopes, UserName};
use serde::Deserialize;
use thiserror::Error;

use super::OAuth;
use super::keys::Algorithm;
use crate::limits::{BEARER_BYTES_MAX, OAUTH_LEEWAY_S};

/// A token that holds.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) name: UserName,
    pub(crate) scopes: Scopes,
    /// From when on it does not, in seconds since 1970.
    pub(crate) expires_s: u64,
}

/// Why a token does not hold. It is for the log; a client is not told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum TokenError {
    #[error("it is longer than {BEARER_BYTES_MAX} bytes")]
    TooLong,
    #[error("its {0} cannot be read")]
    Malformed(&'static str),
    #[error("it is signed with an algorithm that is not taken; RS256 and ES256 are")]
    Algorithm,
    #[error("it has critical headers, none of which is known")]
    Critical,
    #[error("no known key has signed it")]
    Signature,
    #[error("it has no exp")]
    NoExpiry,
    #[error("it has expired")]
    Expired,
    #[error("its time has not come")]
    NotYet,
    #[error("its issuer is another")]
    Issuer,
    #[error("its audience is another")]
    Audience,
    #[error("neither its sub nor its client_id can be the name of a user")]
    Name,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Claims {
    iss: Option<String>,
    sub: Option<String>,
    client_id: Option<String>,
    aud: Option<Texts>,
    scope: Option<Texts>,
    exp: Option<f64>,
    nbf: Option<f64>,
}

/// One text with words, or a list of texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    fn words(&self) -> impl Iterator<Item = &str> {
        let texts = match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        };
        texts.iter().flat_map(|text| text.split_ascii_whitespace())
    }
}

impl OAuth {
    /// What a token says, if it holds at this time.
    pub(crate) fn verify(&self, token: &str, now_s: u64) -> Result<Verified, TokenError> {
        if token.len() > BEARER_BYTES_MAX {
            return Err(TokenError::TooLong);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed("form"))?;
        let (header, claims) = message.split_once('.').ok_or(TokenError::Malformed("form"))?;
        let header: Header = decoded(header).ok_or(TokenError::Malformed("header"))?;
        let algorithm = Algorithm::named(&header.alg).ok_or(TokenError::Algorithm)?;
        if header.crit.is_some() {
            return Err(TokenError::Critical);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::Malformed("signature"))?;
        if !self.keys.verify(algorithm, header.kid.as_deref(), message.as_bytes(), &signature) {
            return Err(TokenError::Signature);
        }
        // From here on it is as its issuer wrote it.
        let claims: Claims = decoded(claims).ok_or(TokenError::Malformed("claims"))?;
        self.judge(&claims, now_s)
    }

    fn judge(&self, claims: &Claims, now_s: u64) -> Result<Verified, TokenError> {
        // One that never ends could not be taken back.
        let expires_s = (claims.exp.ok_or(TokenError::NoExpiry)? as u64).saturating_add(OAUTH_LEEWAY_S);
        if now_s >= expires_s {
            return Err(TokenError::Expired);
        }
        if claims.nbf.is_some_and(|begins| begins as u64 > now_s.saturating_add(OAUTH_LEEWAY_S)) {
            return Err(TokenError::NotYet);
        }
        if self.issuer.as_ref().is_some_and(|issuer| claims.iss.as_ref() != Some(issuer)) {
            return Err(TokenError::Issuer);
        }
        let names_us = |audience: &Texts| audience.words().any(|one| one == self.audience);
        if !claims.aud.as_ref().is_some_and(names_us) {
            return Err(TokenError::Audience);
        }
        let name = claims.sub.as_ref().or(claims.client_id.as_ref()).ok_or(TokenError::Name)?;
        let name = UserName::new(name).map_err(|_| TokenError::Name)?;
        let scopes = claims.scope.iter().flat_map(Texts::words);
        Ok(Verified { name, scopes: Scopes::parse(&self.prefix, scopes), expires_s })
    }
}

fn decoded<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}
