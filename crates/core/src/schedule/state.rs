//! All schedules, what has come of them, and what applying a record makes of that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nexo_types::{Timestamp, VhostName};

use super::record::ScheduleRecord;
use super::schedule::Schedule;

/// Where a schedule is and what it is called.
pub type ScheduleKey = (VhostName, Arc<str>);

/// All schedules.
#[derive(Clone, Debug, Default)]
pub struct Schedules {
    pub(super) entries: BTreeMap<ScheduleKey, Arc<ScheduleEntry>>,
    /// Those that will be due, by when.
    times: BTreeSet<(Timestamp, ScheduleKey)>,
    /// What all of them take.
    bytes: usize,
}

/// A schedule and what has come of it. The same for as long as nothing changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleEntry {
    /// As it was set.
    pub schedule: Arc<Schedule>,
    /// What has come of it.
    pub status: ScheduleStatus,
}

/// What has come of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleStatus {
    /// The user who set it last; empty if nobody did.
    pub set_by: Arc<str>,
    /// When its time table was set. Intervals without a start count from here.
    pub anchor: Timestamp,
    /// Its times pass by unnoticed until it is resumed.
    pub is_paused: bool,
    /// When it is due; `None` if it is paused or has ended.
    pub next: Option<Timestamp>,
    /// The time that was fired last, by the table.
    pub last_scheduled: Option<Timestamp>,
    /// When it did something last, also by hand.
    pub last_run: Option<Timestamp>,
    /// Times of the table that were fired.
    pub runs: u64,
    /// Runs that somebody asked for.
    pub manual_runs: u64,
    /// Times at which it failed.
    pub failures: u64,
    /// Times that nobody fired.
    pub missed: u64,
    /// Why it failed last, and when.
    pub last_error: Option<(Timestamp, Arc<str>)>,
}

impl Schedules {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One schedule.
    #[must_use]
    pub fn get(&self, vhost: &VhostName, name: &str) -> Option<&Arc<ScheduleEntry>> {
        self.entries.get(&(vhost.clone(), name.into()))
    }

    /// All of them, by virtual host and name.
    pub fn all(&self) -> impl Iterator<Item = (&VhostName, &Arc<ScheduleEntry>)> {
        self.entries.iter().map(|((vhost, _), entry)| (vhost, entry))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What all of them take, about.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Those that will be due, by when.
    pub fn by_time(&self) -> impl Iterator<Item = (Timestamp, &ScheduleKey)> {
        self.times.iter().map(|(at, key)| (*at, key))
    }

    /// Applies a record of a replay.
    pub fn replay(&mut self, record: &ScheduleRecord) {
        self.apply_record(record);
    }

    pub(super) fn apply_record(&mut self, record: &ScheduleRecord) {
        match record {
            ScheduleRecord::Put { vhost, schedule, set_by, anchor, is_paused, next } => {
                let key = (vhost.clone(), Arc::clone(&schedule.name));
                let before = self.entries.get(&key).map(|entry| entry.status.clone());
                let status = ScheduleStatus {
                    set_by: Arc::clone(set_by),
                    anchor: *anchor,
                    is_paused: *is_paused,
                    next: *next,
                    ..before.unwrap_or_default()
                };
                self.insert(key, ScheduleEntry { schedule: Arc::clone(schedule), status });
            }
            ScheduleRecord::Delete { vhost, name } => {
                self.remove(&(vhost.clone(), Arc::clone(name)));
            }
            ScheduleRecord::Pause { vhost, name, is_paused, next } => {
                self.update(vhost, name, |status| {
                    (status.is_paused, status.next) = (*is_paused, *next);
                });
            }
            ScheduleRecord::Fired { vhost, name, at, scheduled, missed, next } => {
                self.update(vhost, name, |status| {
                    status.next = *next;
                    status.missed = status.missed.saturating_add(*missed);
                    if let Some(last) = scheduled.last() {
                        status.runs = status.runs.saturating_add(scheduled.len() as u64);
                        (status.last_scheduled, status.last_run) = (Some(*last), Some(*at));
                    }
                });
            }
            ScheduleRecord::Failed { vhost, name, at, scheduled, missed, next, error } => {
                self.update(vhost, name, |status| {
                    status.next = *next;
                    status.missed = status.missed.saturating_add(*missed);
                    status.failures = status.failures.saturating_add(scheduled.len() as u64);
                    status.last_error = Some((*at, Arc::clone(error)));
                });
            }
            ScheduleRecord::Ran { vhost, name, at } => {
                self.update(vhost, name, |status| {
                    status.manual_runs = status.manual_runs.saturating_add(1);
                    status.last_run = Some(*at);
                });
            }
            ScheduleRecord::ForgetVhost { vhost } => {
                let own: Vec<ScheduleKey> = self.keys_in(vhost).cloned().collect();
                for key in &own {
                    self.remove(key);
                }
            }
        }
    }

    pub(super) fn keys_in<'a>(&'a self, vhost: &VhostName) -> impl Iterator<Item = &'a ScheduleKey> {
        let (from, vhost) = ((vhost.clone(), Arc::from("")), vhost.clone());
        self.entries.range(from..).map(|(key, _)| key).take_while(move |(own, _)| *own == vhost)
    }

    pub(super) fn insert(&mut self, key: ScheduleKey, entry: ScheduleEntry) {
        self.remove(&key);
        self.bytes += entry.schedule.bytes();
        if let Some(next) = entry.status.next {
            self.times.insert((next, key.clone()));
        }
        self.entries.insert(key, Arc::new(entry));
    }

    fn remove(&mut self, key: &ScheduleKey) {
        let Some(entry) = self.entries.remove(key) else { return };
        self.bytes -= entry.schedule.bytes();
        if let Some(next) = entry.status.next {
            self.times.remove(&(next, key.clone()));
        }
    }

    /// Changes what has come of one. A record of one that is not there says nothing.
    fn update(&mut self, vhost: &VhostName, name: &Arc<str>, change: impl FnOnce(&mut ScheduleStatus)) {
        let key = (vhost.clone(), Arc::clone(name));
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let before = entry.status.next;
        change(&mut Arc::make_mut(entry).status);
        let after = entry.status.next;
        if before != after {
            if let Some(before) = before {
                self.times.remove(&(before, key.clone()));
            }
            if let Some(after) = after {
                self.times.insert((after, key));
            }
        }
    }
}
