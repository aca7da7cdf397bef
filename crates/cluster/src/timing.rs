//! How time is counted: in ticks, which somebody else brings.
//!
//! These figures were measured with real disks: below 600 ms a sync that takes long causes elections.

use nexo_types::{Millis, NodeId, RaftGroupId, Term};

/// How long a tick is.
pub const TICK: Millis = Millis(50);
/// A leader is heard of this often: 100 ms.
pub(crate) const HEARTBEAT_TICKS: usize = 2;
/// Nobody calls an election sooner after he heard of a leader: 600 ms.
pub(crate) const ELECTION_TICKS_MIN: usize = 12;
/// Everybody calls one before: 1,200 ms.
pub(crate) const ELECTION_TICKS_END: usize = 24;
/// A snapshot that was sent and not heard of since is sent again: 3 s.
pub(crate) const SNAPSHOT_TICKS_MAX: u32 = 60;

/// Members whose elections do not meet: the first in line has the first part of the time for itself, the second the next.
const RANKS: usize = 3;

/// How many ticks a node waits for a leader before it calls an election.
///
/// The library would throw dice. It also knows priorities, but with these two nodes can refuse each other for ever: one because
/// the other's log is older, the other because its own priority is higher. So members take turns by time: who comes first
/// in line waits shortest. `attempt` counts elections in a term that came to nothing.
pub(crate) fn election_ticks(
    node: NodeId,
    group: RaftGroupId,
    rank: usize,
    seed: u64,
    term: Term,
    attempt: u64,
) -> usize {
    let span = (ELECTION_TICKS_END - ELECTION_TICKS_MIN) / RANKS;
    let mut dice = seed;
    for part in [node.0, u64::from(group.0), term.0, attempt] {
        dice = mix(dice ^ part);
    }
    let throw = (dice % span as u64) as usize;
    ELECTION_TICKS_MIN + rank.min(RANKS - 1) * span + throw
}

/// How many ticks a node waits that has lost contact with the leader, by its place among the voters that are left. If the process of
/// the leader is gone all lose it within milliseconds. The first in line waits until the others have noticed, since whoever
/// believes in a leader does not vote; the next one waits until the first should have been elected. Who stands behind all others in
/// the line of those who should lead waits as long as ever.
pub(crate) fn contact_ticks(rank: usize, turn: usize) -> Option<usize> {
    (rank < RANKS).then(|| (2 + 3 * turn).min(ELECTION_TICKS_MIN))
}

/// SplitMix64's finisher: every bit of the result depends on every bit of the number.
const fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_in_line_waits_shortest_and_all_within_bounds() {
        let ticks = |rank, attempt| election_ticks(NodeId(3), RaftGroupId(5), rank, 9, Term(4), attempt);
        for attempt in 0..100 {
            assert!(ticks(0, attempt) >= ELECTION_TICKS_MIN);
            assert!(ticks(0, attempt) < ticks(1, attempt) && ticks(1, attempt) < ticks(2, attempt));
            assert!(ticks(9, attempt) < ELECTION_TICKS_END);
        }
        assert!((0..100).any(|attempt| ticks(1, attempt) != ticks(1, 0)), "attempts differ");
    }
}
