//! What a certificate says: who its owner is, and for how long. The name of a user is taken from it as RabbitMQ does.

use std::path::Path;

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use x509_parser::x509::AttributeTypeAndValue;

/// Longest name that is looked at, as that of a user in AMQP.
const USER_BYTES_MAX: usize = 255;

/// What in a certificate is the name of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CertificateName {
    /// All of the subject, as `CN=alice,O=Example`.
    #[default]
    DistinguishedName,
    /// The subject's common name.
    CommonName,
    /// The first DNS name among its alternative names.
    SubjectAlternativeName,
}

/// The name of the user that a certificate belongs to. It must have been verified before.
#[must_use]
pub fn certificate_user(certificate: &[u8], from: CertificateName) -> Option<String> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let name = match from {
        CertificateName::DistinguishedName => distinguished_name(&certificate)?,
        CertificateName::CommonName => common_name(&certificate)?,
        CertificateName::SubjectAlternativeName => alternative_name(&certificate)?,
    };
    (!name.is_empty() && name.len() <= USER_BYTES_MAX).then_some(name)
}

/// The parts of the subject, the last one first.
fn distinguished_name(certificate: &X509Certificate<'_>) -> Option<String> {
    let mut parts = Vec::new();
    for relative in certificate.subject().iter() {
        let attributes: Option<Vec<String>> = relative.iter().map(written).collect();
        parts.push(attributes?.join("+"));
    }
    parts.reverse();
    Some(parts.join(","))
}

/// An attribute with its short name, or with its number if there is none.
fn written(attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    let id = attribute.attr_type().to_id_string();
    let name = match id.as_str() {
        "2.5.4.3" => "CN",
        "2.5.4.4" => "SN",
        "2.5.4.5" => "SERIALNUMBER",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "STREET",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "2.5.4.12" => "TITLE",
        "2.5.4.42" => "GIVENNAME",
        "2.5.4.43" => "INITIALS",
        "2.5.4.44" => "GENERATIONQUALIFIER",
        "2.5.4.65" => "PSEUDONYM",
        "0.9.2342.19200300.100.1.1" => "UID",
        "0.9.2342.19200300.100.1.25" => "DC",
        "1.2.840.113549.1.9.1" => "EMAILADDRESS",
        number => number,
    };
    Some(format!("{name}={}", escaped(attribute.as_str().ok()?)))
}

/// A value in which nothing can be taken for what stands between values.
fn escaped(value: &str) -> String {
    let last = value.len().saturating_sub(1);
    let mut text = String::with_capacity(value.len());
    for (at, byte) in value.bytes().enumerate() {
        let at_end = (at == 0 && matches!(byte, b' ' | b'#')) || (at == last && byte == b' ');
        if at_end || matches!(byte, b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\') {
            text.push('\\');
            text.push(char::from(byte));
        } else if (0x20..0x7e).contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("\\{byte:02X}"));
        }
    }
    text
}

fn common_name(certificate: &X509Certificate<'_>) -> Option<String> {
    let names: Result<Vec<&str>, _> =
        certificate.subject().iter_common_name().map(AttributeTypeAndValue::as_str).collect();
    names.ok().map(|names| names.join(","))
}

fn alternative_name(certificate: &X509Certificate<'_>) -> Option<String> {
    let names = certificate.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    })
}

/// Until when a certificate is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// In seconds since 1970.
    pub unix_s: i64,
    /// The same as text.
    pub until: String,
}

/// Until when this one is.
pub(super) fn expiry(certificate: &[u8]) -> Option<Expiry> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let not_after = certificate.validity().not_after;
    Some(Expiry { unix_s: not_after.timestamp(), until: not_after.to_string() })
}

impl Expiry {
    /// Whether it is over in so many seconds from now.
    #[must_use]
    pub fn is_within(&self, seconds: u64) -> bool {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let then = now.as_secs().saturating_add(seconds);
        self.unix_s <= i64::try_from(then).unwrap_or(i64::MAX)
    }

    /// Tells the log.
    pub(super) fn tell(&self, path: &Path) {
        let (path, until) = (path.display(), &self.until);
        if self.is_within(0) {
            tracing::warn!(certificate = %path, until, "the certificate has expired: clients will refuse it");
        } else {
            tracing::info!(certificate = %path, until, "certificate read");
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(subject: &[(DnType, &str)], names: &[&str]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.subject_alt_names =
            names.iter().map(|&name| SanType::DnsName(name.try_into().unwrap())).collect();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn a_user_is_named_by_the_subject() {
        let subject = [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Example"),
            (DnType::CommonName, "alice"),
        ];
        let der = certificate(&subject, &["alice.example", "other.example"]);
        let user = |from| certificate_user(&der, from).unwrap();
        assert_eq!(user(CertificateName::DistinguishedName), "CN=alice,O=Example,C=DE");
        assert_eq!(user(CertificateName::CommonName), "alice");
        assert_eq!(user(CertificateName::SubjectAlternativeName), "alice.example");
    }

    #[test]
    fn a_value_cannot_be_taken_for_another_attribute() {
        let subject = [(DnType::OrganizationName, "#1 "), (DnType::CommonName, "eve,O=Example\nü\\")];
        let der = certificate(&subject, &[]);
        let user = certificate_user(&der, CertificateName::DistinguishedName).unwrap();
        assert_eq!(user, "CN=eve\\,O=Example\\0A\\C3\\BC\\\\,O=\\#1\\ ");
    }

    #[test]
    fn what_has_no_name_is_nobody() {
        let der = certificate(&[], &[]);
        for from in [
            CertificateName::DistinguishedName,
            CertificateName::CommonName,
            CertificateName::SubjectAlternativeName,
        ] {
            assert_eq!(certificate_user(&der, from), None);
            assert_eq!(certificate_user(b"no certificate", from), None);
        }
        let long = "x".repeat(300);
        let der = certificate(&[(DnType::CommonName, &long)], &[]);
        assert_eq!(certificate_user(&der, CertificateName::CommonName), None);
    }
}
