//! What is stored on this node and counts: its log, less what was lost before it was safe.

use std::ops::RangeInclusive;

use nexo_log::{FrameRef, Log, ReadError};
use nexo_types::{LogIndex, Offset, Position, Priority, QueueId, SegmentId};

use crate::journal::Discarded;
use crate::shared::Shared;

/// The log to be read by what is in it. Reading what lies at a known place needs only the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a> {
    pub(crate) log: &'a Log,
    pub(crate) discarded: &'a Discarded,
    /// Of a Raft group's entries, those up to this one count so far.
    pub(crate) committed: Option<LogIndex>,
}

impl Stored<'_> {
    /// The frames of a segment that hold messages of a lane within an offset range.
    ///
    /// # Errors
    /// When the index cannot be read, or the segment is gone.
    pub(crate) fn frames_of(
        &self,
        segment: SegmentId,
        queue: QueueId,
        lane: Priority,
        offsets: RangeInclusive<Offset>,
    ) -> Result<Vec<FrameRef>, ReadError> {
        let mut frames = self.log.frames_of(segment, queue, lane, offsets, usize::MAX)?;
        frames.retain(|frame| !self.discarded.contains(Position { segment, byte: frame.byte }));
        Ok(frames)
    }
}

impl Shared {
    /// What is stored and counts.
    pub(crate) fn stored(&self) -> Stored<'_> {
        Stored { log: &self.log, discarded: self.journal.discarded(), committed: None }
    }
}
