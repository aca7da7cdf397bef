//! Schedules: messages that the broker sends by itself, and jobs that it asks for, at the times of a cron expression or at a fixed
//! interval.
//!
//! [`Schedules`] holds those of all virtual hosts. Like a queue it *decides* what comes of a change or of time, and then
//! *applies* the records; the broker writes them down in between, in one frame with the messages that are sent, or the job. Each record
//! that moves a schedule on carries the time after it. So a replay never evaluates a cron expression, and gives the same on a
//! node with another time zone database.
//!
//! - `timetable.rs`: cron expressions, time zones and intervals; what happens when clocks are changed.
//! - `schedule.rs`: one schedule. `action.rs`: what it does. `due.rs`: which times are fired after a downtime, and which are missed.
//! - `asked.rs`: what all ways in ask for. `change.rs`: whether a change can be made. `state.rs`: all schedules, and what applying a record makes of them.

mod action;
mod asked;
mod change;
mod due;
mod error;
mod machine;
mod record;
#[allow(clippy::module_inception, reason = "it is the file of one schedule")]
mod schedule;
mod snapshot;
mod state;
mod timetable;

pub use action::{Action, ScheduledJob, ScheduledMessage};
pub use asked::{AskedJob, AskedSchedule};
pub use change::ScheduleChange;
pub use due::Due;
pub use error::ScheduleError;
pub use machine::{Outcome, ScheduleCommand};
pub use record::ScheduleRecord;
pub use schedule::{CatchUp, Schedule};
pub use state::{ScheduleEntry, ScheduleKey, ScheduleStatus, Schedules};
pub use timetable::{TimeTable, as_text, from_text};
