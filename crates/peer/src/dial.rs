//! Connecting to another node: an address, TLS where there are certificates, and the hello.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nexo_net::{
    CertificateName, ClientCertificates, ClientTls, PeerStream, SharedSocket, TlsError, TlsOptions,
    TlsServer, client_config, connect_peer,
};
use nexo_types::NodeId;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

use crate::error::{HelloError, PeerError};
use crate::handshake::{Met, introduce};
use crate::identity::{PeerIdentity, PeerSecurity};
use crate::purpose::Purpose;

/// How long two nodes may take until they know each other, from the first packet on. Elections wait for this.
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How long one of its addresses may take to answer at all.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A connection for envelopes on which nothing is acknowledged for this long is given up.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(5);
/// When the system asks whether a silent peer is still there, and how often then.
const SILENT_FOR: Duration = Duration::from_secs(5);
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// What TLS calls the protocol between nodes.
const ALPN: &[u8] = b"nexo-peer";

/// By what nodes know each other, ready for use. Nothing of it is ever shown.
pub(crate) struct Security {
    pub(crate) secret: Vec<u8>,
    pub(crate) tls: Option<Tls>,
}

/// Both sides of TLS.
pub(crate) struct Tls {
    pub(crate) server: TlsServer,
    client: Arc<ClientConfig>,
}

impl Security {
    /// Reads the files.
    pub(crate) fn load(security: &PeerSecurity) -> Result<Self, TlsError> {
        let tls = security.tls.as_ref().map(|files| {
            let server = TlsServer::load(&TlsOptions {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
                client_ca: Some(files.ca.clone()),
                client_certificates: ClientCertificates::Required,
                login_from: CertificateName::CommonName,
            })?;
            let identity = Some((files.certificate.clone(), files.key.clone()));
            let client = client_config(&ClientTls { ca: Some(files.ca.clone()), identity }, ALPN)?;
            Ok::<_, TlsError>(Tls { server, client })
        });
        let secret = security.secret.as_ref().map(|secret| secret.as_bytes().to_vec()).unwrap_or_default();
        Ok(Self { secret, tls: tls.transpose()? })
    }
}

/// Connects to an address and says hello. `expected` is who should be there, if that is known.
pub(crate) async fn dial(
    security: &Security,
    identity: Option<&PeerIdentity>,
    address: &str,
    purpose: Purpose,
    expected: Option<NodeId>,
) -> Result<(PeerStream, Met), PeerError> {
    let failed = |source| PeerError::Connect { address: address.to_owned(), source };
    let met = async {
        let socket = connect(address).await.map_err(failed)?;
        prepare(&socket);
        let mut stream = match &security.tls {
            None => PeerStream::Plain(SharedSocket::from(socket)),
            Some(tls) => connect_peer(&tls.client, host(address), socket).await.map_err(failed)?,
        };
        let met = introduce(&mut stream, identity, &security.secret, purpose, expected).await;
        let met = met.map_err(|source| PeerError::Hello { address: address.to_owned(), source })?;
        if purpose == Purpose::Raft {
            watch_closely(&stream);
        }
        Ok((stream, met))
    };
    match timeout(HELLO_WITHIN, met).await {
        Ok(met) => met,
        Err(_) => Err(PeerError::Late { address: address.to_owned(), seconds: HELLO_WITHIN.as_secs() }),
    }
}

/// The first address of a name that answers.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for found in tokio::net::lookup_host(address).await? {
        match timeout(CONNECT_WITHIN, TcpStream::connect(found)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failure)
}

/// The host of `HOST:PORT`, as a certificate names it.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Has small writes go out at once, and the system ask whether a silent peer is still there. Where it cannot do that, a
/// connection is slower, and fails later.
pub(crate) fn prepare(socket: &TcpStream) {
    let asked = TcpKeepalive::new().with_time(SILENT_FOR).with_interval(ASKED_EVERY);
    let options = SockRef::from(socket);
    let set = options.set_tcp_nodelay(true).and_then(|()| options.set_tcp_keepalive(&asked));
    if let Err(error) = set {
        tracing::debug!(%error, "a connection between nodes could not be set up as it should");
    }
}

/// Has a connection for envelopes fail soon if the other machine is gone. Not those for clients: bytes of one that does not
/// read, or that an alarm holds up, may wait for long.
pub(crate) fn watch_closely(stream: &PeerStream) {
    #[cfg(target_os = "linux")]
    if let Err(error) = SockRef::from(stream.socket().socket()).set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))
    {
        tracing::debug!(%error, "a connection between nodes will be given up later than it should");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
}

/// What lies behind an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It comes and goes.
    Network,
    /// Somebody has to do something.
    Mistake,
}

impl Cause {
    pub(crate) const fn of(error: &PeerError) -> Self {
        match error {
            PeerError::Connect { .. } | PeerError::Late { .. } | PeerError::Closed => Self::Network,
            PeerError::Hello { source: HelloError::Io(_), .. } => Self::Network,
            PeerError::Hello { .. }
            | PeerError::Thread(_)
            | PeerError::Listen { .. }
            | PeerError::Tls(_)
            | PeerError::Unknown(_) => Self::Mistake,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_as_in_a_certificate() {
        assert_eq!(host("node-2.example:7655"), "node-2.example");
        assert_eq!(host("10.0.0.2:7655"), "10.0.0.2");
        assert_eq!(host("[::1]:7655"), "::1");
    }
}
