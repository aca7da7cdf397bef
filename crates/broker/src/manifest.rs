//! Where recovery starts: for each queue its latest snapshot, and from where on the log must be read.

use std::collections::BTreeMap;

use nexo_core::queue::ChunkId;
use nexo_types::{Position, QueueId, SegmentId, varint};

/// The first version had whole snapshots: see [`SnapshotForm::Whole`].
const VERSION_WHOLE: u64 = 1;
const VERSION: u64 = 2;

/// The latest checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Ids below this have been given out.
    pub(crate) next_queue: u64,
    /// Records before this are in the snapshots.
    pub(crate) replay_from: Position,
    /// Each queue's snapshot.
    pub(crate) queues: Vec<(QueueId, Snapshot)>,
}

/// Where the parts of a snapshot are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Records of the queue before this are in it, and none behind.
    pub(crate) at: Position,
    /// The frames of its head, or of the whole; empty if there is no snapshot.
    pub(crate) head: Vec<SnapshotFrame>,
    /// Each chunk that is not empty, in a frame of its own, which may be older than the head.
    pub(crate) chunks: BTreeMap<ChunkId, SnapshotFrame>,
    pub(crate) form: SnapshotForm,
}

/// How a snapshot is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SnapshotForm {
    /// A head and chunks. Exchanges and bindings are in the head.
    #[default]
    Chunks,
    /// All in one, as the first version wrote it. Only read.
    Whole,
}

/// A frame with part of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotFrame {
    pub(crate) at: Position,
    /// Its length; 0 if it is not known.
    pub(crate) bytes: u64,
}

impl Snapshot {
    pub(crate) fn frames(&self) -> impl Iterator<Item = &SnapshotFrame> {
        self.head.iter().chain(self.chunks.values())
    }
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.queues.len() * 24);
        varint::put(&mut out, VERSION);
        varint::put(&mut out, self.next_queue);
        put_position(&mut out, self.replay_from);
        varint::put(&mut out, self.queues.len() as u64);
        for (queue, snapshot) in &self.queues {
            varint::put(&mut out, queue.0);
            put_position(&mut out, snapshot.at);
            varint::put(&mut out, snapshot.head.len() as u64);
            for frame in &snapshot.head {
                put_frame(&mut out, *frame);
            }
            varint::put(&mut out, snapshot.chunks.len() as u64);
            let mut next = 0;
            for (chunk, frame) in &snapshot.chunks {
                varint::put(&mut out, chunk.0 - next);
                next = chunk.0 + 1;
                put_frame(&mut out, *frame);
            }
        }
        out
    }

    /// `None` if the bytes are no manifest of a version that is known.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        let version = varint::take(rest)?;
        let take_snapshot = match version {
            VERSION_WHOLE => take_whole_snapshot,
            VERSION => take_snapshot,
            _ => return None,
        };
        let next_queue = varint::take(rest)?;
        let replay_from = take_position(rest)?;
        let mut queues = Vec::new();
        for _ in 0..varint::take(rest)? {
            queues.push((QueueId(varint::take(rest)?), take_snapshot(rest)?));
        }
        rest.is_empty().then_some(Self { next_queue, replay_from, queues })
    }
}

fn take_snapshot(rest: &mut &[u8]) -> Option<Snapshot> {
    let mut snapshot = Snapshot { at: take_position(rest)?, ..Snapshot::default() };
    for _ in 0..varint::take(rest)? {
        snapshot.head.push(take_frame(rest)?);
    }
    let mut next = 0u64;
    for _ in 0..varint::take(rest)? {
        let chunk = next.checked_add(varint::take(rest)?)?;
        next = chunk.checked_add(1)?;
        snapshot.chunks.insert(ChunkId(chunk), take_frame(rest)?);
    }
    Some(snapshot)
}

/// In the first version records up to the snapshot's last frame were in it.
fn take_whole_snapshot(rest: &mut &[u8]) -> Option<Snapshot> {
    let mut snapshot = Snapshot { form: SnapshotForm::Whole, ..Snapshot::default() };
    for _ in 0..varint::take(rest)? {
        snapshot.at = take_position(rest)?;
        snapshot.head.push(SnapshotFrame { at: snapshot.at, bytes: 0 });
    }
    Some(snapshot)
}

fn put_position(out: &mut Vec<u8>, position: Position) {
    varint::put(out, position.segment.0.into());
    varint::put(out, position.byte.into());
}

fn put_frame(out: &mut Vec<u8>, frame: SnapshotFrame) {
    put_position(out, frame.at);
    varint::put(out, frame.bytes);
}

fn take_position(rest: &mut &[u8]) -> Option<Position> {
    let segment = SegmentId(u32::try_from(varint::take(rest)?).ok()?);
    Some(Position { segment, byte: u32::try_from(varint::take(rest)?).ok()? })
}

fn take_frame(rest: &mut &[u8]) -> Option<SnapshotFrame> {
    Some(SnapshotFrame { at: take_position(rest)?, bytes: varint::take(rest)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u32, byte: u32) -> Position {
        Position { segment: SegmentId(segment), byte }
    }

    #[test]
    fn a_manifest_reads_back_as_it_was_written() {
        let frame = |segment, byte| SnapshotFrame { at: at(segment, byte), bytes: 300 };
        let chunked = Snapshot {
            at: at(3, 4),
            head: vec![frame(3, 5), frame(3, 9)],
            chunks: [(ChunkId(0), frame(1, 70)), (ChunkId(1), frame(3, 80)), (ChunkId(900), frame(2, 90))]
                .into(),
            form: SnapshotForm::Chunks,
        };
        let plain = Snapshot { at: at(2, 70), head: vec![frame(2, 77)], ..Snapshot::default() };
        let manifest = Manifest {
            next_queue: 9,
            replay_from: at(3, 4096),
            queues: vec![(QueueId(1), plain), (QueueId(8), chunked)],
        };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Some(manifest));
        for cut in 0..bytes.len() {
            assert_eq!(Manifest::decode(&bytes[..cut]), None);
        }
    }

    #[test]
    fn a_manifest_of_the_first_version_is_read() {
        // Version, next queue, from where on; two queues: 1 with a frame at 2:77, 8 with two at 3:5 and 3:9.
        let bytes = [1, 9, 3, 0x80, 0x20, 2, 1, 1, 2, 77, 8, 2, 3, 5, 3, 9];
        let manifest = Manifest::decode(&bytes).unwrap();
        assert_eq!((manifest.next_queue, manifest.replay_from), (9, at(3, 4096)));
        let (id, snapshot) = &manifest.queues[1];
        assert_eq!((*id, snapshot.at, snapshot.form), (QueueId(8), at(3, 9), SnapshotForm::Whole));
        assert_eq!(snapshot.head.iter().map(|frame| frame.at).collect::<Vec<_>>(), [at(3, 5), at(3, 9)]);
    }

    #[test]
    fn a_later_version_is_not_guessed_at() {
        assert_eq!(Manifest::decode(&[3, 9, 3, 4, 0]), None);
    }
}
