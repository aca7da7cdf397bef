//! What a request says about its own signature.

use axum::http::HeaderMap;

use crate::fault::{Fault, FaultCode};
use crate::protocol::form::Form;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Characters of a region that is shown again, in ARNs.
const REGION_MAX: usize = 64;
/// Characters of a key's id that the log is told.
const KEY_ID_SHOWN_MAX: usize = 128;

/// What a request says about its own signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) key_id: String,
    /// `20150830/us-east-1/sqs/aws4_request`.
    pub(super) scope: Scope,
    /// `20150830T123600Z`.
    pub(super) date: String,
    /// Names of the headers that are signed, in small letters, in order.
    pub(super) headers: Vec<String>,
    /// In small hexadecimal digits.
    pub(super) signature: String,
    pub(super) place: Place,
}

/// What a signature is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) day: String,
    pub(super) region: String,
    pub(super) service: String,
}

/// Where the signature stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the header `Authorization`.
    Header,
    /// In the address, which is good for this long.
    Address {
        /// In seconds.
        expires_s: u64,
    },
}

/// The id of the key that a request says it was signed with, for the log.
pub(crate) fn key_id(headers: &HeaderMap, form: &Form<'_>) -> Option<String> {
    let claim = Claim::of(headers, form).ok()??;
    Some(claim.key_id.chars().take(KEY_ID_SHOWN_MAX).collect())
}

impl Claim {
    /// Reads it, if there is one.
    pub(super) fn of(headers: &HeaderMap, form: &Form<'_>) -> Result<Option<Self>, Fault> {
        if let Some(header) = headers.get("authorization") {
            let text = header.to_str().map_err(|_| incomplete("Authorization header cannot be read."))?;
            return Self::from_header(text, headers).map(Some);
        }
        if form.get("X-Amz-Algorithm").is_some() || form.get("X-Amz-Signature").is_some() {
            return Self::from_address(form).map(Some);
        }
        Ok(None)
    }

    /// Checks that what makes the request is signed. Nobody who comes by a signed address may change the action.
    pub(super) fn check_headers(&self, headers: &HeaderMap) -> Result<(), Fault> {
        let is_signed = |header: &str| self.headers.iter().any(|name| name == header);
        if !is_signed("host") {
            return Err(incomplete("'Host' must be a 'SignedHeader' in the AWS Authorization."));
        }
        if headers.contains_key("x-amz-target") && !is_signed("x-amz-target") {
            return Err(incomplete("'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization."));
        }
        Ok(())
    }

    fn from_header(text: &str, headers: &HeaderMap) -> Result<Self, Fault> {
        let rest = text
            .strip_prefix(ALGORITHM)
            .ok_or_else(|| incomplete(&format!("Unsupported AWS 'algorithm': it must be {ALGORITHM}.")))?;
        let part = |name: &str| {
            let parts = rest.split(',').map(str::trim);
            let value = parts.filter_map(|part| part.split_once('=')).find(|(key, _)| *key == name);
            value
                .map(|(_, value)| value)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| incomplete(&format!("Authorization header requires '{name}' parameter.")))
        };
        let date = headers.get("x-amz-date").or_else(|| headers.get("date"));
        let date = date.and_then(|date| date.to_str().ok()).ok_or_else(|| {
            incomplete("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
        })?;
        Self::new(part("Credential")?, part("SignedHeaders")?, part("Signature")?, date, Place::Header)
    }

    fn from_address(form: &Form<'_>) -> Result<Self, Fault> {
        let part = |name: &str| {
            form.get(name)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| incomplete(&format!("AWS query-string parameters must include '{name}'.")))
        };
        if part("X-Amz-Algorithm")? != ALGORITHM {
            return Err(incomplete(&format!("Unsupported AWS 'algorithm': it must be {ALGORITHM}.")));
        }
        let expires_s = part("X-Amz-Expires")?
            .parse()
            .ok()
            .filter(|seconds| (1..=604_800).contains(seconds))
            .ok_or_else(|| incomplete("X-Amz-Expires must be a number of seconds from 1 to 604800."))?;
        Self::new(
            part("X-Amz-Credential")?,
            part("X-Amz-SignedHeaders")?,
            part("X-Amz-Signature")?,
            part("X-Amz-Date")?,
            Place::Address { expires_s },
        )
    }

    fn new(
        credential: &str,
        headers: &str,
        signature: &str,
        date: &str,
        place: Place,
    ) -> Result<Self, Fault> {
        let (key_id, scope) = split_credential(credential).ok_or_else(|| {
            incomplete("Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term.")
        })?;
        let headers: Vec<String> = headers.split(';').map(str::to_ascii_lowercase).collect();
        Ok(Self {
            key_id: key_id.to_owned(),
            scope,
            date: date.to_owned(),
            headers,
            signature: signature.to_owned(),
            place,
        })
    }
}

impl Scope {
    /// As it stands in the text that is signed.
    pub(super) fn text(&self) -> String {
        format!("{}/{}/{}/aws4_request", self.day, self.region, self.service)
    }
}

/// The region that a request is signed for, whether or not the signature holds.
pub(crate) fn region(headers: &HeaderMap, form: &Form<'_>) -> Option<String> {
    let header = headers.get("authorization").and_then(|header| header.to_str().ok());
    let credential = header
        .and_then(|header| header.split("Credential=").nth(1)?.split([',', ' ']).next())
        .or_else(|| form.get("X-Amz-Credential"))?;
    let (_, scope) = split_credential(credential)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    ((1..=REGION_MAX).contains(&scope.region.len()) && scope.region.bytes().all(plain))
        .then_some(scope.region)
}

fn split_credential(credential: &str) -> Option<(&str, Scope)> {
    let mut parts = credential.split('/');
    let key_id = parts.next().filter(|id| !id.is_empty())?;
    let mut part = || parts.next().map(str::to_owned);
    let scope = Scope { day: part()?, region: part()?, service: part()? };
    (part()?.as_str() == "aws4_request" && part().is_none()).then_some((key_id, scope))
}

fn incomplete(message: &str) -> Fault {
    Fault::new(FaultCode::IncompleteSignature, message.to_owned())
}
