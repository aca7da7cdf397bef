//! An authority that exists for one test, what it has signed, and a way through TLS for clients that do not speak it.

// Each test program uses its own part of this.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nexo_net::{ClientTls, client_config};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// An authority. Its files go with it.
pub struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Signed {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority for tests");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { dir, issuer }
    }

    /// The file with its own certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A certificate for this machine, in files that begin with `name`.
    pub fn server(&self, name: &str) -> Signed {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        self.sign(name, CertificateParams::new(names).unwrap(), &[ExtendedKeyUsagePurpose::ServerAuth])
    }

    /// A certificate for a node of a cluster on this machine, which is server and client.
    pub fn node(&self, name: &str) -> Signed {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(name, CertificateParams::new(names).unwrap(), &both)
    }

    /// A certificate for a client with this common name.
    pub fn client(&self, common_name: &str) -> Signed {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        self.sign(common_name, params, &[ExtendedKeyUsagePurpose::ClientAuth])
    }

    fn sign(
        &self,
        name: &str,
        mut params: CertificateParams,
        purposes: &[ExtendedKeyUsagePurpose],
    ) -> Signed {
        params.extended_key_usages = purposes.to_vec();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |end: &str| self.dir.path().join(format!("{name}-{end}.pem"));
        let signed = Signed { cert: file("cert"), key: file("key") };
        fs::write(&signed.cert, certificate.pem()).unwrap();
        fs::write(&signed.key, key.serialize_pem()).unwrap();
        signed
    }
}

/// Options of `nexo serve` with this certificate.
pub fn tls_options(signed: &Signed) -> Vec<String> {
    let text = |path: &Path| path.display().to_string();
    vec!["--tls-cert".to_owned(), text(&signed.cert), "--tls-key".to_owned(), text(&signed.key)]
}

/// A plain address that leads through TLS to `to`. Clients that connect there are refused if `to` refuses them.
pub async fn tunnel(to: &str, ca: PathBuf, identity: Option<&Signed>) -> SocketAddr {
    let identity = identity.map(|signed| (signed.cert.clone(), signed.key.clone()));
    // No protocol is asked for that way: a server that wants none of those offered would refuse.
    let mut config = client_config(&ClientTls { ca: Some(ca), identity }, b"").unwrap();
    Arc::make_mut(&mut config).alpn_protocols.clear();
    let connector = TlsConnector::from(config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, to) = (listener.local_addr().unwrap(), to.to_owned());
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (connector, to) = (connector.clone(), to.clone());
            tokio::spawn(async move {
                let far = TcpStream::connect(to).await.unwrap();
                let name = ServerName::try_from("localhost").unwrap();
                // Whoever is at the near end sees that the connection ends.
                let Ok(mut far) = connector.connect(name, far).await else { return };
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    address
}
