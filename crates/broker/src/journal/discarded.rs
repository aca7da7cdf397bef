//! Frames of the log that do not count, because what they say was lost before it was safe.
//!
//! A lost frame stays where it lies until its segment is given up. Another may tell of the same offsets in the same
//! segment, so everybody who finds frames by what is in them has to ask here. Frames of this node's own lie between them,
//! so they are known one by one: four bytes for each, and as long as their segment is there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use nexo_types::{Position, SegmentId};
use parking_lot::RwLock;

/// Where they start.
#[derive(Debug, Default)]
pub(crate) struct Discarded {
    /// Whether there is any: there is none nearly always, and reading asks for each frame.
    any: AtomicBool,
    /// By segment, in order.
    frames: RwLock<BTreeMap<SegmentId, Vec<u32>>>,
}

impl Discarded {
    /// Whether the frame that starts here was lost.
    pub(crate) fn contains(&self, at: Position) -> bool {
        self.any.load(Ordering::Acquire)
            && self.frames.read().get(&at.segment).is_some_and(|bytes| bytes.binary_search(&at.byte).is_ok())
    }

    /// These do not count from now on.
    pub(crate) fn add(&self, frames: impl IntoIterator<Item = Position>) {
        let mut all = self.frames.write();
        for at in frames {
            let bytes = all.entry(at.segment).or_default();
            if let Err(place) = bytes.binary_search(&at.byte) {
                bytes.insert(place, at.byte);
            }
        }
        self.any.store(!all.is_empty(), Ordering::Release);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Position> {
        let frames = self.frames.read();
        let of_segment = |(segment, bytes): (&SegmentId, &Vec<u32>)| {
            let segment = *segment;
            bytes.iter().map(move |byte| Position { segment, byte: *byte }).collect::<Vec<_>>()
        };
        frames.iter().flat_map(of_segment).collect()
    }

    /// A segment is given up: nobody finds its frames any more.
    pub(crate) fn forget(&self, segment: SegmentId) {
        if self.any.load(Ordering::Acquire) {
            let mut all = self.frames.write();
            all.remove(&segment);
            self.any.store(!all.is_empty(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_frames_are_known_as_long_as_their_segment_is_there() {
        let at = |segment, byte| Position { segment: SegmentId(segment), byte };
        let discarded = Discarded::default();
        assert!(!discarded.contains(at(1, 100)));
        discarded.forget(SegmentId(1));
        discarded.add([at(1, 300), at(1, 100), at(2, 100), at(1, 300)]);
        for (place, is_lost) in [
            (at(1, 100), true),
            (at(1, 200), false),
            (at(1, 300), true),
            (at(2, 100), true),
            (at(3, 100), false),
        ] {
            assert_eq!(discarded.contains(place), is_lost, "{place:?}");
        }
        discarded.forget(SegmentId(1));
        assert!(!discarded.contains(at(1, 100)) && discarded.contains(at(2, 100)));
        discarded.forget(SegmentId(2));
        assert!(!discarded.any.load(Ordering::Relaxed) && discarded.frames.read().is_empty());
    }
}
