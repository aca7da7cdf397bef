//! A node that is too far behind gets a whole state, and makes it its own.
//!
//! What comes is appended to the log of this node as its own, and counts for nothing: a crash leaves the state that was there
//! before. When all is there the leader gives its word for it. Then the new state takes the place of the old one in memory, and a
//! checkpoint is written that names it. From then on it is what a start finds.

use std::sync::Arc;

use bytes::Bytes;
use nexo_cluster::Snapshot;
use nexo_core::batch;
use nexo_core::queue::{ChunkId, MessageEntry, Queue, QueueSnapshot};
use nexo_core::record::Record;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{LogIndex, Offset, QueueId, Term, Timestamp};

use super::handle::NodeStream;
use super::places::Places;
use super::state::{Memory, State};
use super::state_stream::{Part, StateHead, receive, send};
use crate::broker::Broker;
use crate::journal::Encoded;
use crate::machines::ReplayedMachines;
use crate::placement::Placement;
use crate::queue_cell::QueueCell;
use crate::shared::Shared;
use crate::transplant::StoredBody;

/// A state that comes is synced in pieces of this size. One large sync would hold up all small ones of a disk that others use as
/// well.
const SYNC_BYTES: u64 = 1024 * 1024;

/// A state that has come whole, and waits for the leader's word.
#[derive(Debug)]
pub(crate) struct Staged {
    head: StateHead,
    /// This node's term when it had come.
    term: Term,
    machines: ReplayedMachines,
    queues: Vec<(Queue, Placement)>,
    shared: std::sync::Weak<Shared>,
}

impl Staged {
    /// Whether the leader's word is for this one.
    pub(super) fn is_for(&self, snapshot: &Snapshot) -> bool {
        snapshot.last == self.head.last && *snapshot.data == self.head.token.to_le_bytes()
    }

    /// Whether no word comes for it any more.
    pub(super) fn is_stale(&self, applied: LogIndex, term: Term) -> bool {
        applied >= self.head.last.index || term != self.term
    }
}

impl Drop for Staged {
    /// What was appended for nothing is not alive.
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        for (_, placement) in &self.queues {
            for (segment, bytes) in placement.bytes_by_segment() {
                shared.log.account(segment, -(bytes as i64));
            }
        }
    }
}

/// What is being received.
struct Receiving {
    staged: Staged,
    /// The machine or queue whose chunks come.
    open: Option<Open>,
}

struct Open {
    id: QueueId,
    is_queue: bool,
    head: Bytes,
    chunks: Vec<(ChunkId, Bytes)>,
}

impl Broker {
    /// Takes a whole state from the leader, over a stream that the leader has opened.
    ///
    /// # Errors
    /// If it does not come whole, or this node has no use for it. Nothing has changed then.
    pub async fn receive_state(&self, mut stream: Box<dyn NodeStream>) -> Result<(), String> {
        let shared = Arc::clone(&self.shared);
        let runtime = tokio::runtime::Handle::current();
        let received = tokio::task::spawn_blocking(move || {
            let outcome = shared.receive_whole(|| runtime.block_on(receive(&mut *stream)));
            let answer = match &outcome {
                Ok(()) => Part::Staged,
                Err(reason) => Part::Failed(reason.clone()),
            };
            // Who does not hear it asks again.
            let _ = runtime.block_on(send(&mut *stream, &answer));
            outcome
        });
        received.await.map_err(|error| error.to_string())?
    }
}

impl Shared {
    fn receive_whole(self: &Arc<Self>, mut next: impl FnMut() -> Result<Part, String>) -> Result<(), String> {
        let replica = self.replica.as_ref().ok_or("this node is not part of a cluster")?;
        // One at a time.
        let before = {
            let mut state = replica.state.lock();
            state.refuse_state()?;
            state.staged.take()
        };
        drop(before);
        let Part::Begin(head) = next()? else { return Err("the state has no beginning".into()) };
        tracing::info!(last = %head.last.index, "a whole state comes from the leader");
        let (machines, queues) = (ReplayedMachines::new(), Vec::new());
        let staged = Staged { head, term: Term(0), machines, queues, shared: Arc::downgrade(self) };
        let mut receiving = Receiving { staged, open: None };
        let (mut bytes, mut synced_bytes) = (0, 0);
        loop {
            let part = next()?;
            bytes += part.state_bytes();
            match part {
                Part::Machine(id, head) => receiving.begin(id, false, head)?,
                Part::Queue(id, head) => receiving.begin(id, true, head)?,
                Part::Chunk(id, chunk) => {
                    receiving.open.as_mut().ok_or("a chunk of nothing")?.chunks.push((id, chunk));
                }
                Part::Bodies(bodies) => {
                    receiving.close()?;
                    let (queue, placement) = receiving.staged.queues.last_mut().ok_or("bodies of nothing")?;
                    self.append_bodies(queue, placement, &bodies)?;
                    if bytes - synced_bytes >= SYNC_BYTES {
                        self.log.sync_blocking().map_err(|error| error.to_string())?;
                        synced_bytes = bytes;
                    }
                }
                Part::End => break,
                Part::Begin(_) | Part::Staged | Part::Failed(_) => {
                    return Err("the state makes no sense".into());
                }
            }
        }
        receiving.close()?;
        for (queue, placement) in &receiving.staged.queues {
            let mut wanted = 0;
            queue.durable_messages(|_, messages, _| wanted += messages);
            let have: u64 = placement.messages_by_segment().values().sum();
            if wanted != have {
                return Err(format!("{have} of {wanted} messages of queue '{}' have come", queue.name()));
            }
        }
        self.log.sync_blocking().map_err(|error| error.to_string())?;
        let mut staged = receiving.staged;
        let before = {
            let mut state = replica.state.lock();
            state.refuse_state()?;
            staged.term = state.group.term();
            state.snapshot_bytes_received += bytes;
            state.staged.replace(staged)
        };
        drop(before);
        Ok(())
    }

    /// Appends messages to the log of this node.
    fn append_bodies(
        &self,
        queue: &Queue,
        placement: &mut Placement,
        bodies: &[StoredBody],
    ) -> Result<(), String> {
        let stored: Vec<(Offset, Timestamp, Bytes)> =
            bodies.iter().map(|body| (body.offset, body.enqueued_at, body.payload.clone())).collect();
        for batch in batch::relocate(&stored) {
            let entries: Result<Vec<MessageEntry>, _> =
                batch.items().iter().map(|item| MessageEntry::from_batch(&batch, item)).collect();
            let entries = entries.map_err(|error| error.to_string())?;
            let record = Encoded::new(queue.id(), &Record::Messages(batch));
            let written = self
                .journal
                .write_local(&[record.as_entry()], Urgency::Lazy, Claim::Normal, Patience::Wait)
                .map_err(|error| error.to_string())?;
            for entry in &entries {
                placement.note_appended(entry, written.at, |segment, bytes| self.log.account(segment, bytes));
            }
        }
        Ok(())
    }

    /// Has the state that came take the place of the one there was. `false` if it has to be tried again.
    pub(crate) fn install_staged(self: &Arc<Self>) -> bool {
        let Some(replica) = self.replica.clone() else { return true };
        let (staged, number) = {
            let mut state = replica.state.lock();
            let Some(installing) = &mut state.installing else { return true };
            (installing.staged.take(), installing.number)
        };
        if let Some(mut staged) = staged {
            self.throw_away();
            let queues = std::mem::take(&mut staged.queues);
            let cells: Vec<Arc<QueueCell>> = queues.into_iter().map(into_cell).collect();
            let head = staged.head.clone();
            self.options.codecs.read_arguments(&cells);
            self.begin_unused_times(&cells);
            let mut machines = std::mem::replace(&mut staged.machines, ReplayedMachines::new());
            for cell in &cells {
                machines.topology.machine.queue_added(
                    &cell.name,
                    cell.id,
                    nexo_core::message::Durability::Durable,
                );
            }
            self.replace_followed(machines, head.last.index);
            self.catalog.replace(&cells, head.next_queue);
            self.catalog.begin_rebuild();
            self.clock.raise(head.time);
            let mut state = replica.state.lock();
            // What was never committed must not be found beside what takes its place.
            let committed = state.written_commit();
            let stale: Vec<_> = state
                .places
                .iter()
                .filter(|place| place.id.index > committed)
                .map(|place| place.at)
                .collect();
            replica.discarded.add(stale);
            state.places = Places::behind(head.last);
            state.members = vec![(head.last.index, head.members)];
            state.loaded = (head.last.index, self.log.next_position());
        }
        if let Err(error) = self.checkpoint() {
            tracing::warn!(%error, "the state that came cannot be written down yet; it is tried again");
            return false;
        }
        let mut state = replica.state.lock();
        state.installing = None;
        state.snapshots_received += 1;
        state.group.stored(number);
        replica.settle(&mut state);
        replica.write_more(&mut state);
        drop(state);
        replica.waker.wake();
        tracing::info!("the whole state has taken the place of what was here");
        true
    }
}

impl State {
    /// A node that serves, or is about to take over another state, has no use for one.
    fn refuse_state(&self) -> Result<(), String> {
        match (self.memory, &self.installing) {
            (Memory::Following, None) => Ok(()),
            (Memory::Following, Some(_)) => Err("this node is taking over another state".into()),
            (Memory::Serving(_) | Memory::Promoted(_) | Memory::Deposed, _) => {
                Err("this node has a state of its own".into())
            }
        }
    }
}

fn into_cell((mut queue, placement): (Queue, Placement)) -> Arc<QueueCell> {
    queue.finish_recovery();
    let cell = QueueCell::new(queue);
    {
        let mut state = cell.state.lock();
        state.placement = placement;
        state.dirty = true;
    }
    Arc::new(cell)
}

impl Receiving {
    fn begin(&mut self, id: QueueId, is_queue: bool, head: Bytes) -> Result<(), String> {
        self.close()?;
        self.open = Some(Open { id, is_queue, head, chunks: Vec::new() });
        Ok(())
    }

    /// All chunks of a machine or queue have come.
    fn close(&mut self) -> Result<(), String> {
        let Some(Open { id, is_queue, head, chunks }) = self.open.take() else { return Ok(()) };
        let (ids, chunks): (Vec<ChunkId>, Vec<Bytes>) = chunks.into_iter().unzip();
        if is_queue {
            let queue =
                Queue::restore_as(id, &QueueSnapshot { head, chunks }).map_err(|error| error.to_string())?;
            self.staged.queues.push((queue, Placement::default()));
            return Ok(());
        }
        self.staged.machines.load_whole(id, &head, &chunks, &ids)
    }
}
