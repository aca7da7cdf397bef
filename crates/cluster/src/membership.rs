//! Who belongs to a group, and how that changes: by one node at a time.

use std::collections::BTreeSet;

use nexo_types::NodeId;
use nexo_types::limits::RAFT_MEMBERS_MAX;

/// The members of a group. Nobody is both voter and learner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Those of whom a majority must have an entry.
    pub voters: BTreeSet<NodeId>,
    /// Those who get all entries and count for nothing: they are catching up.
    pub learners: BTreeSet<NodeId>,
}

impl Membership {
    /// A group of voters.
    pub fn of(voters: impl IntoIterator<Item = NodeId>) -> Self {
        Self { voters: voters.into_iter().collect(), learners: BTreeSet::new() }
    }

    /// Whether this can be a group's members: there is a voter, nobody is both, and they are not too many.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        !self.voters.is_empty()
            && self.voters.is_disjoint(&self.learners)
            && self.voters.len() + self.learners.len() <= RAFT_MEMBERS_MAX
            && self.all().all(|node| node.0 > 0)
    }

    /// Whether a node is a member.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.learners.contains(&node)
    }

    /// All members.
    pub fn all(&self) -> impl Iterator<Item = NodeId> {
        self.voters.iter().chain(&self.learners).copied()
    }

    /// The members after a change.
    #[must_use]
    pub fn after(&self, change: Change) -> Self {
        let mut after = self.clone();
        let node = change.node();
        match change {
            Change::AddVoter(_) => {
                after.learners.remove(&node);
                after.voters.insert(node);
            }
            Change::AddLearner(_) => {
                after.voters.remove(&node);
                after.learners.insert(node);
            }
            Change::Remove(_) => {
                after.voters.remove(&node);
                after.learners.remove(&node);
            }
        }
        after
    }
}

/// A change of members. Majorities before and after it have a node in common, since it is about one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new voter, or a learner that has caught up.
    AddVoter(NodeId),
    /// A new learner, or a voter that is to count no more.
    AddLearner(NodeId),
    /// No member any more.
    Remove(NodeId),
}

impl Change {
    /// Whom it is about.
    #[must_use]
    pub const fn node(self) -> NodeId {
        match self {
            Self::AddVoter(node) | Self::AddLearner(node) | Self::Remove(node) => node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learner_becomes_a_voter_and_goes() {
        let [one, two] = [NodeId(1), NodeId(2)];
        let group = Membership::of([one]).after(Change::AddLearner(two));
        assert!(group.contains(two) && !group.voters.contains(&two) && group.is_sound());
        let group = group.after(Change::AddVoter(two));
        assert!(group.voters.contains(&two) && group.learners.is_empty());
        let group = group.after(Change::Remove(two));
        assert_eq!(group, Membership::of([one]));
        assert!(!group.after(Change::Remove(one)).is_sound(), "somebody must be left");
    }
}
