//! Where in a segment the messages of each lane are.
//!
//! While a segment is written its [`SegmentIndex`] is in memory, in the same compact form that the footer has;
//! sealing writes it out. After that [`footer`] finds a lane's [`section`] on disk and only that is read.

pub(crate) mod cache;
pub(crate) mod footer;
pub(crate) mod section;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use nexo_types::{Offset, Priority, QueueId};

pub use section::FrameRef;
use section::SectionBuilder;

use crate::entry::Span;

/// A queue's lane.
pub(crate) type LaneKey = (QueueId, Priority);

/// The index of one segment that is not sealed.
#[derive(Debug, Default)]
pub(crate) struct SegmentIndex {
    lanes: HashMap<LaneKey, SectionBuilder, RandomState>,
    encoded_bytes: usize,
}

/// The most by which one more span lengthens the footer: a directory entry, a block head and an index entry.
pub(crate) const SPAN_BYTES_MAX: usize =
    footer::DIRECTORY_ENTRY_BYTES + section::BLOCK_HEAD_BYTES + section::ENTRY_BYTES_MAX;

impl SegmentIndex {
    /// Notes that the frame at `byte` holds these messages. Frames come in the order of their position.
    pub(crate) fn add(&mut self, byte: u32, queue: QueueId, span: Span) {
        let lane = self.lanes.entry((queue, span.lane)).or_insert_with(|| {
            self.encoded_bytes += footer::DIRECTORY_ENTRY_BYTES;
            SectionBuilder::default()
        });
        self.encoded_bytes +=
            lane.add(FrameRef { byte, first: span.first, last: span.last, count: span.count });
    }

    /// Frames of a lane that overlap an offset range, in order, at most `max`.
    pub(crate) fn find(&self, key: LaneKey, first: Offset, last: Offset, max: usize) -> Vec<FrameRef> {
        self.lanes.get(&key).map(|lane| lane.find(first, last, max)).unwrap_or_default()
    }

    /// No footer of this index is longer.
    pub(crate) fn footer_bytes_max(&self) -> usize {
        self.encoded_bytes
    }

    /// Every lane, in the order of the directory.
    fn sorted(&self) -> Vec<(LaneKey, &SectionBuilder)> {
        let mut lanes: Vec<_> = self.lanes.iter().map(|(key, lane)| (*key, lane)).collect();
        lanes.sort_unstable_by_key(|(key, _)| *key);
        lanes
    }
}
