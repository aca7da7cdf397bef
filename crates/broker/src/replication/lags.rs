//! Whether members that lack entries get any, as the leader sees it. How many one lacks says little: on a busy cluster some are always on
//! their way, and one whose disk is full may lack a few for hours.

use std::collections::BTreeMap;

use nexo_types::{LogIndex, NodeId};

/// A member that has got nothing for so many ticks gets no further: 2 s.
const STUCK_TICKS: u32 = 40;

/// The other members.
#[derive(Debug, Default)]
pub(super) struct Lags(BTreeMap<NodeId, Lag>);

#[derive(Clone, Copy, Debug)]
struct Lag {
    matched: LogIndex,
    /// Since it got an entry, or had all.
    ticks: u32,
}

impl Lags {
    /// A tick has passed on a leader: which entry is its last, and up to where others have them.
    pub(super) fn tick(&mut self, last: LogIndex, progress: impl Iterator<Item = (NodeId, LogIndex)>) {
        let before = std::mem::take(&mut self.0);
        let lag_of = |(node, matched)| {
            let ticks = match before.get(&node) {
                _ if matched >= last => 0,
                // Nothing was heard of it since this node leads.
                None if matched == LogIndex(0) => STUCK_TICKS,
                Some(lag) if lag.matched == matched => lag.ticks.saturating_add(1),
                None | Some(_) => 0,
            };
            (node, Lag { matched, ticks })
        };
        self.0 = progress.map(lag_of).collect();
    }

    /// This node does not lead.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether a member lacks entries, and has got none for a while.
    pub(super) fn is_stuck(&self, node: NodeId) -> bool {
        self.0.get(&node).is_some_and(|lag| lag.ticks >= STUCK_TICKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);

    /// After these ticks, each with the last entry and the last that the member has.
    fn is_stuck(ticks: impl IntoIterator<Item = (u64, u64)>) -> bool {
        let mut lags = Lags::default();
        for (last, matched) in ticks {
            lags.tick(LogIndex(last), [(NODE, LogIndex(matched))].into_iter());
        }
        lags.is_stuck(NODE)
    }

    #[test]
    fn who_lacks_entries_and_gets_none_is_stuck_however_few_they_are() {
        assert!(!is_stuck((0..1_000).map(|_| (10, 10))), "nothing is written");
        assert!(!is_stuck((10..1_000).map(|last| (last, last - 9))), "something is always on its way");
        assert!(!is_stuck((10..49).map(|_| (10, 9))));
        assert!(is_stuck((10..60).map(|_| (10, 9))));
        assert!(!is_stuck((10..60).map(|_| (10, 9)).chain([(1_000, 11)])), "it goes on");
    }

    #[test]
    fn who_says_nothing_to_a_new_leader_is_stuck_from_the_beginning() {
        assert!(is_stuck([(10, 0)]));
        assert!(!is_stuck([(10, 0), (10, 4)]));
        assert!(!Lags::default().is_stuck(NODE), "of this node itself nothing is said");
    }
}
