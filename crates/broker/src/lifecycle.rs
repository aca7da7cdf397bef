//! How queues come to be and go: at a client's word, or by themselves.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nexo_core::config::QueueConfig;
use nexo_core::message::Durability;
use nexo_core::queue::{Queue, Removed};
use nexo_core::record::Record;
use nexo_core::topology::Topology;
use nexo_log::{Claim, Patience, Urgency};
use nexo_types::{Position, QueueName, Timestamp};

use crate::catalog::CatalogGuard;
use crate::error::QueueError;
use crate::events::OnBehalf;
use crate::journal::{Encoded, ProposeError, Written};
use crate::queue_cell::{CellState, QueueCell};
use crate::request::SessionId;
use crate::shared::Shared;
use crate::workers::Work;

impl Shared {
    /// Has the time begin now that these queues may be unused. It is not written down; nobody could use them while the broker
    /// was away, and RabbitMQ begins it anew as well.
    pub(crate) fn begin_unused_times(&self, cells: &[Arc<QueueCell>]) {
        let now = self.clock.now();
        for cell in cells {
            cell.state.lock().last_used = now;
        }
    }

    /// Writes down that a queue exists, with what policies say of it, and makes it so. It is not safe yet when this returns.
    ///
    /// # Errors
    /// If the log does not take it. It does not wait for room: it is [`QueueError::Busy`].
    pub(crate) fn add_queue(
        self: &Arc<Self>,
        changing: CatalogGuard<'_>,
        name: &QueueName,
        base: &QueueConfig,
        durability: Durability,
        owner: Option<SessionId>,
    ) -> Result<Arc<QueueCell>, QueueError> {
        self.refuse_if_rebuilding()?;
        if self.catalog.is_kept(name) {
            let reason = format!("queue '{name}' is being installed from another broker; try again");
            return Err(QueueError::Unavailable { reason });
        }
        // A dead-letter queue comes although the virtual host is full, but not to one that goes.
        self.check_vhost_of(name)?;
        let config = self.with_policies(name, base);
        let id = self.catalog.new_queue_id();
        let now = self.clock.now();
        let mut written = Written::NOTHING;
        if durability == Durability::Durable {
            let create = Record::Create { name: name.clone(), config: config.clone(), at: now };
            let record = Encoded::new(id, &create);
            let proposed = self.propose(&[record], Urgency::Synced, Claim::Normal, Patience::Refuse);
            written = proposed.map_err(|error| self.refused(&error))?.written;
        }
        let queue = Queue::new(id, name.clone(), config, now);
        let cell = Arc::new(QueueCell { created: written, ..QueueCell::with(queue, durability, owner) });
        cell.state.lock_new().last_used = now;
        self.catalog.insert(&cell);
        // With every queue there is less memory for messages.
        self.note_if_pressed();
        self.catalog.exchanges.add_queue(name, id, durability);
        drop(changing);
        // A queue that goes when it is not used has a deadline from the start.
        let _ = self.with(&cell, |_, _| ());
        // Those of a connection come and go with every client.
        match owner {
            None => {
                let (queue, by) = (name.in_full(), OnBehalf::now());
                tracing::info!(%queue, durable = cell.is_durable(), %by, "queue created");
            }
            Some(_) => tracing::debug!(queue = %name.in_full(), "queue of a connection created"),
        }
        self.events.queue_created(&cell);
        Ok(cell)
    }

    /// Writes down that a queue is gone, with its bindings, and makes it so, if `check` agrees. Gives back how many messages
    /// went with it.
    ///
    /// # Errors
    /// If it is gone already, or the log does not take it. It does not wait for room: it is [`QueueError::Busy`].
    pub(crate) fn remove_queue<E>(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        check: impl FnOnce(&CellState, Timestamp) -> Result<(), E>,
    ) -> Result<Result<(Written, u64), E>, QueueError> {
        let (written, removed) = {
            // Who waits for this queue does not keep others from changing which there are.
            let mut state = cell.state.lock();
            state.refuse_if_gone(&cell.name)?;
            if let Err(refusal) = check(&state, self.clock.now()) {
                return Ok(Err(refusal));
            }
            let (written, at) = {
                let _changing = self.catalog.change();
                self.refuse_if_rebuilding()?;
                let deleted = self.write_delete(cell).map_err(|error| Self::unavailable(&error))?;
                self.catalog.remove(cell, deleted.0);
                deleted
            };
            let applied = self.apply(&mut state, at, &Record::Delete);
            self.forget(&mut state);
            (written, applied.removed)
        };
        let messages = self.free_removed(removed);
        match cell.owner {
            None => {
                let (queue, by) = (cell.name.in_full(), OnBehalf::now());
                tracing::info!(%queue, messages, %by, "queue deleted");
            }
            Some(_) => {
                tracing::debug!(queue = %cell.name.in_full(), messages, "queue of a connection deleted")
            }
        }
        self.events.queue_deleted(&cell.name);
        Ok(Ok((written, messages)))
    }

    /// One frame, so that a queue is never gone without its bindings.
    fn write_delete(&self, cell: &QueueCell) -> Result<(Written, Position), ProposeError> {
        let (records, urgency) = if cell.is_durable() {
            (vec![Encoded::new(cell.id, &Record::Delete)], Urgency::Synced)
        } else {
            // At most, an exchange goes with its last binding. Nobody waits for that.
            (Vec::new(), Urgency::Lazy)
        };
        let decide = |topology: &Topology| Ok::<_, Infallible>(topology.decide_queue_removed(&cell.name));
        let Ok(changed) = self.change_topology(&records, decide, urgency)?;
        Ok((if records.is_empty() { Written::NOTHING } else { changed.written }, changed.at))
    }

    /// Deletes a queue that nobody uses, if that is still so. Runs on a worker.
    pub(crate) fn delete_unused(
        self: &Arc<Self>,
        cell: &Arc<QueueCell>,
        unused: impl Fn(&CellState, Timestamp) -> bool,
    ) {
        let check = |state: &CellState, now| if unused(state, now) { Ok(()) } else { Err(()) };
        loop {
            match self.remove_queue(cell, check) {
                // Without any lock.
                Err(QueueError::Busy { .. }) if !self.stopping.load(Ordering::Relaxed) => {
                    self.journal.wait_for_room()
                }
                Err(error) => {
                    tracing::debug!(queue = %cell.name.in_full(), %error, "an unused queue was not deleted");
                    return;
                }
                Ok(_) => return,
            }
        }
    }

    pub(crate) fn forget(&self, state: &mut CellState) {
        state.deleted = true;
        for (id, mailbox) in state.mailboxes.take().0 {
            // Others may share a limit with this consumer.
            state.queue.give_back_credit(id, mailbox.drain().len() as u32);
            mailbox.close();
        }
        let memory = std::mem::take(&mut state.memory_bytes);
        self.memory_bytes.fetch_sub(memory as i64, Ordering::Relaxed);
    }

    /// Lets go of messages that have left: there may be millions, so no lock is held and nobody waits.
    pub(crate) fn free_removed(self: &Arc<Self>, removed: Option<Removed>) -> u64 {
        let Some(removed) = removed else { return 0 };
        let count = removed.count;
        if count > 0 {
            self.workers.spawn(Work::Chore, move || drop(removed));
        }
        count
    }
}
