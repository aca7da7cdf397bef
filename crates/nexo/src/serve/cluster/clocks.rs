//! Whose clock is right. Nobody knows the time, so the clocks of a majority of voting nodes that agree count as right. A leader whose clock
//! is not among them hands over to one whose clock is: the times of messages are its own.

use std::collections::BTreeMap;

use nexo_types::NodeId;

use super::node::ClusterNode;

/// Clocks that differ by more are worth a word: times of messages jump when another node leads.
pub(super) const SKEW_MAX_MS: i64 = 1_000;

/// For tests: by how many milliseconds the clock of this node is off.
#[cfg(debug_assertions)]
const OFFSET_VARIABLE: &str = "NEXO_TEST_CLOCK_OFFSET_MS";

/// By how much the clock of this node is set off: not at all, but in tests.
pub(super) fn offset_ms() -> i64 {
    #[cfg(debug_assertions)]
    if let Some(offset) = std::env::var(OFFSET_VARIABLE).ok().and_then(|text| text.parse().ok()) {
        return offset;
    }
    0
}

impl ClusterNode {
    /// If this node leads and its clock is wrong: who should.
    pub(super) fn better_timed(&self) -> Option<NodeId> {
        let members = self.replication.status().members;
        let voters: Vec<NodeId> =
            members.iter().filter(|member| member.is_voter).map(|member| member.node).collect();
        let peers = self.peers.status().into_iter();
        let connected = peers.filter(|peer| peer.connected_since.is_some() && voters.contains(&peer.node));
        let clocks = connected.filter_map(|peer| Some((peer.node, peer.clock_skew_ms?)));
        right_instead(voters.len(), &clocks.collect())
    }
}

/// Who should lead instead, by how far the clocks of the other voters that are up are ahead of this node's. Nobody if its own is right, or if
/// none is.
fn right_instead(voters: usize, ahead_ms: &BTreeMap<NodeId, i64>) -> Option<NodeId> {
    let majority = voters / 2 + 1;
    let agreeing = |clock: i64| {
        let all = ahead_ms.values().copied().chain([0]);
        all.filter(|other| other.abs_diff(clock) <= SKEW_MAX_MS.unsigned_abs()).count()
    };
    if agreeing(0) >= majority {
        return None;
    }
    let right = ahead_ms.iter().filter(|(_, clock)| agreeing(**clock) >= majority);
    right.max_by_key(|(node, clock)| (agreeing(**clock), std::cmp::Reverse(**node))).map(|(node, _)| *node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(voters: usize, ahead_ms: &[i64]) -> Option<u64> {
        let clocks = (2..).map(NodeId).zip(ahead_ms.iter().copied()).collect();
        right_instead(voters, &clocks).map(|node| node.0)
    }

    #[test]
    fn a_majority_that_agrees_is_right() {
        assert_eq!(judged(3, &[0, 10]), None);
        assert_eq!(judged(3, &[-900, 60_000]), None, "one agrees with this node");
        assert_eq!(judged(3, &[5_000, 5_100]), Some(2));
        assert_eq!(judged(3, &[-5_000, -4_000]), Some(2));
        assert_eq!(judged(5, &[i64::MAX, 5_000, 5_100, 4_900]), Some(3));
        assert_eq!(judged(5, &[0, 0, 5_100, 4_900]), None);
    }

    #[test]
    fn where_no_majority_agrees_nobody_is_right() {
        assert_eq!(judged(1, &[]), None);
        assert_eq!(judged(2, &[60_000]), None, "one against one");
        assert_eq!(judged(3, &[60_000, -60_000]), None);
        assert_eq!(judged(3, &[60_000]), None, "of those that are up, none has a majority");
        assert_eq!(judged(5, &[5_000, 5_100]), None);
    }
}
