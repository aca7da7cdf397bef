//! Which members a leader hears of, in ticks.

use std::collections::{BTreeMap, BTreeSet};

use nexo_types::NodeId;

use crate::timing::UNHEARD_TICKS_MAX;

#[derive(Debug, Default)]
pub(super) struct Heard {
    ticks: u64,
    /// Since when this node leads.
    led_since: Option<u64>,
    last: BTreeMap<NodeId, u64>,
}

impl Heard {
    /// Something has come from a member.
    pub(super) fn of(&mut self, node: NodeId) {
        self.last.insert(node, self.ticks);
    }

    /// A tick has passed. Says whether a node, if it leads, has heard of a majority of the voters lately, itself included.
    pub(super) fn is_by_majority(&mut self, leads: bool, voters: &BTreeSet<NodeId>, own: NodeId) -> bool {
        self.ticks += 1;
        if !leads {
            self.led_since = None;
            return true;
        }
        let led_since = *self.led_since.get_or_insert(self.ticks);
        let is_heard = |node: &&NodeId| {
            let last = self.last.get(*node).copied().unwrap_or(0).max(led_since);
            **node == own || self.ticks - last <= UNHEARD_TICKS_MAX
        };
        voters.iter().filter(is_heard).count() > voters.len() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_one_until_it_has_not_heard_of_a_majority_for_its_time() {
        let voters: BTreeSet<NodeId> = [1, 2, 3].map(NodeId).into();
        let mut heard = Heard::default();
        let mut tick = |heard: &mut Heard, leads| heard.is_by_majority(leads, &voters, NodeId(1));
        assert!((0..100).all(|_| tick(&mut heard, false)), "who does not lead need not hear of anybody");
        assert!((0..=UNHEARD_TICKS_MAX).all(|_| tick(&mut heard, true)), "it has just been elected");
        assert!(!tick(&mut heard, true));
        heard.of(NodeId(3));
        assert!((0..UNHEARD_TICKS_MAX).all(|_| tick(&mut heard, true)), "with one of two it is a majority");
        assert!(!tick(&mut heard, true));
        assert!(heard.is_by_majority(true, &[NodeId(1)].into(), NodeId(1)), "alone it needs nobody");
    }
}
