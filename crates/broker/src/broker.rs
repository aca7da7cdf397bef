//! The handle that every way in holds, its life, and the catalog of queues. Messages are in `messages.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use nexo_core::config::QueueConfig;
use nexo_core::message::Durability;
use nexo_core::queue::Outline;
use nexo_core::record::Record;
use nexo_log::disk::{Disk, RealDisk};
use nexo_log::{Claim, Log, LogOptions, Urgency};
use nexo_types::{QueueName, limits};

use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::difference::first_difference;
use crate::disk_room::DiskRoom;
use crate::error::{CreateError, DeleteError, OpenError, QueueError};
use crate::exchanges::Exchanges;
use crate::intake::Intake;
use crate::keeper::Keeper;
use crate::options::BrokerOptions;
use crate::recovery;
use crate::request::{DeleteIf, ListRequest};
use crate::shared::{Shared, not_found};
use crate::slot::{Slot, SlotState};
use crate::stats::{BrokerStats, Health, QueueStats};
use crate::system;
use crate::threads::Threads;
use crate::timer::Timer;
use crate::workers::Workers;

/// The part of the memory for messages that those on their way in may take: one in four.
const INTAKE_SHARE: u64 = 4;

/// A broker. A clone is the same broker.
#[derive(Clone, Debug)]
pub struct Broker {
    pub(crate) shared: Arc<Shared>,
}

impl Broker {
    /// Opens or creates the data directory, brings back what is there and starts to serve it. Reads the disk:
    /// not for an async task.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn open(options: BrokerOptions) -> Result<Self, OpenError> {
        let disk = RealDisk::open(&options.data_dir)
            .map_err(|source| OpenError::Directory { path: options.data_dir.clone(), source })?;
        Self::open_on(Arc::new(disk), options)
    }

    /// As [`Self::open`], on any disk: tests bring one that fails on command.
    ///
    /// # Errors
    /// If the disk cannot be used.
    pub fn open_on(disk: Arc<dyn Disk>, options: BrokerOptions) -> Result<Self, OpenError> {
        let path = options.data_dir.clone();
        let log_options = LogOptions {
            segment_bytes: options.segment_bytes,
            background_sync: (options.sync != nexo_core::config::SyncMode::Os)
                .then_some(options.sync_interval),
            ..LogOptions::default()
        };
        let (log, recovered) = Log::open(disk, log_options).map_err(|source| OpenError::Log { source })?;
        let restored = recovery::restore(&log, &recovered, &path)?;
        let room = DiskRoom::new(options.data_dir.clone(), options.disk_free_min);
        let intake = Intake::new(options.memory_bytes_max / INTAKE_SHARE);
        let shared = Arc::new(Shared {
            options,
            room,
            intake,
            log,
            clock: Arc::new(Clock::default()),
            catalog: Catalog::default(),
            exchanges: Exchanges::new(restored.topology, restored.topology_snapshot),
            threads: Threads::default(),
            timer: Arc::new(Timer::default()),
            workers: Workers::default(),
            keeper: Keeper::default(),
            creating: parking_lot::Mutex::new(()),
            catalog_change: tokio::sync::Mutex::new(()),
            next_queue: AtomicU64::new(restored.next_queue),
            next_consumer: AtomicU64::new(1),
            memory_bytes: AtomicI64::new(0),
            stopping: AtomicBool::new(false),
        });
        let started = shared.workers.start(&shared.threads).and_then(|()| shared.timer.start(&shared));
        started
            .and_then(|()| shared.keeper.start(&shared))
            .map_err(|source| OpenError::Directory { path, source })?;
        let slots: Vec<Arc<Slot>> = restored.slots.into_iter().map(Arc::new).collect();
        for slot in &slots {
            shared.catalog.insert(slot);
        }
        // Messages die in this, and are moved at once: all queues they may go to must be known by then.
        for slot in &slots {
            shared.end_sessions(slot);
        }
        Ok(Self { shared })
    }

    /// Memory for messages that have not come whole.
    #[must_use]
    pub fn intake(&self) -> &Intake {
        &self.shared.intake
    }

    /// Creates a queue. `true` if it is new, `false` if it was there with the same settings.
    ///
    /// # Errors
    /// If it was there with other settings, a setting cannot be, or the log takes no more.
    pub async fn create_queue(&self, name: &QueueName, config: QueueConfig) -> Result<bool, CreateError> {
        config.check(name)?;
        self.shared.refuse_if_stopping()?;
        let _changing = self.shared.catalog_change.lock().await;
        if let Some(slot) = self.shared.catalog.get(name) {
            let state = slot.state.lock();
            return match first_difference(state.queue.config(), &config) {
                None => Ok(false),
                Some((existing, asked)) => Err(CreateError::Differs { name: name.clone(), existing, asked }),
            };
        }
        if self.shared.catalog.len() >= limits::QUEUES_MAX {
            return Err(CreateError::TooMany { max: limits::QUEUES_MAX });
        }
        let (_, written) = self.shared.add_queue(name, config, Durability::Durable, None)?;
        self.shared.wait_for(written).await?;
        Ok(true)
    }

    /// Changes settings of a queue: `change` makes the new ones from those it has, and is called once.
    ///
    /// # Errors
    /// If there is no such queue, a setting cannot be, or the log takes no more; then nothing has changed.
    pub async fn update_queue(
        &self,
        name: &QueueName,
        change: impl FnOnce(&QueueConfig) -> QueueConfig,
    ) -> Result<(), CreateError> {
        self.shared.refuse_if_stopping()?;
        let slot = self.slot(name)?;
        let written = self.shared.with(&slot, |state, now| {
            let config = change(state.queue.config());
            config.check(name)?;
            let record = Record::Configure { config, at: now };
            let committed = self.shared.commit(state, &[record], Urgency::Synced, Claim::Reserved);
            Ok::<_, CreateError>(committed.map_err(|error| Shared::unavailable(&error))?.0)
        })??;
        Ok(self.shared.wait_for(written).await?)
    }

    /// Stops handing messages out, or goes on with it.
    ///
    /// # Errors
    /// If there is no such queue, or the log takes no more.
    pub async fn pause_queue(&self, name: &QueueName, paused: bool) -> Result<(), CreateError> {
        self.update_queue(name, |config| QueueConfig { paused, ..config.clone() }).await
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
        self.shared.refuse_if_stopping()?;
        let _changing = self.shared.catalog_change.lock().await;
        let slot = self.slot(name)?;
        let check = |state: &SlotState, now| {
            if only_if.unused && state.queue.consumers().0 > 0 {
                return Err(DeleteError::InUse { name: name.clone() });
            }
            if only_if.empty && state.queue.figures(now).ready > 0 {
                return Err(DeleteError::NotEmpty { name: name.clone() });
            }
            Ok(())
        };
        let (written, count) = self.shared.remove_queue(&slot, check)??;
        self.shared.wait_for(written).await?;
        Ok(count)
    }

    /// Takes everything that waits out of a queue. Gives back how many messages that were.
    ///
    /// # Errors
    /// If there is no such queue, or the log takes no more.
    pub async fn purge(&self, name: &QueueName) -> Result<u64, QueueError> {
        self.shared.refuse_if_stopping()?;
        let slot = self.slot(name)?;
        let purged = self.shared.with(&slot, |state, now| {
            let record = Record::Purge { before: state.queue.next_offset(), at: now };
            let urgency = self.shared.urgency(state, crate::shared::Confirm::AsQueue);
            self.shared.commit(state, &[record], urgency, Claim::Reserved)
        })?;
        let (written, applied) = purged.map_err(|error| Shared::unavailable(&error))?;
        let count = self.shared.let_go(applied.into_iter().find_map(|applied| applied.removed));
        self.shared.wait_for(written).await?;
        Ok(count)
    }

    /// Figures of one queue.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn queue_stats(&self, name: &QueueName) -> Result<QueueStats, QueueError> {
        let slot = self.slot(name)?;
        let now = self.shared.clock.now();
        let state = slot.state.lock();
        if state.deleted {
            return Err(not_found(name));
        }
        Ok(QueueStats::new(&state.queue, now))
    }

    /// The durable state of a queue in plain words, for tests and for looking into a riddle. Names every
    /// message, so it is not for large queues.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn outline(&self, name: &QueueName) -> Result<Outline, QueueError> {
        let slot = self.slot(name)?;
        let state = slot.state.lock();
        Ok(state.queue.outline(self.shared.clock.now()))
    }

    /// Figures of many queues, sorted by name.
    #[must_use]
    pub fn list_queues(&self, request: &ListRequest) -> Vec<QueueStats> {
        let wanted = |slot: &Arc<Slot>| {
            let name = slot.name.as_str();
            name.starts_with(&request.prefix) && request.after.as_deref().is_none_or(|after| name > after)
        };
        let mut slots: Vec<Arc<Slot>> = self.shared.catalog.all().into_iter().filter(wanted).collect();
        slots.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let now = self.shared.clock.now();
        let figures = slots.iter().filter_map(|slot| {
            let state = slot.state.lock();
            (!state.deleted).then(|| QueueStats::new(&state.queue, now))
        });
        figures.take(request.limit).collect()
    }

    /// Figures of the whole broker.
    #[must_use]
    pub fn stats(&self) -> BrokerStats {
        BrokerStats {
            health: self.health(),
            queues: self.shared.catalog.len() as u64,
            resident_bytes: system::resident_bytes(),
            message_memory_bytes: u64::try_from(self.shared.memory_bytes.load(Ordering::Relaxed))
                .unwrap_or(0),
            disk_free_bytes: system::disk_free_bytes(&self.shared.options.data_dir).unwrap_or(0),
            log: self.shared.log.stats(),
        }
    }

    /// Whether the broker can take and confirm messages.
    #[must_use]
    pub fn health(&self) -> Health {
        if self.shared.stopping.load(Ordering::Relaxed) {
            return Health::Unhealthy { reason: "the broker is stopping".into() };
        }
        if let Some(thread) = self.shared.threads.panicked() {
            return Health::Unhealthy {
                reason: format!("thread '{thread}' has panicked; restart the broker"),
            };
        }
        match self.shared.log.health() {
            nexo_log::Health::Ok => match self.shared.room.shortage(&self.shared.clock) {
                Some(reason) => Health::DiskFull { reason },
                None => Health::Ok,
            },
            nexo_log::Health::Full { reason } => {
                Health::DiskFull { reason: format!("the disk is full: {reason}") }
            }
            nexo_log::Health::Failed { reason } => {
                Health::Unhealthy { reason: format!("the log has failed: {reason}") }
            }
        }
    }

    /// Changes how many bytes of the disk must stay free; see [`BrokerOptions::disk_free_min`].
    pub fn set_disk_free_min(&self, bytes: u64) {
        self.shared.room.set_free_min(bytes);
    }

    /// Stops: hands nothing out any more, ends subscriptions, writes a checkpoint, syncs and closes the log.
    /// Later calls answer that the broker is stopping.
    pub async fn shutdown(&self) {
        if self.shared.stopping.swap(true, Ordering::Relaxed) {
            return;
        }
        for slot in self.shared.catalog.all() {
            for mailbox in slot.state.lock().mailboxes.values() {
                mailbox.close();
            }
        }
        let shared = Arc::clone(&self.shared);
        let stop = tokio::task::spawn_blocking(move || {
            shared.keeper.stop();
            shared.timer.stop();
            shared.workers.stop();
            if let Err(error) = shared.checkpoint() {
                tracing::warn!(%error, "no checkpoint at the end; the next start reads more of the log");
            }
            shared.log.close();
        });
        if stop.await.is_err() {
            tracing::error!("stopping the broker failed");
        }
    }

    pub(crate) fn slot(&self, name: &QueueName) -> Result<Arc<Slot>, QueueError> {
        self.shared.catalog.get(name).ok_or_else(|| not_found(name))
    }
}
