//! Up to where what this node proposed is committed, to be read without the group's lock: every delivery asks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nexo_types::Position;

/// The journal's term, and the end of what is committed in it. Both only go up.
#[derive(Debug, Default)]
pub(super) struct SafeMark {
    term: AtomicU32,
    end: AtomicU64,
}

impl SafeMark {
    /// The journal's current term.
    pub(super) fn term(&self) -> u32 {
        self.term.load(Ordering::Acquire)
    }

    /// A new term has begun. To be called under the group's lock, as the next one.
    pub(super) fn begin(&self, term: u32) {
        self.term.store(term, Ordering::Release);
    }

    /// All before this position is committed.
    pub(super) fn raise(&self, to: Position) {
        self.end.fetch_max(pack(to), Ordering::AcqRel);
    }

    /// Whether what ends here and was proposed in this term is known to be committed. If not, the group knows more.
    pub(super) fn is_reached(&self, end: Position, term: u32) -> bool {
        // Frames of a later term lie behind those of an earlier one that were lost: the mark has to be of the same term.
        self.term() == term && pack(end) <= self.end.load(Ordering::Acquire) && self.term() == term
    }
}

fn pack(at: Position) -> u64 {
    u64::from(at.segment.0) << 32 | u64::from(at.byte)
}

#[cfg(test)]
mod tests {
    use nexo_types::SegmentId;

    use super::*;

    #[test]
    fn only_its_own_term_counts() {
        let at = |segment, byte| Position { segment: SegmentId(segment), byte };
        let mark = SafeMark::default();
        mark.begin(1);
        mark.raise(at(2, 50));
        assert!(mark.is_reached(at(2, 50), 1) && mark.is_reached(at(1, 900), 1));
        assert!(!mark.is_reached(at(2, 51), 1) && !mark.is_reached(at(3, 1), 1));
        assert!(!mark.is_reached(at(1, 1), 2), "nothing is known of another term");
        mark.begin(2);
        mark.raise(at(2, 70));
        assert!(!mark.is_reached(at(2, 60), 1), "that may have been lost");
        assert!(mark.is_reached(at(2, 60), 2));
    }
}
