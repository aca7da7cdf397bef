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

/// Which key a request says it was signed with, and where, whether or not the signature holds. It is asked of every request,
/// also of those whose signature nobody checks, so it is read without the rest of the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credential<'a> {
    pub(crate) key_id: &'a str,
    region: &'a str,
}

impl<'a> Credential<'a> {
    /// Reads it, if there is one.
    pub(crate) fn of(headers: &'a HeaderMap, form: &'a Form<'_>) -> Option<Self> {
        let credential = match headers.get("authorization") {
            Some(header) => part_of(header.to_str().ok()?.strip_prefix(ALGORITHM)?, "Credential")?,
            None => form.get("X-Amz-Credential")?,
        };
        let [key_id, _, region, ..] = split_credential(credential)?;
        Some(Self { key_id, region })
    }

    /// The key's id for the log.
    pub(crate) fn key_id_shown(&self) -> String {
        self.key_id.chars().take(KEY_ID_SHOWN_MAX).collect()
    }

    /// The region, if it can be shown again.
    pub(crate) fn region(&self) -> Option<&'a str> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_one = (1..=REGION_MAX).contains(&self.region.len()) && self.region.bytes().all(plain);
        is_one.then_some(self.region)
    }
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
            part_of(rest, name)
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
        let [key_id, day, region, service] = split_credential(credential).ok_or_else(|| {
            incomplete("Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term.")
        })?;
        let headers: Vec<String> = headers.split(';').map(str::to_ascii_lowercase).collect();
        Ok(Self {
            key_id: key_id.to_owned(),
            scope: Scope { day: day.to_owned(), region: region.to_owned(), service: service.to_owned() },
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

/// What the parameters of an authorization say of one of them, if anything.
fn part_of<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    let mut parts = parameters.split(',').map(str::trim).filter_map(|part| part.split_once('='));
    parts.find(|(key, _)| *key == name).map(|(_, value)| value).filter(|value| !value.is_empty())
}

/// The key's id, the day, the region and the service of a credential.
fn split_credential(credential: &str) -> Option<[&str; 4]> {
    let mut parts = credential.split('/');
    let key_id = parts.next().filter(|id| !id.is_empty())?;
    let found = [key_id, parts.next()?, parts.next()?, parts.next()?];
    (parts.next()? == "aws4_request" && parts.next().is_none()).then_some(found)
}

fn incomplete(message: &str) -> Fault {
    Fault::new(FaultCode::IncompleteSignature, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Form<'_> {
        Form::parse(text, b"").unwrap()
    }

    #[test]
    fn a_credential_is_that_of_the_claim() {
        let signed = "SignedHeaders=host, Signature=0a";
        for (credential, expected) in [
            ("Credential=AK/20150830/eu-west-1/sqs/aws4_request", Some(("AK", "eu-west-1"))),
            (
                "XCredential=EVIL/20150830/x/sqs/aws4_request, Credential=AK/20150830/r/sqs/aws4_request",
                Some(("AK", "r")),
            ),
            ("Credential=A K/20150830/r/sqs/aws4_request", Some(("A K", "r"))),
            ("Credential=AK/20150830/r/sqs", None),
            ("Credential=", None),
        ] {
            let mut headers = HeaderMap::new();
            let text = format!("{ALGORITHM} {credential}, {signed}");
            headers.insert("authorization", text.parse().unwrap());
            headers.insert("x-amz-date", "20150830T123600Z".parse().unwrap());
            // What stands in the address counts only where there is no header.
            let address = form("X-Amz-Credential=OTHER%2F20150830%2Fr%2Fsqs%2Faws4_request");
            let found = Credential::of(&headers, &address);
            assert_eq!(found.map(|one| (one.key_id, one.region)), expected, "{text}");
            let claim = Claim::of(&headers, &address).ok().flatten();
            assert_eq!(claim.map(|claim| claim.key_id), expected.map(|(id, _)| id.to_owned()), "{text}");
        }
        let address = form("X-Amz-Credential=AK%2F20150830%2Fr%2Fsqs%2Faws4_request");
        assert_eq!(Credential::of(&HeaderMap::new(), &address).map(|one| one.key_id), Some("AK"));
        assert_eq!(Credential::of(&HeaderMap::new(), &form("a=b")), None);
    }

    #[test]
    fn a_region_that_cannot_be_shown_again_is_none() {
        let of = |region| Credential { key_id: "AK", region }.region();
        assert_eq!(of("eu-west-1"), Some("eu-west-1"));
        let long = "r".repeat(REGION_MAX + 1);
        assert!([of(""), of("a b"), of("<x>"), of(&long)].iter().all(Option::is_none));
    }
}
