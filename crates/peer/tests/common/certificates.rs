//! An authority that exists for one test, and what it has signed.

use std::fs;
use std::path::PathBuf;

use nexo_peer::PeerTls;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tempfile::TempDir;

/// An authority. Its files go with it.
pub struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
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

    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Files of a node on this machine.
    pub fn node(&self, name: &str) -> PeerTls {
        self.sign(name, &["localhost", "127.0.0.1"])
    }

    /// Files of a node with these names and addresses.
    pub fn sign(&self, name: &str, hosts: &[&str]) -> PeerTls {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |end: &str| self.dir.path().join(format!("{name}-{end}.pem"));
        let tls = PeerTls { certificate: file("cert"), key: file("key"), ca: self.ca() };
        fs::write(&tls.certificate, certificate.pem()).unwrap();
        fs::write(&tls.key, key.serialize_pem()).unwrap();
        tls
    }
}
