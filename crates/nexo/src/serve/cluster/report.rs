//! The cluster as one node sees it: what it knows itself, and what the others say when they are asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nexo_admin::{
    ClusterFigures, ClusterHealth, ClusterReport, GroupReport, NodeReport, NodeRole, PeerFigures, risk_of,
};
use nexo_broker::cluster_nodes::ClusterNode as KnownNode;
use nexo_peer::PeerStatus;
use nexo_types::NodeId;
use tokio::task::JoinSet;

use super::clocks::SKEW_MAX_MS;
use super::node::ClusterNode;
use super::request::{Answer, MemberShown, OwnStatus, Request};

/// How long a node may take to say how it is. One that takes longer is of no use either.
const STATUS_MAX: Duration = Duration::from_secs(2);

impl ClusterNode {
    /// How this node is.
    pub(super) fn own_status(&self) -> OwnStatus {
        let status = self.replication.status();
        let health = self.broker.health();
        let ill = health.reason().map(str::to_owned);
        let damage = self.replication.watch_damage().borrow().clone();
        let damage =
            damage.map(|first| format!("its disk is damaged ({first}); it is replaced from the others"));
        let removed = self.is_removed().then(|| REMOVED.to_owned());
        OwnStatus {
            node: self.id().0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            is_leading: self.is_leading(),
            is_draining: self.is_draining.load(Ordering::Relaxed),
            ill: removed.or(damage).or(ill),
            takes_no_writes: !status.can_write,
            leader: self.leader().map(|leader| leader.0),
            term: status.term.0,
            commit: status.commit.0,
            last: status.last.0,
            members: status
                .members
                .iter()
                .map(|member| MemberShown {
                    node: member.node.0,
                    is_voter: member.is_voter,
                    matched: member.matched.map(|index| index.0),
                    is_stuck: member.is_stuck,
                })
                .collect(),
        }
    }

    /// The whole cluster.
    pub(super) async fn report(self: &Arc<Self>) -> ClusterReport {
        let nodes = self.nodes();
        let mut asked = JoinSet::new();
        for id in nodes.iter().map(|node| node.id).filter(|id| *id != self.id()) {
            let node = Arc::clone(self);
            asked.spawn(async move { (id, node.ask(id, &Request::Status, STATUS_MAX).await) });
        }
        let mut told = BTreeMap::from([(self.id(), self.own_status())]);
        while let Some(answered) = asked.join_next().await {
            if let Ok((id, Ok(Answer::Status(status)))) = answered {
                told.insert(id, *status);
            }
        }
        let peers = self.peers.status();
        let view = View::of(&told, self.id());
        let reports: Vec<NodeReport> = nodes
            .iter()
            .map(|node| view.node(node, told.get(&node.id), peers.iter().find(|peer| peer.node == node.id)))
            .collect();
        let leader = view.leader.map(|leader| self.name_of(leader));
        let (health, risk) = risk_of(leader.as_deref(), &reports);
        let names = |is_voter: bool| {
            let members = view.status.members.iter().filter(move |member| member.is_voter == is_voter);
            members.map(|member| self.name_of(NodeId(member.node))).collect()
        };
        let group = GroupReport {
            id: 0,
            leader: leader.clone(),
            term: view.status.term,
            commit: view.status.commit,
            last: view.status.last,
            voters: names(true),
            learners: names(false),
        };
        ClusterReport {
            cluster: self.membership.cluster.to_string(),
            node: self.name(),
            leader,
            term: view.status.term,
            health,
            risk,
            nodes: reports,
            groups: vec![group],
        }
    }

    /// What this node knows without asking.
    pub(super) fn figures(&self) -> ClusterFigures {
        let status = self.replication.status();
        let is_leading = self.is_leading();
        let followers = status.members.iter().filter(|member| is_leading && member.node != self.id());
        let peers = self.peers.status().into_iter().map(|peer| PeerFigures {
            name: self.name_of(peer.node),
            is_connected: peer.connected_since.is_some(),
            round_trip_s: peer.round_trip.unwrap_or_default().as_secs_f64(),
            skew_s: peer.clock_skew_ms.unwrap_or_default() as f64 / 1e3,
            bytes_sent: peer.sent_bytes,
            bytes_received: peer.received_bytes,
            dropped: peer.dropped,
        });
        ClusterFigures {
            is_leading,
            has_leader: self.leader().is_some(),
            term: status.term.0,
            commit: status.commit.0,
            applied: status.applied.0,
            last: status.last.0,
            elections: status.elections,
            snapshots_sent: status.snapshots_sent,
            snapshots_received: status.snapshots_received,
            snapshot_bytes_sent: status.snapshot_bytes_sent,
            snapshot_bytes_received: status.snapshot_bytes_received,
            tunnels_opened: self.forwarder.opened(),
            tunnel_bytes: self.forwarder.bytes(),
            tunnels_taken: self.tunnels_taken.load(Ordering::Relaxed),
            followers: followers
                .map(|member| {
                    let matched = member.matched.map_or(0, |index| index.0);
                    (self.name_of(member.node), status.last.0.saturating_sub(matched))
                })
                .collect(),
            peers: peers.collect(),
        }
    }
}

/// What a node says of itself that was removed.
pub(super) const REMOVED: &str = "this node was removed from its cluster; stop it, and empty its data directory before it joins \
    again";

/// What is said of a node that does not say itself what is wrong.
const GETS_NOTHING: &str = "it lacks entries, and gets none";

/// Who knows best: the leader of the latest term, or else the node that was asked.
struct View<'t> {
    status: &'t OwnStatus,
    leader: Option<NodeId>,
}

impl<'t> View<'t> {
    fn of(told: &'t BTreeMap<NodeId, OwnStatus>, own: NodeId) -> Self {
        let leading = told.values().filter(|status| status.is_leading).max_by_key(|status| status.term);
        let status = leading.unwrap_or(&told[&own]);
        // What a follower takes for the leader may be gone.
        let leader = match leading {
            Some(leading) => Some(NodeId(leading.node)),
            None => status.leader.map(NodeId).filter(|leader| !told.contains_key(leader)),
        };
        Self { status, leader }
    }

    fn node(&self, node: &KnownNode, own: Option<&OwnStatus>, peer: Option<&PeerStatus>) -> NodeReport {
        let member = self.status.members.iter().find(|member| member.node == node.id.0);
        let role = match member {
            Some(_) if self.leader == Some(node.id) => NodeRole::Leader,
            Some(member) if member.is_voter => NodeRole::Follower,
            Some(_) => NodeRole::Learner,
            None => NodeRole::Joining,
        };
        let matched = member.and_then(|member| member.matched);
        // What was measured of a node that does not answer is of the past.
        let measured = peer.filter(|_| own.is_some());
        let skew_ms = measured.and_then(|peer| peer.clock_skew_ms);
        let skewed = skew_ms.filter(|skew| skew.abs() > SKEW_MAX_MS);
        // A learner gets a whole state first, which may take a while.
        let gets_nothing = member.is_some_and(|member| member.is_voter && member.is_stuck);
        let reason = match own {
            None => Some(
                peer.and_then(|peer| peer.last_error.clone())
                    .unwrap_or_else(|| "it does not answer".to_owned()),
            ),
            Some(own) => own
                .ill
                .clone()
                .or_else(|| gets_nothing.then(|| GETS_NOTHING.to_owned()))
                .or_else(|| skewed.map(|skew| format!("its clock is off by {skew} ms"))),
        };
        NodeReport {
            id: node.id.0,
            name: node.name.as_str().to_owned(),
            address: node.address.as_str().to_owned(),
            added_at_ms: node.added_at.0,
            role,
            is_reachable: own.is_some(),
            health: match (own, &reason) {
                (None, _) => ClusterHealth::Down,
                (Some(_), Some(_)) => ClusterHealth::AtRisk,
                (Some(_), None) => ClusterHealth::Ok,
            },
            reason,
            is_stuck: gets_nothing || own.is_some_and(|own| own.takes_no_writes),
            lag_entries: matched.map(|matched| self.status.last.saturating_sub(matched)),
            round_trip_ms: measured.and_then(|peer| peer.round_trip).map(|time| time.as_secs_f64() * 1e3),
            skew_ms,
            version: own.map(|own| own.version.clone()),
            is_draining: own.is_some_and(|own| own.is_draining),
        }
    }
}
