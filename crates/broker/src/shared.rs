//! The parts of a broker, and the way every change to a queue takes: lock it, decide, write down and apply (`commit.rs`),
//! see what follows from that (`follow_up.rs`), unlock, hand out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use nexo_core::shared_messages::SharedMemory;
use nexo_log::{Log, Urgency};
use nexo_types::{Protocol, QueueName, Timestamp};

use crate::access_cell::AccessCell;
use crate::alarms::AlarmWatch;
use crate::buffers::ConnectionBuffers;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::connections::Connections;
use crate::disk_room::DiskRoom;
use crate::dispatch::Dispatch;
use crate::error::QueueError;
use crate::events::Events;
use crate::firehose::Firehose;
use crate::followed::Followed;
use crate::intake::Intake;
use crate::jobs::JobsCell;
use crate::journal::Journal;
use crate::maintenance::Maintenance;
use crate::memory_high::MemoryWatermark;
use crate::nodes::NodesCell;
use crate::open_connections::OpenConnections;
use crate::options::BrokerOptions;
use crate::policies::PolicyCell;
use crate::queue_cell::{CellState, QueueCell};
use crate::replication::Replica;
use crate::schedules::ScheduleCell;
use crate::threads::Threads;
use crate::timer::Timer;
use crate::traffic::{AllTraffic, Traffic};
use crate::uncounted::UncountedMemory;
use crate::unreadable::Unreadable;
use crate::vhosts::VhostConnections;
use crate::workers::Workers;

/// What a queue takes that has no messages and one binding, in the catalog and among the exchanges too; as measured.
const QUEUE_BYTES: u64 = 1920;

/// How often is looked whether the log's next segment is ready, when everything is written and it is not.
const ROOM_RECHECK: Duration = Duration::from_millis(1);

/// Everything that is one of its kind in a broker.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: BrokerOptions,
    pub(crate) room: DiskRoom,
    pub(crate) memory: MemoryWatermark,
    pub(crate) alarm_watch: AlarmWatch,
    pub(crate) intake: Intake,
    pub(crate) connections: Arc<Connections>,
    pub(crate) open_connections: Arc<OpenConnections>,
    pub(crate) events: Arc<Events>,
    pub(crate) firehose: Arc<Firehose>,
    pub(crate) buffers: Arc<ConnectionBuffers>,
    pub(crate) uncounted: UncountedMemory,
    pub(crate) dispatch: Dispatch,
    /// Where changes are written down.
    pub(crate) journal: Box<dyn Journal>,
    /// What is behind it, if the node is part of a cluster.
    pub(crate) replica: Option<Arc<Replica>>,
    /// The storage of this node: what was written down is read from it.
    pub(crate) log: Log,
    pub(crate) clock: Arc<Clock>,
    pub(crate) catalog: Catalog,
    pub(crate) access: AccessCell,
    pub(crate) policies: PolicyCell,
    pub(crate) jobs: JobsCell,
    pub(crate) schedules: ScheduleCell,
    pub(crate) nodes: NodesCell,
    pub(crate) followed: Followed,
    pub(crate) threads: Threads,
    pub(crate) timer: Arc<Timer>,
    pub(crate) workers: Workers,
    pub(crate) maintenance: Maintenance,
    /// Memory of all queues, near enough.
    pub(crate) memory_bytes: AtomicI64,
    /// Memory of messages that queues share.
    pub(crate) shared_memory: Arc<SharedMemory>,
    /// Messages found since the start to be lost to damage.
    pub(crate) damaged_messages: AtomicU64,
    /// There may be more of them, which nobody can count.
    pub(crate) damaged_uncounted: bool,
    /// Whether the start found that changes of users may be lost.
    pub(crate) users_lost: bool,
    /// Places of the log that cannot be read now.
    pub(crate) unreadable: Unreadable,
    pub(crate) stopping: AtomicBool,
    pub(crate) traffic: Arc<AllTraffic>,
    pub(crate) vhost_connections: VhostConnections,
}

impl Shared {
    /// Counts something for a protocol, if it is one's.
    pub(crate) fn count(&self, protocol: Option<Protocol>, count: impl FnOnce(&Traffic)) {
        if let Some(protocol) = protocol {
            count(self.traffic.of(protocol));
        }
    }

    /// Runs `change` on a queue, then everything that follows from it.
    ///
    /// # Errors
    /// If the queue has been deleted.
    pub(crate) fn with<R>(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        change: impl FnOnce(&mut CellState, Timestamp) -> R,
    ) -> Result<R, QueueError> {
        let mut state = cell.state.lock();
        state.refuse_if_gone(&cell.name)?;
        let now = self.clock.now();
        let result = change(&mut state, now);
        let aftermath = self.follow_up(cell, &mut state, now);
        drop(state);
        self.finish(cell, aftermath);
        Ok(result)
    }

    /// Runs `change` on two queues at once, always locking the lower id first.
    pub(crate) fn with_both<R>(
        self: &Arc<Self>,
        one: &Arc<QueueCell>,
        other: &Arc<QueueCell>,
        change: impl FnOnce(&mut CellState, &mut CellState, Timestamp) -> R,
    ) -> Result<R, QueueError> {
        debug_assert_ne!(one.id, other.id, "two locks need two queues");
        let (mut one_state, mut other_state) = if one.id < other.id {
            let first = one.state.lock();
            (first, other.state.lock())
        } else {
            let first = other.state.lock();
            let second = one.state.lock();
            (second, first)
        };
        for (state, cell) in [(&one_state, one), (&other_state, other)] {
            state.refuse_if_gone(&cell.name)?;
        }
        let now = self.clock.now();
        let result = change(&mut one_state, &mut other_state, now);
        let one_after = self.follow_up(one, &mut one_state, now);
        let other_after = self.follow_up(other, &mut other_state, now);
        drop((one_state, other_state));
        self.finish(one, one_after);
        self.finish(other, other_after);
        Ok(result)
    }

    /// The timer's call: a deadline of this queue has come.
    pub(crate) fn wake_queue(self: &Arc<Self>, cell: &Arc<QueueCell>, at: Timestamp) {
        // A queue that was deleted needs nothing any more.
        let _ = self.with(cell, |state, _| {
            if state.armed.is_some_and(|armed| armed <= at) {
                state.armed = None;
            }
        });
    }

    /// Returns when the log takes more, after it was [`QueueError::Busy`]. Nobody holds a lock or a thread meanwhile.
    pub(crate) async fn until_room(&self) {
        // If that fails, the next attempt says so.
        let _ = self.journal.wait(self.journal.so_far(Urgency::Written)).await;
        while !self.journal.has_room() {
            tokio::time::sleep(ROOM_RECHECK).await;
        }
    }

    pub(crate) fn refuse_if_stopping(&self) -> Result<(), QueueError> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(QueueError::Unavailable { reason: "the broker is stopping".into() });
        }
        Ok(())
    }

    pub(crate) fn note_memory(&self, state: &mut CellState) {
        let memory = state.queue.memory_bytes();
        let change = memory as i64 - state.memory_bytes as i64;
        state.memory_bytes = memory;
        self.memory_bytes.fetch_add(change, Ordering::Relaxed);
        if change > 0 {
            self.note_if_pressed();
        }
    }

    /// Messages take more memory than before, or may take less.
    pub(crate) fn note_if_pressed(&self) {
        let every = self.memory.look_every();
        if let Some(resident_bytes) = self.uncounted.look(every, || self.counted_bytes()) {
            self.memory.note(resident_bytes);
        }
        if self.under_pressure() {
            self.maintenance.note_pressure();
        }
    }

    /// Whether messages take more memory than they may.
    pub(crate) fn under_pressure(&self) -> bool {
        self.counted_bytes() > self.message_bytes_max()
    }

    /// Memory of messages in queues, on their way in and on their way out.
    fn counted_bytes(&self) -> u64 {
        let passing = self.intake.held_bytes().saturating_add(self.dispatch.outgoing.bytes());
        self.message_memory_bytes().saturating_add(passing)
    }

    /// What messages may take: three quarters of the bound, less what the queues themselves and buffers of connections take;
    /// and no more than is left by what is not counted. However much that is, a quarter is for messages. The bound is what an
    /// operator says, or less where the memory watermark is low: messages leave memory before publishers are stopped.
    pub(crate) fn message_bytes_max(&self) -> u64 {
        let max = self.options.memory_bytes_max.min(self.memory.paging_bytes());
        let queues = self.catalog.len() as u64 * QUEUE_BYTES;
        let beside = (max / 4 * 3).saturating_sub(queues + self.buffers.bytes());
        beside.min(max.saturating_sub(self.uncounted.bytes())).max(max / 4)
    }
}

impl Drop for Shared {
    /// A broker that is dropped without being shut down is as one that crashed, but its threads end.
    fn drop(&mut self) {
        self.journal.stop();
        self.jobs.stop();
        self.alarm_watch.stop();
        self.maintenance.stop();
        self.timer.stop();
        self.workers.stop();
    }
}

pub(crate) fn not_found(name: &QueueName) -> QueueError {
    QueueError::NotFound { name: name.clone() }
}
