//! Whether a queue with one consumer at a time delivers in the order of publishing.

use std::collections::{BTreeSet, HashMap};

use crate::stamp::Stamp;

/// What one publisher sent on one connection is in order; between connections there is none.
type Line = (u16, u32);

/// The books of one ordered queue.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Confirmed and never seen.
    unseen: BTreeSet<(Line, u64)>,
    /// The latest that was seen for the first time.
    high: HashMap<Line, u64>,
}

impl Order {
    pub(super) fn confirmed(&mut self, stamp: &Stamp) {
        self.unseen.insert((line(stamp), stamp.seq));
    }

    /// It was delivered, or its fate does not matter any more.
    pub(super) fn forget(&mut self, stamp: &Stamp) {
        self.unseen.remove(&(line(stamp), stamp.seq));
    }

    /// Takes a message that came for the first time. Gives back the one that came too early before it, if any, and
    /// those that should have come before and did not.
    pub(super) fn first_seen(&mut self, stamp: &Stamp) -> (Option<u64>, Vec<u64>) {
        let line = line(stamp);
        self.forget(stamp);
        let high = self.high.entry(line).or_insert(0);
        let overtaken_by = (*high > stamp.seq).then_some(*high);
        *high = (*high).max(stamp.seq);
        let passed: Vec<u64> = self.unseen.range((line, 0)..(line, stamp.seq)).map(|(_, seq)| *seq).collect();
        for seq in &passed {
            self.unseen.remove(&(line, *seq));
        }
        (overtaken_by, passed)
    }
}

const fn line(stamp: &Stamp) -> Line {
    (stamp.publisher, stamp.session)
}
