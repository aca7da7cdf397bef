//! How a node that is in no cluster asks to be let into one.

use std::time::Duration;

use anyhow::{Context, bail};
use nexo_admin::ClusterRefused;
use nexo_peer::{PeerSecurity, Peers, Purpose};
use nexo_types::NodeId;
use tokio::time::Instant;

use super::node_file::{Membership, NodeFile, Stage};
use super::request::{Answer, Asker, Request, ask};

/// How long nodes are asked that cannot be reached yet, or have no leader: they may be starting, too.
const TRY_FOR: Duration = Duration::from_secs(60);
/// The pause between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// How long one answer may take: it waits for a majority.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Asks these nodes, one after the other, until one lets this one in.
///
/// # Errors
/// If one says no, or nobody answers in time.
pub(super) async fn join(
    node: &NodeFile,
    addresses: &[String],
    security: &PeerSecurity,
) -> anyhow::Result<NodeFile> {
    let request = Request::Join {
        name: node.name.as_str().to_owned(),
        address: node.address.as_str().to_owned(),
        join_id: node.join.to_string(),
    };
    let deadline = Instant::now() + TRY_FOR;
    loop {
        let mut failure = "there is nobody to ask".to_owned();
        for address in addresses {
            match try_at(address, &request, security).await {
                Ok(Answer::Joined { cluster, node: id, others }) => {
                    let cluster = cluster.parse().context("the cluster's id cannot be used")?;
                    let others = others.into_iter().map(|(id, at)| (NodeId(id), at)).collect();
                    tracing::info!(%address, node = id, "let into the cluster");
                    return Ok(node.at(Stage::Joining(Membership { cluster, node: NodeId(id) }, others)));
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
        if Instant::now() + PAUSE >= deadline {
            bail!("no node lets this one into its cluster: {failure}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn try_at(address: &str, request: &Request, security: &PeerSecurity) -> Result<Answer, String> {
    let stream = Peers::open_address(security, address, Purpose::Request);
    let stream = stream.await.map_err(|error| error.to_string())?;
    ask(stream, request, Asker::Itself, ANSWER_MAX)
        .await
        .map_err(|reason| format!("'{address}' was asked, but {reason}"))
}
