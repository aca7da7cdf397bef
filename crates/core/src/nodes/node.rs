//! One node of a cluster.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use nexo_types::{NodeId, NodeName, Timestamp, limits};

use super::error::NodeError;

/// A node as all others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Given once, and never again.
    pub id: NodeId,
    /// What people call it. No two nodes have the same.
    pub name: NodeName,
    /// Where the others reach it.
    pub address: NodeAddress,
    /// Which data directory it joined with.
    pub join: JoinId,
    /// The broker's time of the change.
    pub added_at: Timestamp,
}

/// A data directory that joins a cluster, by a number that was drawn when it was new. A node that asks again with the same one
/// gets the same id. A node whose data is gone has another, and must come as another node: the one before may have voted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JoinId(pub u128);

impl fmt::Display for JoinId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for JoinId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for JoinId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| "an id of a join has 32 hexadecimal digits".to_owned())
    }
}

/// `HOST:PORT` of a node's cluster port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeAddress(Arc<str>);

impl NodeAddress {
    /// Checks that others can make something of it. Whether anybody is there is not known here.
    ///
    /// # Errors
    /// If it is no `HOST:PORT`.
    pub fn new(text: &str) -> Result<Self, NodeError> {
        let is_host = |host: &str| {
            // Without brackets nobody could tell where an IPv6 address ends.
            let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let plain = inner.unwrap_or(host);
            !plain.is_empty()
                && (inner.is_some() || !plain.contains(':'))
                && plain.bytes().all(|byte| byte.is_ascii_graphic() && !b"[]/@,?#".contains(&byte))
        };
        let fits = text.len() <= limits::NODE_ADDRESS_BYTES_MAX;
        match text.rsplit_once(':') {
            Some((host, port)) if fits && is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0) => {
                Ok(Self(text.into()))
            }
            _ => Err(NodeError::BadAddress { text: text.chars().take(80).collect() }),
        }
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.0.rsplit_once(':').map_or(&*self.0, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for NodeAddress {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, NodeError> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for text in ["10.0.0.1:7655", "node-1.example:1", "[::1]:7655"] {
            assert_eq!(NodeAddress::new(text).unwrap().as_str(), text);
        }
        assert_eq!(NodeAddress::new("[::1]:7655").unwrap().host(), "::1");
        assert_eq!(NodeAddress::new("a.example:1").unwrap().host(), "a.example");
        for text in
            ["", "a", "a:", ":1", "a:0", "a:70000", "::1:1", "a b:1", "[]:1", "a,b:1", "[a:1", "a@b:1"]
        {
            assert!(NodeAddress::new(text).is_err(), "{text}");
        }
        let long = format!("{}:1", "a".repeat(limits::NODE_ADDRESS_BYTES_MAX));
        assert!(NodeAddress::new(&long).is_err());
    }

    #[test]
    fn an_id_of_a_join_reads_back() {
        let id = JoinId(0xab);
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "ab", "+0000000000000000000000000000001"] {
            assert!(text.parse::<JoinId>().is_err(), "{text}");
        }
    }
}
