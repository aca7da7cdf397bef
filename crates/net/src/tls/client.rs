//! The client's side of TLS, for our own command line, and for a node that connects to another.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::files::{self, TlsError};
use super::provider;
use crate::peer_stream::PeerStream;
use crate::stream::SharedSocket;

/// Whom to trust, and who one is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificates by which the server's is judged; without it those that this machine trusts in.
    pub ca: Option<PathBuf>,
    /// A certificate to show, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Settings of a client that speaks only this protocol, such as `h2`.
///
/// # Errors
/// If the files cannot be used.
pub fn client_config(tls: &ClientTls, alpn: &[u8]) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = match &tls.ca {
        Some(ca) => files::roots(ca)?,
        None => system_roots()?,
    };
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let shown = (files::certificates(certificate)?, files::private_key(key)?);
            builder.with_client_auth_cert(shown.0, shown.1).map_err(|source| TlsError::Pair {
                certificate: certificate.clone(),
                key: key.clone(),
                source,
            })?
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(Arc::new(config))
}

/// Agrees on keys with a node of this name or address, which must be in its certificate.
///
/// # Errors
/// If it is another, or does not trust this one.
pub async fn connect_peer(
    config: &Arc<ClientConfig>,
    host: &str,
    socket: TcpStream,
) -> io::Result<PeerStream> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("'{host}' cannot be in a certificate"))
    })?;
    let stream = TlsConnector::from(Arc::clone(config)).connect(name, SharedSocket::from(socket)).await?;
    Ok(PeerStream::Tls(Box::new(stream.into())))
}

/// What this machine trusts in.
fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    // Some of them may be of a kind that nobody understands any more.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(TlsError::NoRoots) } else { Ok(roots) }
}
