//! The handle that every way in holds, its life, and what can be said of queues. Messages are in `push.rs` and
//! `messages.rs`, how queues come and go in `declare.rs`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use nexo_core::config::QueueConfig;
use nexo_core::queue::{Outgoing, Outline, Queue};
use nexo_core::record::Record;
use nexo_log::disk::{Disk, RealDisk};
use nexo_log::{Claim, Log, LogOptions, Patience, Recovered, Urgency};
use nexo_types::{Protocol, QueueName, Timestamp, limits};

use crate::access_cell::AccessCell;
use crate::alarms::{Alarm, AlarmWatch, Resource};
use crate::buffers::ConnectionBuffers;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::connections::Connections;
use crate::disk_room::DiskRoom;
use crate::dispatch::Dispatch;
use crate::error::{CreateError, OpenError, QueueError};
use crate::events::Events;
use crate::exchanges::Exchanges;
use crate::followed::Followed;
use crate::intake::Intake;
use crate::jobs::JobsCell;
use crate::journal::{Journal, LocalJournal, ProposeError, Standing, Written};
use crate::maintenance::Maintenance;
use crate::manifest::Manifest;
use crate::memory_high::{MemoryHigh, MemoryState, MemoryWatermark};
use crate::nodes::NodesCell;
use crate::open_connections::OpenConnections;
use crate::options::BrokerOptions;
use crate::policies::PolicyCell;
use crate::queue_cell::QueueCell;
use crate::recovery::{self, OnLoss};
use crate::replication::{ClusterStart, GroupJournal, JournalOpenError, Replica, Replication};
use crate::request::ListRequest;
use crate::schedules::ScheduleCell;
use crate::shared::{Shared, not_found};
use crate::stats::{BrokerStats, Health, QueueStats};
use crate::stored::Stored;
use crate::system::{self, ProcessStats};
use crate::threads::Threads;
use crate::timer::Timer;
use crate::traffic::{AllTraffic, Traffic};
use crate::uncounted::UncountedMemory;
use crate::vhosts::VhostConnections;
use crate::workers::Workers;

/// The part of the memory for messages that those on their way in may take: one in four.
const INTAKE_SHARE: u64 = 4;
/// The same for those that consumers were handed and have not passed on.
const OUTGOING_SHARE: u64 = 4;

/// Memory for messages on their way in. However little there is for messages, requests are read: who sends one is told why
/// it is refused.
fn intake_bytes(memory_bytes_max: u64) -> u64 {
    (memory_bytes_max / INTAKE_SHARE).max(limits::INTAKE_BYTES_MIN)
}

/// A broker. A clone is the same broker.
#[derive(Clone, Debug)]
pub struct Broker {
    pub(crate) shared: Arc<Shared>,
    /// For whom it works, so that the traffic is counted there.
    pub(crate) protocol: Option<Protocol>,
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
        Self::open_at(disk, options, Timestamp(0))
    }

    /// The same, and its time is not before this: for tests of what a clock does that was set.
    ///
    /// # Errors
    /// As there.
    pub fn open_at(disk: Arc<dyn Disk>, options: BrokerOptions, time: Timestamp) -> Result<Self, OpenError> {
        let Some(cluster) = options.cluster else {
            return Self::open_with(disk, options, time, |log| Box::new(LocalJournal::new(log)));
        };
        let segment_bytes = options.segment_bytes;
        Self::open_with_any(disk, options, time, |log, recovered| {
            let manifest = recovered.last_manifest.as_ref().map(|(_, payload)| Manifest::decode(payload));
            let unreadable = |error| JournalOpenError::Unreadable(format!("{error}"));
            let manifest = manifest.transpose().map_err(unreadable)?.unwrap_or_default();
            let journal = GroupJournal::open(log, &manifest, cluster, segment_bytes)?;
            let replica = Arc::clone(&journal.0);
            Ok((Box::new(journal), Some(replica)))
        })
    }

    /// The same, with any journal over the log.
    pub(crate) fn open_with(
        disk: Arc<dyn Disk>,
        options: BrokerOptions,
        time: Timestamp,
        journal: impl FnOnce(Log) -> Box<dyn Journal>,
    ) -> Result<Self, OpenError> {
        Self::open_with_any(disk, options, time, |log, _| Ok((journal(log), None)))
    }

    fn open_with_any(
        disk: Arc<dyn Disk>,
        options: BrokerOptions,
        time: Timestamp,
        journal: impl FnOnce(
            Log,
            &Recovered,
        ) -> Result<(Box<dyn Journal>, Option<Arc<Replica>>), JournalOpenError>,
    ) -> Result<Self, OpenError> {
        let began = Instant::now();
        let path = options.data_dir.clone();
        let log_options = LogOptions {
            segment_bytes: options.segment_bytes,
            background_sync: (options.sync != nexo_core::config::SyncMode::Os)
                .then_some(options.sync_interval),
            accept_loss: options.accept_loss,
            ..LogOptions::default()
        };
        let has_others = options.cluster.is_some_and(|cluster| cluster.start != ClusterStart::Alone);
        let (log, recovered) = Log::open(disk, log_options).map_err(|source| match source {
            nexo_log::OpenError::Missing { .. } if has_others => {
                OpenError::Damaged { path: path.clone(), reason: source.to_string() }
            }
            source => OpenError::Log { source },
        })?;
        let is_new = recovered.is_new;
        let opened = journal(log.clone(), &recovered);
        let (journal, replica) = opened.map_err(|error| error.into_open_error(&path, &recovered))?;
        let on_loss = match &replica {
            Some(replica) if replica.has_other_voters() => OnLoss::Mend,
            Some(_) | None if options.accept_loss => OnLoss::Accept,
            Some(_) | None => OnLoss::Refuse,
        };
        let committed = journal.begin_load();
        let stored = Stored { log: &log, discarded: journal.discarded(), committed };
        let restored = recovery::restore(stored, &recovered, &path, on_loss)?;
        // Not before: the release that wrote a directory can go on with it if this one refuses it.
        log.raise_format().map_err(|source| OpenError::Log { source })?;
        let room = DiskRoom::new(options.data_dir.clone(), options.disk_free_min);
        let memory = MemoryWatermark::new(options.memory_high, options.owns_process);
        let memory_bytes_max = options.memory_bytes_max.min(memory.paging_bytes());
        let intake = Intake::new(intake_bytes(memory_bytes_max));
        let connections = Arc::new(Connections::new(options.connections_max, options.clients_max));
        let outgoing = Outgoing::new(memory_bytes_max / OUTGOING_SHARE);
        let events = Arc::new(Events::default());
        let exchanges = Exchanges::new(restored.machines.topology, Arc::clone(&events));
        let uncounted = UncountedMemory::new(
            options.owns_process.then_some(system::resident_bytes as fn() -> Option<u64>),
        );
        let shared = Arc::new(Shared {
            options,
            room,
            memory,
            alarm_watch: AlarmWatch::default(),
            intake,
            connections,
            open_connections: Arc::new(OpenConnections::telling(Arc::clone(&events))),
            events,
            firehose: Arc::default(),
            buffers: Arc::default(),
            uncounted,
            dispatch: Dispatch::new(outgoing),
            journal,
            replica,
            log,
            clock: Arc::new(Clock::not_before(restored.time.max(time))),
            catalog: Catalog::new(exchanges, restored.next_queue),
            access: AccessCell::new(restored.machines.access),
            policies: PolicyCell::new(restored.machines.policies),
            jobs: JobsCell::new(restored.machines.jobs),
            schedules: ScheduleCell::new(restored.machines.schedules),
            nodes: NodesCell::new(restored.machines.nodes),
            followed: Followed::new(committed.unwrap_or_default()),
            threads: Threads::default(),
            timer: Arc::new(Timer::default()),
            workers: Workers::default(),
            maintenance: Maintenance::new(recovered.last_manifest.map(|(at, _)| at)),
            memory_bytes: AtomicI64::new(0),
            shared_memory: Arc::default(),
            damaged_messages: AtomicU64::new(restored.damaged_messages),
            damaged_uncounted: restored.damaged_uncounted,
            users_lost: restored.users_lost,
            unreadable: crate::unreadable::Unreadable::default(),
            stopping: AtomicBool::new(false),
            traffic: Arc::default(),
            vhost_connections: VhostConnections::default(),
        });
        let started = shared.workers.start(&shared.threads).and_then(|()| shared.timer.start(&shared));
        started
            .and_then(|()| shared.maintenance.start(&shared))
            .and_then(|()| shared.alarm_watch.start(&shared))
            .map_err(|source| OpenError::Directory { path, source })?;
        let cells: Vec<Arc<QueueCell>> = restored.cells.into_iter().map(Arc::new).collect();
        shared.options.codecs.read_arguments(&cells);
        let messages: u64 = cells.iter().map(|cell| cell.state.lock().queue.len()).sum();
        shared.begin_unused_times(&cells);
        for cell in &cells {
            shared.catalog.insert(cell);
        }
        let path = shared.options.data_dir.clone();
        let directory = |source| OpenError::Directory { path: path.clone(), source };
        if shared.journal.standing() == Standing::Serving {
            // What a crash cut off, before anybody sees it.
            shared.finish_deleted_vhosts();
            shared.apply_all_policies();
            // Messages die in this, and are moved at once: all queues they may go to must be known by then.
            for cell in &cells {
                shared.end_sessions(cell);
            }
            shared.start_jobs().map_err(directory)?;
            // Not before all queues are known.
            shared.arm_schedules();
        } else {
            // All of that comes when this node is elected.
            shared.catalog.begin_rebuild();
            shared.start_jobs().map_err(directory)?;
            shared.follow_leaders();
        }
        let log = shared.log.stats();
        let took_ms = began.elapsed().as_millis();
        if is_new {
            tracing::info!(took_ms, "data directory is new");
        } else {
            tracing::info!(
                queues = cells.len(),
                messages,
                segments = log.segments,
                log_bytes = log.disk_bytes,
                took_ms,
                "data recovered"
            );
        }
        Ok(Self { shared, protocol: None })
    }

    /// The part that takes part in a cluster, if it does.
    #[must_use]
    pub fn replication(&self) -> Option<Replication> {
        self.shared.replica.clone().map(Replication)
    }

    /// Takes part in its cluster from now on, if it is in one. What goes to other nodes must be set before.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start_replication(&self) -> std::io::Result<()> {
        self.replication().map_or(Ok(()), |replication| replication.start(&self.shared.threads))
    }

    /// The same broker, in the hands of a protocol: what is pushed, delivered and acknowledged is counted there.
    #[must_use]
    pub fn over(&self, protocol: Protocol) -> Self {
        Self { shared: Arc::clone(&self.shared), protocol: Some(protocol) }
    }

    /// The counters of all protocols.
    #[must_use]
    pub fn traffic(&self) -> &Arc<AllTraffic> {
        &self.shared.traffic
    }

    pub(crate) fn count(&self, count: impl FnOnce(&Traffic)) {
        self.shared.count(self.protocol, count);
    }

    /// Whether there is no memory for more messages, of whichever queue.
    #[must_use]
    pub fn is_memory_short(&self) -> bool {
        self.shared.under_pressure()
    }

    /// Memory for messages that have not come whole.
    #[must_use]
    pub fn intake(&self) -> &Intake {
        &self.shared.intake
    }

    /// Memory of connections' buffers, for ports to count theirs in.
    #[must_use]
    pub fn buffers(&self) -> &Arc<ConnectionBuffers> {
        &self.shared.buffers
    }

    /// The connections of all ports.
    #[must_use]
    pub fn connections(&self) -> &Arc<Connections> {
        &self.shared.connections
    }

    /// The connections that clients keep open, for those who look after the broker.
    #[must_use]
    pub fn open_connections(&self) -> &Arc<OpenConnections> {
        &self.shared.open_connections
    }

    /// What consumers have been handed and have not passed on to their clients.
    #[must_use]
    pub fn outgoing(&self) -> &Outgoing {
        &self.shared.dispatch.outgoing
    }

    /// Changes settings of a queue: `change` makes the new ones from those it was told before, and is called once. What
    /// policies say of the queue comes on top of it.
    ///
    /// # Errors
    /// If there is no such queue, a setting cannot be, or the log takes no more; then nothing has changed.
    pub async fn update_queue(
        &self,
        name: &QueueName,
        change: impl FnOnce(&QueueConfig) -> QueueConfig,
    ) -> Result<(), CreateError> {
        self.shared.refuse_if_stopping()?;
        let cell = self.found(name).await?;
        let written = self.shared.with(&cell, |state, now| {
            let base = change(state.queue.config().base());
            base.check(name)?;
            let config = self.shared.with_policies(name, &base);
            if config.expires != state.queue.config().expires {
                // The time that it may be unused begins now, as in RabbitMQ.
                state.last_used = now;
            }
            let record = state.queue.decide_configure(now, config);
            let committed =
                self.shared.commit(state, &[record], Urgency::Synced, Claim::Reserved, Patience::Wait);
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

    /// Takes everything that waits out of a queue. Gives back how many messages that were.
    ///
    /// # Errors
    /// If there is no such queue, or the log takes no more.
    pub async fn purge(&self, name: &QueueName) -> Result<u64, QueueError> {
        self.empty(name, Queue::decide_purge).await
    }

    /// Takes every message out of a queue, also those that are with consumers, and forgets their deduplication ids. Gives
    /// back how many messages that were.
    ///
    /// # Errors
    /// If there is no such queue, or the log takes no more.
    pub async fn clear(&self, name: &QueueName) -> Result<u64, QueueError> {
        self.empty(name, Queue::decide_clear).await
    }

    async fn empty(
        &self,
        name: &QueueName,
        decide: impl Fn(&Queue, Timestamp) -> Vec<Record>,
    ) -> Result<u64, QueueError> {
        self.shared.refuse_if_stopping()?;
        let cell = self.found(name).await?;
        let purged = loop {
            let purged = self.shared.with(&cell, |state, now| {
                let records = decide(&state.queue, now);
                let urgency = self.shared.urgency(state, crate::commit::Confirm::AsQueue);
                self.shared.commit(state, &records, urgency, Claim::Reserved, Patience::RefuseLast)
            })?;
            if !matches!(purged, Err(ProposeError::Busy)) {
                break purged;
            }
            self.shared.until_room().await;
        };
        let (written, applied) = purged.map_err(|error| Shared::unavailable(&error))?;
        let count = self.shared.free_removed(applied.into_iter().find_map(|applied| applied.removed));
        self.shared.wait_for(written).await?;
        Ok(count)
    }

    /// Figures of one queue.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn queue_stats(&self, name: &QueueName) -> Result<QueueStats, QueueError> {
        let cell = self.cell(name)?;
        let now = self.shared.clock.now();
        let state = cell.state.lock();
        state.refuse_if_gone(name)?;
        Ok(QueueStats::new(&state.queue, now))
    }

    /// The durable state of a queue in plain words, for tests and for looking into a riddle. Names every
    /// message, so it is not for large queues.
    ///
    /// # Errors
    /// If there is no such queue.
    pub fn outline(&self, name: &QueueName) -> Result<Outline, QueueError> {
        let cell = self.cell(name)?;
        let state = cell.state.lock();
        state.refuse_if_gone(name)?;
        Ok(state.queue.outline(self.shared.clock.now()))
    }

    /// Figures of many queues, sorted by virtual host and name.
    #[must_use]
    pub fn list_queues(&self, request: &ListRequest) -> Vec<QueueStats> {
        self.list_queues_that(request, |_| true)
    }

    /// The same, of queues with names that this is true of. The limit counts those alone: whoever may not know of a queue does
    /// not learn from pages that there is one.
    #[must_use]
    pub fn list_queues_that(
        &self,
        request: &ListRequest,
        mut may: impl FnMut(&QueueName) -> bool,
    ) -> Vec<QueueStats> {
        fn place(name: &QueueName) -> (&str, &str) {
            (name.vhost_str(), name.as_str())
        }
        let wanted = |cell: &Arc<QueueCell>| {
            request.vhost.as_ref().is_none_or(|vhost| cell.name.vhost_str() == vhost.as_str())
                && cell.name.as_str().starts_with(&request.prefix)
                && request.after.as_ref().is_none_or(|after| place(&cell.name) > place(after))
        };
        let mut cells: Vec<Arc<QueueCell>> = self.shared.catalog.all().into_iter().filter(wanted).collect();
        cells.sort_unstable_by(|a, b| place(&a.name).cmp(&place(&b.name)));
        let now = self.shared.clock.now();
        let figures = cells.iter().filter(|cell| may(&cell.name)).filter_map(|cell| {
            let state = cell.state.lock();
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
            damaged_messages: self.shared.damaged_messages.load(Ordering::Relaxed),
            damaged_uncounted: self.shared.damaged_uncounted,
            message_memory_bytes: self.shared.message_memory_bytes(),
            memory: self.memory_state(),
            disk_free_min: self.disk_free_min(),
            disk_alarm: self.shared.want_of_space().is_some(),
            disk_free_bytes: system::disk_free_bytes(&self.shared.options.data_dir).unwrap_or(0),
            log: self.shared.log.stats(),
            intake_bytes: self.shared.intake.held_bytes(),
            events_dropped: self.shared.events.dropped(),
            traces_dropped: self.shared.firehose.dropped(),
            schedules: self.shared.schedule_stats(),
            process: ProcessStats::read(),
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
        if let nexo_log::LogHealth::Failed { reason } = self.shared.journal.health() {
            return Health::Unhealthy { reason: format!("the log has failed: {reason}") };
        }
        let mut alarms = self.shared.alarms();
        // The disk last: it keeps more from being done.
        match alarms.pop() {
            Some(Alarm { resource: Resource::Disk, reason }) => Health::DiskFull { reason },
            Some(Alarm { resource: Resource::Memory, reason }) => Health::MemoryHigh { reason },
            None => self.shared.damage_reason().map_or(Health::Ok, |reason| Health::Degraded { reason }),
        }
    }

    /// What runs short now. While anything does, nothing is pushed.
    #[must_use]
    pub fn alarms(&self) -> Vec<Alarm> {
        self.shared.alarms()
    }

    /// Whether memory runs short, as it was seen last: what may be asked for each message.
    #[must_use]
    pub fn has_memory_alarm(&self) -> bool {
        self.shared.memory.is_alarm()
    }

    /// Says what a push would be answered, if messages are not taken now.
    ///
    /// # Errors
    /// If they are not.
    pub fn refuse_if_short(&self) -> Result<(), QueueError> {
        self.shared.refuse_pushes()
    }

    /// The memory watermark, and how near it is.
    #[must_use]
    pub fn memory_state(&self) -> MemoryState {
        self.shared.note_if_pressed();
        self.shared.memory.state()
    }

    /// Sets another memory watermark. It counts at once, and until the process ends.
    pub fn set_memory_high(&self, high: MemoryHigh) {
        self.shared.memory.set(high);
        let memory_bytes_max = self.shared.options.memory_bytes_max.min(self.shared.memory.paging_bytes());
        self.shared.intake.set_bytes_max(intake_bytes(memory_bytes_max));
        self.shared.dispatch.outgoing.set_bytes_max(memory_bytes_max / OUTGOING_SHARE);
        self.shared.limits_changed();
    }

    /// How many bytes of the disk must stay free.
    #[must_use]
    pub fn disk_free_min(&self) -> u64 {
        self.shared.room.free_min()
    }

    /// Where the data lies.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.shared.options.data_dir
    }

    /// Changes how many bytes of the disk must stay free; see [`BrokerOptions::disk_free_min`].
    pub fn set_disk_free_min(&self, bytes: u64) {
        self.shared.room.set_free_min(bytes);
        self.shared.limits_changed();
    }

    /// Stops: hands nothing out any more, ends subscriptions, writes a checkpoint, syncs and closes the log.
    /// Later calls answer that the broker is stopping.
    pub async fn shutdown(&self) {
        if self.shared.stopping.swap(true, Ordering::Relaxed) {
            return;
        }
        for cell in self.shared.catalog.all() {
            for mailbox in cell.state.lock().mailboxes.0.values() {
                mailbox.close();
            }
        }
        let shared = Arc::clone(&self.shared);
        let stop = tokio::task::spawn_blocking(move || {
            shared.jobs.stop();
            shared.alarm_watch.stop();
            shared.maintenance.stop();
            shared.timer.stop();
            shared.workers.stop();
            // Whoever follows has an earlier state in memory, of which there is a checkpoint.
            if shared.journal.standing() == Standing::Serving
                && let Err(error) = shared.checkpoint()
            {
                tracing::warn!(%error, "no checkpoint at the end; the next start reads more of the log");
            }
            shared.journal.stop();
            shared.log.close();
        });
        if stop.await.is_err() {
            tracing::error!("stopping the broker failed");
        }
    }

    /// The queue of this name. Nobody is told that there is none before that is safe, where it can be lost.
    pub(crate) async fn found(&self, name: &QueueName) -> Result<Arc<QueueCell>, QueueError> {
        let before = self.shared.all_that_can_be_lost();
        match self.cell(name) {
            Err(error @ QueueError::NotFound { .. }) => {
                self.shared.until_certain(before).await?;
                Err(error)
            }
            found => found,
        }
    }

    /// Whether another node may lead at any time, without this one knowing yet.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        !self.shared.journal.releases_early()
    }

    /// Begins to look at things of which somebody will be told. In a cluster they count only with [`Self::confirm_look`].
    #[must_use]
    pub fn begin_look(&self) -> Written {
        self.shared.all_that_can_be_lost()
    }

    /// Waits until what was looked at since a look began may be told: it is safe, and this node has served all the while. A node that
    /// was cut off or stood still does not know yet that another serves. Without a cluster this waits for nothing.
    ///
    /// # Errors
    /// If this node does not serve for certain, or some of it is lost.
    pub async fn confirm_look(&self, began: Written) -> Result<(), QueueError> {
        self.shared.until_certain(began).await
    }

    pub(crate) fn cell(&self, name: &QueueName) -> Result<Arc<QueueCell>, QueueError> {
        self.shared.catalog.get(name).ok_or_else(|| not_found(name))
    }
}
