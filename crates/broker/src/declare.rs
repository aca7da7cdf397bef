//! Declaring and deleting queues. Deciding, writing down and applying are done under one short lock; the wait for the disk
//! comes after it, so that all who declare at the same time share one sync. Where the log has no room, whoever declares or
//! deletes waits for it without that lock and without a thread, and then decides anew.
//!
//! So a queue can be found before its creation is safe. Whoever is told that it is there, or that it is gone, is told so
//! only when that cannot be lost any more: by its own record, which the log has behind it, or by waiting for
//! [`QueueHandle::created`] and [`Broker::last_delete`].

use nexo_core::config::QueueConfig;
use nexo_core::message::Durability;
use nexo_types::QueueName;

use crate::broker::Broker;
use crate::difference::first_difference;
use crate::error::{CreateError, DeleteError, QueueError};
use crate::handle::QueueHandle;
use crate::journal::Written;
use crate::queue_cell::CellState;
use crate::request::{Declaration, DeleteIf, SessionId};

/// A queue that was declared.
#[derive(Debug)]
pub struct Declared {
    /// The queue.
    pub queue: QueueHandle,
    /// Whether there was none before.
    pub is_new: bool,
    /// What to wait for before anybody is told.
    pub written: Written,
}

impl Broker {
    /// Creates a queue. `true` if it is new, `false` if it was there with the same settings.
    ///
    /// # Errors
    /// If it was there with other settings, a setting cannot be, or the log takes no more.
    pub async fn create_queue(&self, name: &QueueName, config: QueueConfig) -> Result<bool, CreateError> {
        let asked = Declaration { config: config.clone(), durability: Durability::Durable, owner: None };
        let declared = self.begin_declare(name, asked).await?;
        if !declared.is_new
            && let Some((existing, asked)) = first_difference(declared.queue.config().base(), &config)
        {
            self.shared.wait_for(declared.written).await?;
            return Err(CreateError::Differs { name: name.clone(), existing, asked });
        }
        self.shared.wait_for(declared.written).await?;
        Ok(declared.is_new)
    }

    /// The queue of this name, created if there is none; with it, whether it is new. Whether one that was there is what
    /// was asked for, the caller decides.
    ///
    /// # Errors
    /// If a setting cannot be, or the log takes no more.
    pub async fn declare_queue(
        &self,
        name: &QueueName,
        declaration: Declaration,
    ) -> Result<(QueueHandle, bool), CreateError> {
        let Declared { queue, is_new, written } = self.begin_declare(name, declaration).await?;
        self.shared.wait_for(written).await?;
        Ok((queue, is_new))
    }

    /// As [`Self::declare_queue`], and does not wait for the sync.
    ///
    /// # Errors
    /// As there.
    pub async fn begin_declare(
        &self,
        name: &QueueName,
        declaration: Declaration,
    ) -> Result<Declared, CreateError> {
        loop {
            match self.try_declare(name, &declaration) {
                Err(CreateError::Queue(QueueError::Busy { .. })) => self.shared.until_room().await,
                done => return done,
            }
        }
    }

    /// As [`Self::begin_declare`], for one who waits by itself: where the log has no room it is [`QueueError::Busy`], and
    /// may be tried again after [`Self::until_room`].
    ///
    /// # Errors
    /// As there.
    pub fn try_declare(&self, name: &QueueName, declaration: &Declaration) -> Result<Declared, CreateError> {
        declaration.config.check(name)?;
        self.shared.refuse_if_stopping()?;
        let before = self.shared.all_that_can_be_lost();
        let changing = loop {
            // Another may hold the queue's lock for long: that is waited for without the other lock.
            if let Some(queue) = self.queue(name)
                && queue.touch_if_there()
            {
                let written = queue.created().and(before).and(self.shared.all_that_can_be_lost());
                return Ok(Declared { queue, is_new: false, written });
            }
            let changing = self.shared.catalog.change();
            self.shared.refuse_if_rebuilding()?;
            if self.shared.catalog.get(name).is_none() {
                break changing;
            }
        };
        let max = self.shared.options.queues_max;
        if self.shared.catalog.len() >= max {
            return Err(CreateError::TooMany { max });
        }
        let topology = &self.shared.catalog.exchanges;
        topology.look(|topology| topology.check_new_queue(&name.vhost()))?;
        // What belongs to a connection does not outlive it, nor the process.
        let durability =
            if declaration.owner.is_some() { Durability::Transient } else { declaration.durability };
        let cell =
            self.shared.add_queue(changing, name, &declaration.config, durability, declaration.owner)?;
        let written = cell.created;
        Ok(Declared { queue: self.handle(cell), is_new: true, written })
    }

    /// Deletes a queue with all that is in it. Gives back how many messages that were.
    ///
    /// # Errors
    /// If there is no such queue, or the log takes no more.
    pub async fn delete_queue(&self, name: &QueueName) -> Result<u64, QueueError> {
        match self.delete_queue_if(name, DeleteIf::default()).await {
            Ok(count) => Ok(count),
            Err(DeleteError::Queue(error)) => Err(error),
            Err(error @ (DeleteError::InUse { .. } | DeleteError::NotEmpty { .. })) => {
                Err(QueueError::Unavailable { reason: error.to_string() })
            }
        }
    }

    /// As [`Self::delete_queue`], on conditions.
    ///
    /// # Errors
    /// If a condition does not hold, there is no such queue, or the log takes no more.
    pub async fn delete_queue_if(&self, name: &QueueName, only_if: DeleteIf) -> Result<u64, DeleteError> {
        let before = self.shared.all_that_can_be_lost();
        match self.begin_delete(name, only_if).await {
            Ok((count, written)) => {
                self.shared.wait_for(written).await?;
                Ok(count)
            }
            Err(refusal) => {
                self.shared.wait_for(before.and(self.shared.all_that_can_be_lost())).await?;
                Err(refusal)
            }
        }
    }

    /// As [`Self::delete_queue_if`], and does not wait for the sync: gives back what to wait for before anybody is told.
    ///
    /// # Errors
    /// As there.
    pub async fn begin_delete(
        &self,
        name: &QueueName,
        only_if: DeleteIf,
    ) -> Result<(u64, Written), DeleteError> {
        loop {
            match self.try_delete(name, only_if) {
                Err(DeleteError::Queue(QueueError::Busy { .. })) => self.shared.until_room().await,
                done => return done,
            }
        }
    }

    /// As [`Self::begin_delete`], for one who waits by itself, as in [`Self::try_declare`].
    ///
    /// # Errors
    /// As there.
    pub fn try_delete(&self, name: &QueueName, only_if: DeleteIf) -> Result<(u64, Written), DeleteError> {
        self.shared.refuse_if_stopping()?;
        let cell = self.cell(name)?;
        let check = |state: &CellState, now| {
            if only_if.unused && state.queue.consumers().0 > 0 {
                return Err(DeleteError::InUse { name: name.clone() });
            }
            if only_if.empty && state.queue.figures(now).ready > 0 {
                return Err(DeleteError::NotEmpty { name: name.clone() });
            }
            Ok(())
        };
        let (written, count) = self.shared.remove_queue(&cell, check)??;
        Ok((count, written))
    }

    /// What to wait for before anybody is told that a queue is not there: another may have deleted it just now. To be asked
    /// after it was not found.
    #[must_use]
    pub fn last_delete(&self) -> Written {
        self.shared.catalog.last_delete().and(self.shared.all_that_can_be_lost())
    }

    /// What to wait for before anybody is refused something because of the queues, exchanges and bindings there are, or are
    /// not. To be asked after looking.
    #[must_use]
    pub fn last_change(&self) -> Written {
        let changed = self.shared.catalog.last_change().and(self.shared.catalog.exchanges.last_change());
        changed.and(self.shared.all_that_can_be_lost())
    }

    /// Deletes all queues that belong to a connection, because it has ended.
    pub async fn end_session(&self, session: SessionId) {
        let mut written = Written::NOTHING;
        for cell in self.shared.catalog.owned_by(session) {
            // It may be gone already.
            if let Ok((_, one)) = self.begin_delete(&cell.name, DeleteIf::default()).await {
                written = written.and(one);
            }
        }
        // If the log failed, there is nobody to tell.
        let _ = self.shared.wait_for(written).await;
    }
}

impl QueueHandle {
    /// What to wait for before anybody is told that it is there.
    #[must_use]
    pub fn created(&self) -> Written {
        self.cell.created
    }

    /// Deletes the queue if it goes with its last consumer and has none. The subscription that ended last sees to that as
    /// well, but later.
    /// Gives back what to wait for before anybody is told that it is gone.
    ///
    /// # Errors
    /// [`QueueError::Busy`] where the log has no room: it may be tried again after [`Broker::until_room`].
    pub fn try_delete_if_left_alone(&self) -> Result<Written, QueueError> {
        let check = |state: &CellState, _| if state.is_left_alone() { Ok(()) } else { Err(()) };
        match self.shared.remove_queue(&self.cell, check) {
            Ok(Ok((written, _))) => Ok(written),
            Ok(Err(())) => Ok(Written::NOTHING),
            Err(busy @ QueueError::Busy { .. }) => Err(busy),
            // The subscription that ended last was faster.
            Err(QueueError::NotFound { .. }) => Ok(self.shared.catalog.last_delete()),
            Err(error) => {
                tracing::debug!(queue = %self.cell.name.in_full(), %error, "a queue without consumers was not deleted");
                Ok(Written::NOTHING)
            }
        }
    }
}
