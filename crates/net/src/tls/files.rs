//! Certificates and keys, as PEM files.

use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::VerifierBuilderError;
use tokio_rustls::rustls::{self, RootCertStore};

/// Files that TLS cannot be spoken with.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("cannot read {what} in '{path}': {reason}")]
    File {
        /// What was looked for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A certificate cannot be used to judge others by.
    #[error("a certificate in '{path}' cannot be trusted in: {source}")]
    Root {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// They do not go together.
    #[error("the certificate '{certificate}' cannot be used with the key '{key}': {source}")]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// No client could be judged.
    #[error("clients' certificates cannot be checked: {0}")]
    Verifier(#[from] VerifierBuilderError),
    /// Nothing that can be agreed on.
    #[error("TLS cannot be set up: {0}")]
    SetUp(#[from] rustls::Error),
    /// Without a name of one's own nobody can be told by a certificate.
    #[error("this machine has no certificates to trust in; name a file with --ca")]
    NoRoots,
}

fn failed(what: &'static str, path: &Path, error: &pem::Error) -> TlsError {
    let reason = match error {
        pem::Error::NoItemsFound => "there is none".to_owned(),
        pem::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    };
    TlsError::File { what, path: path.to_owned(), reason }
}

/// All certificates of a file, of which there is one at least.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |error: pem::Error| failed("certificates", path, &error);
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(failed)?.collect();
    let found = found.map_err(failed)?;
    if found.is_empty() { Err(failed(pem::Error::NoItemsFound)) } else { Ok(found) }
}

/// The first private key of a file.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| failed("a private key", path, &error))
}

/// The certificates of a file, to judge others by.
pub(super) fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| TlsError::Root { path: path.to_owned(), source })?;
    }
    Ok(roots)
}
