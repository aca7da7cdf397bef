//! A cluster, as those see it who look after it: what the management port tells of it and may ask of it. Who does that is
//! given with the options of the port; a broker by itself has nobody.

use std::fmt;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a node does for those who look after its cluster.
pub trait ClusterControl: fmt::Debug + Send + Sync {
    /// The whole cluster, as this node can find out. Nodes that do not answer are in it as such.
    fn report(&self) -> Answering<'_, ClusterReport>;

    /// What this node knows without asking anybody, for metrics.
    fn figures(&self) -> ClusterFigures;

    /// Why clients should not be sent to this node now, if so.
    fn unready(&self) -> Option<String>;

    /// Hands leadership over, to this node or to whoever has most of the log. Gives back who leads then.
    fn transfer(&self, to: Option<String>) -> Answering<'_, Result<String, ClusterRefused>>;

    /// Has a node lead no more and be sent no clients, or takes that back.
    fn drain(&self, node: String, wanted: Drain) -> Answering<'_, Result<(), ClusterRefused>>;

    /// Takes a node out of the cluster, for good.
    fn remove(&self, node: String, when: RemoveIf) -> Answering<'_, Result<(), ClusterRefused>>;
}

/// Something that asks other nodes.
pub type Answering<'c, T> = Pin<Box<dyn Future<Output = T> + Send + 'c>>;

/// What becomes of a node that is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drain {
    /// It leads no more, and takes no new clients.
    Begin,
    /// It takes part again.
    End,
}

/// When a node is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoveIf {
    /// If the others can go on without it.
    Safe,
    /// In any case.
    Always,
}

/// Why something is not done for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterRefused {
    /// There is no such node.
    #[error("there is no node '{0}' in this cluster")]
    NoSuchNode(String),
    /// It cannot be as asked.
    #[error("{0}")]
    Refused(String),
    /// Not now: somebody does not answer, or nobody leads.
    #[error("{0}")]
    Unavailable(String),
}

/// How well a cluster or a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterHealth {
    /// As it should be.
    Ok,
    /// It serves, and has nothing to spare, or something is wrong with a node.
    AtRisk,
    /// It does not serve.
    Down,
}

impl ClusterHealth {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::AtRisk => "at risk",
            Self::Down => "down",
        }
    }
}

/// A cluster, as one of its nodes sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// Its id.
    pub cluster: String,
    /// Who tells.
    pub node: String,
    /// Who leads, if that is known.
    pub leader: Option<String>,
    /// The latest term.
    pub term: u64,
    /// How well it is.
    pub health: ClusterHealth,
    /// What it can still lose, in plain words.
    pub risk: String,
    /// Its nodes, by their ids.
    pub nodes: Vec<NodeReport>,
    /// Its Raft groups.
    pub groups: Vec<GroupReport>,
}

/// What a node is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// It leads.
    Leader,
    /// It follows, and has a vote.
    Follower,
    /// It follows without a vote until it has caught up.
    Learner,
    /// It is known, and not a member of the group yet.
    Joining,
}

impl NodeRole {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Learner => "learner",
            Self::Joining => "joining",
        }
    }

    /// Whether it counts for a majority.
    #[must_use]
    pub const fn is_voter(self) -> bool {
        matches!(self, Self::Leader | Self::Follower)
    }
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Where the others reach it.
    pub address: String,
    /// When it was added, in milliseconds since 1970.
    pub added_at_ms: u64,
    /// What it is.
    pub role: NodeRole,
    /// Whether it answers the node that tells.
    pub is_reachable: bool,
    /// How well it is.
    pub health: ClusterHealth,
    /// What is wrong with it, in plain words; nothing if it is well.
    pub reason: Option<String>,
    /// What is confirmed does not reach its disk: that is full or has failed, or the node lacks entries and has got none for two
    /// seconds. Earlier builds do not say so.
    #[serde(default)]
    pub is_stuck: bool,
    /// Entries that it does not have yet, as the leader knows.
    pub lag_entries: Option<u64>,
    /// How long an answer takes, in milliseconds, from the node that tells.
    pub round_trip_ms: Option<f64>,
    /// How much its clock is ahead of the clock of the node that tells.
    pub skew_ms: Option<i64>,
    /// Which version of Nexo runs there.
    pub version: Option<String>,
    /// Whether it is drained.
    pub is_draining: bool,
}

/// One Raft group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Its number.
    pub id: u64,
    /// Who leads it.
    pub leader: Option<String>,
    /// Its term.
    pub term: u64,
    /// The last entry that is committed.
    pub commit: u64,
    /// The last entry.
    pub last: u64,
    /// Who votes.
    pub voters: Vec<String>,
    /// Who follows without a vote.
    pub learners: Vec<String>,
}

/// What one node knows of its cluster, for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterFigures {
    /// Whether it leads.
    pub is_leading: bool,
    /// Whether it knows a leader.
    pub has_leader: bool,
    /// The latest term.
    pub term: u64,
    /// The last entry that is committed.
    pub commit: u64,
    /// The last entry that was applied.
    pub applied: u64,
    /// The last entry.
    pub last: u64,
    /// How often it was elected.
    pub elections: u64,
    /// Whole states that it has sent.
    pub snapshots_sent: u64,
    /// Whole states that it has got.
    pub snapshots_received: u64,
    /// Bytes of those that it has sent.
    pub snapshot_bytes_sent: u64,
    /// Bytes of those that have come whole.
    pub snapshot_bytes_received: u64,
    /// Connections of clients that it has passed on to the leader.
    pub tunnels_opened: u64,
    /// Bytes that it has passed on for them, both ways.
    pub tunnel_bytes: u64,
    /// Connections of clients that other nodes have passed on to it.
    pub tunnels_taken: u64,
    /// As a leader: followers, and how many entries each does not have yet.
    pub followers: Vec<(String, u64)>,
    /// The other nodes.
    pub peers: Vec<PeerFigures>,
}

/// What one node knows of another, for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerFigures {
    /// Its name.
    pub name: String,
    /// Whether there is a connection to it.
    pub is_connected: bool,
    /// How long an answer took, in seconds.
    pub round_trip_s: f64,
    /// How much its clock is ahead, in seconds.
    pub skew_s: f64,
    /// Bytes sent to it.
    pub bytes_sent: u64,
    /// Bytes that it has sent.
    pub bytes_received: u64,
    /// Messages for it that were dropped.
    pub dropped: u64,
}

/// Says what a cluster can still lose.
#[must_use]
pub fn risk_of(leader: Option<&str>, nodes: &[NodeReport]) -> (ClusterHealth, String) {
    let voters: Vec<&NodeReport> = nodes.iter().filter(|node| node.role.is_voter()).collect();
    let majority = voters.len() / 2 + 1;
    let current = voters.iter().filter(|node| is_well(node)).count();
    if leader.is_none() {
        let up = voters.iter().filter(|node| node.is_reachable).count();
        let words = format!(
            "no node is known to lead: nothing is taken and nothing delivered; {up} of {} voting nodes can be reached, and a \
             majority is {majority}",
            voters.len()
        );
        return (ClusterHealth::Down, words);
    }
    let spare = current.saturating_sub(majority);
    let wrong: Vec<String> = nodes.iter().filter_map(what_is_wrong).collect();
    let (health, words) = match (voters.len(), current) {
        (1, _) => (
            ClusterHealth::AtRisk,
            "one node votes: losing it stops the cluster, and losing its disk loses everything".to_owned(),
        ),
        (2, 2) => {
            (ClusterHealth::AtRisk, "both nodes are in step: losing either stops the cluster".to_owned())
        }
        (all, current) if all == current && spare == 1 => {
            (ClusterHealth::Ok, format!("all {all} nodes are in step: any one may be lost"))
        }
        (all, current) if all == current => {
            (ClusterHealth::Ok, format!("all {all} nodes are in step: any {spare} may be lost"))
        }
        (all, _) if spare == 0 => (
            ClusterHealth::AtRisk,
            format!("{current} of {all} nodes are in step: losing one more node stops the cluster"),
        ),
        (all, _) => {
            (ClusterHealth::AtRisk, format!("{current} of {all} nodes are in step: {spare} more may be lost"))
        }
    };
    if wrong.is_empty() {
        return (health, words);
    }
    (ClusterHealth::AtRisk, format!("{words}; {}", wrong.join("; ")))
}

/// Whether stopping a node would leave no majority of those that are in step.
#[must_use]
pub(crate) fn is_critical(node: &str, nodes: &[NodeReport]) -> bool {
    let voters = nodes.iter().filter(|node| node.role.is_voter());
    let majority = voters.clone().count() / 2 + 1;
    let others = voters.filter(|voter| voter.name != node && is_well(voter)).count();
    others < majority
}

const fn is_well(node: &NodeReport) -> bool {
    let lag = match node.lag_entries {
        Some(lag) => lag,
        None => 0,
    };
    node.is_reachable && !node.is_stuck && lag <= IN_STEP_ENTRIES
}

/// A node that lacks no more than this, and gets on, is in step: so much is on its way in a busy cluster.
const IN_STEP_ENTRIES: u64 = 10_000;

fn what_is_wrong(node: &NodeReport) -> Option<String> {
    let name = &node.name;
    if !node.is_reachable {
        return Some(format!("node '{name}' cannot be reached"));
    }
    let words = match (node.role, node.lag_entries) {
        (NodeRole::Learner | NodeRole::Joining, _) => format!("node '{name}' is catching up"),
        (_, Some(lag)) if lag > IN_STEP_ENTRIES => format!("node '{name}' is {lag} entries behind"),
        _ => return node.reason.as_ref().map(|reason| format!("node '{name}': {reason}")),
    };
    match &node.reason {
        Some(reason) => Some(format!("{words}: {reason}")),
        None => Some(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, role: NodeRole) -> NodeReport {
        NodeReport {
            id: 1,
            name: name.to_owned(),
            address: format!("{name}:7655"),
            added_at_ms: 0,
            role,
            is_reachable: true,
            health: ClusterHealth::Ok,
            reason: None,
            is_stuck: false,
            lag_entries: Some(0),
            round_trip_ms: None,
            skew_ms: None,
            version: None,
            is_draining: false,
        }
    }

    /// A leader and followers.
    fn nodes(count: usize) -> Vec<NodeReport> {
        let mut all = vec![node("a", NodeRole::Leader)];
        all.extend(["b", "c", "d", "e"][..count - 1].iter().map(|name| node(name, NodeRole::Follower)));
        all
    }

    #[test]
    fn what_may_be_lost_is_said_in_plain_words() {
        let said = |count| risk_of(Some("a"), &nodes(count));
        assert_eq!(said(3), (ClusterHealth::Ok, "all 3 nodes are in step: any one may be lost".into()));
        assert_eq!(said(5), (ClusterHealth::Ok, "all 5 nodes are in step: any 2 may be lost".into()));
        assert_eq!(said(4).1, "all 4 nodes are in step: any one may be lost");
        assert_eq!(
            said(2),
            (ClusterHealth::AtRisk, "both nodes are in step: losing either stops the cluster".into())
        );
        assert_eq!(said(1).0, ClusterHealth::AtRisk);
        let critical = [1, 2, 3, 4, 5].map(|count| is_critical("a", &nodes(count)));
        assert_eq!(critical, [true, true, false, false, false]);
    }

    #[test]
    fn who_is_not_there_or_behind_does_not_count() {
        let mut three = nodes(3);
        three[2].is_reachable = false;
        assert_eq!(
            risk_of(Some("a"), &three).1,
            "2 of 3 nodes are in step: losing one more node stops the cluster; node 'c' cannot be reached"
        );
        assert!(is_critical("a", &three) && !is_critical("c", &three), "it is gone already");
        let mut five = nodes(5);
        five[4].lag_entries = Some(50_000);
        assert_eq!(
            risk_of(Some("a"), &five).1,
            "4 of 5 nodes are in step: 1 more may be lost; node 'e' is 50000 entries behind"
        );
        let (health, words) = risk_of(None, &three);
        assert_eq!(health, ClusterHealth::Down);
        assert!(words.contains("2 of 3 voting nodes can be reached, and a majority is 2"), "{words}");
    }

    #[test]
    fn who_gets_nothing_does_not_count_however_little_it_lacks() {
        let mut three = nodes(3);
        three[1].lag_entries = Some(9_000);
        assert_eq!(risk_of(Some("a"), &three).1, "all 3 nodes are in step: any one may be lost");
        three[2].lag_entries = Some(3);
        three[2].is_stuck = true;
        three[2].reason = Some("the disk is full: no room for a segment".to_owned());
        let (health, words) = risk_of(Some("a"), &three);
        assert_eq!(health, ClusterHealth::AtRisk);
        assert_eq!(
            words,
            "2 of 3 nodes are in step: losing one more node stops the cluster; node 'c': the disk is full: no room for a segment"
        );
        assert!(is_critical("b", &three) && !is_critical("c", &three));
        three[2].lag_entries = Some(20_000);
        let words = risk_of(Some("a"), &three).1;
        assert!(
            words.ends_with("node 'c' is 20000 entries behind: the disk is full: no room for a segment"),
            "{words}"
        );
    }

    #[test]
    fn a_learner_has_no_vote_and_is_named() {
        let mut joining = nodes(2);
        joining.push(node("x", NodeRole::Learner));
        let (health, words) = risk_of(Some("a"), &joining);
        assert_eq!(health, ClusterHealth::AtRisk);
        assert_eq!(words, "both nodes are in step: losing either stops the cluster; node 'x' is catching up");
    }
}
