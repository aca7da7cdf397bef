//! The settings of TLS: which files, and what is asked of clients.

use std::path::PathBuf;

use anyhow::bail;
use nexo_net::{CertificateName, ClientCertificates, TlsOptions};
use serde::Deserialize;

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TlsVerify {
    /// They are not asked for one
    None,
    /// They may; what they show must be valid
    Request,
    /// They must
    Require,
}

/// What in a certificate is the name of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
pub(crate) enum TlsLoginFrom {
    /// All of the subject, as CN=alice,O=Example
    #[value(name = "distinguished_name")]
    #[serde(rename = "distinguished_name")]
    Distinguished,
    /// The subject's common name
    #[value(name = "common_name")]
    #[serde(rename = "common_name")]
    Common,
    /// The first DNS name among the alternative names
    #[value(name = "subject_alternative_name")]
    #[serde(rename = "subject_alternative_name")]
    SubjectAlternative,
}

/// What was said about TLS.
#[derive(Debug, Default)]
pub(crate) struct TlsSettings {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) verify: Option<TlsVerify>,
    pub(crate) login_from: Option<TlsLoginFrom>,
}

impl TlsSettings {
    /// What follows from it; `None` without a certificate. `listeners` are the names of those that speak TLS.
    pub(crate) fn decide(self, listeners: &[&str]) -> anyhow::Result<Option<TlsOptions>> {
        let (certificate, key) = match (self.cert, self.key) {
            (Some(certificate), Some(key)) => (certificate, key),
            (Some(_), None) => bail!("tls_cert needs tls_key: the key of that certificate"),
            (None, Some(_)) => bail!("tls_key needs tls_cert: the certificate of that key"),
            (None, None) => match (listeners.first(), self.client_ca) {
                (Some(listener), _) => bail!("{listener} needs tls_cert and tls_key"),
                (None, Some(_)) => bail!("tls_client_ca needs tls_cert and tls_key"),
                (None, None) => return Ok(None),
            },
        };
        // Whoever names an authority wants clients to be checked by it.
        let verify = self.verify.unwrap_or(match &self.client_ca {
            Some(_) => TlsVerify::Require,
            None => TlsVerify::None,
        });
        let client_certificates = match verify {
            TlsVerify::None => ClientCertificates::Ignored,
            TlsVerify::Request => ClientCertificates::Requested,
            TlsVerify::Require => ClientCertificates::Required,
        };
        if verify != TlsVerify::None && self.client_ca.is_none() {
            bail!("tls_verify needs tls_client_ca: the certificates by which those of clients are checked");
        }
        let login_from = match self.login_from {
            Some(TlsLoginFrom::Distinguished) | None => CertificateName::DistinguishedName,
            Some(TlsLoginFrom::Common) => CertificateName::CommonName,
            Some(TlsLoginFrom::SubjectAlternative) => CertificateName::SubjectAlternativeName,
        };
        let client_ca = self.client_ca;
        Ok(Some(TlsOptions { certificate, key, client_ca, client_certificates, login_from }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> TlsSettings {
        TlsSettings { cert: Some("cert.pem".into()), key: Some("key.pem".into()), ..TlsSettings::default() }
    }

    fn refused(settings: TlsSettings, listeners: &[&str]) -> String {
        settings.decide(listeners).unwrap_err().to_string()
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(refused(TlsSettings::default(), &["amqps"]), "amqps needs tls_cert and tls_key");
        let error = refused(TlsSettings { key: None, ..settings() }, &[]);
        assert!(error.starts_with("tls_cert needs tls_key"), "{error}");
        let error = refused(TlsSettings { cert: None, ..settings() }, &[]);
        assert!(error.starts_with("tls_key needs tls_cert"), "{error}");
        let error = refused(TlsSettings { verify: Some(TlsVerify::Request), ..settings() }, &[]);
        assert!(error.starts_with("tls_verify needs tls_client_ca"), "{error}");
        let error = refused(TlsSettings { client_ca: Some("ca.pem".into()), ..TlsSettings::default() }, &[]);
        assert!(error.starts_with("tls_client_ca needs"), "{error}");
        assert_eq!(TlsSettings::default().decide(&[]).unwrap(), None);
    }

    #[test]
    fn who_names_an_authority_asks_for_certificates() {
        let asked = |settings: TlsSettings| settings.decide(&[]).unwrap().unwrap().client_certificates;
        let with_ca = || TlsSettings { client_ca: Some("ca.pem".into()), ..settings() };
        assert_eq!(asked(settings()), ClientCertificates::Ignored);
        assert_eq!(asked(with_ca()), ClientCertificates::Required);
        let request = TlsSettings { verify: Some(TlsVerify::Request), ..with_ca() };
        assert_eq!(asked(request), ClientCertificates::Requested);
    }
}
