//! What is done to the nodes, in which order.

use std::fmt;

/// Something that happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// SIGKILL to the leader, which is started again two seconds later.
    KillLeader,
    /// SIGSTOP to the leader, and SIGCONT four seconds later: it comes back and does not know that it was deposed.
    FreezeLeader,
    /// SIGTERM to the leader, which hands over, ends and is started again.
    StopLeader,
    /// SIGKILL to a node that follows.
    KillFollower,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::KillLeader => "leader killed",
            Self::FreezeLeader => "leader frozen",
            Self::StopLeader => "leader stopped",
            Self::KillFollower => "follower killed",
        })
    }
}

/// Faults one after the other, for ever. Every fourth is about a follower; each three before it are about the leader, all kinds in an
/// order that follows from the seed.
pub(super) fn plan(seed: u64) -> impl Iterator<Item = Fault> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || {
        let mut leader = [Fault::KillLeader, Fault::FreezeLeader, Fault::StopLeader];
        rng.shuffle(&mut leader);
        leader.into_iter().chain([Fault::KillFollower])
    })
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_faults_meet_the_leader_in_every_way_and_the_fourth_a_follower() {
        for seed in 0..20 {
            let mut faults: Vec<Fault> = plan(seed).take(4).collect();
            assert_eq!(faults.last(), Some(&Fault::KillFollower));
            faults.sort_unstable();
            faults.dedup();
            assert_eq!(faults.len(), 4);
        }
        assert!(plan(7).take(40).eq(plan(7).take(40)));
        assert!(!plan(7).take(40).eq(plan(8).take(40)));
    }
}
