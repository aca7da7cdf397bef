//! What the broker does when the journal has lost what was proposed: it throws the memory of its queues away and rebuilds
//! them from snapshots and the log, as a start does. Nothing is undone.
//!
//! To a client this is as if the broker had been started again, but for its connection. Whoever waits for an answer that
//! rests on what is lost is told that it is not known. Subscriptions end, and may be made again. What a consumer holds may
//! still be settled by its receipt, if the lease was safe; what belonged to connections comes back. Transient messages,
//! queues, exchanges and bindings are gone.
//!
//! While this goes on the journal refuses every proposal, and no queue comes or goes. A queue's cell is emptied and marked
//! as replaced, and stays in the catalog until the new one has its place: nobody is told that it does not exist.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nexo_core::record::Record;
use nexo_log::{EntryKind, Recovered};
use nexo_types::{Position, QueueName, Timestamp};

use crate::error::{OpenError, QueueError};
use crate::journal::Standing;
use crate::queue_cell::{CellState, QueueCell};
use crate::recovery;
use crate::shared::{Shared, not_found};
use crate::stored::Stored;
use crate::workers::Work;

impl Shared {
    /// Does with the memory what the journal asks for. `false` if it has to be tried again.
    pub(crate) fn follow_journal(self: &Arc<Self>) -> bool {
        match self.journal.standing() {
            Standing::Serving | Standing::Following => true,
            Standing::Lost => self.rebuild(),
            Standing::Installing => self.install_staged(),
            Standing::Deposed => {
                self.throw_away();
                self.journal.stood_down();
                // Users and nodes are asked for here as well, and what was lost of them must not count.
                self.maintenance.note_deposed();
                true
            }
        }
    }

    /// Lets go of all queues. Whoever looks for one is told that they are being rebuilt.
    pub(crate) fn throw_away(self: &Arc<Self>) {
        self.catalog.begin_rebuild();
        for cell in self.catalog.all() {
            self.empty_cell(&cell);
        }
    }

    /// Loads what is committed by now, to write a checkpoint of it. Nobody is served.
    pub(crate) fn load_followed(self: &Arc<Self>) -> bool {
        self.throw_away();
        self.load().is_some_and(|(cells, time)| {
            self.clock.raise(time);
            tracing::debug!(queues = cells.len(), "the state that this node follows is loaded");
            self.catalog.begin_rebuild();
            true
        })
    }

    /// Rebuilds all queues and has the journal go on. `false` if it has to be tried again; until then nothing is taken.
    pub(crate) fn rebuild(self: &Arc<Self>) -> bool {
        let began = Instant::now();
        self.throw_away();
        // A receipt names the moment of its delivery. Those of before fit no delivery that comes.
        let before = self.clock.now();
        while self.clock.now() <= before {
            std::thread::sleep(Duration::from_millis(1));
        }
        let Some((cells, time)) = self.load() else { return false };
        self.clock.raise(time);
        if !self.journal.resume() {
            self.catalog.begin_rebuild();
            return !matches!(self.journal.standing(), Standing::Lost | Standing::Deposed);
        }
        let took_ms = began.elapsed().as_millis();
        tracing::info!(queues = cells.len(), took_ms, "the queues are rebuilt from what is committed");
        let shared = Arc::clone(self);
        self.workers.spawn(Work::Chore, move || {
            shared.finish_deleted_vhosts();
            shared.apply_all_policies();
        });
        self.wake_jobs();
        // As at a start: only now can dead letters find their way.
        for cell in &cells {
            self.end_sessions(cell);
        }
        self.arm_schedules();
        true
    }

    /// Reads all queues and machines from the log, in place of those that were there. Nothing if that fails.
    fn load(self: &Arc<Self>) -> Option<(Vec<Arc<QueueCell>>, Timestamp)> {
        self.followed.keep();
        let committed = self.journal.begin_load();
        let restored = self.latest_manifest().and_then(|recovered| {
            let path = self.options.data_dir.as_path();
            let stored = Stored { committed, ..self.stored() };
            recovery::restore(stored, &recovered, path, self.on_loss())
        });
        let restored = match restored {
            Ok(restored) => restored,
            Err(error) => {
                tracing::error!(%error, "the queues cannot be rebuilt now; it is tried again");
                self.followed.forget_kept();
                return None;
            }
        };
        let cells: Vec<Arc<QueueCell>> = restored.cells.into_iter().map(Arc::new).collect();
        self.options.codecs.read_arguments(&cells);
        self.begin_unused_times(&cells);
        self.replace_followed(restored.machines, committed.unwrap_or_default());
        self.catalog.replace(&cells, restored.next_queue);
        Some((cells, restored.time))
    }

    /// Lets go of all that is in a cell, whose queue is somewhere else from now on.
    fn empty_cell(self: &Arc<Self>, cell: &Arc<QueueCell>) {
        let removed = {
            let mut state = cell.state.lock();
            if state.deleted {
                return;
            }
            let applied = self.apply(&mut state, Position::default(), &Record::Delete);
            state.replaced = true;
            self.forget(&mut state);
            applied.removed
        };
        self.free_removed(removed);
    }

    /// The checkpoint to begin with. It was written when all in it was safe.
    fn latest_manifest(&self) -> Result<Recovered, OpenError> {
        let Some(at) = self.maintenance.last_manifest() else { return Ok(Recovered::default()) };
        let unreadable =
            |reason: String| OpenError::Unreadable { path: self.options.data_dir.clone(), reason };
        let frame = self.log.read_frame(at).map_err(|error| unreadable(error.to_string()))?;
        let manifest = frame.entries.into_iter().find(|entry| entry.kind == EntryKind::Manifest);
        let manifest = manifest.ok_or_else(|| unreadable(format!("there is no checkpoint at {at}")))?;
        Ok(Recovered { last_manifest: Some((at, manifest.payload)), ..Recovered::default() })
    }

    /// No queue comes or goes while all are rebuilt. To be asked with the catalog's lock for changes.
    pub(crate) fn refuse_if_rebuilding(&self) -> Result<(), QueueError> {
        if self.catalog.is_rebuilding() {
            return Err(rebuilding());
        }
        Ok(())
    }

    /// Whether they are being rebuilt, for who does not hold the catalog's lock for changes.
    pub(crate) fn is_rebuilding(&self) -> bool {
        let _changing = self.catalog.change();
        self.catalog.is_rebuilding()
    }
}

impl CellState {
    /// Whether the queue is not here any more.
    pub(crate) fn refuse_if_gone(&self, name: &QueueName) -> Result<(), QueueError> {
        match (self.deleted, self.replaced) {
            (false, _) => Ok(()),
            (true, true) => Err(replaced(name)),
            (true, false) => Err(not_found(name)),
        }
    }
}

/// The answer to whoever needs queues that are not there yet.
pub(crate) fn rebuilding() -> QueueError {
    QueueError::Unavailable { reason: "the queues are being rebuilt".into() }
}

/// The answer of a cell whose queue has been rebuilt elsewhere.
pub(crate) fn replaced(name: &QueueName) -> QueueError {
    QueueError::Unavailable {
        reason: format!(
            "queue '{name}' was rebuilt, because changes that were not safe yet are lost; try again"
        ),
    }
}

impl crate::broker::Broker {
    /// Whether what is in memory is what clients may be told of. In a cluster it is not while another node leads, or from the moment at which
    /// this one is deposed until it has built its memory anew.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.shared.journal.standing() == crate::journal::Standing::Serving
            && !self.shared.catalog.is_rebuilding()
    }
}
