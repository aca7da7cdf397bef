//! What a node knows of itself before it knows anything else: `cluster.json` in its data directory.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nexo_broker::cluster_nodes::{JoinId, NodeAddress};
use nexo_peer::ClusterId;
use nexo_types::{NodeId, NodeName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const NAME: &str = "cluster.json";
const NAME_NEW: &str = "cluster.json.new";
/// The version in which it is written, and the latest that is read.
const VERSION: u64 = 1;

/// Who this node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFile {
    pub(crate) name: NodeName,
    /// Where the others reach it.
    pub(crate) address: NodeAddress,
    /// Which data directory it is. A directory that is wiped gets another.
    pub(crate) join: JoinId,
    pub(crate) stage: Stage,
    /// Where the others are, as far as it knew. A node that cannot read its data knows nothing else of them.
    pub(crate) others: BTreeMap<NodeId, String>,
}

/// How far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It begins a cluster, and is its first node.
    Founding(Membership),
    /// It asks these nodes to let it in.
    Asking { at: Vec<String> },
    /// It was let in, and has not got anything yet.
    Joining(Membership),
    /// It is a node like the others.
    Member(Membership),
    /// The others are gone for good, and it goes on without them.
    Alone(Membership),
    /// It is this node, its data is damaged, and it asks the others to have it come back as another.
    Damaged(Membership),
    /// They have let it in as this node. What it had before is to be set aside.
    Replaced(Membership),
}

impl Stage {
    /// Which cluster it is in, and as whom, if it is.
    pub(crate) const fn membership(&self) -> Option<Membership> {
        match self {
            Self::Founding(membership)
            | Self::Joining(membership)
            | Self::Member(membership)
            | Self::Alone(membership)
            | Self::Damaged(membership)
            | Self::Replaced(membership) => Some(*membership),
            Self::Asking { .. } => None,
        }
    }
}

/// Which cluster it is in, and as whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
}

/// The file as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    version: u64,
    name: String,
    address: String,
    join_id: String,
    stage: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    join: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    others: BTreeMap<u64, String>,
}

impl NodeFile {
    /// What is written down in a data directory, if anything is.
    pub(crate) fn read(data_dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = data_dir.join(NAME);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read '{}'", path.display())),
        };
        let read = parse(&text).with_context(|| format!("'{}' cannot be used", path.display()))?;
        Ok(Some(read))
    }

    /// Writes it down so that a power cut leaves this or what was there before.
    pub(crate) fn write(&self, data_dir: &Path) -> anyhow::Result<()> {
        let written = || -> io::Result<()> {
            fs::create_dir_all(data_dir)?;
            let (path, new): (PathBuf, PathBuf) = (data_dir.join(NAME), data_dir.join(NAME_NEW));
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&self.text())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(data_dir)?.sync_all()
        };
        written().with_context(|| format!("cannot write '{}'", data_dir.join(NAME).display()))
    }

    /// The same at another stage.
    pub(crate) fn at(&self, stage: Stage) -> Self {
        Self { stage, ..self.clone() }
    }

    fn text(&self) -> Vec<u8> {
        let mut join = Vec::new();
        let others = self.others.iter().map(|(node, address)| (node.0, address.clone())).collect();
        let stage = match &self.stage {
            Stage::Founding(_) => "founding",
            Stage::Asking { at } => {
                join.clone_from(at);
                "asking"
            }
            Stage::Joining(_) => "joining",
            Stage::Member(_) => "member",
            Stage::Alone(_) => "alone",
            Stage::Damaged(_) => "damaged",
            Stage::Replaced(_) => "replaced",
        };
        let membership = self.stage.membership();
        let written = Written {
            version: VERSION,
            name: self.name.as_str().to_owned(),
            address: self.address.as_str().to_owned(),
            join_id: self.join.to_string(),
            stage: stage.to_owned(),
            cluster: membership.map(|membership| membership.cluster.to_string()),
            node: membership.map(|membership| membership.node.0),
            join,
            others,
        };
        let mut text = serde_json::to_vec_pretty(&written).expect("texts and numbers can be written");
        text.push(b'\n');
        text
    }
}

fn parse(text: &[u8]) -> anyhow::Result<NodeFile> {
    let value: Value = serde_json::from_slice(text).context("it is not JSON")?;
    match value["version"].as_u64() {
        Some(1..=VERSION) => {}
        Some(version) => {
            bail!("it is of version {version}; this build of Nexo reads versions up to {VERSION}")
        }
        None => bail!("it has no version"),
    }
    let written: Written = serde_json::from_value(value).context("its fields make no sense")?;
    let membership = || -> anyhow::Result<Membership> {
        let cluster = written.cluster.as_deref().context("it names no cluster")?.parse()?;
        let node = NodeId(written.node.filter(|node| *node > 0).context("it names no node")?);
        Ok(Membership { cluster, node })
    };
    let stage = match written.stage.as_str() {
        "founding" => Stage::Founding(membership()?),
        "asking" => Stage::Asking { at: written.join.clone() },
        "joining" => Stage::Joining(membership()?),
        "member" => Stage::Member(membership()?),
        "alone" => Stage::Alone(membership()?),
        "damaged" => Stage::Damaged(membership()?),
        "replaced" => Stage::Replaced(membership()?),
        other => bail!("it is at the stage '{other}', which this build of Nexo does not know"),
    };
    let join = written.join_id.parse().map_err(anyhow::Error::msg)?;
    Ok(NodeFile {
        name: NodeName::new(&written.name)?,
        address: NodeAddress::new(&written.address)?,
        join,
        stage,
        others: written.others.into_iter().map(|(node, address)| (NodeId(node), address)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(stage: Stage) -> NodeFile {
        NodeFile {
            name: NodeName::new("a").unwrap(),
            address: NodeAddress::new("a.example:7655").unwrap(),
            join: JoinId(77),
            stage,
            others: [(NodeId(1), "b:1".to_owned())].into(),
        }
    }

    #[test]
    fn it_reads_back_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        assert_eq!(NodeFile::read(&data).unwrap(), None);
        let membership = Membership { cluster: ClusterId::random(), node: NodeId(3) };
        for stage in [
            Stage::Asking { at: vec!["b:1".to_owned()] },
            Stage::Founding(membership),
            Stage::Joining(membership),
            Stage::Member(membership),
            Stage::Alone(membership),
            Stage::Damaged(membership),
            Stage::Replaced(membership),
        ] {
            let written = node(stage);
            written.write(&data).unwrap();
            assert_eq!(NodeFile::read(&data).unwrap(), Some(written));
        }
        assert!(!data.join(NAME_NEW).exists());
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let refused = |text: &str| format!("{:#}", parse(text.as_bytes()).unwrap_err());
        assert!(refused("{").contains("not JSON"));
        assert!(refused(r#"{"version": 2}"#).contains("it is of version 2"));
        let member = String::from_utf8(node(Stage::Asking { at: Vec::new() }).text()).unwrap();
        assert!(refused(&member.replace("asking", "member")).contains("it names no cluster"));
        assert!(refused(&member.replace("asking", "leaving")).contains("'leaving'"));
    }
}
