//! How a node that is in no cluster asks to be let into one.

use std::time::Duration;

use anyhow::{Context, bail};
use nexo_admin::ClusterRefused;
use nexo_peer::{ClusterId, PeerSecurity, Peers, Purpose};
use nexo_types::NodeId;
use tokio::time::Instant;

use super::node_file::{Membership, NodeFile, Stage};
use super::request::{Answer, Asker, Request, ask};

/// How long nodes are asked that cannot be reached yet, or have no leader: they may be starting, too.
const TRY_FOR: Duration = Duration::from_secs(60);
/// The same where several new nodes begin a cluster together: all of them have to be there.
const BOOTSTRAP_FOR: Duration = Duration::from_secs(600);
/// The pause between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// How long one answer may take: it waits for a majority.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Whether a node may begin a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bootstrap {
    /// It may not.
    Never,
    /// It may if all nodes that it asks, itself among them, are in no cluster. Were one missing, it could be in one.
    IfAllAreNew,
}

/// Asks these nodes, one after the other, until one lets this one in.
///
/// # Errors
/// If one says no, or nobody answers in time.
pub(super) async fn join(
    node: &NodeFile,
    addresses: &[String],
    security: &PeerSecurity,
    bootstrap: Bootstrap,
) -> anyhow::Result<NodeFile> {
    let request = request_of(node);
    let try_for = match bootstrap {
        Bootstrap::Never => TRY_FOR,
        Bootstrap::IfAllAreNew => BOOTSTRAP_FOR,
    };
    let deadline = Instant::now() + try_for;
    loop {
        let mut failure = "there is nobody to ask".to_owned();
        let mut new = 0;
        for address in addresses {
            match try_at(address, &request, security).await {
                Ok(joined @ Answer::Joined { .. }) => {
                    tracing::info!(%address, "let into the cluster");
                    return let_in(node, joined);
                }
                Ok(Answer::New) => {
                    new += 1;
                    failure = format!("{address} is in no cluster itself");
                }
                Ok(Answer::Refused(ClusterRefused::Unavailable(reason))) => {
                    failure = format!("{address}: {reason}");
                }
                Ok(Answer::Refused(refused)) => {
                    bail!("{address} does not let this node into its cluster: {refused}")
                }
                Ok(Answer::Leader(_) | Answer::Status(_) | Answer::Done) => {
                    bail!("{address} answers something else than was asked");
                }
                Err(reason) => failure = reason,
            }
            tracing::warn!("cannot join yet: {failure}");
        }
        if bootstrap == Bootstrap::IfAllAreNew && new == addresses.len() && new > 0 {
            tracing::info!(nodes = new, "all nodes are new: this one begins the cluster");
            let membership = Membership { cluster: ClusterId::random(), node: NodeId(1) };
            return Ok(node.at(Stage::Founding(membership)));
        }
        if Instant::now() + PAUSE >= deadline {
            bail!("no node lets this one into its cluster: {failure}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What a node asks that wants to be let in.
pub(super) fn request_of(node: &NodeFile) -> Request {
    let name = node.name.as_str().to_owned();
    let (address, join_id) = (node.address.as_str().to_owned(), node.join.to_string());
    match &node.stage {
        Stage::Damaged(Membership { cluster, node }) => {
            Request::Rejoin { name, address, join_id, instead_of: node.0, cluster: cluster.to_string() }
        }
        _ => Request::Join { name, address, join_id },
    }
}

/// What a node is that was let in.
pub(super) fn let_in(node: &NodeFile, answer: Answer) -> anyhow::Result<NodeFile> {
    let Answer::Joined { cluster, node: id, others } = answer else {
        bail!("it was not let in");
    };
    let cluster = cluster.parse().context("the cluster's id cannot be used")?;
    let membership = Membership { cluster, node: NodeId(id) };
    let stage = match node.stage {
        Stage::Damaged(_) => Stage::Replaced(membership),
        _ => Stage::Joining(membership),
    };
    let others = others.into_iter().map(|(id, at)| (NodeId(id), at)).collect();
    Ok(NodeFile { others, ..node.at(stage) })
}

async fn try_at(address: &str, request: &Request, security: &PeerSecurity) -> Result<Answer, String> {
    let stream = Peers::open_address(security, address, Purpose::Request);
    let stream = stream.await.map_err(|error| error.to_string())?;
    ask(stream, request, Asker::Itself, ANSWER_MAX)
        .await
        .map_err(|reason| format!("'{address}' was asked, but {reason}"))
}
