//! What this node does when it is asked: by other nodes, or by whoever looks after the cluster.

use std::sync::atomic::Ordering;
use std::time::Duration;

use nexo_admin::{Answering, ClusterRefused, Drain, RemoveIf};
use nexo_broker::NodeChangeError;
use nexo_broker::cluster_nodes::{ClusterNode as KnownNode, NodeAddress, NodeChange};
use nexo_types::{NodeId, NodeName};

use super::incoming::not_a_member;
use super::node::{ClusterNode, no_leader, refused};
use super::request::{Answer, Asked, Request};

/// How long a node that was removed may still be a member of the group before whoever removed it is told to look.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
/// How often that is looked at.
const GLANCE: Duration = Duration::from_millis(50);

impl ClusterNode {
    /// Answers a question of another node, or of one that wants to be one.
    pub(super) async fn answer(&self, from: Option<NodeId>, asked: Asked) -> Result<Answer, ClusterRefused> {
        let Asked { request, is_passed_on, .. } = asked;
        if from.is_none() && !matches!(request, Request::Join { .. } | Request::Rejoin { .. }) {
            return Err(not_a_member());
        }
        if request.is_for_leader() && !self.is_leading() {
            // Whoever passed it on knows another leader than this node. That is over in a moment.
            return if is_passed_on { Err(no_leader()) } else { self.ask_leader(request).await };
        }
        match request {
            Request::Drain { wanted } => self.drain_self(wanted).await.map(|()| Answer::Done),
            Request::Status => Ok(Answer::Status(Box::new(self.own_status()))),
            for_leader @ (Request::Join { .. }
            | Request::Rejoin { .. }
            | Request::Move { .. }
            | Request::Remove { .. }
            | Request::Transfer { .. }) => self.lead(for_leader).await,
        }
    }

    /// Does what only a leader can do.
    pub(super) async fn lead(&self, request: Request) -> Result<Answer, ClusterRefused> {
        match request {
            Request::Join { name, address, join_id } => {
                let join = join_id.parse().map_err(ClusterRefused::Refused)?;
                let (name, address) = (node_name(&name)?, node_address(&address)?);
                self.let_in(&NodeChange::Add { name, address, join }).await
            }
            Request::Rejoin { name, address, join_id, instead_of, cluster } => {
                let join = join_id.parse().map_err(ClusterRefused::Refused)?;
                let (name, address) = (node_name(&name)?, node_address(&address)?);
                self.let_back_in(
                    NodeChange::Replace { name, id: NodeId(instead_of), address, join },
                    &cluster,
                )
                .await
            }
            Request::Move { name, address } => {
                let change =
                    NodeChange::SetAddress { name: node_name(&name)?, address: node_address(&address)? };
                self.change_nodes(&change).await.map(|_| Answer::Done)
            }
            Request::Remove { name, when } => self.remove_node(name, when).await,
            Request::Transfer { to } => self.hand_over(to.as_deref()).await.map(Answer::Leader),
            Request::Drain { .. } | Request::Status => Err(no_leader()),
        }
    }

    /// A node whose data is damaged becomes another. What it had promised counts no more, so the others must be enough without it.
    async fn let_back_in(&self, change: NodeChange, cluster: &str) -> Result<Answer, ClusterRefused> {
        let NodeChange::Replace { name, id, .. } = &change else { return Err(no_leader()) };
        if cluster != self.membership.cluster.to_string() {
            return Err(ClusterRefused::Refused(format!("node '{name}' was part of another cluster")));
        }
        if *id == self.id() {
            // Whoever leads next answers.
            return Err(ClusterRefused::Unavailable(format!("node '{name}' leads still")));
        }
        let nodes = self.nodes();
        let Some(known) = nodes.by_name(name.as_str()) else {
            return Err(ClusterRefused::NoSuchNode(name.as_str().to_owned()));
        };
        if known.id == *id {
            let unsafe_now = |refused: ClusterRefused| ClusterRefused::Unavailable(refused.to_string());
            self.refuse_unsafe(known).map_err(unsafe_now)?;
            tracing::warn!(%name, node = %id, "a node has damaged data, and is replaced from the others");
        }
        self.let_in(&change).await
    }

    async fn let_in(&self, change: &NodeChange) -> Result<Answer, ClusterRefused> {
        let node = self.change_nodes(change).await?;
        tracing::info!(name = %node.name, address = %node.address, node = %node.id, "a node is let into the cluster");
        self.wake.notify_one();
        let others = self.nodes().iter().map(|node| (node.id.0, node.address.as_str().to_owned())).collect();
        Ok(Answer::Joined { cluster: self.membership.cluster.to_string(), node: node.id.0, others })
    }

    /// Takes a node out of the cluster. The group follows: it does not count a node that is not known. A leader that is to be removed
    /// asks the next one, so the type of this has to be named.
    fn remove_node(&self, name: String, when: RemoveIf) -> Answering<'_, Result<Answer, ClusterRefused>> {
        Box::pin(async move {
            let change = NodeChange::Remove { name: node_name(&name)? };
            let Some(node) = self.nodes().by_name(&name).cloned() else {
                return Err(ClusterRefused::NoSuchNode(name));
            };
            if self.nodes().len() == 1 {
                let words = format!("node '{name}' is the only one of its cluster; it cannot be removed");
                return Err(ClusterRefused::Refused(words));
            }
            if when == RemoveIf::Safe {
                self.refuse_unsafe(&node)?;
            }
            if node.id == self.id() {
                // Whoever leads next removes this one.
                self.hand_over(None).await?;
                return self.ask_leader(Request::Remove { name, when }).await;
            }
            self.change_nodes(&change).await?;
            tracing::warn!(name, node = %node.id, "a node is removed from the cluster");
            self.wake.notify_one();
            let gone = async {
                while self.replication.status().members.iter().any(|member| member.node == node.id) {
                    tokio::time::sleep(GLANCE).await;
                }
            };
            let gone = tokio::time::timeout(REMOVED_WITHIN, gone).await;
            gone.map(|()| Answer::Done).map_err(|_| {
                ClusterRefused::Unavailable(format!(
                    "node '{name}' is removed, but still counts for a majority; that ends as soon as a majority of nodes is up"
                ))
            })
        })
    }

    /// Whether those that stay could go on.
    fn refuse_unsafe(&self, leaving: &KnownNode) -> Result<(), ClusterRefused> {
        let connected: Vec<NodeId> = self
            .peers
            .status()
            .iter()
            .filter(|peer| peer.connected_since.is_some())
            .map(|peer| peer.node)
            .collect();
        let members = self.replication.status().members;
        let stay: Vec<NodeId> = members
            .iter()
            .filter(|member| member.is_voter && member.node != leaving.id)
            .map(|member| member.node)
            .collect();
        let up = stay.iter().filter(|node| **node == self.id() || connected.contains(node)).count();
        let majority = stay.len() / 2 + 1;
        if up >= majority {
            return Ok(());
        }
        Err(ClusterRefused::Refused(format!(
            "without node '{}' the cluster has {} voting nodes, of which {up} are up, and a majority is {majority}: it would stop; \
             bring the others back first, or remove one of those that are gone",
            leaving.name,
            stay.len()
        )))
    }

    /// Has another node lead. Gives back who does.
    pub(super) async fn hand_over(&self, to: Option<&str>) -> Result<String, ClusterRefused> {
        let to = match to {
            None => None,
            Some(name) => {
                let node = self.nodes().by_name(name).map(|node| node.id);
                Some(node.ok_or_else(|| ClusterRefused::NoSuchNode(name.to_owned()))?)
            }
        };
        if to == Some(self.id()) {
            return Ok(self.name());
        }
        let others = self.replication.status().members.into_iter();
        if others.filter(|member| member.is_voter && member.node != self.id()).count() == 0 {
            return Err(ClusterRefused::Refused("there is no other node that could lead".to_owned()));
        }
        self.replication.transfer(to).await.map_err(|error| refused(&error))?;
        let leader = self.leader().ok_or_else(no_leader)?;
        Ok(self.name_of(leader))
    }

    /// Leads no more, and takes no new clients; or takes part again.
    pub(super) async fn drain_self(&self, wanted: Drain) -> Result<(), ClusterRefused> {
        let is_draining = wanted == Drain::Begin;
        self.is_draining.store(is_draining, Ordering::Relaxed);
        if is_draining && self.is_leading() {
            let handed_over = self.hand_over(None).await;
            // Who cannot be spared is not drained.
            self.is_draining.store(handed_over.is_ok(), Ordering::Relaxed);
            return handed_over.map(drop);
        }
        Ok(())
    }

    async fn change_nodes(&self, change: &NodeChange) -> Result<KnownNode, ClusterRefused> {
        self.broker.change_nodes(change).await.map_err(|error| match error {
            NodeChangeError::Refused(refused) => ClusterRefused::Refused(refused.to_string()),
            NodeChangeError::Queue(error) => ClusterRefused::Unavailable(error.to_string()),
        })
    }
}

fn node_name(text: &str) -> Result<NodeName, ClusterRefused> {
    NodeName::new(text).map_err(|error| ClusterRefused::Refused(error.to_string()))
}

fn node_address(text: &str) -> Result<NodeAddress, ClusterRefused> {
    NodeAddress::new(text).map_err(|error| ClusterRefused::Refused(error.to_string()))
}
