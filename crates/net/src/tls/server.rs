//! The server's side of TLS. What is read from files is one value that is swapped as a whole: a connection has it from
//! its handshake on, so reading the files again disturbs none.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use nexo_broker::Protocol;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::server::TlsStream;

use super::certificate::{CertificateName, Expiry, certificate_user, expiry};
use super::files::{self as pem, TlsError};
use super::provider;
use crate::listeners::Source;
use crate::peer_stream::PeerStream;
use crate::stream::{SharedSocket, Stream};
use crate::tunnel::Tunnel;

/// How long a handshake may take, as long as AMQP's own.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Handshakes that failed are logged at most this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Where the files are, and what is asked of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The broker's certificate, and those that lead from it to one that clients know.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificates by which those of clients are judged.
    pub client_ca: Option<PathBuf>,
    /// Whether clients have to show one.
    pub client_certificates: ClientCertificates,
    /// What in it is the name of a user.
    pub login_from: CertificateName,
}

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked.
    Ignored,
    /// They may; it must be a valid one.
    Requested,
    /// They must.
    Required,
}

/// A file with certificates that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFile {
    /// Where it is.
    pub path: PathBuf,
    /// Whether by these clients are judged; otherwise they are the broker's own.
    pub is_of_clients: bool,
    /// Until when those in it are valid.
    pub expiries: Vec<Expiry>,
}

/// What TLS tells of the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPeer {
    /// The name in the certificate that it has shown.
    pub certificate_user: Option<String>,
}

/// Speaks TLS with whoever connects.
pub struct TlsServer {
    current: ArcSwap<Loaded>,
    failures: Mutex<Failures>,
}

/// What the files said.
struct Loaded {
    /// One for each kind of protocol: they differ in what clients may ask to speak.
    amqp: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
    login_from: CertificateName,
    files: Vec<CertificateFile>,
}

/// Handshakes that failed and that the log was not told of.
#[derive(Debug, Default)]
struct Failures {
    untold: u64,
    told_at: Option<Instant>,
}

impl TlsServer {
    /// Reads the files.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn load(options: &TlsOptions) -> Result<Self, TlsError> {
        Ok(Self { current: ArcSwap::from_pointee(Loaded::read(options)?), failures: Mutex::default() })
    }

    /// Reads the files again. Connections that are open stay as they are.
    ///
    /// # Errors
    /// If they cannot be used; then what was read before stays.
    pub fn reload(&self, options: &TlsOptions) -> Result<(), TlsError> {
        self.current.store(Arc::new(Loaded::read(options)?));
        Ok(())
    }

    /// The files that are in use, with what they say of time.
    #[must_use]
    pub fn files(&self) -> Vec<CertificateFile> {
        self.current.load().files.clone()
    }

    /// Agrees on keys with another node. How long that may take is for the caller to say.
    ///
    /// # Errors
    /// If one does not trust the other.
    pub async fn accept_peer(&self, socket: TcpStream) -> io::Result<PeerStream> {
        // The settings without a protocol to agree on.
        let config = Arc::clone(&self.current.load().amqp);
        let stream = TlsAcceptor::from(config).accept(SharedSocket::from(socket)).await?;
        Ok(PeerStream::Tls(Box::new(stream.into())))
    }

    /// Agrees with a client on keys; `None` if that leads nowhere or takes too long.
    pub(crate) async fn handshake(
        &self,
        source: Source,
        peer: SocketAddr,
        protocol: Protocol,
    ) -> Option<(Stream, TlsPeer)> {
        match source {
            Source::Socket(socket) => {
                // Otherwise a part of the handshake may wait for the last one to be acknowledged. It is only slower then.
                let _ = socket.set_nodelay(true);
                let (stream, tls) = self.agree(SharedSocket::from(socket), peer, protocol).await?;
                Some((Stream::Tls(Box::new(stream)), tls))
            }
            Source::Tunnel(tunnel) => {
                let head = *tunnel.head();
                let (stream, tls) = self.agree(tunnel.into_stream()?, peer, protocol).await?;
                Some((Stream::Tunnel(Box::new(Tunnel::secured(head, stream))), tls))
            }
        }
    }

    async fn agree<S>(
        &self,
        socket: S,
        peer: SocketAddr,
        protocol: Protocol,
    ) -> Option<(TlsStream<S>, TlsPeer)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let loaded = self.current.load_full();
        let accept = TlsAcceptor::from(loaded.config(protocol)).accept(socket);
        let accepted = timeout(HANDSHAKE_MAX, accept).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("it took more than {HANDSHAKE_MAX:?}")))
        });
        match accepted {
            Ok(stream) => {
                let shown = stream.get_ref().1.peer_certificates().and_then(|shown| shown.first());
                let certificate_user = shown.and_then(|shown| certificate_user(shown, loaded.login_from));
                Some((stream, TlsPeer { certificate_user }))
            }
            Err(error) => {
                self.note_failure(peer, protocol, &error);
                None
            }
        }
    }

    /// Tells the log that a handshake failed, unless it was told of one a moment ago: whoever scans a network makes
    /// many.
    fn note_failure(&self, peer: SocketAddr, protocol: Protocol, error: &io::Error) {
        let protocol = protocol.name();
        tracing::debug!(protocol, %peer, %error, "a TLS handshake failed");
        let mut failures = self.failures.lock();
        failures.untold += 1;
        if failures.told_at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            let count = std::mem::take(&mut failures.untold);
            failures.told_at = Some(Instant::now());
            drop(failures);
            tracing::info!(protocol, %peer, %error, count, "TLS handshakes failed; this is the last of them");
        }
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the key.
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

impl Loaded {
    fn read(options: &TlsOptions) -> Result<Self, TlsError> {
        let certificates = pem::certificates(&options.certificate)?;
        let key = pem::private_key(&options.key)?;
        if let Some(expiry) = certificates.first().and_then(|own| expiry(own)) {
            expiry.tell(&options.certificate);
        }
        let expiries_of = |all: &[CertificateDer<'_>]| all.iter().filter_map(|one| expiry(one)).collect();
        let own = CertificateFile {
            path: options.certificate.clone(),
            is_of_clients: false,
            expiries: expiries_of(&certificates),
        };
        let mut files = vec![own];
        let judges = options.client_certificates != ClientCertificates::Ignored;
        if let Some(ca) = options.client_ca.as_ref().filter(|_| judges) {
            let expiries = expiries_of(&pem::certificates(ca)?);
            files.push(CertificateFile { path: ca.clone(), is_of_clients: true, expiries });
        }
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = match (&options.client_ca, options.client_certificates) {
            (None, _) | (Some(_), ClientCertificates::Ignored) => builder.with_no_client_auth(),
            (Some(ca), asked) => {
                let roots = Arc::new(pem::roots(ca)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = match asked {
                    ClientCertificates::Required => verifier,
                    ClientCertificates::Requested | ClientCertificates::Ignored => {
                        verifier.allow_unauthenticated()
                    }
                };
                builder.with_client_cert_verifier(verifier.build()?)
            }
        };
        let config = builder.with_single_cert(certificates, key).map_err(|source| TlsError::Pair {
            certificate: options.certificate.clone(),
            key: options.key.clone(),
            source,
        })?;
        let speaking = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Ok(Self {
            http1: speaking(b"http/1.1"),
            http2: speaking(b"h2"),
            amqp: Arc::new(config),
            login_from: options.login_from,
            files,
        })
    }

    fn config(&self, protocol: Protocol) -> Arc<ServerConfig> {
        Arc::clone(match protocol {
            Protocol::Amqp => &self.amqp,
            Protocol::Grpc => &self.http2,
            Protocol::Sqs | Protocol::Http => &self.http1,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server with a certificate of its own.
    pub(crate) fn server() -> (TempDir, TlsServer) {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let options = TlsOptions {
            certificate: dir.path().join("cert.pem"),
            key: dir.path().join("key.pem"),
            client_ca: None,
            client_certificates: ClientCertificates::Ignored,
            login_from: CertificateName::default(),
        };
        std::fs::write(&options.certificate, cert.pem()).unwrap();
        std::fs::write(&options.key, signing_key.serialize_pem()).unwrap();
        (dir, TlsServer::load(&options).unwrap())
    }

    /// Time passes at once when everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_does_not_come_to_its_end_is_cut() {
        let (_dir, server) = server();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // Nothing; the beginning of a record; a record of which most is missing.
        for said in [&b""[..], &[22, 3], &[22, 3, 1, 2, 0, 1, 0]] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            client.write_all(said).await.unwrap();
            let (socket, peer) = listener.accept().await.unwrap();
            let began = tokio::time::Instant::now();
            assert!(
                server.handshake(Source::Socket(socket), peer, Protocol::Amqp).await.is_none(),
                "{said:?}"
            );
            assert!(began.elapsed() >= HANDSHAKE_MAX, "{said:?}");
            assert_eq!(client.read(&mut [0; 16]).await.unwrap_or(0), 0, "{said:?}");
        }
    }

    #[tokio::test]
    async fn files_that_cannot_be_used_are_named_and_change_nothing() {
        let (dir, server) = server();
        let options = TlsOptions {
            certificate: dir.path().join("cert.pem"),
            key: dir.path().join("nothing.pem"),
            client_ca: None,
            client_certificates: ClientCertificates::Ignored,
            login_from: CertificateName::default(),
        };
        let before = server.current.load_full();
        let error = server.reload(&options).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot read a private key in '") && error.contains("nothing.pem"),
            "{error}"
        );
        assert!(Arc::ptr_eq(&before, &server.current.load_full()));
        server.reload(&TlsOptions { key: dir.path().join("key.pem"), ..options }).unwrap();
        assert!(!Arc::ptr_eq(&before, &server.current.load_full()));
    }
}
