//! Bringing a broker back from its log: snapshots first, then the records that came after them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

use bytes::Bytes;
use nexo_cluster::store::GroupRecord;
use nexo_core::batch::BatchKind;
use nexo_core::message::Durability;
use nexo_core::queue::Queue;
use nexo_core::record::Record;
use nexo_log::{Damage, Entry, EntryKind, Frame, Log, Recovered};
use nexo_types::{Position, QueueId, SegmentId, Timestamp};

use crate::access_cell::ACCESS;
use crate::error::OpenError;
use crate::frame_batches::batch_of;
use crate::machines::{self, ReplayedMachines, is_machine};
use crate::manifest::{Chunk, Manifest, PlacementFrames, Snapshot, SnapshotFrame};
use crate::missing;
use crate::placement::{OldPlaces, Placement};
use crate::queue_cell::QueueCell;
use crate::replication::{RAFT, head_of};
use crate::stored::Stored;
use crate::unread::Unread;

/// What was in the log.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) cells: Vec<QueueCell>,
    pub(crate) machines: ReplayedMachines,
    pub(crate) next_queue: u64,
    /// No record carries a later time.
    pub(crate) time: Timestamp,
    /// Messages that are lost to damage.
    pub(crate) damaged_messages: u64,
    /// There may be more: a part of the log that nothing else tells about cannot be read.
    pub(crate) damaged_uncounted: bool,
    /// The latest changes of users are lost, or something is, and no user is known.
    pub(crate) users_lost: bool,
    /// A segment that is not there and held messages.
    lost_segment: Option<SegmentId>,
}

/// What becomes of a start that cannot bring everything back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// What is damaged is reported and passed over; the start is refused if nobody can tell what was in it.
    Refuse,
    /// The same, and what cannot be told is accepted.
    Accept,
    /// Others have all of it, so nothing is passed over: the start is refused, and the state comes from them.
    Mend,
}

/// A queue that is being rebuilt.
pub(crate) struct Rebuilt {
    pub(crate) queue: Queue,
    pub(crate) placement: Placement,
    snapshot: Snapshot,
    /// Records have been applied since the snapshot.
    pub(crate) dirty: bool,
    /// Messages that were known to be lost to damage before this start.
    damaged_before: u64,
}

/// Rebuilds every queue.
///
/// # Errors
/// If the log's content makes no sense, or what was in it cannot be known and that was not accepted. Damage that the
/// log found is reported and passed over, unless others can give what is lost.
pub(crate) fn restore(
    stored: Stored<'_>,
    recovered: &Recovered,
    path: &Path,
    on_loss: OnLoss,
) -> Result<Restored, OpenError> {
    if on_loss != OnLoss::Mend {
        return restore_readable(stored, recovered, path, on_loss == OnLoss::Accept);
    }
    let damaged = |reason: String| OpenError::Damaged { path: path.to_owned(), reason };
    if recovered.is_incomplete() {
        let first = stored.log.damage().map(|(_, first)| first);
        return Err(damaged(first.unwrap_or_else(|| "parts of the log are missing".to_owned())));
    }
    let restored = restore_readable(stored, recovered, path, false);
    match (stored.log.damage(), restored) {
        (Some((_, first)), _) => Err(damaged(first)),
        (None, Ok(Restored { lost_segment: Some(segment), .. })) => {
            Err(damaged(format!("segments/{segment}.seg, which holds messages, is not there")))
        }
        (None, restored) => restored,
    }
}

fn restore_readable(
    stored: Stored<'_>,
    recovered: &Recovered,
    path: &Path,
    accept_loss: bool,
) -> Result<Restored, OpenError> {
    let log = stored.log;
    let unreadable = |reason: String| OpenError::Unreadable { path: path.to_owned(), reason };
    for damage in &recovered.damage {
        let copy = damage.copy.as_deref().unwrap_or("nowhere");
        tracing::error!(at = %damage.at, end = damage.end, fact = %damage.fact, copy, "the log is damaged");
    }
    let (mut rebuild, replay_from) = load_checkpoint(stored, recovered, accept_loss).map_err(&unreadable)?;
    for id in missing::lost_before(recovered, replay_from) {
        log.note_missing(Position { segment: id, byte: 0 }, "the segment was lost before this start".into());
        rebuild.uncounted = true;
    }
    rebuild.unread = Unread::since(replay_from);
    let damage = log
        .replay(replay_from, &mut |frame| rebuild.visit(&frame))
        .map_err(|error| unreadable(error.to_string()))?;
    if let Some(reason) = rebuild.error {
        return Err(unreadable(reason));
    }
    if let Some(id) = rebuild.missing_queue()
        && !accept_loss
    {
        let reason =
            format!("queue {id} cannot be brought back: its snapshot and its creation cannot be read");
        return Err(unreadable(format!("{reason}; start with accept-loss to go on without the queue")));
    }
    let unknown = rebuild.count_lost(recovered, &damage);
    for id in &recovered.lost_segments {
        tracing::error!(segment = %id, "a segment of the log is lost");
    }
    rebuild.drop_unread().map_err(&unreadable)?;
    rebuild.drop_lost_segments().map_err(&unreadable)?;
    // What lies before was known to the snapshots.
    let after = |damage: &&Damage| damage.at >= replay_from || damage.at.segment >= replay_from.segment;
    let uncounted = recovered.damage.iter().chain(&damage).filter(after).any(|damage| damage.lost.is_none());
    let uncounted = uncounted || rebuild.uncounted;
    let is_incomplete = uncounted || !damage.is_empty() || recovered.is_incomplete();
    let restored = rebuild.finish(unknown);
    let had_users = restored.machines.access.machine.had_users();
    let users_lost = restored.users_lost || (is_incomplete && !had_users);
    Ok(Restored { damaged_uncounted: uncounted, users_lost, ..restored })
}

/// Loads the latest checkpoint, and says from where on the log must be read. A queue whose snapshot cannot be read comes from
/// the checkpoint before and from the log since then, which is kept for that.
fn load_checkpoint<'a>(
    stored: Stored<'a>,
    recovered: &Recovered,
    accept_loss: bool,
) -> Result<(Rebuild<'a>, Position), String> {
    let log = stored.log;
    let decode = |at: &Position, payload: &[u8]| {
        Manifest::decode(payload).map_err(|error| format!("the checkpoint at {at} cannot be read: {error}"))
    };
    let latest = match &recovered.last_manifest {
        Some((at, payload)) => decode(at, payload)?,
        None => Manifest::default(),
    };
    let mut rebuild = Rebuild::new(stored, &latest);
    if let Some(missing) = missing::given_up_since(log, recovered, latest.replay_from) {
        let reason = missing::refusal(recovered, &missing);
        if !accept_loss {
            return Err(reason);
        }
        rebuild.note_gap(latest.replay_from, reason);
        rebuild.users_lost = true;
    }
    let Some((at, _)) = &recovered.last_manifest else { return Ok((rebuild, Position::default())) };
    let mut failed = Vec::new();
    for (id, snapshot) in &latest.queues {
        if let Err(reason) = rebuild.load_snapshot(*id, snapshot, Chunks::All) {
            tracing::error!(queue = %id, %reason, "a snapshot cannot be used; trying that of the checkpoint before");
            failed.push((*id, snapshot, reason));
        }
    }
    if failed.is_empty() {
        return Ok((rebuild, latest.replay_from));
    }
    let earlier = log.manifest_before(*at);
    let earlier = earlier.map(|(at, payload)| decode(&at, &payload)).transpose()?.unwrap_or_default();
    let is_complete = missing::is_complete_since(log, recovered, earlier.replay_from);
    let mut replay_from = latest.replay_from;
    for (id, snapshot, reason) in failed {
        if is_complete && rebuild.load_earlier(id, &earlier) {
            replay_from = replay_from.min(earlier.replay_from);
            continue;
        }
        // What is left of it.
        if rebuild.load_snapshot(id, snapshot, Chunks::Readable).is_ok() {
            continue;
        }
        if !accept_loss {
            let since = "the log since the checkpoint before is not complete, or that cannot be read either";
            let what = machines::shown(id);
            return Err(format!(
                "{reason}, and {since}; start with accept-loss to go on with what is left of {what}"
            ));
        }
        rebuild.users_lost |= id == ACCESS;
        rebuild.note_gap(snapshot.at, format!("the snapshot of {} is lost: {reason}", machines::shown(id)));
        if rebuild.load_earlier(id, &earlier) {
            replay_from = replay_from.min(earlier.replay_from);
            continue;
        }
        tracing::error!(queue = %id, %reason, "a queue and its messages are lost with its snapshot");
    }
    Ok((rebuild, replay_from))
}

/// Which chunks of a snapshot must be readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunks {
    All,
    /// What was in the others is lost.
    Readable,
}

struct Rebuild<'a> {
    stored: Stored<'a>,
    log: &'a Log,
    queues: BTreeMap<QueueId, Rebuilt>,
    machines: ReplayedMachines,
    /// Ids below this had been given out when the checkpoint was written.
    known_queues: u64,
    next_queue: u64,
    /// The latest time of all records.
    time: Timestamp,
    /// Offsets of each queue that were pushed over, as far as they were not set aside: their messages were in a part of
    /// the log that cannot be read.
    gaps: BTreeMap<QueueId, u64>,
    /// Messages of queues that are not known.
    orphans: BTreeMap<QueueId, u64>,
    /// Queues of the latest checkpoint that must come from the log, because their snapshots cannot be read.
    expected: BTreeSet<QueueId>,
    /// Parts of snapshots or of the log are lost, and nothing tells how many messages were in them.
    uncounted: bool,
    /// The latest changes of users are lost.
    users_lost: bool,
    unread: Unread,
    lost_segment: Option<SegmentId>,
    error: Option<String>,
}

impl<'a> Rebuild<'a> {
    fn new(stored: Stored<'a>, manifest: &Manifest) -> Self {
        Self {
            stored,
            log: stored.log,
            queues: BTreeMap::new(),
            machines: ReplayedMachines::new(),
            known_queues: manifest.next_queue,
            next_queue: manifest.next_queue.max(1),
            time: manifest.time,
            gaps: BTreeMap::new(),
            orphans: BTreeMap::new(),
            expected: BTreeSet::new(),
            uncounted: false,
            users_lost: false,
            unread: Unread::default(),
            lost_segment: None,
            error: None,
        }
    }

    /// Loads a snapshot. What is remembered of it is what can be read: the next checkpoint writes the rest again.
    fn load_snapshot(&mut self, id: QueueId, snapshot: &Snapshot, wanted: Chunks) -> Result<(), String> {
        let mut readable = Snapshot { at: snapshot.at, ..Snapshot::default() };
        let head = match self.read_head(id, &snapshot.head) {
            Ok(head) => {
                readable.head.clone_from(&snapshot.head);
                readable.head_copy.clone_from(&snapshot.head_copy);
                head
            }
            Err(_) if !snapshot.head_copy.is_empty() => {
                readable.head.clone_from(&snapshot.head_copy);
                self.read_head(id, &snapshot.head_copy)?
            }
            Err(reason) => return Err(reason),
        };
        let mut chunks: Vec<Bytes> = Vec::with_capacity(snapshot.chunks.len());
        let mut lost = 0;
        for (chunk, place) in &snapshot.chunks {
            match self.read_chunk(id, *place) {
                Ok((place, bytes)) => {
                    readable.chunks.insert(*chunk, place);
                    chunks.push(bytes);
                }
                Err(reason) if wanted == Chunks::All => return Err(reason),
                Err(reason) if is_machine(id) => {
                    tracing::error!(%reason, "part of a snapshot of {} is lost", machines::shown(id));
                    lost += 1;
                }
                Err(reason) => {
                    let (first, end) = chunk.offsets();
                    tracing::error!(queue = %id, %first, %end, %reason, "part of a snapshot is lost, and with it what was known of these messages except of those that were never delivered");
                    lost += 1;
                }
            }
        }
        if is_machine(id) {
            self.uncounted |= lost > 0;
            return self.machines.load(id, &head, &chunks, readable);
        }
        let mut old = OldPlaces::default();
        let chunks = chunks.iter().map(|chunk| &chunk[..]);
        let queue = Queue::restore_stored(&head, chunks, &mut |stored| old.add(stored))
            .map_err(|error| error.to_string())?;
        let mut placement = match &snapshot.placement {
            Some(frames) => self.read_placement(id, frames, &mut readable)?,
            None => old.into_placement(),
        };
        // An earlier version wrote it: all of it is written anew.
        let is_old = snapshot.placement.is_none() && !placement.is_empty();
        if lost > 0 {
            placement.recount(&queue);
        }
        let damaged_before = queue.figures(Timestamp(0)).totals.damaged;
        self.uncounted |= lost > 0;
        let dirty = lost > 0 || is_old;
        self.queues.insert(id, Rebuilt { queue, placement, snapshot: readable, dirty, damaged_before });
        Ok(())
    }

    /// Reads a placement, or its copy, and takes note of what can be read.
    fn read_placement(
        &self,
        id: QueueId,
        placement: &PlacementFrames,
        readable: &mut Snapshot,
    ) -> Result<Placement, String> {
        let bytes = match self.read_head(id, &placement.frames) {
            Ok(bytes) => {
                readable.placement = Some(Box::new(placement.clone()));
                bytes
            }
            Err(_) if !placement.copy.is_empty() => {
                let frames = PlacementFrames { frames: placement.copy.clone(), copy: Vec::new() };
                readable.placement = Some(Box::new(frames));
                self.read_head(id, &placement.copy)?
            }
            Err(reason) => return Err(reason),
        };
        Placement::decode(&bytes).map_err(|error| error.to_string())
    }

    /// Has a queue come from an earlier checkpoint and the log since then. `false` if that cannot be read either.
    fn load_earlier(&mut self, id: QueueId, earlier: &Manifest) -> bool {
        if !is_machine(id) {
            self.expected.insert(id);
        }
        // It was created since then, and the log tells all of it.
        let Some(snapshot) = earlier.snapshot_of(id) else { return true };
        match self.load_snapshot(id, snapshot, Chunks::All) {
            Ok(()) => {
                tracing::error!(queue = %id, "an earlier snapshot is used; the log tells what came after it");
                if let Some(rebuilt) = self.queues.get_mut(&id) {
                    rebuilt.dirty = true;
                }
                true
            }
            Err(reason) => {
                tracing::error!(queue = %id, %reason, "the earlier snapshot cannot be used either");
                false
            }
        }
    }

    /// Takes note of a part of the log that is needed and not there.
    fn note_gap(&mut self, at: Position, fact: String) {
        self.log.note_missing(at, fact);
        self.uncounted = true;
    }

    /// A queue that had to come from the log and did not.
    fn missing_queue(&mut self) -> Option<QueueId> {
        let missing = self.expected.iter().copied().find(|id| !self.queues.contains_key(id));
        self.uncounted |= missing.is_some();
        missing
    }

    fn read_head(&self, id: QueueId, frames: &[SnapshotFrame]) -> Result<Vec<u8>, String> {
        let mut head = Vec::new();
        for frame in frames {
            head.extend_from_slice(&self.read_part(id, frame)?);
        }
        Ok(head)
    }

    /// Reads a chunk, and says where it can be read.
    fn read_chunk(&self, id: QueueId, chunk: Chunk) -> Result<(Chunk, Bytes), String> {
        match (self.read_part(id, &chunk.frame), chunk.copy) {
            (Ok(bytes), _) => Ok((chunk, bytes)),
            (Err(_), Some(frame)) => Ok((Chunk { frame, copy: None }, self.read_part(id, &frame)?)),
            (Err(reason), None) => Err(reason),
        }
    }

    fn read_part(&self, id: QueueId, frame: &SnapshotFrame) -> Result<Bytes, String> {
        let at = frame.at;
        let frame = self.log.read_frame(at).map_err(|error| error.to_string())?;
        let is_part = |entry: &&Entry| entry.queue == id && entry.kind == EntryKind::Snapshot;
        let part =
            frame.entries.iter().find(is_part).ok_or_else(|| format!("there is no snapshot at {at}"))?;
        Ok(part.payload.clone())
    }

    fn visit(&mut self, frame: &Frame) -> ControlFlow<()> {
        let counts = match self.counts(frame) {
            Ok(counts) => counts,
            Err(reason) => {
                self.error = Some(format!("the frame at {} cannot be read: {reason}", frame.at));
                return ControlFlow::Break(());
            }
        };
        for entry in frame.entries.iter().filter(|entry| counts && entry.queue != RAFT) {
            if let Err(reason) = self.apply(frame, entry) {
                self.error = Some(format!("the record at {} cannot be applied: {reason}", frame.at));
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Whether what a frame says has come to pass: it was not discarded, and if it is an entry of a group it is committed.
    fn counts(&self, frame: &Frame) -> Result<bool, String> {
        if self.stored.discarded.contains(frame.at) {
            return Ok(false);
        }
        Ok(match (head_of(frame)?, self.stored.committed) {
            (Some(GroupRecord::Entry(id, _)), Some(committed)) => id.index <= committed,
            (None, _) | (Some(_), Some(_)) => true,
            (Some(_), None) => {
                return Err("the data belongs to a node of a cluster; start it as one".into());
            }
        })
    }

    fn apply(&mut self, frame: &Frame, entry: &Entry) -> Result<(), String> {
        let at = frame.at;
        if is_machine(entry.queue) {
            return match entry.kind {
                EntryKind::Record => {
                    let time = self.machines.replay(entry.queue, at, &entry.payload)?;
                    self.time = self.time.max(time.unwrap_or_default());
                    Ok(())
                }
                EntryKind::Messages | EntryKind::Snapshot | EntryKind::Manifest => Ok(()),
            };
        }
        let record = match entry.kind {
            EntryKind::Snapshot | EntryKind::Manifest => return Ok(()),
            EntryKind::Messages => batch_of(frame, entry).map(Record::Messages),
            EntryKind::Record => Record::decode(&entry.payload),
        };
        let record = record.map_err(|error| error.to_string())?;
        let id = entry.queue;
        self.next_queue = self.next_queue.max(id.0 + 1);
        self.time = self.time.max(record.time().unwrap_or_default());
        match (&record, self.queues.get_mut(&id)) {
            (Record::Create { name, config, at }, None) => {
                let queue = Queue::new(id, name.clone(), config.clone(), *at);
                let rebuilt = Rebuilt {
                    queue,
                    placement: Placement::default(),
                    snapshot: Snapshot::default(),
                    dirty: true,
                    damaged_before: 0,
                };
                self.queues.insert(id, rebuilt);
                Ok(())
            }
            // It was deleted later, and the checkpoint knows.
            (_, None) if id.0 < self.known_queues && !self.expected.contains(&id) => Ok(()),
            // It was not durable, and its messages only passed through; or its creation was damaged, which the log has
            // reported.
            (_, None) => {
                tracing::debug!(queue = %id, at = %at, "a record of an unknown queue is passed over");
                match &record {
                    Record::Messages(batch) => {
                        *self.orphans.entry(id).or_default() += batch.items().len() as u64;
                    }
                    Record::Delete => {
                        self.orphans.remove(&id);
                        self.expected.remove(&id);
                    }
                    _ => {}
                }
                Ok(())
            }
            // It is in the snapshot.
            (_, Some(rebuilt)) if at < rebuilt.snapshot.at => Ok(()),
            (Record::Delete, Some(_)) => {
                self.queues.remove(&id);
                self.expected.remove(&id);
                Ok(())
            }
            (_, Some(rebuilt)) => {
                rebuilt.dirty = true;
                if let Record::Messages(batch) = &record
                    && batch.kind() == BatchKind::Relocated
                {
                    rebuilt.placement.replay_copies(&rebuilt.queue, batch, at);
                    return Ok(());
                }
                let gap = gap_before(&rebuilt.queue, &record);
                if gap > 0 {
                    *self.gaps.entry(id).or_default() += gap;
                }
                self.unread.apply(self.stored, rebuilt, at, &record)
            }
        }
    }

    /// Counts messages whose pushes were in a damaged part of the log, in the figures of their queues. Gives back how
    /// many there are of queues that are not known.
    fn count_lost(&mut self, recovered: &Recovered, replayed: &[Damage]) -> u64 {
        if recovered.damage.is_empty() && replayed.is_empty() && !self.uncounted {
            return 0;
        }
        let mut lost: BTreeMap<QueueId, u64> = BTreeMap::new();
        for damage in replayed {
            for (id, count) in damage.lost.iter().flatten() {
                // What a snapshot knows is counted when it is read.
                let in_snapshot = self.queues.get(id).is_some_and(|rebuilt| damage.at < rebuilt.snapshot.at);
                if !in_snapshot {
                    *lost.entry(*id).or_default() += count;
                }
            }
        }
        for (id, gap) in &self.gaps {
            let known = lost.entry(*id).or_default();
            *known = (*known).max(*gap);
        }
        // If checkpoints are lost, so are these queues. Otherwise some may not have been durable.
        let mut unknown = if self.uncounted { self.orphans.values().sum() } else { 0 };
        self.uncounted |= !self.orphans.is_empty();
        for (id, count) in &self.orphans {
            tracing::error!(queue = %id, count, "messages of a queue that is not known are passed over; its creation may be lost");
        }
        for (id, count) in &lost {
            match self.queues.get_mut(id) {
                Some(rebuilt) => {
                    tracing::error!(queue = %rebuilt.queue.name().in_full(), count, "messages are lost in a damaged part of the log");
                    rebuilt.queue.note_damaged(*count);
                    rebuilt.dirty = true;
                }
                None => {
                    unknown += count;
                    tracing::error!(queue = %id, count, "messages of a queue that is not known are lost in a damaged part of the log");
                }
            }
        }
        unknown
    }

    /// Drops messages that records named, that could not be read and that are still in their queues.
    fn drop_unread(&mut self) -> Result<(), String> {
        for rebuilt in self.queues.values_mut() {
            let count = self.unread.drop_from(self.stored, rebuilt)?;
            if count > 0 {
                tracing::error!(queue = %rebuilt.queue.name().in_full(), count, "messages are damaged on disk and are dropped");
            }
        }
        Ok(())
    }

    /// Drops messages that lie in segments that are not there. Those whose time has not come, or that wait behind
    /// another, are dropped when they are read.
    fn drop_lost_segments(&mut self) -> Result<(), String> {
        let present: BTreeSet<SegmentId> = self.log.segments().iter().map(|segment| segment.id).collect();
        for rebuilt in self.queues.values_mut() {
            let segments: BTreeSet<SegmentId> =
                rebuilt.placement.bytes_by_segment().map(|(segment, _)| segment).collect();
            for segment in segments.difference(&present) {
                let (dropped, later) = self.unread.drop_segment(self.stored, rebuilt, *segment)?;
                tracing::error!(queue = %rebuilt.queue.name().in_full(), %segment, dropped, later, "messages are lost with a segment of the log");
                self.lost_segment = Some(*segment);
                rebuilt.dirty = true;
            }
        }
        Ok(())
    }

    fn finish(mut self, unknown_damaged: u64) -> Restored {
        let damaged = self.queues.values().map(|rebuilt| {
            rebuilt.queue.figures(Timestamp(0)).totals.damaged.saturating_sub(rebuilt.damaged_before)
        });
        let damaged_messages = damaged.sum::<u64>() + unknown_damaged;
        for rebuilt in self.queues.values() {
            let (name, id) = (rebuilt.queue.name(), rebuilt.queue.id());
            let topology = &mut self.machines.topology.machine;
            if topology.recover_vhost(&name.vhost()) {
                tracing::error!(vhost = %name.vhost(), "a vhost is lost in a damaged part of the log; its queues are there");
            }
            topology.queue_added(name, id, Durability::Durable);
        }
        // Bindings to queues whose end was written and theirs was not. They end again after every start until a
        // checkpoint knows.
        let topology = &mut self.machines.topology.machine;
        let plan = topology.decide_recovered();
        topology.apply(&plan);
        let cells = self.queues.into_values().map(|mut rebuilt| {
            rebuilt.queue.finish_recovery();
            rebuilt.check_placement();
            let cell = QueueCell::new(rebuilt.queue);
            let mut state = cell.state.lock();
            state.snapshot = rebuilt.snapshot;
            state.dirty = rebuilt.dirty;
            state.placement = rebuilt.placement;
            for (segment, bytes) in state.placement.bytes_by_segment() {
                self.log.account(segment, bytes as i64);
            }
            drop(state);
            cell
        });
        Restored {
            cells: cells.collect(),
            machines: self.machines,
            next_queue: self.next_queue,
            time: self.time,
            damaged_messages,
            damaged_uncounted: false,
            users_lost: self.users_lost,
            lost_segment: self.lost_segment,
        }
    }
}

impl Rebuilt {
    /// Every durable message lies somewhere, and what is alive is counted.
    fn check_placement(&self) {
        if cfg!(debug_assertions) {
            let mut again = Placement::decode(&self.placement.encode()).expect("it reads back");
            again.recount(&self.queue);
            let counted = self.placement.messages_by_segment();
            assert_eq!(again.messages_by_segment(), counted, "of {}", self.queue.name());
        }
    }
}

/// How many messages are missing before those that this record pushes.
fn gap_before(queue: &Queue, record: &Record) -> u64 {
    let Record::Messages(batch) = record else { return 0 };
    let expected = queue.next_offset();
    match batch.items().first() {
        // Below the reserve, transient messages had these offsets.
        Some(first) if batch.kind() == BatchKind::Pushed && expected >= queue.reserved() => {
            first.offset.0.saturating_sub(expected.0)
        }
        Some(_) | None => 0,
    }
}
