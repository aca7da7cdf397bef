//! Taking a queue from one broker to another: its snapshot, which is the same on every node, and beside it the stored forms of
//! its durable messages, in batches.
//!
//! What is exported is the queue at one moment. It goes on meanwhile, and what leaves it stays readable until the export is
//! dropped. To install it, a broker appends the stored forms to its own log, where nothing counts that is of a queue nobody
//! knows. When all are there, two checkpoints are written that name the queue, so that no damaged frame can cost it; only then
//! may others find it. A crash before leaves nothing of it, a crash after it the whole queue.
//!
//! Everything here waits for the disk. Transient messages, consumers and rates stay where they were.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nexo_core::batch;
use nexo_core::message::Durability;
use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{MessageEntry, Queue, QueueSnapshot};
use nexo_core::record::Record;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{Offset, Priority, QueueId, QueueName, Timestamp};
use thiserror::Error;

use crate::broker::Broker;
use crate::error::QueueError;
use crate::fetch::Places;
use crate::journal::{Encoded, ProposeError};
use crate::placement::Placement;
use crate::queue_cell::QueueCell;
use crate::shared::{Shared, not_found};

/// Offsets among which the next messages are looked for.
const PART_OFFSETS: u64 = 4096;
/// Messages read at a time. How large they are only reading tells.
const READ_MESSAGES: usize = 64;
/// A batch ends with the message that makes it this long.
const BATCH_BYTES: usize = 1024 * 1024;
/// Messages in a batch.
const BATCH_MESSAGES: usize = 1000;
/// By how much the clock of the other broker may be ahead. So long is waited, since no record may be earlier than one before.
const AHEAD_MAX: Duration = Duration::from_secs(5);

/// A durable message as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBody {
    /// Its place in the queue.
    pub offset: Offset,
    /// When it was pushed.
    pub enqueued_at: Timestamp,
    /// Its stored form.
    pub payload: Bytes,
}

/// A queue that could not be installed. Nothing is left of it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InstallError {
    /// The name is taken.
    #[error("queue '{name}' exists already, or is being installed")]
    Exists {
        /// That of the queue that was to be installed.
        name: QueueName,
    },
    /// The bytes make no sense to this build.
    #[error("the queue cannot be read: {reason}")]
    Unreadable {
        /// What is wrong.
        reason: String,
    },
    /// A message that the snapshot does not name, or that came before.
    #[error("message {offset} is not expected; messages come by rising offset, each once")]
    Unexpected {
        /// Its offset.
        offset: Offset,
    },
    /// Messages have not come.
    #[error("{missing} messages of the queue have not come")]
    Incomplete {
        /// Messages that have not come.
        missing: u64,
    },
    /// The other broker's clock is too far ahead.
    #[error("the queue is {ahead_ms} ms ahead of this broker's clock; set the clocks right")]
    Clock {
        /// By how much.
        ahead_ms: u64,
    },
    /// The broker cannot take it now.
    #[error("{reason}")]
    Unavailable {
        /// What the broker waits for, or what has failed.
        reason: String,
    },
}

impl From<ProposeError> for InstallError {
    fn from(error: ProposeError) -> Self {
        Self::Unavailable { reason: error.to_string() }
    }
}

/// A queue at one moment, to be taken to another broker.
#[derive(Debug)]
pub struct QueueExport {
    shared: Arc<Shared>,
    id: QueueId,
    snapshot: QueueSnapshot,
    time: Timestamp,
    /// The queue and its placement as they were then.
    queue: Queue,
    placement: Placement,
    /// From where on messages have not been looked for.
    next: Offset,
    /// Found, and not read yet.
    found: VecDeque<(Priority, Offset)>,
    /// Read, and not given out yet.
    read: VecDeque<StoredBody>,
}

/// A queue as it was at one moment, and where its messages lay.
pub(crate) struct FrozenQueue {
    pub(crate) id: QueueId,
    name: QueueName,
    pub(crate) snapshot: QueueSnapshot,
    placement: Placement,
}

impl FrozenQueue {
    /// A queue as it is now, if it survives a restart.
    ///
    /// # Errors
    /// If somebody has its lock for longer than this. While nothing is proposed he may be waiting for the end of that.
    pub(crate) fn of(cell: &QueueCell, patience: Duration) -> Result<Option<Self>, QueueError> {
        let Some(state) = cell.state.try_lock_for(patience) else {
            let reason = format!("queue '{}' is busy", cell.name.in_full());
            return Err(QueueError::Unavailable { reason });
        };
        let is_there = !state.deleted && cell.is_durable();
        Ok(is_there.then(|| Self {
            id: cell.id,
            name: cell.name.clone(),
            snapshot: state.queue.whole_snapshot(),
            placement: state.placement.copy(),
        }))
    }

    /// Its messages. No segment may be given up meanwhile.
    pub(crate) fn export(self, shared: &Arc<Shared>) -> Result<QueueExport, QueueError> {
        let queue = Queue::restore_as(self.id, &self.snapshot)
            .map_err(|error| QueueError::Unavailable { reason: format!("queue '{}': {error}", self.name) })?;
        shared.maintenance.begin_reading();
        Ok(QueueExport {
            shared: Arc::clone(shared),
            id: self.id,
            snapshot: self.snapshot,
            time: shared.clock.now(),
            queue,
            placement: self.placement,
            next: Offset(0),
            found: VecDeque::new(),
            read: VecDeque::new(),
        })
    }
}

/// A queue that comes from another broker.
#[derive(Debug)]
pub struct QueueInstall {
    shared: Arc<Shared>,
    time: Timestamp,
    /// Until it has become a queue of this broker.
    queue: Option<Queue>,
    name: QueueName,
    placement: Placement,
    next: Offset,
    missing: u64,
}

impl Broker {
    /// Begins to export a durable queue. Its lock is held while its snapshot is encoded.
    ///
    /// # Errors
    /// If there is no such queue, or it does not survive a restart.
    pub fn export_queue(&self, name: &QueueName) -> Result<QueueExport, QueueError> {
        let cell = self.shared.catalog.get(name).ok_or_else(|| not_found(name))?;
        if !cell.is_durable() {
            let reason = format!("queue '{name}' does not survive a restart, and cannot be taken elsewhere");
            return Err(QueueError::Unavailable { reason });
        }
        let unreadable = |reason: String| QueueError::Unavailable { reason };
        // Before the look: what is alive then stays readable.
        self.shared.maintenance.begin_reading();
        let mut export = QueueExport {
            shared: Arc::clone(&self.shared),
            id: cell.id,
            snapshot: QueueSnapshot { head: Bytes::new(), chunks: Vec::new() },
            time: Timestamp(0),
            queue: Queue::new(cell.id, name.clone(), nexo_core::config::QueueConfig::default(), Timestamp(0)),
            placement: Placement::default(),
            next: Offset(0),
            found: VecDeque::new(),
            read: VecDeque::new(),
        };
        export.placement = {
            let state = cell.state.lock();
            state.refuse_if_gone(name)?;
            export.snapshot = state.queue.whole_snapshot();
            export.time = self.shared.clock.now();
            state.placement.copy()
        };
        let queue = Queue::restore_as(cell.id, &export.snapshot);
        export.queue = queue.map_err(|error| unreadable(error.to_string()))?;
        Ok(export)
    }

    /// Begins to install a queue, whose snapshot and time an export gave.
    ///
    /// # Errors
    /// If there is a queue of this name, or the snapshot cannot be read.
    pub fn install_queue(
        &self,
        snapshot: &QueueSnapshot,
        time: Timestamp,
    ) -> Result<QueueInstall, InstallError> {
        let unavailable = |error: QueueError| InstallError::Unavailable { reason: error.to_string() };
        self.shared.refuse_pushes().map_err(unavailable)?;
        let unreadable = |reason: String| InstallError::Unreadable { reason };
        let id = self.shared.catalog.new_queue_id();
        let queue = Queue::restore_as(id, snapshot).map_err(|error| unreadable(error.to_string()))?;
        let mut missing = 0;
        queue.durable_messages(|_, messages, _| missing += messages);
        let name = queue.name().clone();
        {
            let _changing = self.shared.catalog.change();
            self.shared.refuse_if_rebuilding().map_err(unavailable)?;
            self.shared.check_vhost_of(&name).map_err(unavailable)?;
            let is_free = self.shared.catalog.get(&name).is_none();
            if !is_free || !self.shared.catalog.keep_name(&name) {
                return Err(InstallError::Exists { name });
            }
        }
        // What is appended is counted a moment later, under no lock that a checkpoint takes.
        self.shared.maintenance.begin_reading();
        let (shared, placement) = (Arc::clone(&self.shared), Placement::default());
        Ok(QueueInstall { shared, time, queue: Some(queue), name, placement, next: Offset(0), missing })
    }
}

impl QueueExport {
    /// The durable state of the queue.
    #[must_use]
    pub const fn snapshot(&self) -> &QueueSnapshot {
        &self.snapshot
    }

    /// When it was taken.
    #[must_use]
    pub const fn time(&self) -> Timestamp {
        self.time
    }

    /// The next messages, by rising offset; none when all have been given out.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn next_batch(&mut self) -> Result<Vec<StoredBody>, QueueError> {
        let mut batch: Vec<StoredBody> = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES && batch.len() < BATCH_MESSAGES {
            if self.read.is_empty() {
                self.read_more()?;
            }
            let Some(message) = self.read.pop_front() else { break };
            bytes += message.payload.len();
            batch.push(message);
        }
        Ok(batch)
    }

    fn read_more(&mut self) -> Result<(), QueueError> {
        while self.found.is_empty() && self.next < self.queue.next_offset() {
            let end = Offset(self.next.0 + PART_OFFSETS);
            let mut part = self.queue.loose_in(self.next, end);
            part.extend(self.queue.in_lanes(self.next, end));
            part.sort_unstable_by_key(|(_, offset)| *offset);
            self.found.extend(part);
            self.next = end;
        }
        let count = self.found.len().min(READ_MESSAGES);
        let wanted: Vec<(Priority, Offset)> = self.found.drain(..count).collect();
        let mut places = Places::new();
        for (lane, offset) in &wanted {
            places.entry(self.placement.segment_of(*offset)).or_default().push((*lane, *offset));
        }
        let mut found = self.shared.read_places(self.id, &places).found;
        for (_, offset) in wanted {
            let Some((enqueued_at, payload)) = found.remove(&offset) else {
                let reason = format!("message {offset} of queue '{}' cannot be read", self.queue.name());
                return Err(QueueError::Unavailable { reason });
            };
            self.read.push_back(StoredBody { offset, enqueued_at, payload });
        }
        Ok(())
    }
}

impl Drop for QueueExport {
    fn drop(&mut self) {
        self.shared.maintenance.end_reading();
    }
}

impl QueueInstall {
    /// Appends messages to the log of this broker. They come by rising offset.
    ///
    /// # Errors
    /// If one is not of the queue, cannot be read, or the log does not take it. Then the queue cannot be installed.
    pub fn add(&mut self, messages: &[StoredBody]) -> Result<(), InstallError> {
        let Some(queue) = &self.queue else { return Ok(()) };
        let stored: Vec<(Offset, Timestamp, Bytes)> = messages
            .iter()
            .map(|message| (message.offset, message.enqueued_at, message.payload.clone()))
            .collect();
        for (offset, ..) in &stored {
            if *offset < self.next {
                return Err(InstallError::Unexpected { offset: *offset });
            }
            self.next = offset.next();
        }
        for batch in batch::relocate(&stored) {
            let mut lanes: BTreeMap<Priority, Vec<Offset>> = BTreeMap::new();
            let mut entries: Vec<MessageEntry> = Vec::with_capacity(batch.items().len());
            for item in batch.items() {
                let entry = MessageEntry::from_batch(&batch, item)
                    .map_err(|error| InstallError::Unreadable { reason: error.to_string() })?;
                lanes.entry(entry.priority).or_default().push(entry.offset);
                entries.push(entry);
            }
            for (lane, offsets) in lanes {
                let asked: OffsetSet = offsets.iter().copied().collect();
                let known = queue.durable_among(lane, &asked);
                if let Some(offset) = offsets.into_iter().find(|offset| !known.contains(*offset)) {
                    return Err(InstallError::Unexpected { offset });
                }
            }
            let entry = Encoded::new(queue.id(), &Record::Messages(batch));
            let written = self.shared.journal.write_local(
                &[entry.as_entry()],
                Urgency::Lazy,
                Claim::Normal,
                Patience::Wait,
            )?;
            for entry in &entries {
                let log = &self.shared.log;
                self.placement.note_appended(entry, written.at, |segment, bytes| log.account(segment, bytes));
            }
            self.missing -= entries.len() as u64;
        }
        Ok(())
    }

    /// Makes it a queue of this broker. It is safe when this returns.
    ///
    /// # Errors
    /// If messages are missing, or the checkpoints cannot be written; then nothing is left of it.
    pub fn finish(mut self) -> Result<(), InstallError> {
        if self.missing > 0 {
            return Err(InstallError::Incomplete { missing: self.missing });
        }
        self.wait_for_time()?;
        let Some(mut queue) = self.queue.take() else { return Ok(()) };
        queue.finish_recovery();
        let id = queue.id();
        let cell = Arc::new(QueueCell::new(queue));
        {
            let mut state = cell.state.lock();
            state.placement = std::mem::take(&mut self.placement);
            state.last_used = self.shared.clock.now();
        }
        let shared = Arc::clone(&self.shared);
        let installed = {
            let _one_at_a_time = shared.maintenance.begin_checkpoint();
            let written =
                shared.checkpoint_with(Some(&cell)).and_then(|()| shared.checkpoint_with(Some(&cell)));
            written.map_err(InstallError::from).and_then(|()| {
                let _changing = shared.catalog.change();
                let refused = |error: QueueError| InstallError::Unavailable { reason: error.to_string() };
                shared.refuse_if_rebuilding().map_err(refused)?;
                shared.check_vhost_of(&self.name).map_err(refused)?;
                shared.catalog.insert(&cell);
                shared
                    .catalog
                    .exchanges
                    .change(|topology| topology.queue_added(&self.name, id, Durability::Durable));
                Ok(())
            })
        };
        if let Err(error) = installed {
            self.placement = std::mem::take(&mut cell.state.lock().placement);
            self.undo(id);
            return Err(error);
        }
        tracing::info!(queue = %self.name.in_full(), "queue installed from another broker");
        // Policies are this broker's.
        shared.apply_policies_to(&cell);
        // As at a start: what belonged to connections comes back, and deadlines are set.
        shared.end_sessions(&cell);
        Ok(())
    }

    /// A checkpoint may know of the queue already, and another may get its name.
    fn undo(&self, id: QueueId) {
        let delete = Encoded::new(id, &Record::Delete);
        let journal = &self.shared.journal;
        let written =
            journal.write_local(&[delete.as_entry()], Urgency::Synced, Claim::Reserved, Patience::Wait);
        let safe = written.map_err(|error| error.to_string()).and_then(|written| {
            journal.wait(written.written).wait_blocking().map_err(|error| error.to_string())
        });
        if let Err(error) = safe {
            tracing::error!(queue = %self.name.in_full(), error, "a queue that was not installed may come back after a crash");
        }
    }

    /// No record of this queue may be earlier than those before it.
    fn wait_for_time(&self) -> Result<(), InstallError> {
        let ahead = |now: Timestamp| self.time.since(now);
        let ahead_ms = ahead(self.shared.clock.now()).0;
        if ahead_ms > u64::try_from(AHEAD_MAX.as_millis()).unwrap_or(u64::MAX) {
            return Err(InstallError::Clock { ahead_ms });
        }
        while self.shared.clock.now() < self.time {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for QueueInstall {
    /// What was appended for nothing is not alive.
    fn drop(&mut self) {
        for (segment, bytes) in self.placement.bytes_by_segment() {
            self.shared.log.account(segment, -(bytes as i64));
        }
        self.shared.maintenance.end_reading();
        self.shared.catalog.release_name(&self.name);
    }
}
