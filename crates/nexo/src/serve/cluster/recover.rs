//! A node that is to go on without the others: what is written down before it is started.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, bail};
use nexo_peer::ClusterId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::node_file::{Membership, NodeFile, Stage};

/// Writes down that the node of a data directory is alone from its next start on. Gives back its name.
///
/// # Errors
/// If it runs, or is in no cluster.
pub(crate) fn recover(data_dir: &Path) -> anyhow::Result<String> {
    let name = data_dir.display();
    let Some(node) = NodeFile::read(data_dir)? else {
        bail!("'{name}' is not the data directory of a node of a cluster");
    };
    let membership = match node.stage {
        Stage::Member(membership)
        | Stage::Founding(membership)
        | Stage::Alone(membership)
        | Stage::Damaged(membership) => membership,
        Stage::Asking { .. } | Stage::Joining(_) | Stage::Replaced(_) => {
            bail!(
                "node '{}' was never a whole part of its cluster, and has nothing to go on with",
                node.name
            );
        }
    };
    let lock = File::open(data_dir.join("LOCK")).with_context(|| format!("'{name}' holds no data"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => bail!("'{name}' is in use; stop the node first"),
        Err(error) => return Err(error).with_context(|| format!("cannot lock '{name}'")),
    }
    // Under another id: who comes back of the others does not belong to it.
    let alone = Membership { cluster: ClusterId::random(), node: membership.node };
    node.at(Stage::Alone(alone)).write(data_dir)?;
    Ok(node.name.as_str().to_owned())
}
