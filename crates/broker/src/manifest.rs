//! Where recovery starts: for each queue its latest snapshot, and from where on the log must be read.

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

impl Manifest {
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
