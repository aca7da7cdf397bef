//! Whether a change can be made, and what comes of it. That there is such a virtual host, and such a queue or exchange, others
//! know.

use std::sync::Arc;

use nexo_types::{Timestamp, VhostName, limits};

use super::error::ScheduleError;
use super::record::ScheduleRecord;
use super::schedule::Schedule;
use super::state::{ScheduleEntry, ScheduleStatus, Schedules};

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleChange {
    /// A schedule, new or instead of the one of that name.
    Put {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// All of it: nothing is kept of what it was told before but its figures.
        schedule: Arc<Schedule>,
        /// Their name, for whoever looks at it.
        set_by: Arc<str>,
        /// Whether its times pass by unnoticed; if nobody says, as it was, and a new one runs.
        is_paused: Option<bool>,
    },
    /// A schedule goes.
    Delete {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// One that is there.
        name: Arc<str>,
    },
    /// A schedule is paused or resumed. Times that pass meanwhile are not caught up with.
    Pause {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// One that is there.
        name: Arc<str>,
        /// Whether its times pass by unnoticed.
        is_paused: bool,
    },
    /// All schedules of a virtual host go.
    ForgetVhost {
        /// One that is on its way out.
        vhost: VhostName,
    },
}

impl Schedules {
    /// What changes come to, all of them or none: those that change something. They are decided one after the other.
    ///
    /// # Errors
    /// Says what is wrong with the first that cannot be made.
    pub fn decide_changes(
        &self,
        now: Timestamp,
        changes: &[ScheduleChange],
    ) -> Result<Vec<ScheduleRecord>, ScheduleError> {
        if let [change] = changes {
            return Ok(self.decide_change(now, change)?.into_iter().collect());
        }
        let mut trial = self.clone();
        let mut decided = Vec::with_capacity(changes.len());
        for change in changes {
            if let Some(record) = trial.decide_change(now, change)? {
                trial.apply_record(&record);
                decided.push(record);
            }
        }
        Ok(decided)
    }

    /// One schedule that has to be there.
    ///
    /// # Errors
    /// If it is not.
    pub fn found(&self, vhost: &VhostName, name: &str) -> Result<&Arc<ScheduleEntry>, ScheduleError> {
        let missing = || ScheduleError::NoSuchSchedule { vhost: vhost.clone(), name: name.to_owned() };
        self.get(vhost, name).ok_or_else(missing)
    }

    fn decide_change(
        &self,
        now: Timestamp,
        change: &ScheduleChange,
    ) -> Result<Option<ScheduleRecord>, ScheduleError> {
        match change {
            ScheduleChange::Put { vhost, schedule, set_by, is_paused } => {
                self.decide_put(now, vhost, schedule, set_by, *is_paused)
            }
            ScheduleChange::Delete { vhost, name } => {
                self.found(vhost, name)?;
                Ok(Some(ScheduleRecord::Delete { vhost: vhost.clone(), name: Arc::clone(name) }))
            }
            ScheduleChange::Pause { vhost, name, is_paused } => {
                let entry = self.found(vhost, name)?;
                if entry.status.is_paused == *is_paused {
                    return Ok(None);
                }
                let next = entry.schedule.time_after(now, &entry.status).filter(|_| !is_paused);
                let (vhost, name, is_paused) = (vhost.clone(), Arc::clone(name), *is_paused);
                Ok(Some(ScheduleRecord::Pause { vhost, name, is_paused, next }))
            }
            ScheduleChange::ForgetVhost { vhost } => {
                let is_any = self.keys_in(vhost).next().is_some();
                Ok(is_any.then(|| ScheduleRecord::ForgetVhost { vhost: vhost.clone() }))
            }
        }
    }

    fn decide_put(
        &self,
        now: Timestamp,
        vhost: &VhostName,
        schedule: &Arc<Schedule>,
        set_by: &Arc<str>,
        is_paused: Option<bool>,
    ) -> Result<Option<ScheduleRecord>, ScheduleError> {
        schedule.check(vhost)?;
        let before = self.get(vhost, &schedule.name);
        self.check_room(vhost, schedule, before)?;
        let is_paused = is_paused.unwrap_or_else(|| before.is_some_and(|entry| entry.status.is_paused));
        if before.is_some_and(|entry| entry.schedule == *schedule && entry.status.is_paused == is_paused) {
            return Ok(None);
        }
        // With the same table it goes on as it was: a time that has come and is not fired yet is not lost.
        let same = before.filter(|entry| entry.schedule.table == schedule.table).map(|entry| &entry.status);
        let anchor = same.map_or(now, |status| status.anchor);
        let runs = before.map_or(0, |entry| entry.status.runs);
        let status = ScheduleStatus { anchor, runs, ..ScheduleStatus::default() };
        let first = schedule.table.next_after(now, anchor).ok_or_else(|| schedule.table.never())?;
        if let Some(until) = schedule.until.filter(|until| first > *until) {
            return Err(ScheduleError::Ended { until });
        }
        let due = same.and_then(|status| status.next).filter(|next| *next <= now);
        let next = schedule.time_after(now, &status).map(|next| due.unwrap_or(next));
        Ok(Some(ScheduleRecord::Put {
            vhost: vhost.clone(),
            schedule: Arc::clone(schedule),
            set_by: Arc::clone(set_by),
            anchor,
            is_paused,
            next: next.filter(|_| !is_paused),
        }))
    }

    fn check_room(
        &self,
        vhost: &VhostName,
        schedule: &Schedule,
        before: Option<&Arc<ScheduleEntry>>,
    ) -> Result<(), ScheduleError> {
        let at_most = |what, max, count| match count > max {
            true => Err(ScheduleError::TooMany { what, max }),
            false => Ok(()),
        };
        if before.is_none() {
            let own = self.keys_in(vhost).take(limits::VHOST_SCHEDULES_MAX + 1).count();
            at_most("schedules in a virtual host", limits::VHOST_SCHEDULES_MAX, own + 1)?;
            at_most("schedules", limits::SCHEDULES_MAX, self.len() + 1)?;
        }
        let bytes = self.bytes() + schedule.bytes() - before.map_or(0, |entry| entry.schedule.bytes());
        let (what, max) = ("the sum of all schedules", limits::SCHEDULES_BYTES_MAX);
        if bytes > max { Err(ScheduleError::TooLarge { what, max, bytes }) } else { Ok(()) }
    }
}
