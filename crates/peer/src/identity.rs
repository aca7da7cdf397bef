//! Who a node is, and by what it knows others.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use nexo_types::NodeId;
use thiserror::Error;

use crate::hello::Versions;

/// A cluster, for as long as it exists: 128 random bits. A node that reaches another cluster by mistake is refused by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub [u8; Self::BYTES]);

impl ClusterId {
    /// How many bytes it has.
    pub const BYTES: usize = 16;

    /// Whether it stands for no cluster: a node that is not part of one yet.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 == [0; Self::BYTES]
    }

    /// The id of a new cluster.
    ///
    /// # Panics
    /// If the system gives no random bytes.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; Self::BYTES];
        getrandom::fill(&mut bytes).expect("the system gives random bytes");
        Self(bytes)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A text that names no cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is no id of a cluster, which has 32 hexadecimal digits")]
pub struct NoClusterId(String);

impl FromStr for ClusterId {
    type Err = NoClusterId;

    fn from_str(text: &str) -> Result<Self, NoClusterId> {
        let is_hex = text.len() == 2 * Self::BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parsed = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
        parsed.map(|bits| Self(bits.to_be_bytes())).ok_or_else(|| NoClusterId(text.to_owned()))
    }
}

/// Who a node is, and how it speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The cluster that it is in.
    pub cluster: ClusterId,
    /// Its number there.
    pub node: NodeId,
    /// Its name, for people.
    pub name: String,
    /// `HOST:PORT` at which others reach it.
    pub advertise: String,
    /// Versions of the protocol between nodes that it speaks: those of this build, unless a test says otherwise.
    pub versions: Versions,
    /// By how many milliseconds its clock is set off. Not 0 in tests of clocks alone.
    pub clock_offset_ms: i64,
}

/// By what nodes of a cluster know each other. With neither, whoever reaches the port is taken for one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSecurity {
    /// A secret that both sides prove to know. It is never sent.
    pub secret: Option<Secret>,
    /// Certificates that both sides show. Without them what nodes say can be read and changed on the way.
    pub tls: Option<PeerTls>,
}

/// What all nodes of a cluster know and nobody else.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret of these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Files of certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTls {
    /// This node's certificate, with the name or address at which others reach it. It is shown as a server's and as a client's.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificates by which those of other nodes are judged.
    pub ca: PathBuf,
}

/// What connections between nodes need to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerOptions {
    /// Addresses to listen on, each a `HOST:PORT`.
    pub listen: Vec<String>,
    /// Who this node is.
    pub identity: PeerIdentity,
    /// By what it knows others.
    pub security: PeerSecurity,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_written_in_hexadecimal() {
        let id = ClusterId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(id.to_string().parse(), Ok(id));
        let random = ClusterId::random();
        assert_eq!(random.to_string().parse(), Ok(random));
        for text in ["", "00", "+00102030405060708090a0b0c0d0eff", "000102030405060708090a0b0c0d0efg"] {
            assert!(text.parse::<ClusterId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new("hush")), "Secret(…)");
    }
}
