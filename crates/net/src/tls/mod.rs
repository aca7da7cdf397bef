//! TLS: certificates and keys from files, handshakes with an end, and who a client's certificate says that it is.
//!
//! - `files.rs`: PEM files.
//! - `server.rs`: the server's side; its files can be read again while connections are open.
//! - `certificate.rs`: the name in a client's certificate.
//! - `client.rs`: the side of our own command line, and of a node that connects to another.

mod certificate;
mod client;
mod files;
mod server;

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{self, CryptoProvider};

pub use certificate::{CertificateName, Expiry, certificate_user};
pub use client::{ClientTls, client_config, connect_peer};
pub use files::TlsError;
pub use server::{CertificateFile, ClientCertificates, TlsOptions, TlsPeer, TlsServer};

#[cfg(test)]
pub(crate) use server::tests::server as server_for_tests;

/// What enciphers and signs. The only place that names it.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}
