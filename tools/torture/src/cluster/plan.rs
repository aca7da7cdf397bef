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
    /// The leader and the others do not hear each other for four seconds. Clients reach all of them.
    CutLeader,
    /// The others do not hear the leader for so long; it hears them.
    MuteLeader,
    /// The leader does not hear the others for so long; they hear it.
    DeafLeader,
    /// All that the leader and the others say to each other is slow for so long. Nobody is lost.
    SlowLeader,
    /// SIGKILL to a node that follows.
    KillFollower,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::KillLeader => "leader killed",
            Self::FreezeLeader => "leader frozen",
            Self::StopLeader => "leader stopped",
            Self::CutLeader => "leader cut off",
            Self::MuteLeader => "leader not heard",
            Self::DeafLeader => "leader hears nobody",
            Self::SlowLeader => "leader far away",
            Self::KillFollower => "follower killed",
        })
    }
}

/// Ways in which a leader is parted from the others. Each round has one of them.
const PARTITIONS: [Fault; 3] = [Fault::CutLeader, Fault::MuteLeader, Fault::DeafLeader];

/// Faults that leave the leader where it is. Each round ends with one of them.
const HARMLESS: [Fault; 2] = [Fault::KillFollower, Fault::SlowLeader];

/// Faults one after the other, for ever, in rounds of five. The last of a round must not move the leader; the four before do, in an
/// order that follows from the seed: it is killed, frozen, stopped, and parted from the others in one way or another.
pub(super) fn plan(seed: u64) -> impl Iterator<Item = Fault> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut partitions = PARTITIONS;
    rng.shuffle(&mut partitions);
    (0..).flat_map(move |round: usize| {
        let partition = partitions[round % partitions.len()];
        let mut leader = [Fault::KillLeader, Fault::FreezeLeader, Fault::StopLeader, partition];
        rng.shuffle(&mut leader);
        leader.into_iter().chain([HARMLESS[round % HARMLESS.len()]])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_meets_the_leader_in_four_ways_and_then_leaves_it_where_it_is() {
        for seed in 0..20 {
            let mut faults: Vec<Fault> = plan(seed).take(5).collect();
            assert_eq!(faults.last(), Some(&Fault::KillFollower));
            assert_eq!(plan(seed).nth(9), Some(Fault::SlowLeader));
            faults.sort_unstable();
            faults.dedup();
            assert_eq!(faults.len(), 5);
            let parted: Vec<Fault> = plan(seed).take(15).filter(|fault| PARTITIONS.contains(fault)).collect();
            assert!(PARTITIONS.iter().all(|way| parted.contains(way)), "three rounds have all of them");
        }
        assert!(plan(7).take(40).eq(plan(7).take(40)));
        assert!(!plan(7).take(40).eq(plan(8).take(40)));
    }
}
