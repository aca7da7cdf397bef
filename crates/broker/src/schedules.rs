//! Schedules of this node: the rules are `nexo_core::schedule`'s; `machine_cell.rs` gives them a lock and the journal; here they
//! are set, shown and counted. `schedule_firing.rs` does what they say.
//!
//! The timer knows the moment at which the first of them is due, by the calendar (`Clock::calendar`), and a worker fires those
//! whose time has come, some at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nexo_core::machine::Step;
use nexo_core::message::Durability;
use nexo_core::schedule::{
    Action, ScheduleChange, ScheduleEntry, ScheduleError, ScheduleKey, ScheduleRecord, Schedules,
};
use nexo_core::topology::Topology;
use nexo_log::{Claim, Urgency};
use nexo_types::{Millis, QueueId, Timestamp, VhostName};
use parking_lot::Mutex;

use crate::broker::Broker;
use crate::error::{QueueError, ScheduleChangeError};
use crate::journal::{ProposeError, Written};
use crate::machine_cell::{MachineCell, Replayed};
use crate::ordered_mutex::{OrderedMutex, Rank};
use crate::shared::Shared;
use crate::workers::Work;

/// Records of schedules are written under this id, which no queue has: ids of queues count up from one.
pub(crate) const SCHEDULES: QueueId = QueueId(u64::MAX - 2);

/// All schedules.
#[derive(Debug)]
pub(crate) struct ScheduleCell {
    cell: MachineCell<Schedules>,
    /// Those whose time has come and that have to wait. To be locked after the machine, if both are needed.
    pub(crate) held: Mutex<BTreeMap<ScheduleKey, Held>>,
    /// One worker at a time fires.
    pub(crate) firing: OrderedMutex<()>,
    /// Somebody tells the timer when the next is due.
    arming: Mutex<()>,
    /// A worker will look which of them are due.
    is_queued: AtomicBool,
    pub(crate) counters: Counters,
}

/// What a schedule waits for whose time has come.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// When it is tried again, by the calendar.
    pub(crate) until: Timestamp,
    pub(crate) reason: Arc<str>,
}

/// What has been done since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) fired: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) missed: AtomicU64,
    /// The sum over all that were fired.
    pub(crate) late_ms: AtomicU64,
}

/// Figures of schedules; counters count since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleStats {
    /// How many there are.
    pub schedules: u64,
    /// Times that were fired.
    pub fired: u64,
    /// Times at which a schedule could not do what it should.
    pub failed: u64,
    /// Times that passed while the broker was away, or could take no messages.
    pub missed: u64,
    /// By how much all that were fired were late, together.
    pub late_total: Millis,
    /// How late the first is that is due and not fired yet.
    pub late: Millis,
}

/// A schedule as it is now.
#[derive(Clone, Debug)]
pub struct ScheduleInfo {
    /// Where it is.
    pub vhost: VhostName,
    /// The schedule and what has come of it.
    pub entry: Arc<ScheduleEntry>,
    /// What it waits for, if its time has come and messages are not taken.
    pub waits_for: Option<Arc<str>>,
}

impl ScheduleCell {
    /// What was in the log, with its latest snapshot.
    pub(crate) fn new(restored: Replayed<Schedules>) -> Self {
        Self {
            cell: MachineCell::new(SCHEDULES, Rank::Schedules, restored),
            held: Mutex::default(),
            firing: OrderedMutex::new(Rank::Firing, ()),
            arming: Mutex::default(),
            is_queued: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    /// Their state, for checkpoints.
    pub(crate) const fn cell(&self) -> &MachineCell<Schedules> {
        &self.cell
    }

    /// Has these schedules instead of those there were.
    pub(crate) fn replace(&self, restored: Replayed<Schedules>) {
        self.cell.replace(restored, |_, _| ());
        self.held.lock().clear();
    }

    /// Those whose time has come and that need not wait, at most `max`.
    pub(crate) fn due(&self, now: Timestamp, max: usize) -> Vec<(ScheduleKey, Arc<ScheduleEntry>)> {
        self.cell.look(|schedules, _| {
            let held = self.held.lock();
            let come = schedules.by_time().take_while(|(at, _)| *at <= now).map(|(_, key)| key);
            let ready = come.filter(|key| held.get(*key).is_none_or(|held| held.until <= now));
            let found = |key: &ScheduleKey| Some((key.clone(), schedules.get(&key.0, &key.1)?.clone()));
            ready.filter_map(found).take(max).collect()
        })
    }

    /// When somebody must look again: the first that is due and need not wait, or the first that need not wait any more.
    fn next_deadline(&self) -> Option<Timestamp> {
        self.cell.look(|schedules, _| {
            let mut held = self.held.lock();
            // What is gone, or has nothing to do, waits for nothing.
            held.retain(|(vhost, name), _| {
                schedules.get(vhost, name).is_some_and(|entry| entry.status.next.is_some())
            });
            let first = schedules.by_time().find(|(_, key)| !held.contains_key(*key)).map(|(at, _)| at);
            held.values().map(|held| held.until).chain(first).min()
        })
    }
}

impl Broker {
    /// All schedules, by virtual host and name.
    #[must_use]
    pub fn schedules(&self) -> Vec<ScheduleInfo> {
        let schedules = &self.shared.schedules;
        schedules.cell.look(|known, _| {
            let held = schedules.held.lock();
            let info = |(vhost, entry): (&VhostName, &Arc<ScheduleEntry>)| {
                let key = (vhost.clone(), Arc::clone(&entry.schedule.name));
                let waits_for = held.get(&key).map(|held| Arc::clone(&held.reason));
                ScheduleInfo { vhost: vhost.clone(), entry: Arc::clone(entry), waits_for }
            };
            known.all().map(info).collect()
        })
    }

    /// One schedule.
    #[must_use]
    pub fn schedule(&self, vhost: &VhostName, name: &str) -> Option<ScheduleInfo> {
        let schedules = &self.shared.schedules;
        schedules.cell.look(|known, _| {
            let entry = Arc::clone(known.get(vhost, name)?);
            let key = (vhost.clone(), Arc::clone(&entry.schedule.name));
            let waits_for = schedules.held.lock().get(&key).map(|held| Arc::clone(&held.reason));
            Some(ScheduleInfo { vhost: vhost.clone(), entry, waits_for })
        })
    }

    /// Makes changes of schedules, all of them or none. Returns when they are safe.
    ///
    /// # Errors
    /// If one of them cannot be made, or the log takes no more.
    pub async fn change_schedules(&self, changes: &[ScheduleChange]) -> Result<(), ScheduleChangeError> {
        let begun = loop {
            match self.try_change_schedules(changes) {
                Err(ScheduleChangeError::Queue(QueueError::Busy { .. })) => self.shared.until_room().await,
                begun => break begun,
            }
        };
        self.shared.arm_schedules();
        match begun {
            Ok((written, records)) => {
                self.shared.wait_for(written).await?;
                self.shared.events.schedules_changed(&records);
                Ok(())
            }
            // What it is refused for may not be safe yet.
            Err(refused @ ScheduleChangeError::Refused(_)) => {
                self.shared.wait_for(self.shared.schedules.cell.last_change()).await?;
                Err(refused)
            }
            Err(error) => Err(error),
        }
    }

    fn try_change_schedules(
        &self,
        changes: &[ScheduleChange],
    ) -> Result<(Written, Vec<ScheduleRecord>), ScheduleChangeError> {
        self.shared.refuse_if_stopping()?;
        // Who deletes a virtual host, or a queue, begins under this lock.
        let _changing = self.shared.catalog.change();
        self.shared.refuse_if_rebuilding()?;
        for change in changes {
            if let ScheduleChange::Put { vhost, schedule, .. } = change {
                self.shared.check_target(vhost, &schedule.action).map_err(ScheduleChangeError::Refused)?;
            }
        }
        match self.shared.change_schedules(changes) {
            Ok(decided) => decided.map_err(ScheduleChangeError::Refused),
            Err(error) => Err(self.shared.refused(&error).into()),
        }
    }
}

impl Shared {
    fn change_schedules(
        &self,
        changes: &[ScheduleChange],
    ) -> Result<Result<(Written, Vec<ScheduleRecord>), ScheduleError>, ProposeError> {
        let now = self.clock.calendar();
        let mut decided = Vec::new();
        let decide = |known: &Schedules| -> Result<Vec<Step<ScheduleRecord>>, ScheduleError> {
            decided = known.decide_changes(now, changes)?;
            let durable =
                |record: &ScheduleRecord| Step { record: record.clone(), durability: Durability::Durable };
            Ok(decided.iter().map(durable).collect())
        };
        let cell = &self.schedules.cell;
        let changed = self.change_machine(cell, &[], decide, Urgency::Synced, Claim::Reserved, |_| ())?;
        Ok(changed.map(|changed| (changed.written, decided)))
    }

    /// Whether what a schedule does can be done now, by what there is.
    fn check_target(&self, vhost: &VhostName, action: &Action) -> Result<(), ScheduleError> {
        let exchanges = &self.catalog.exchanges;
        if !exchanges.look(|topology: &Topology| topology.open_vhost(vhost).is_ok()) {
            return Err(ScheduleError::NoSuchVhost { name: vhost.clone() });
        }
        let refused = match action {
            Action::Push { queue, .. } => {
                self.catalog.get(queue).is_none().then(|| format!("queue '{queue}' does not exist"))
            }
            Action::Publish { exchange, .. } => {
                let internal = exchanges.look(|topology| topology.spec(exchange).map(|spec| spec.internal));
                match internal {
                    Some(false) => None,
                    Some(true) => {
                        Some(format!("exchange '{exchange}' is internal: nobody may publish to it"))
                    }
                    None => Some(format!("exchange '{exchange}' does not exist")),
                }
            }
            Action::Ask { queue, job } => {
                self.check_scheduled_job(queue, job).err().map(|refusal| refusal.to_string())
            }
        };
        refused.map_or(Ok(()), |reason| Err(ScheduleError::Target { reason }))
    }

    /// Drops the schedules of a virtual host that is on its way out.
    pub(crate) fn forget_schedules_in(&self, vhost: &VhostName) -> Result<Written, QueueError> {
        match self.change_schedules(&[ScheduleChange::ForgetVhost { vhost: vhost.clone() }]) {
            Ok(Ok((written, _))) => Ok(written),
            // Nothing can be wrong with that.
            Ok(Err(refused)) => Err(QueueError::Unavailable { reason: refused.to_string() }),
            Err(error) => Err(self.refused(&error)),
        }
    }

    /// The timer's call: a schedule is due.
    pub(crate) fn wake_schedules(self: &Arc<Self>) {
        if !self.schedules.is_queued.swap(true, Ordering::Relaxed) {
            let shared = Arc::clone(self);
            self.workers.spawn(Work::Move, move || {
                shared.schedules.is_queued.store(false, Ordering::Relaxed);
                shared.fire_due();
            });
        }
    }

    /// Has the timer call when the next schedule is due.
    pub(crate) fn arm_schedules(&self) {
        // The latest answer must be the last that the timer gets.
        let _arming = self.schedules.arming.lock();
        self.timer.set_schedules(self.schedules.next_deadline());
    }

    pub(crate) fn schedule_stats(&self) -> ScheduleStats {
        let (schedules, first) = self
            .schedules
            .cell
            .look(|known, _| (known.len() as u64, known.by_time().next().map(|(at, _)| at)));
        let Counters { fired, failed, missed, late_ms } = &self.schedules.counters;
        let now = self.clock.calendar();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ScheduleStats {
            schedules,
            fired: load(fired),
            failed: load(failed),
            missed: load(missed),
            late_total: Millis(load(late_ms)),
            late: first.map_or(Millis::ZERO, |at| now.since(at)),
        }
    }
}
