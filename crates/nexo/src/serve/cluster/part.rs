//! Which part a broker takes in a cluster: none, the first node of a new one, one that joins, or one that is known. That
//! follows from what it is told and what its data directory says.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use nexo_broker::SyncMode;
use nexo_broker::cluster_nodes::{JoinId, NodeAddress};
use nexo_peer::ClusterId;
use nexo_types::{NodeId, NodeName};

use super::node_file::{Membership, NodeFile, Stage};
use super::settings::ClusterSettings;

/// What lies in a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// Nothing.
    None,
    /// A broker was here.
    Some,
}

impl Data {
    /// Looks.
    pub(crate) fn of(data_dir: &Path) -> Self {
        if data_dir.join("FORMAT").exists() { Self::Some } else { Self::None }
    }
}

/// What this node is from now on, or `None` if it is by itself.
pub(crate) fn decide(
    settings: &ClusterSettings,
    found: Option<NodeFile>,
    data: Data,
    sync: SyncMode,
) -> anyhow::Result<Option<NodeFile>> {
    let node = match found {
        Some(found) => known(settings, found)?,
        None => match new(settings, data)? {
            Some(node) => node,
            None => return Ok(None),
        },
    };
    ensure!(
        sync == SyncMode::Always,
        "a node of a cluster syncs what it confirms: sync must be 'always', or not be set"
    );
    Ok(Some(node))
}

/// A broker that was in no cluster.
fn new(settings: &ClusterSettings, data: Data) -> anyhow::Result<Option<NodeFile>> {
    let Some(address) = &settings.address else {
        ensure!(
            settings.join.is_empty(),
            "join needs cluster: the HOST:PORT at which the other nodes reach this one"
        );
        ensure!(
            settings.node.is_none(),
            "node needs cluster: the HOST:PORT at which other nodes reach this one; together they begin a cluster of one, and \
             with join they join another"
        );
        return Ok(None);
    };
    let Some(name) = &settings.node else {
        bail!("cluster needs node: what this node is called in its cluster, such as --node mq1");
    };
    let (name, address) = (NodeName::new(name)?, NodeAddress::new(address)?);
    let join = random_join();
    let stage = if settings.join.is_empty() {
        Stage::Founding(Membership { cluster: ClusterId::random(), node: NodeId(1) })
    } else {
        ensure!(
            data == Data::None,
            "this broker has data of its own, and a node that joins a cluster gets everything from there; start it with an empty \
             data directory, or begin a cluster with this data by leaving join out"
        );
        Stage::Asking { at: settings.join.clone() }
    };
    Ok(Some(NodeFile { name, address, join, stage, others: BTreeMap::new() }))
}

/// A number for a data directory that is new.
pub(super) fn random_join() -> JoinId {
    JoinId(u128::from_be_bytes(ClusterId::random().0))
}

/// A broker that is in a cluster, or on its way into one. What it is told may repeat that, and may say that it has moved.
fn known(settings: &ClusterSettings, mut node: NodeFile) -> anyhow::Result<NodeFile> {
    if let Some(name) = settings.node.as_ref().filter(|name| **name != node.name.as_str()) {
        bail!(
            "this data directory is node '{}' of a cluster, and node is '{name}'; a node keeps its name, so leave node out, or \
             start with an empty data directory to be another node",
            node.name
        );
    }
    if let Some(address) = &settings.address {
        node.address = NodeAddress::new(address).context("cluster cannot be used")?;
    }
    if let Stage::Asking { at } = &mut node.stage
        && !settings.join.is_empty()
    {
        at.clone_from(&settings.join);
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(node: Option<&str>, address: Option<&str>, join: &[&str]) -> ClusterSettings {
        ClusterSettings {
            node: node.map(str::to_owned),
            address: address.map(str::to_owned),
            join: join.iter().map(|address| (*address).to_owned()).collect(),
            ..ClusterSettings::default()
        }
    }

    fn member(name: &str) -> NodeFile {
        NodeFile {
            name: NodeName::new(name).unwrap(),
            address: NodeAddress::new("a:1").unwrap(),
            join: JoinId(1),
            stage: Stage::Member(Membership { cluster: ClusterId([1; 16]), node: NodeId(2) }),
            others: BTreeMap::new(),
        }
    }

    fn decided(
        settings: &ClusterSettings,
        found: Option<NodeFile>,
        data: Data,
    ) -> anyhow::Result<Option<NodeFile>> {
        decide(settings, found, data, SyncMode::Always)
    }

    fn refused(settings: &ClusterSettings, found: Option<NodeFile>, data: Data) -> String {
        decided(settings, found, data).unwrap_err().to_string()
    }

    #[test]
    fn a_broker_that_is_told_nothing_is_by_itself() {
        assert_eq!(decided(&settings(None, None, &[]), None, Data::Some).unwrap(), None);
    }

    #[test]
    fn an_address_begins_a_cluster_with_or_without_data() {
        for data in [Data::None, Data::Some] {
            let node = decided(&settings(Some("a"), Some("a:1"), &[]), None, data).unwrap().unwrap();
            assert!(matches!(node.stage, Stage::Founding(Membership { node: NodeId(1), .. })));
        }
    }

    #[test]
    fn joining_needs_an_empty_directory() {
        let join = settings(Some("b"), Some("b:1"), &["a:1"]);
        let node = decided(&join, None, Data::None).unwrap().unwrap();
        assert_eq!(node.stage, Stage::Asking { at: vec!["a:1".to_owned()] });
        assert!(refused(&join, None, Data::Some).contains("start it with an empty data directory"));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(refused(&settings(None, None, &["a:1"]), None, Data::None).starts_with("join needs cluster"));
        assert!(refused(&settings(Some("a"), None, &[]), None, Data::None).starts_with("node needs cluster"));
        assert!(
            refused(&settings(None, Some("a:1"), &[]), None, Data::None).starts_with("cluster needs node")
        );
    }

    #[test]
    fn a_known_node_needs_nothing_and_may_be_told_the_same_again() {
        for told in [
            settings(None, None, &[]),
            settings(Some("a"), Some("a:1"), &[]),
            settings(Some("a"), Some("a:1"), &["b:1"]),
        ] {
            assert_eq!(decided(&told, Some(member("a")), Data::Some).unwrap(), Some(member("a")));
        }
        let moved =
            decided(&settings(None, Some("a:9"), &[]), Some(member("a")), Data::Some).unwrap().unwrap();
        assert_eq!((moved.address.as_str(), moved.stage), ("a:9", member("a").stage));
        let other = refused(&settings(Some("b"), Some("b:1"), &[]), Some(member("a")), Data::Some);
        assert!(
            other.starts_with("this data directory is node 'a' of a cluster, and node is 'b'"),
            "{other}"
        );
    }

    #[test]
    fn a_join_that_was_cut_off_goes_on_and_may_ask_elsewhere() {
        let asking = member("b").at(Stage::Asking { at: vec!["a:1".to_owned()] });
        let again = decided(&settings(None, None, &[]), Some(asking.clone()), Data::None).unwrap();
        assert_eq!(again, Some(asking.clone()));
        let other = decided(&settings(None, None, &["c:1"]), Some(asking), Data::None).unwrap().unwrap();
        assert_eq!(other.stage, Stage::Asking { at: vec!["c:1".to_owned()] });
    }

    #[test]
    fn a_cluster_syncs_always() {
        for sync in [SyncMode::Interval, SyncMode::Os] {
            let begin = settings(Some("a"), Some("a:1"), &[]);
            let refused = decide(&begin, None, Data::None, sync).unwrap_err().to_string();
            assert!(refused.contains("sync must be 'always'"), "{refused}");
            assert!(decide(&settings(None, None, &[]), None, Data::None, sync).unwrap().is_none());
        }
    }
}
