//! Where recovery starts: for each queue its latest snapshot, and from where on the log must be read.

use std::collections::BTreeSet;

use nexo_types::{Position, QueueId, SegmentId, varint};

const VERSION: u64 = 1;

/// The latest checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Ids below this have been given out.
    pub(crate) next_queue: u64,
    /// Records before this are in the snapshots.
    pub(crate) replay_from: Position,
    /// The frames of each queue's snapshot.
    pub(crate) queues: Vec<(QueueId, Vec<Position>)>,
}

/// The frames of the last two snapshots of a queue. Two checkpoints that follow each other never name the same frames:
/// if one of them cannot be read, the checkpoint before and the log tell the same. So a queue that has not changed is
/// written a second time, once, and from then on the two copies take turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshots {
    latest: Vec<Position>,
    before: Vec<Position>,
    /// Both are of the same state.
    same: bool,
}

impl Snapshots {
    /// After a start, with the frames that the queue came from.
    pub(crate) fn restored(frames: Vec<Position>) -> Self {
        Self { latest: frames, before: Vec::new(), same: false }
    }

    /// The frames for the next manifest, if the queue need not be written again.
    pub(crate) fn reuse(&mut self, stale: impl Fn(&Position) -> bool) -> Option<Vec<Position>> {
        if !self.same || self.latest.iter().chain(&self.before).any(stale) {
            return None;
        }
        std::mem::swap(&mut self.latest, &mut self.before);
        Some(self.latest.clone())
    }

    /// It has been written.
    pub(crate) fn written(&mut self, frames: Vec<Position>, was_dirty: bool) {
        self.same = !was_dirty && !self.latest.is_empty();
        self.before = std::mem::replace(&mut self.latest, frames);
    }
}

impl Manifest {
    /// The segments that hold its snapshots.
    pub(crate) fn segments(&self) -> BTreeSet<SegmentId> {
        self.queues.iter().flat_map(|(_, frames)| frames).map(|frame| frame.segment).collect()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.queues.len() * 12);
        varint::put(&mut out, VERSION);
        varint::put(&mut out, self.next_queue);
        put_position(&mut out, self.replay_from);
        varint::put(&mut out, self.queues.len() as u64);
        for (queue, frames) in &self.queues {
            varint::put(&mut out, queue.0);
            varint::put(&mut out, frames.len() as u64);
            for frame in frames {
                put_position(&mut out, *frame);
            }
        }
        out
    }

    /// `None` if the bytes are no manifest of this version.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        if varint::take(rest)? != VERSION {
            return None;
        }
        let next_queue = varint::take(rest)?;
        let replay_from = take_position(rest)?;
        let mut queues = Vec::new();
        for _ in 0..varint::take(rest)? {
            let queue = QueueId(varint::take(rest)?);
            let mut frames = Vec::new();
            for _ in 0..varint::take(rest)? {
                frames.push(take_position(rest)?);
            }
            queues.push((queue, frames));
        }
        rest.is_empty().then_some(Self { next_queue, replay_from, queues })
    }
}

fn put_position(out: &mut Vec<u8>, position: Position) {
    varint::put(out, position.segment.0.into());
    varint::put(out, position.byte.into());
}

fn take_position(rest: &mut &[u8]) -> Option<Position> {
    let segment = SegmentId(u32::try_from(varint::take(rest)?).ok()?);
    Some(Position { segment, byte: u32::try_from(varint::take(rest)?).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_reads_back_as_it_was_written() {
        let at = |segment, byte| Position { segment: SegmentId(segment), byte };
        let manifest = Manifest {
            next_queue: 9,
            replay_from: at(3, 4096),
            queues: vec![(QueueId(1), vec![at(2, 77)]), (QueueId(8), vec![at(3, 5), at(3, 9)])],
        };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Some(manifest));
        for cut in 0..bytes.len() {
            assert_eq!(Manifest::decode(&bytes[..cut]), None);
        }
    }
}
