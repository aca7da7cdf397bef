//! What a broker is told of its cluster, and whether that goes together.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use nexo_broker::cluster_nodes::NodeAddress;
use nexo_net::is_loopback_name;
use nexo_peer::{PeerSecurity, PeerTls, Secret};
use nexo_types::NodeName;

/// A secret that is shorter can be guessed by whoever can try.
const SECRET_BYTES_MIN: usize = 16;
/// No secret is longer. It is the wrong file.
const SECRET_BYTES_MAX: usize = 4096;

/// So much of the log is kept for nodes that were away, unless something else is said.
const LOG_KEPT_BYTES: u64 = 256 << 20;

/// What was said about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterSettings {
    pub(crate) node: Option<String>,
    pub(crate) address: Option<String>,
    pub(crate) join: Vec<String>,
    /// Whether it may begin a cluster, if all nodes that it is to join are new.
    pub(crate) bootstrap: bool,
    pub(crate) listen: Vec<String>,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) log_kept: Option<u64>,
}

impl ClusterSettings {
    /// Whether each part can be used, and none lacks another. Whether it fits to the data, `part.rs` says.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if let Some(node) = &self.node {
            NodeName::new(node).context("node cannot be used")?;
        }
        if let Some(address) = &self.address {
            NodeAddress::new(address).context("cluster cannot be used")?;
            let host = NodeAddress::new(address)?;
            let is_any = matches!(host.host(), "0.0.0.0" | "::");
            ensure!(
                !is_any,
                "cluster is the address at which other nodes reach this one, and {address} is none; name this machine, and listen \
                 on all addresses with cluster_listen"
            );
        }
        for address in &self.join {
            NodeAddress::new(address).context("join cannot be used")?;
        }
        ensure!(
            !self.bootstrap || !self.join.is_empty(),
            "bootstrap needs join: the addresses of all nodes that are to begin a cluster, the same on each of them"
        );
        for address in &self.listen {
            NodeAddress::new(address).context("cluster_listen cannot be used")?;
        }
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (None, None, None) | (Some(_), Some(_), Some(_)) => Ok(()),
            _ => bail!(
                "cluster_tls_cert, cluster_tls_key and cluster_tls_ca go together; one of them is missing"
            ),
        }
    }

    /// By what nodes know each other. `own` is this node's address.
    pub(crate) fn security(&self, own: &NodeAddress) -> anyhow::Result<PeerSecurity> {
        let secret = self.secret_file.as_deref().map(read_secret).transpose()?;
        let tls = match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(certificate), Some(key), Some(ca)) => {
                Some(PeerTls { certificate: certificate.clone(), key: key.clone(), ca: ca.clone() })
            }
            _ => None,
        };
        if secret.is_none() && tls.is_none() {
            let all = self.listen.iter().chain(&self.join).map(String::as_str).chain([own.as_str()]);
            if let Some(open) = all.into_iter().find(|address| !is_loopback_name(address)) {
                bail!(
                    "{open} can be reached by other machines, and nothing keeps strangers out of the cluster; give all nodes the same \
                     secret with cluster_secret_file, or certificates with cluster_tls_cert, cluster_tls_key and cluster_tls_ca"
                );
            }
            tracing::warn!(
                "the cluster has neither a secret nor certificates: whoever can connect from this machine can join it; good for \
                 trying out only"
            );
        }
        Ok(PeerSecurity { secret, tls })
    }

    /// How many bytes of the log are kept for nodes that were away.
    pub(crate) fn kept_log_bytes(&self) -> u64 {
        self.log_kept.unwrap_or(LOG_KEPT_BYTES)
    }

    /// Where to listen for other nodes.
    pub(crate) fn listen(&self, own: &NodeAddress) -> Vec<String> {
        if self.listen.is_empty() { vec![own.as_str().to_owned()] } else { self.listen.clone() }
    }
}

fn read_secret(path: &Path) -> anyhow::Result<Secret> {
    let name = path.display();
    let text = std::fs::read(path).with_context(|| format!("cannot read the cluster's secret '{name}'"))?;
    let secret = text.trim_ascii();
    let len = secret.len();
    ensure!(
        (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&len),
        "the cluster's secret in '{name}' has {len} bytes; it must have between {SECRET_BYTES_MIN} and {SECRET_BYTES_MAX}, and \
         'openssl rand -hex 32' makes a good one"
    );
    Ok(Secret::new(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(settings: &ClusterSettings) -> String {
        format!("{:#}", settings.check().unwrap_err())
    }

    fn at(address: &str) -> ClusterSettings {
        ClusterSettings { address: Some(address.to_owned()), ..ClusterSettings::default() }
    }

    #[test]
    fn what_cannot_be_used_is_named_with_the_demand() {
        assert!(at("mq1.example:7655").check().is_ok());
        assert!(refused(&at("mq1.example")).contains("it must be HOST:PORT"));
        assert!(refused(&at("0.0.0.0:7655")).contains("cluster_listen"));
        let join = ClusterSettings { join: vec!["x".to_owned()], ..at("a:1") };
        assert!(refused(&join).starts_with("join cannot be used"));
        let tls = ClusterSettings { tls_cert: Some("c.pem".into()), ..at("a:1") };
        assert!(refused(&tls).contains("go together"));
    }

    #[test]
    fn a_cluster_of_several_new_nodes_is_begun_by_those_that_know_all() {
        let lone = ClusterSettings { bootstrap: true, ..at("a:1") };
        assert!(refused(&lone).starts_with("bootstrap needs join"));
        assert!(ClusterSettings { join: vec!["a:1".to_owned()], ..lone }.check().is_ok());
    }

    #[test]
    fn an_open_cluster_is_for_this_machine_only() {
        let own = |text: &str| NodeAddress::new(text).unwrap();
        let open = at("127.0.0.1:1").security(&own("127.0.0.1:1")).unwrap();
        assert_eq!(open, PeerSecurity::default());
        let refused = at("10.0.0.1:1").security(&own("10.0.0.1:1")).unwrap_err().to_string();
        assert!(refused.starts_with("10.0.0.1:1 can be reached by other machines"), "{refused}");
        let listening = ClusterSettings { listen: vec!["0.0.0.0:1".to_owned()], ..at("127.0.0.1:1") };
        assert!(listening.security(&own("127.0.0.1:1")).is_err());
    }

    #[test]
    fn a_secret_has_a_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let settings = ClusterSettings { secret_file: Some(path.clone()), ..at("10.0.0.1:1") };
        let own = NodeAddress::new("10.0.0.1:1").unwrap();
        assert!(settings.security(&own).unwrap_err().to_string().contains("cannot read"));
        std::fs::write(&path, "short\n").unwrap();
        assert!(settings.security(&own).unwrap_err().to_string().contains("has 5 bytes"));
        std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        let security = settings.security(&own).unwrap();
        assert_eq!(security.secret, Some(Secret::new("0123456789abcdef0123456789abcdef")));
    }
}
