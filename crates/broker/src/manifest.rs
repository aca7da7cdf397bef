//! Where recovery starts: for each queue its latest snapshot, and from where on the log must be read.

use std::collections::{BTreeMap, BTreeSet};

use nexo_cluster::{EntryId, HardState, Membership};
use nexo_core::queue::ChunkId;
use nexo_types::{LogIndex, NodeId, Position, QueueId, SegmentId, Term, Timestamp, varint};
use thiserror::Error;

/// The version in which manifests are written.
const VERSION: u64 = 5;
/// The oldest that is read. It does not say when it was written.
const VERSION_MIN: u64 = 2;
/// From this on it says where placements are. Before, snapshots of queues said where their messages lay.
const VERSION_PLACEMENT: u64 = 4;
/// From this on it says what is known of the Raft group.
const VERSION_GROUP: u64 = 5;

/// Bytes that are no manifest for this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum ManifestError {
    #[error("it is of version {version}; this build of Nexo reads versions {VERSION_MIN} to {VERSION}")]
    Version { version: u64 },
    #[error("its bytes make no sense")]
    Unreadable,
}

/// The latest checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Ids below this have been given out.
    pub(crate) next_queue: u64,
    /// Records before this are in the snapshots.
    pub(crate) replay_from: Position,
    /// No record before `replay_from` carries a later time.
    pub(crate) time: Timestamp,
    /// Each queue's snapshot.
    pub(crate) queues: Vec<(QueueId, Snapshot)>,
    /// Where the Raft group stands, if the node is part of a cluster.
    pub(crate) group: Option<GroupMark>,
}

/// Where the Raft group of a node stands as of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupMark {
    /// The last entry before `replay_from`.
    pub(crate) last: EntryId,
    /// The members as of that entry.
    pub(crate) members: Membership,
    /// What the node has promised.
    pub(crate) hard_state: HardState,
    /// Frames that do not count, since they were never committed.
    pub(crate) discarded: Vec<Position>,
}

/// Where the parts of a snapshot are.
///
/// One part that cannot be read costs nothing. What a checkpoint wrote for the first time is there once, and the checkpoint
/// before and the log tell the same. What the next checkpoint finds unchanged it writes a second time, and from then on
/// manifests name both copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Records of the queue before this are in it, and none behind.
    pub(crate) at: Position,
    /// The frames of its head; empty if there is no snapshot. Exchanges and bindings are all in the head.
    pub(crate) head: Vec<SnapshotFrame>,
    /// The same once more, or nothing.
    pub(crate) head_copy: Vec<SnapshotFrame>,
    /// Where it says where the messages lie, as of the same moment as the head. Nothing if there are none, or an earlier
    /// version wrote the snapshot. Boxed, since most queues have no messages.
    pub(crate) placement: Option<Box<PlacementFrames>>,
    /// Each chunk that is not empty; it may be older than the head.
    pub(crate) chunks: BTreeMap<ChunkId, Chunk>,
}

/// Where a placement is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlacementFrames {
    pub(crate) frames: Vec<SnapshotFrame>,
    /// The same once more, or nothing.
    pub(crate) copy: Vec<SnapshotFrame>,
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) frame: SnapshotFrame,
    /// The same once more.
    pub(crate) copy: Option<SnapshotFrame>,
}

/// A frame with part of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotFrame {
    pub(crate) at: Position,
    /// Its length.
    pub(crate) bytes: u64,
}

/// What a checkpoint asks of a snapshot that is there already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand<'a> {
    /// No part of it may stay in these segments.
    pub(crate) given_up: &'a BTreeSet<SegmentId>,
    /// All of it must be there twice. (Not on a full disk.)
    pub(crate) twice: bool,
}

impl Demand<'_> {
    fn keeps(self, frame: &SnapshotFrame) -> bool {
        !self.given_up.contains(&frame.at.segment)
    }

    /// The first of these copies that can stay.
    fn kept(self, copies: [&Vec<SnapshotFrame>; 2]) -> Vec<SnapshotFrame> {
        let kept =
            |frames: &&Vec<SnapshotFrame>| !frames.is_empty() && frames.iter().all(|frame| self.keeps(frame));
        copies.into_iter().find(kept).cloned().unwrap_or_default()
    }
}

impl Snapshot {
    pub(crate) fn frames(&self) -> impl Iterator<Item = &SnapshotFrame> {
        let chunks = self.chunks.values().flat_map(|chunk| std::iter::once(&chunk.frame).chain(&chunk.copy));
        self.of_head().chain(chunks)
    }

    /// The frames of the head and of the placement, with their copies.
    fn of_head(&self) -> impl Iterator<Item = &SnapshotFrame> {
        let heads = self.head.iter().chain(&self.head_copy);
        heads
            .chain(self.placement.iter().flat_map(|placement| placement.frames.iter().chain(&placement.copy)))
    }

    /// Whether the head, with the placement, can stay as it is, if it has not changed.
    pub(crate) fn head_will_do(&self, demand: Demand<'_>) -> bool {
        !self.head.is_empty()
            && self.of_head().all(|frame| demand.keeps(frame))
            && (!demand.twice || !self.head_copy.is_empty())
            && (!demand.twice || self.placement.as_ref().is_none_or(|placement| !placement.copy.is_empty()))
    }

    /// The frames of a head that can stay beside one that is written now.
    pub(crate) fn kept_head(&self, demand: Demand<'_>) -> Vec<SnapshotFrame> {
        demand.kept([&self.head, &self.head_copy])
    }

    /// The frames of a placement that can stay beside one that is written now.
    pub(crate) fn kept_placement(&self, demand: Demand<'_>) -> Vec<SnapshotFrame> {
        self.placement
            .as_ref()
            .map_or_else(Vec::new, |placement| demand.kept([&placement.frames, &placement.copy]))
    }
}

impl Chunk {
    /// Whether it can stay as it is, if it has not changed.
    pub(crate) fn will_do(&self, demand: Demand<'_>) -> bool {
        let kept = demand.keeps(&self.frame) && self.copy.iter().all(|frame| demand.keeps(frame));
        kept && (!demand.twice || self.copy.is_some())
    }

    /// The frame that can stay beside one that is written now.
    pub(crate) fn kept(&self, demand: Demand<'_>) -> Option<SnapshotFrame> {
        std::iter::once(self.frame).chain(self.copy).find(|frame| demand.keeps(frame))
    }
}

impl Manifest {
    /// The segments that hold its snapshots.
    pub(crate) fn segments(&self) -> BTreeSet<SegmentId> {
        self.queues.iter().flat_map(|(_, snapshot)| snapshot.frames()).map(|frame| frame.at.segment).collect()
    }

    /// The snapshot of a queue.
    pub(crate) fn snapshot_of(&self, queue: QueueId) -> Option<&Snapshot> {
        self.queues.iter().find(|(id, _)| *id == queue).map(|(_, snapshot)| snapshot)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.queues.len() * 24);
        varint::put(&mut out, VERSION);
        varint::put(&mut out, self.next_queue);
        put_position(&mut out, self.replay_from);
        varint::put(&mut out, self.time.0);
        varint::put(&mut out, self.queues.len() as u64);
        for (queue, snapshot) in &self.queues {
            varint::put(&mut out, queue.0);
            put_position(&mut out, snapshot.at);
            let (none, placement) = (PlacementFrames::default(), snapshot.placement.as_deref());
            let placement = placement.unwrap_or(&none);
            for frames in [&snapshot.head, &snapshot.head_copy, &placement.frames, &placement.copy] {
                varint::put(&mut out, frames.len() as u64);
                frames.iter().for_each(|frame| put_frame(&mut out, *frame));
            }
            varint::put(&mut out, snapshot.chunks.len() as u64);
            let mut next = 0;
            for (id, chunk) in &snapshot.chunks {
                varint::put(&mut out, id.0 - next);
                next = id.0 + 1;
                put_frame(&mut out, chunk.frame);
                varint::put(&mut out, chunk.copy.is_some().into());
                chunk.copy.iter().for_each(|frame| put_frame(&mut out, *frame));
            }
        }
        varint::put(&mut out, self.group.is_some().into());
        if let Some(group) = &self.group {
            put_group(&mut out, group);
        }
        out
    }

    /// Reads a manifest back.
    ///
    /// # Errors
    /// If it is of another version, or the bytes are no manifest.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Self, ManifestError> {
        match varint::take(&mut bytes) {
            Some(version @ VERSION_MIN..=VERSION) => {
                Self::decode_rest(version, bytes).ok_or(ManifestError::Unreadable)
            }
            Some(version) => Err(ManifestError::Version { version }),
            None => Err(ManifestError::Unreadable),
        }
    }

    fn decode_rest(version: u64, mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        let next_queue = varint::take(rest)?;
        let replay_from = take_position(rest)?;
        let time = if version == VERSION_MIN { Timestamp(0) } else { Timestamp(varint::take(rest)?) };
        let mut queues = Vec::new();
        for _ in 0..varint::take(rest)? {
            queues.push((QueueId(varint::take(rest)?), take_snapshot(version, rest)?));
        }
        let mut group = None;
        if version >= VERSION_GROUP && varint::take(rest)? != 0 {
            group = Some(take_group(rest)?);
        }
        rest.is_empty().then_some(Self { next_queue, replay_from, time, queues, group })
    }
}

fn put_group(out: &mut Vec<u8>, GroupMark { last, members, hard_state, discarded }: &GroupMark) {
    let vote = hard_state.vote.map_or(0, |node| node.0);
    for number in [last.term.0, last.index.0, hard_state.term.0, vote, hard_state.commit.0] {
        varint::put(out, number);
    }
    for nodes in [&members.voters, &members.learners] {
        varint::put(out, nodes.len() as u64);
        nodes.iter().for_each(|node| varint::put(out, node.0));
    }
    varint::put(out, discarded.len() as u64);
    discarded.iter().for_each(|at| put_position(out, *at));
}

fn take_group(rest: &mut &[u8]) -> Option<GroupMark> {
    let last = EntryId::new(Term(varint::take(rest)?), LogIndex(varint::take(rest)?));
    let mut mark = GroupMark { last, ..GroupMark::default() };
    mark.hard_state.term = Term(varint::take(rest)?);
    mark.hard_state.vote = Some(NodeId(varint::take(rest)?)).filter(|node| node.0 != 0);
    mark.hard_state.commit = LogIndex(varint::take(rest)?);
    for nodes in [&mut mark.members.voters, &mut mark.members.learners] {
        for _ in 0..varint::take(rest)? {
            nodes.insert(NodeId(varint::take(rest)?));
        }
    }
    for _ in 0..varint::take(rest)? {
        mark.discarded.push(take_position(rest)?);
    }
    Some(mark)
}

fn take_snapshot(version: u64, rest: &mut &[u8]) -> Option<Snapshot> {
    let mut snapshot = Snapshot { at: take_position(rest)?, ..Snapshot::default() };
    take_frames(rest, &mut snapshot.head)?;
    take_frames(rest, &mut snapshot.head_copy)?;
    if version >= VERSION_PLACEMENT {
        let mut placement = PlacementFrames::default();
        take_frames(rest, &mut placement.frames)?;
        take_frames(rest, &mut placement.copy)?;
        snapshot.placement = (!placement.frames.is_empty()).then(|| Box::new(placement));
    }
    let mut next = 0u64;
    for _ in 0..varint::take(rest)? {
        let id = next.checked_add(varint::take(rest)?)?;
        next = id.checked_add(1)?;
        let frame = take_frame(rest)?;
        let copy = match varint::take(rest)? {
            0 => None,
            1 => Some(take_frame(rest)?),
            _ => return None,
        };
        snapshot.chunks.insert(ChunkId(id), Chunk { frame, copy });
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

fn take_frames(rest: &mut &[u8], frames: &mut Vec<SnapshotFrame>) -> Option<()> {
    for _ in 0..varint::take(rest)? {
        frames.push(take_frame(rest)?);
    }
    Some(())
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

    fn frame(segment: u32, byte: u32) -> SnapshotFrame {
        SnapshotFrame { at: at(segment, byte), bytes: 300 }
    }

    #[test]
    fn a_manifest_reads_back_as_it_was_written() {
        let once = |frame| Chunk { frame, copy: None };
        let chunked = Snapshot {
            at: at(3, 4),
            head: vec![frame(3, 5), frame(3, 9)],
            head_copy: Vec::new(),
            placement: Some(Box::new(PlacementFrames {
                frames: vec![frame(3, 11)],
                copy: vec![frame(1, 60)],
            })),
            chunks: [
                (ChunkId(0), once(frame(1, 70))),
                (ChunkId(1), Chunk { frame: frame(3, 80), copy: Some(frame(2, 60)) }),
                (ChunkId(900), once(frame(2, 90))),
            ]
            .into(),
        };
        let plain = Snapshot {
            at: at(2, 70),
            head: vec![frame(2, 77)],
            head_copy: vec![frame(1, 50)],
            ..Snapshot::default()
        };
        let manifest = Manifest {
            next_queue: 9,
            replay_from: at(3, 4096),
            time: Timestamp(1_234_567),
            queues: vec![(QueueId(1), plain), (QueueId(8), chunked)],
            group: Some(GroupMark {
                last: EntryId::new(Term(7), LogIndex(1000)),
                members: Membership { voters: [1, 2, 3].map(NodeId).into(), learners: [NodeId(9)].into() },
                hard_state: HardState { term: Term(8), vote: Some(NodeId(2)), commit: LogIndex(1001) },
                discarded: vec![at(2, 4096), at(3, 70)],
            }),
        };
        assert_eq!(manifest.segments(), [1, 2, 3].map(SegmentId).into());
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        for cut in 0..bytes.len() {
            assert_eq!(Manifest::decode(&bytes[..cut]), Err(ManifestError::Unreadable));
        }
    }

    #[test]
    fn a_later_version_is_not_guessed_at() {
        let later = Manifest::decode(&[6, 9, 3, 4, 0]).unwrap_err();
        assert_eq!(later.to_string(), "it is of version 6; this build of Nexo reads versions 2 to 5");
    }

    #[test]
    fn what_is_there_once_or_lies_where_it_may_not_stay_is_written_again() {
        let (none, second) = (BTreeSet::new(), [SegmentId(2)].into());
        let twice = Demand { given_up: &none, twice: true };
        let once = Demand { given_up: &none, twice: false };
        let moved = Demand { given_up: &second, twice: true };
        let chunk = Chunk { frame: frame(2, 5), copy: None };
        assert!(!chunk.will_do(twice) && chunk.will_do(once) && !chunk.will_do(moved));
        assert_eq!((chunk.kept(twice), chunk.kept(moved)), (Some(frame(2, 5)), None));
        let copied = Chunk { copy: Some(frame(1, 9)), ..chunk };
        assert!(copied.will_do(twice) && !copied.will_do(moved));
        assert_eq!(copied.kept(moved), Some(frame(1, 9)));
        let mut snapshot = Snapshot::default();
        assert!(!snapshot.head_will_do(once));
        snapshot.head = vec![frame(2, 5)];
        assert!(snapshot.head_will_do(once) && !snapshot.head_will_do(twice));
        snapshot.head_copy = vec![frame(1, 9)];
        assert!(snapshot.head_will_do(twice) && !snapshot.head_will_do(moved));
        assert_eq!(snapshot.kept_head(moved), [frame(1, 9)]);
        let once_placed = PlacementFrames { frames: vec![frame(3, 7)], copy: Vec::new() };
        snapshot.placement = Some(Box::new(once_placed.clone()));
        assert!(snapshot.head_will_do(once) && !snapshot.head_will_do(twice), "the placement is there once");
        snapshot.placement = Some(Box::new(PlacementFrames { copy: vec![frame(2, 8)], ..once_placed }));
        assert!(snapshot.head_will_do(twice));
        assert_eq!(snapshot.kept_placement(moved), [frame(3, 7)]);
    }
}
