//! Which times of a schedule are fired now, and which are missed.

use nexo_types::{Timestamp, limits};

use super::schedule::{CatchUp, Schedule};
use super::state::{ScheduleEntry, ScheduleStatus};

/// What comes of the times that have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// These are fired, in this order.
    pub scheduled: Vec<Timestamp>,
    /// As many are not.
    pub missed: u64,
    /// The time after them; it may have come as well.
    pub next: Option<Timestamp>,
}

impl ScheduleEntry {
    /// What comes of the times that have come, `max` of them at once. `None` if it is not due.
    #[must_use]
    pub fn due(&self, now: Timestamp, max: usize) -> Option<Due> {
        let (schedule, status) = (&self.schedule, &self.status);
        let first = status.next.filter(|next| *next <= now)?;
        let limit = schedule.until.map_or(now, |until| until.min(now));
        let wanted = match schedule.catch_up {
            CatchUp::Skip | CatchUp::Once => 1,
            CatchUp::All { max } => max.max(1) as usize,
        };
        let (mut times, mut missed) = schedule.table.latest(first, limit, wanted, status.anchor);
        let is_late = |at: &Timestamp| now.since(*at) > limits::SKIPPED_LATE;
        if schedule.catch_up == CatchUp::Skip && times.last().is_some_and(is_late) {
            missed += times.len() as u64;
            times.clear();
        }
        let left = schedule.runs_max.map_or(u64::MAX, |max| max.saturating_sub(status.runs));
        let count = times.len().min(max.max(1)).min(usize::try_from(left).unwrap_or(usize::MAX));
        let after = times.split_off(count);
        let is_over = left <= count as u64;
        let next = match after.first() {
            _ if is_over => None,
            Some(next) => Some(*next),
            None => schedule.time_after(limit, status),
        };
        Some(Due { scheduled: times, missed, next })
    }
}

impl Schedule {
    /// The first time after a moment, if it has one and has not ended by then.
    pub(super) fn time_after(&self, after: Timestamp, status: &ScheduleStatus) -> Option<Timestamp> {
        if self.runs_max.is_some_and(|max| status.runs >= max) {
            return None;
        }
        let next = self.table.next_after(after, status.anchor)?;
        self.until.is_none_or(|until| next <= until).then_some(next)
    }
}
