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

    /// A tick has passed.
    pub(super) const fn tick(&mut self) {
        self.ticks += 1;
    }

    /// This node does not lead.
    pub(super) const fn follows(&mut self) {
        self.led_since = None;
    }

    /// Whether this node, which leads, has heard of a majority of the voters lately, itself included.
    pub(super) fn leads_majority(&mut self, voters: &BTreeSet<NodeId>, own: NodeId) -> bool {
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

    /// For how many ticks node 1 leads on if it hears of nobody.
    fn lasts(heard: &mut Heard, voters: &[u64]) -> u64 {
        let voters: BTreeSet<NodeId> = voters.iter().copied().map(NodeId).collect();
        let leads = |heard: &mut Heard| heard.leads_majority(&voters, NodeId(1));
        (0..1_000).take_while(|_| leads(heard).then(|| heard.tick()).is_some()).count() as u64
    }

    #[test]
    fn a_leader_is_one_until_it_has_not_heard_of_a_majority_for_its_time() {
        let mut heard = Heard::default();
        (0..100).for_each(|_| heard.tick());
        assert_eq!(lasts(&mut heard, &[1, 2, 3]), UNHEARD_TICKS_MAX + 1, "from its election on");
        assert_eq!(lasts(&mut heard, &[1, 2, 3]), 0);
        heard.of(NodeId(3));
        assert_eq!(lasts(&mut heard, &[1, 2, 3]), UNHEARD_TICKS_MAX + 1, "one of two is enough");
        heard.of(NodeId(3));
        assert_eq!(lasts(&mut heard, &[1, 2, 3, 4, 5]), 0, "and one of four is not");
        heard.follows();
        assert_eq!(lasts(&mut heard, &[1, 2, 3]), UNHEARD_TICKS_MAX + 1, "it is elected again");
        assert_eq!(lasts(&mut heard, &[1]), 1_000, "alone it needs nobody");
    }
}
