//! Bringing a broker back from its log: snapshots first, then the records that came after them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use bytes::Bytes;
use nexo_core::batch::MessageBatch;
use nexo_core::message::Durability;
use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{NeedsPage, Queue};
use nexo_core::record::{Leave, Pick, Record};
use nexo_core::topology::{Topology, TopologyRecord};
use nexo_log::{Entry, EntryKind, Frame, Log, Recovered};
use nexo_types::{Position, QueueId, Timestamp};

use crate::error::OpenError;
use crate::exchanges::TOPOLOGY;
use crate::manifest::{Manifest, Snapshot, SnapshotForm, SnapshotFrame};
use crate::paging;
use crate::slot::Slot;

/// What was in the log.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) slots: Vec<Slot>,
    pub(crate) topology: Topology,
    pub(crate) topology_snapshot: Snapshot,
    pub(crate) next_queue: u64,
}

/// A queue that is being rebuilt.
struct Rebuilt {
    queue: Queue,
    snapshot: Snapshot,
    /// Records have been applied since the snapshot.
    dirty: bool,
}

/// Rebuilds every queue.
///
/// # Errors
/// If the log's content makes no sense. Damage that the log found is reported and passed over.
pub(crate) fn restore(log: &Log, recovered: &Recovered, path: &Path) -> Result<Restored, OpenError> {
    let unreadable = |reason: String| OpenError::Unreadable { path: path.to_owned(), reason };
    for damage in &recovered.damage {
        let copy = damage.copy.as_deref().unwrap_or("nowhere");
        tracing::error!(at = %damage.at, end = damage.end, fact = %damage.fact, copy, "the log is damaged");
    }
    let manifest = match &recovered.last_manifest {
        None => Manifest::default(),
        Some((at, payload)) => Manifest::decode(payload)
            .ok_or_else(|| unreadable(format!("the checkpoint at {at} is of another version")))?,
    };
    let mut rebuild = Rebuild {
        log,
        queues: BTreeMap::new(),
        topology: Topology::new(),
        topology_snapshot: Snapshot::default(),
        known_queues: manifest.next_queue,
        next_queue: manifest.next_queue.max(1),
        error: None,
    };
    for (id, snapshot) in manifest.queues {
        rebuild.load_snapshot(id, snapshot).map_err(&unreadable)?;
    }
    let damage = log
        .replay(manifest.replay_from, &mut |frame| rebuild.visit(&frame))
        .map_err(|error| unreadable(error.to_string()))?;
    for damage in damage.iter().filter(|damage| !recovered.damage.contains(damage)) {
        tracing::error!(at = %damage.at, end = damage.end, fact = %damage.fact, "the log is damaged");
    }
    if let Some(reason) = rebuild.error {
        return Err(unreadable(reason));
    }
    Ok(rebuild.finish())
}

struct Rebuild<'a> {
    log: &'a Log,
    queues: BTreeMap<QueueId, Rebuilt>,
    topology: Topology,
    topology_snapshot: Snapshot,
    /// Ids below this had been given out when the checkpoint was written.
    known_queues: u64,
    next_queue: u64,
    error: Option<String>,
}

impl Rebuild<'_> {
    fn load_snapshot(&mut self, id: QueueId, snapshot: Snapshot) -> Result<(), String> {
        let mut head = Vec::new();
        for frame in &snapshot.head {
            head.extend_from_slice(&self.read_part(id, frame)?);
        }
        if id == TOPOLOGY {
            self.topology = Topology::restore(&head).map_err(|error| error.to_string())?;
            self.topology_snapshot = snapshot;
            return Ok(());
        }
        let queue = match snapshot.form {
            SnapshotForm::Whole => Queue::restore_v1(&head),
            SnapshotForm::Chunks => {
                let chunks = snapshot.chunks.values().map(|frame| self.read_part(id, frame));
                let chunks: Vec<Bytes> = chunks.collect::<Result<_, _>>()?;
                Queue::restore(&head, chunks.iter().map(|chunk| &chunk[..]))
            }
        };
        let queue = queue.map_err(|error| error.to_string())?;
        // One in an older form is written anew.
        let dirty = snapshot.form != SnapshotForm::Chunks;
        self.queues.insert(id, Rebuilt { queue, snapshot, dirty });
        Ok(())
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
        for entry in &frame.entries {
            if let Err(reason) = self.apply(frame.at, entry) {
                self.error = Some(format!("the record at {} cannot be applied: {reason}", frame.at));
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn apply(&mut self, at: Position, entry: &Entry) -> Result<(), String> {
        if entry.queue == TOPOLOGY {
            return self.apply_topology(at, entry);
        }
        let record = match entry.kind {
            EntryKind::Snapshot | EntryKind::Manifest => return Ok(()),
            EntryKind::Messages => MessageBatch::decode(entry.payload.clone()).map(Record::Messages),
            EntryKind::Record => Record::decode(&entry.payload),
        };
        let record = record.map_err(|error| error.to_string())?;
        let id = entry.queue;
        self.next_queue = self.next_queue.max(id.0 + 1);
        match (&record, self.queues.get_mut(&id)) {
            (Record::Create { name, config, at }, None) => {
                let queue = Queue::new(id, name.clone(), config.clone(), *at);
                self.queues.insert(id, Rebuilt { queue, snapshot: Snapshot::default(), dirty: true });
                Ok(())
            }
            // It was deleted later, and the checkpoint knows.
            (_, None) if id.0 < self.known_queues => Ok(()),
            // It was not durable, and its messages only passed through; or its creation was damaged, which the log has
            // reported.
            (_, None) => {
                tracing::debug!(queue = %id, at = %at, "a record of an unknown queue is passed over");
                Ok(())
            }
            // It is in the snapshot.
            (_, Some(rebuilt)) if at < rebuilt.snapshot.at => Ok(()),
            (Record::Delete, Some(_)) => {
                self.queues.remove(&id);
                Ok(())
            }
            (_, Some(rebuilt)) => {
                rebuilt.dirty = true;
                apply_paging(self.log, &mut rebuilt.queue, at, &record)
            }
        }
    }

    fn apply_topology(&mut self, at: Position, entry: &Entry) -> Result<(), String> {
        if entry.kind != EntryKind::Record || at < self.topology_snapshot.at {
            return Ok(());
        }
        let record = TopologyRecord::decode(&entry.payload).map_err(|error| error.to_string())?;
        self.topology.replay(&record);
        Ok(())
    }

    fn finish(mut self) -> Restored {
        for rebuilt in self.queues.values() {
            let (name, id) = (rebuilt.queue.name(), rebuilt.queue.id());
            self.topology.queue_added(name, id, Durability::Durable);
        }
        // Bindings to queues whose end was written and theirs was not. They end again after every start until a
        // checkpoint knows.
        let plan = self.topology.decide_recovered();
        self.topology.apply(&plan);
        let slots = self.queues.into_values().map(|mut rebuilt| {
            rebuilt.queue.finish_recovery();
            let slot = Slot::new(rebuilt.queue);
            let mut state = slot.state.lock();
            state.snapshot = rebuilt.snapshot;
            state.dirty = rebuilt.dirty;
            state.queue.bytes_by_segment(|segment, bytes| self.log.account(segment, bytes as i64));
            drop(state);
            slot
        });
        Restored {
            slots: slots.collect(),
            topology: self.topology,
            topology_snapshot: self.topology_snapshot,
            next_queue: self.next_queue,
        }
    }
}

/// Applies a record, reading messages into memory where it needs them.
fn apply_paging(log: &Log, queue: &mut Queue, at: Position, record: &Record) -> Result<(), String> {
    while let Err(NeedsPage(page)) = queue.apply(at, record) {
        let entries = paging::read_page(log, queue.id(), &page).map_err(|error| error.to_string())?;
        let lost: OffsetSet =
            entries.iter().filter(|entry| entry.payload.is_none()).map(|entry| entry.offset).collect();
        if !queue.page_in(&page, entries, Timestamp(0)) {
            return Err(format!("messages {:?} are not where they should be", page.offsets.first()));
        }
        if !lost.is_empty() {
            tracing::error!(queue = %queue.name(), count = lost.len(), "messages are damaged on disk and are dropped");
            let picks = vec![Pick { lane: page.lane, offsets: lost }];
            let drop = Record::Drop { picks, why: Leave::Damaged, at: Timestamp(0) };
            queue.apply(at, &drop).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
