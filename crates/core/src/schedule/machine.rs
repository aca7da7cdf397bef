//! Schedules as a [`Machine`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{Timestamp, VhostName};

use super::change::ScheduleChange;
use super::due::Due;
use super::error::ScheduleError;
use super::record::ScheduleRecord;
use super::state::{ScheduleEntry, ScheduleKey, Schedules};
use crate::machine::{Decision, Machine};
use crate::message::Durability;
use crate::queue::{ChunkId, ChunkSlice};
use crate::wire::WireError;

/// What somebody, or time, wants of schedules.
#[derive(Clone, Debug)]
pub enum ScheduleCommand {
    /// All of these changes, or none.
    Change(Vec<ScheduleChange>),
    /// The times of one that have come, some at once, have come to this.
    Due {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// Its name.
        name: Arc<str>,
        /// How many times at once.
        max: usize,
        /// What came of it.
        outcome: Outcome,
    },
    /// Somebody has one run.
    Run {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// Its name.
        name: Arc<str>,
    },
}

/// What came of the times of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it should.
    Done,
    /// It could not.
    Failed {
        /// What went wrong, in words for the operator.
        error: Arc<str>,
    },
}

impl Due {
    /// The record of what came of these times.
    #[must_use]
    pub fn record(
        &self,
        vhost: &VhostName,
        name: &Arc<str>,
        at: Timestamp,
        outcome: &Outcome,
    ) -> ScheduleRecord {
        let (vhost, name) = (vhost.clone(), Arc::clone(name));
        let Self { scheduled, missed, next } = self.clone();
        match outcome {
            Outcome::Done => ScheduleRecord::Fired { vhost, name, at, scheduled, missed, next },
            Outcome::Failed { error } => {
                let error = Arc::clone(error);
                ScheduleRecord::Failed { vhost, name, at, scheduled, missed, next, error }
            }
        }
    }
}

impl Schedules {
    fn decide_command(
        &self,
        now: Timestamp,
        command: &ScheduleCommand,
    ) -> Result<Vec<ScheduleRecord>, ScheduleError> {
        match command {
            ScheduleCommand::Change(changes) => self.decide_changes(now, changes),
            ScheduleCommand::Due { vhost, name, max, outcome } => {
                let due = self.found(vhost, name)?.due(now, *max);
                Ok(due.iter().map(|due| due.record(vhost, name, now, outcome)).collect())
            }
            ScheduleCommand::Run { vhost, name } => {
                self.found(vhost, name)?;
                Ok(vec![ScheduleRecord::Ran { vhost: vhost.clone(), name: Arc::clone(name), at: now }])
            }
        }
    }
}

impl Machine for Schedules {
    type Command = ScheduleCommand;
    type Answer = Result<(), ScheduleError>;
    type Record = ScheduleRecord;
    type Applied = ();
    type Missing = Infallible;
    type Outline = BTreeMap<ScheduleKey, Arc<ScheduleEntry>>;

    fn decide(
        &self,
        now: Timestamp,
        command: &ScheduleCommand,
    ) -> Decision<ScheduleRecord, Result<(), ScheduleError>> {
        match self.decide_command(now, command) {
            Ok(records) => Decision::of(records, true, Ok(())),
            Err(refusal) => Decision::of([], true, Err(refusal)),
        }
    }

    fn apply(&mut self, record: &ScheduleRecord, _: Durability) -> Result<(), Infallible> {
        self.apply_record(record);
        Ok(())
    }

    fn encode(record: &ScheduleRecord) -> Bytes {
        record.encode()
    }

    fn decode(bytes: &[u8]) -> Result<ScheduleRecord, WireError> {
        ScheduleRecord::decode(bytes)
    }

    /// By the calendar, which the caller hands in: it may be set while the broker's own time goes on.
    fn next_deadline(&self, _: Timestamp) -> Option<Timestamp> {
        self.by_time().next().map(|(at, _)| at)
    }

    fn begin_snapshot(&mut self, _: impl Iterator<Item = ChunkId>, _: &[ChunkId]) -> Bytes {
        self.snapshot()
    }

    /// All of it is in the head.
    fn next_chunks(&mut self, _: usize, _: usize) -> Option<ChunkSlice> {
        Some(ChunkSlice::default())
    }

    fn restore<'a>(head: &[u8], _: impl Iterator<Item = &'a [u8]>) -> Result<Self, WireError> {
        Self::from_snapshot(head)
    }

    fn outline(&self, _: Timestamp) -> Self::Outline {
        self.entries.clone()
    }
}

#[cfg(test)]
mod tests;
