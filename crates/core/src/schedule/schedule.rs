//! One schedule: when it is due, what it does then, and what becomes of times at which nobody could do it.

use std::sync::Arc;

use nexo_types::{Timestamp, VhostName, check_name, limits};

use super::action::Action;
use super::error::{ScheduleError, within};
use super::timetable::{TimeTable, check_time};
use crate::wire::{Reader, WireError, Writer};

/// A schedule as it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What it is called.
    pub name: Arc<str>,
    /// When it is due.
    pub table: TimeTable,
    /// What it does then.
    pub action: Action,
    /// What becomes of times that have passed unnoticed.
    pub catch_up: CatchUp,
    /// No time after this is fired.
    pub until: Option<Timestamp>,
    /// It ends after so many runs.
    pub runs_max: Option<u64>,
    /// For those who look after it.
    pub description: Arc<str>,
}

/// What becomes of times that passed while the broker was away, or could not take messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// They are missed.
    Skip,
    /// The latest of them is fired, the others are missed.
    #[default]
    Once,
    /// Each of them is fired, the latest `max` if they are more.
    All {
        /// How many at most.
        max: u32,
    },
}

impl Schedule {
    /// Whether it can be, whatever else there is.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn check(&self, vhost: &VhostName) -> Result<(), ScheduleError> {
        check_name(&self.name, "schedule name", limits::SCHEDULE_NAME_BYTES_MAX)?;
        within("a description", limits::SCHEDULE_DESCRIPTION_BYTES_MAX, self.description.len())?;
        self.action.check()?;
        let target = self.action.vhost();
        if target != *vhost {
            let reason =
                format!("a schedule of virtual host '{vhost}' cannot send to virtual host '{target}'");
            return Err(ScheduleError::Target { reason });
        }
        let between = |field, max, value| match (1..=max).contains(&value) {
            true => Ok(()),
            false => Err(ScheduleError::OutOfRange { field, min: 1, max, value }),
        };
        if let CatchUp::All { max } = self.catch_up {
            between("catch_up_max", limits::CATCH_UP_MAX.into(), max.into())?;
        }
        self.until.map_or(Ok(()), |until| check_time("until", until))?;
        self.runs_max.map_or(Ok(()), |max| between("max_runs", u64::from(u32::MAX), max))
    }

    /// What it takes in memory and in a snapshot, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.action.bytes() + self.description.len() + self.name.len() + limits::CRON_BYTES_MAX
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.text(&self.name);
        self.table.encode(out);
        self.action.encode(out);
        let (kind, max) = match self.catch_up {
            CatchUp::Skip => (0, 0),
            CatchUp::Once => (1, 0),
            CatchUp::All { max } => (2, max),
        };
        out.u8(kind);
        out.u64(max.into());
        out.optional(self.until.map(|until| until.0));
        out.optional(self.runs_max);
        out.text(&self.description);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            name: input.text()?.into(),
            table: TimeTable::decode(input)?,
            action: Action::decode(input)?,
            catch_up: match (input.u8()?, input.u32()?) {
                (0, _) => CatchUp::Skip,
                (1, _) => CatchUp::Once,
                (2, max) => CatchUp::All { max },
                (value, _) => return Err(WireError::Unknown { what: "way to catch up", value }),
            },
            until: input.optional()?.map(Timestamp),
            runs_max: input.optional()?,
            description: input.text()?.into(),
        })
    }
}
