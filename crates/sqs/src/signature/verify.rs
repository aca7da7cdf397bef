//! Whether a signature holds.

use axum::http::{HeaderMap, Method, Uri};
use hmac::{Hmac, KeyInit, Mac};
use jiff::civil::DateTime;
use nexo_types::{Millis, Timestamp};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::canonical;
use super::claim::{Claim, Place};
use super::keys::AccessKey;
use crate::fault::{Fault, FaultCode};
use crate::ids::hex;
use crate::protocol::form::Form;

/// How far the clocks of client and broker may be apart.
const SKEW: Millis = Millis::from_secs(15 * 60);
const DATE_FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// A request whose head may be true: it names a key that we know, and a moment that is near. Whether the key signed it
/// shows once its body is there.
#[derive(Debug)]
pub(crate) struct Signed {
    claim: Claim,
    key: AccessKey,
}

impl Signed {
    /// Reads what the head of a request says. `query` are the parameters of its address, in which a signature may stand;
    /// `find` knows the keys.
    pub(crate) fn read(
        headers: &HeaderMap,
        query: &Form<'_>,
        find: impl FnOnce(&str) -> Option<AccessKey>,
        now: Timestamp,
    ) -> Result<Self, Fault> {
        let claim = Claim::of(headers, query)?.ok_or_else(|| {
            Fault::new(FaultCode::MissingAuthenticationToken, "Request is missing Authentication Token")
        })?;
        claim.check_headers(headers)?;
        let key = find(&claim.key_id).ok_or_else(|| {
            let message = "The security token included in the request is invalid.";
            Fault::new(FaultCode::InvalidClientTokenId, message)
        })?;
        check_time(&claim, now)?;
        Ok(Self { claim, key })
    }

    /// Which key is said to have signed it.
    pub(crate) fn key_id(&self) -> String {
        self.key.id.clone()
    }

    /// Checks that the key has signed the request as it is.
    pub(crate) fn verify(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), Fault> {
        let payload = payload_hash(headers, body)?;
        let text = canonical::request(method, uri, headers, &self.claim.headers, &payload);
        let expected = signature(&self.claim, &self.key, &text);
        if expected.as_bytes().ct_eq(self.claim.signature.as_bytes()).into() {
            return Ok(());
        }
        Err(mismatch(
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret \
             Access Key and signing method. Consult the service documentation for details.",
        ))
    }
}

/// The hash of the body. A client may have said it in a header, which then must be true.
fn payload_hash(headers: &HeaderMap, body: &[u8]) -> Result<String, Fault> {
    let actual = hex(&Sha256::digest(body));
    let said = headers.get("x-amz-content-sha256").and_then(|value| value.to_str().ok());
    match said {
        Some("UNSIGNED-PAYLOAD") => {
            // A body that anybody may change would make the rest of the signature worth nothing.
            Err(mismatch("UNSIGNED-PAYLOAD is not supported; the request must be signed with its body."))
        }
        Some(said) if !said.eq_ignore_ascii_case(&actual) => {
            Err(mismatch("The provided 'x-amz-content-sha256' header does not match what was computed."))
        }
        Some(_) | None => Ok(actual),
    }
}

fn check_time(claim: &Claim, now: Timestamp) -> Result<(), Fault> {
    let incomplete = |message: &str| Fault::new(FaultCode::IncompleteSignature, message.to_owned());
    let signed_at = parse_date(&claim.date)
        .ok_or_else(|| incomplete("Date must be in ISO-8601 'basic format', as in 20150830T123600Z."))?;
    if !claim.date.starts_with(&claim.scope.day) || claim.scope.day.len() != 8 {
        return Err(mismatch(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP.",
        ));
    }
    if claim.scope.service != "sqs" {
        return Err(mismatch("Credential should be scoped to correct service: 'sqs'."));
    }
    let date = &claim.date;
    let minutes = SKEW.0 / 60_000;
    if signed_at > now.plus(SKEW) {
        let (limit, now) = (format_date(now.plus(SKEW)), format_date(now));
        return Err(mismatch(&format!(
            "Signature not yet current: {date} is still later than {limit} ({now} + {minutes} min.)"
        )));
    }
    match claim.place {
        Place::Header if signed_at.plus(SKEW) < now => {
            let (limit, now) = (format_date(Timestamp(now.0.saturating_sub(SKEW.0))), format_date(now));
            Err(mismatch(&format!(
                "Signature expired: {date} is now earlier than {limit} ({now} - {minutes} min.)"
            )))
        }
        Place::Address { expires_s } if signed_at.plus(Millis::from_secs(expires_s)) < now => {
            Err(Fault::new(FaultCode::RequestExpired, "Request has expired."))
        }
        Place::Header | Place::Address { .. } => Ok(()),
    }
}

fn signature(claim: &Claim, key: &AccessKey, canonical: &str) -> String {
    let hash = hex(&Sha256::digest(canonical.as_bytes()));
    let text = format!("AWS4-HMAC-SHA256\n{}\n{}\n{hash}", claim.date, claim.scope.text());
    let secret = format!("AWS4{}", key.secret);
    let scope = &claim.scope;
    let parts = [&*scope.day, &scope.region, &scope.service, "aws4_request"];
    let signing = parts.iter().fold(secret.into_bytes(), |key, part| mac(&key, part));
    hex(&mac(&signing, &text))
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of HMAC may be of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn parse_date(text: &str) -> Option<Timestamp> {
    let date = DateTime::strptime(DATE_FORMAT, text).ok()?;
    let zoned = date.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    u64::try_from(zoned.timestamp().as_millisecond()).ok().map(Timestamp)
}

fn format_date(at: Timestamp) -> String {
    let at = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map(|at| at.strftime(DATE_FORMAT).to_string()).unwrap_or_default()
}

fn mismatch(message: &str) -> Fault {
    Fault::new(FaultCode::SignatureDoesNotMatch, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of AWS's documentation of Signature V4, whose service is another one.
    #[test]
    fn the_documented_example_has_its_documented_signature() {
        let key: AccessKey = "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".parse().unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("host", "iam.amazonaws.com"),
            ("x-amz-date", "20150830T123600Z"),
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, \
                 SignedHeaders=content-type;host;x-amz-date, Signature=x",
            ),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let uri: Uri = "/?Action=ListUsers&Version=2010-05-08".parse().unwrap();
        let claim = Claim::of(&headers, &Form::default()).unwrap().unwrap();
        let payload = hex(&Sha256::digest(b""));
        let text = canonical::request(&Method::GET, &uri, &headers, &claim.headers, &payload);
        assert_eq!(
            hex(&Sha256::digest(text.as_bytes())),
            "f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"
        );
        assert_eq!(
            signature(&claim, &key, &text),
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
        );
    }

    #[test]
    fn dates_are_read_and_written_in_the_basic_format() {
        let at = parse_date("20150830T123600Z").unwrap();
        assert_eq!(at, Timestamp(1_440_938_160_000));
        assert_eq!(format_date(at), "20150830T123600Z");
        for text in ["", "2015-08-30T12:36:00Z", "20150830", "20151330T123600Z"] {
            assert_eq!(parse_date(text), None, "{text}");
        }
    }
}
