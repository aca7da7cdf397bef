//! What a node sees to all the time: that it is connected with all others, and as a leader, that the group has the members that
//! the cluster has nodes. The list of nodes says how it should be. So a join, a removal or a move that is cut off anywhere is
//! finished by whoever leads next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nexo_broker::cluster_nodes::Nodes;
use nexo_broker::replication::{ChangeError, GroupStatus};
use nexo_cluster::{Change, Refused};
use nexo_types::NodeId;
use tokio_util::sync::CancellationToken;

use super::node::ClusterNode;
use super::node_file::{NodeFile, Stage};
use super::request::Request;

/// How often a node looks, if nothing wakes it before.
const EVERY: Duration = Duration::from_millis(200);
/// How long one change of the group may take until it is looked at again.
const CHANGE_MAX: Duration = Duration::from_secs(5);
/// The pause after something failed that others have to mend.
const PAUSE: Duration = Duration::from_secs(2);

/// Runs until it is stopped.
pub(super) async fn run(node: Arc<ClusterNode>, stop: CancellationToken) {
    let connecting = async {
        loop {
            node.connect();
            node.note_progress();
            node.note_damage();
            tokio::time::sleep(EVERY).await;
        }
    };
    let caring = async {
        loop {
            if let Err(reason) = node.care().await {
                tracing::debug!(reason, "the cluster is not as it should be yet");
                tokio::time::sleep(PAUSE).await;
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = node.wake.notified() => {}
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = connecting => {}
        () = caring => {}
        // It is started anew.
        () = node.until_replaced() => {}
    }
}

impl ClusterNode {
    /// Sees to it that this node is connected with all nodes, and with those that have left and do not know yet.
    pub(super) fn connect(&self) {
        let nodes = self.nodes();
        let mut known = self.addresses.lock();
        known.extend(nodes.iter().map(|node| (node.id, node.address.as_str().to_owned())));
        let members = self.replication.status().members;
        let is_wanted = |id: &NodeId| {
            nodes.is_empty() || nodes.by_id(*id).is_some() || members.iter().any(|member| member.node == *id)
        };
        let wanted: BTreeMap<NodeId, String> = known
            .iter()
            .filter(|(id, _)| is_wanted(id))
            .map(|(id, address)| (*id, address.clone()))
            .collect();
        self.peers.set_peers(&wanted);
    }

    /// A node that has begun, or has got something from the leader, is one like the others from now on.
    fn note_progress(&self) {
        let mut file = self.file.lock();
        let nodes = self.nodes();
        if nodes.by_id(self.id()).is_none() {
            return;
        }
        let others = nodes.iter().filter(|node| node.id != self.id());
        let others = others.map(|node| (node.id, node.address.as_str().to_owned())).collect();
        let stage = match &file.stage {
            Stage::Founding(_) | Stage::Joining(_) | Stage::Alone(_) => {
                let status = self.replication.status();
                if !status.members.iter().any(|member| member.node == self.id()) {
                    return;
                }
                Stage::Member(self.membership)
            }
            known => known.clone(),
        };
        let next = NodeFile { others, ..file.at(stage) };
        if next == *file {
            return;
        }
        match next.write(&self.data_dir) {
            Ok(()) => *file = next,
            Err(error) => tracing::error!("{error:#}"),
        }
    }

    async fn care(&self) -> Result<(), String> {
        self.tell_address().await?;
        if !self.is_leading() {
            return Ok(());
        }
        if self.is_draining.load(Ordering::Relaxed) {
            // It was elected although it should not lead.
            self.hand_over(None).await.map_err(|refused| refused.to_string())?;
            return Ok(());
        }
        if let Some(better) = self.better_timed() {
            let name = self.name_of(better);
            tracing::warn!(
                to = name,
                "the clock of this node is off from those of a majority: leadership is handed over"
            );
            self.hand_over(Some(&name)).await.map_err(|refused| refused.to_string())?;
            return Ok(());
        }
        let (nodes, status) = (self.nodes(), self.replication.status());
        let Some(change) = next_change(self.id(), &nodes, &status) else { return Ok(()) };
        match tokio::time::timeout(CHANGE_MAX, self.replication.change(change)).await {
            Ok(Ok(())) => {
                tracing::info!(?change, "the group has other members");
                self.wake.notify_one();
                Ok(())
            }
            // It gets what it lacks meanwhile.
            Ok(Err(ChangeError::Refused(Refused::NotCaughtUp(_)))) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("a change of the group takes long".to_owned()),
        }
    }

    /// Tells the leader if this node is reached somewhere else than all think.
    async fn tell_address(&self) -> Result<(), String> {
        let (name, address) = {
            let file = self.file.lock();
            (file.name.as_str().to_owned(), file.address.as_str().to_owned())
        };
        match self.nodes().by_id(self.id()) {
            Some(known) if known.address.as_str() != address => {}
            Some(_) | None => return Ok(()),
        }
        let request = Request::Move { name, address };
        let told = if self.is_leading() { self.lead(request).await } else { self.ask_around(&request).await };
        told.map(drop).map_err(|refused| refused.to_string())
    }
}

/// The next change that brings the group nearer to what the nodes are. One at a time.
fn next_change(own: NodeId, nodes: &Nodes, status: &GroupStatus) -> Option<Change> {
    // Before the first node is noted, the group has a member that is no node.
    nodes.by_id(own)?;
    let gone = status.members.iter().find(|member| nodes.by_id(member.node).is_none());
    if let Some(gone) = gone {
        return Some(Change::Remove(gone.node));
    }
    let is_member = |id: NodeId| status.members.iter().any(|member| member.node == id);
    if let Some(new) = nodes.iter().find(|node| !is_member(node.id)) {
        return Some(Change::AddLearner(new.id));
    }
    // Of several, the one that has most.
    let learners = status.members.iter().filter(|member| !member.is_voter);
    learners.max_by_key(|member| member.matched).map(|learner| Change::AddVoter(learner.node))
}
