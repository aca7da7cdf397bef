//! A schedule in the plain words in which all ways in ask for one, and what it becomes.

use bytes::Bytes;
use nexo_types::{ExchangeName, JobQueueName, Millis, QueueName, Timestamp, VhostName, limits};

use super::action::{Action, ScheduledJob, ScheduledMessage};
use super::error::ScheduleError;
use super::schedule::{CatchUp, Schedule};
use super::timetable::TimeTable;

/// What somebody asks for. Empty texts are such that were not given.
#[derive(Clone, Debug, Default)]
pub struct AskedSchedule<'a> {
    /// What it is to be called.
    pub name: &'a str,
    /// A cron expression, or
    pub cron: &'a str,
    /// with the name of its time zone; UTC if it is not given.
    pub time_zone: &'a str,
    /// an interval,
    pub every: Option<Millis>,
    /// with its first time.
    pub start: Option<Timestamp>,
    /// The queue to push to, or
    pub queue: &'a str,
    /// the exchange to publish to,
    pub exchange: &'a str,
    /// with the key it is routed by.
    pub routing_key: &'a str,
    /// The message.
    pub message: ScheduledMessage,
    /// The job to ask for, in place of a message.
    pub job: Option<AskedJob<'a>>,
    /// `skip`, `once` or `all`; `once` if it is not given.
    pub catch_up: &'a str,
    /// How many times at most, with `all`.
    pub catch_up_max: Option<u64>,
    /// No time after this is fired.
    pub until: Option<Timestamp>,
    /// It ends after so many runs.
    pub runs_max: Option<u64>,
    /// For those who look after it.
    pub description: &'a str,
}

/// The job that a schedule is to ask for.
#[derive(Clone, Debug, Default)]
pub struct AskedJob<'a> {
    /// The job queue.
    pub queue: &'a str,
    /// What kind of work it is.
    pub kind: &'a str,
    /// What it is about.
    pub key: &'a str,
    /// What its worker is told, as JSON.
    pub payload: Bytes,
    /// What it costs; `None` for what its job queue says.
    pub cost: Option<u64>,
    /// Whether it is done only when nothing more urgent is there; it is if nobody says.
    pub background: Option<bool>,
}

impl AskedJob<'_> {
    fn action(self, vhost: &VhostName) -> Result<Action, ScheduleError> {
        let queue = JobQueueName::at(vhost, self.queue)?;
        let job = ScheduledJob {
            kind: self.kind.into(),
            key: self.key.into(),
            payload: self.payload,
            cost: self.cost,
            background: self.background.unwrap_or(true),
        };
        Ok(Action::Ask { queue, job })
    }
}

impl AskedSchedule<'_> {
    /// The schedule.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn schedule(self, vhost: &VhostName) -> Result<Schedule, ScheduleError> {
        let invalid = |reason: &str| Err(ScheduleError::Invalid { reason: reason.to_owned() });
        let table = match (self.cron, self.every) {
            ("", Some(_)) if !self.time_zone.is_empty() => {
                return invalid("a time zone is for cron expressions; an interval is the same everywhere");
            }
            ("", Some(interval)) => TimeTable::every(interval, self.start)?,
            ("", None) => return invalid("a schedule needs a cron expression or an interval"),
            (_, Some(_)) => return invalid("a schedule has a cron expression or an interval, not both"),
            (_, None) if self.start.is_some() => {
                return invalid("a start is for intervals; a cron expression says itself when it is due");
            }
            (expression, None) => {
                TimeTable::cron(expression, if self.time_zone.is_empty() { "UTC" } else { self.time_zone })?
            }
        };
        let message = self.message;
        let action = match (self.queue, self.exchange) {
            ("", "") => match self.job {
                Some(_) if message != ScheduledMessage::default() || !self.routing_key.is_empty() => {
                    return invalid("a schedule that asks for a job sends no message; a job has a payload");
                }
                Some(job) => job.action(vhost)?,
                None => {
                    return invalid(
                        "a schedule needs a queue or an exchange to send to, or a job to ask for",
                    );
                }
            },
            (_, _) if self.job.is_some() => {
                return invalid("a schedule sends a message or asks for a job, not both");
            }
            (_, "") if !self.routing_key.is_empty() => {
                return invalid("a routing key is for exchanges; a queue needs none");
            }
            (queue, "") => Action::Push { queue: QueueName::at(vhost, queue)?, message },
            ("", exchange) => {
                let exchange = ExchangeName::at(vhost, exchange)?;
                Action::Publish { exchange, routing_key: self.routing_key.into(), message }
            }
            (_, _) => return invalid("a schedule sends to a queue or to an exchange, not to both"),
        };
        let catch_up = match (self.catch_up, self.catch_up_max) {
            ("all", max) => {
                let value = max.unwrap_or_else(|| limits::CATCH_UP_DEFAULT.into());
                let (field, max) = ("catch_up_max", limits::CATCH_UP_MAX.into());
                let out_of_range = |_| ScheduleError::OutOfRange { field, min: 1, max, value };
                CatchUp::All { max: u32::try_from(value).map_err(out_of_range)? }
            }
            ("" | "skip" | "once", Some(_)) => return invalid("catch_up_max is for catch_up 'all'"),
            ("skip", None) => CatchUp::Skip,
            ("" | "once", None) => CatchUp::Once,
            (other, _) => {
                return invalid(&format!("catch_up is 'skip', 'once' or 'all'; it is '{other}'"));
            }
        };
        let schedule = Schedule {
            name: self.name.into(),
            table,
            action,
            catch_up,
            until: self.until,
            runs_max: self.runs_max,
            description: self.description.into(),
        };
        schedule.check(vhost)?;
        Ok(schedule)
    }
}

impl CatchUp {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::All { .. } => "all",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_contradicts_itself_is_refused() {
        let fine = || AskedSchedule { name: "s", cron: "* * * * *", queue: "q", ..AskedSchedule::default() };
        let refused = |asked: AskedSchedule<'_>| asked.schedule(&VhostName::DEFAULT).unwrap_err().to_string();
        let job = || AskedJob { queue: "deals", kind: "search", key: "books", ..AskedJob::default() };
        let asks = |job| AskedSchedule { queue: "", job: Some(job), ..fine() };
        let message = ScheduledMessage { body: "x".into(), ..ScheduledMessage::default() };
        assert!(fine().schedule(&VhostName::DEFAULT).is_ok());
        let made = asks(job()).schedule(&VhostName::DEFAULT).unwrap();
        assert!(matches!(made.action, Action::Ask { job, .. } if job.background && job.cost.is_none()));
        let every = Some(Millis(1000));
        for (asked, text) in [
            (AskedSchedule { every, ..fine() }, "not both"),
            (AskedSchedule { cron: "", ..fine() }, "needs a cron expression or an interval"),
            (AskedSchedule { cron: "", every, time_zone: "UTC", ..fine() }, "a time zone is for cron"),
            (AskedSchedule { start: Some(Timestamp(1)), ..fine() }, "a start is for intervals"),
            (AskedSchedule { exchange: "x", ..fine() }, "not to both"),
            (AskedSchedule { queue: "", ..fine() }, "needs a queue or an exchange"),
            (AskedSchedule { job: Some(job()), ..fine() }, "sends a message or asks for a job, not both"),
            (AskedSchedule { message, ..asks(job()) }, "asks for a job sends no message"),
            (asks(AskedJob { queue: "", ..job() }), "job queue name"),
            (asks(AskedJob { kind: "", ..job() }), "job type"),
            (asks(AskedJob { key: "", ..job() }), "job key"),
            (asks(AskedJob { payload: "{".into(), ..job() }), "the payload of a job is JSON; this is none"),
            (asks(AskedJob { cost: Some(u64::MAX), ..job() }), "cost must be between 0 and"),
            (AskedSchedule { routing_key: "k", ..fine() }, "a routing key is for exchanges"),
            (AskedSchedule { catch_up: "some", ..fine() }, "it is 'some'"),
            (AskedSchedule { catch_up_max: Some(5), ..fine() }, "catch_up_max is for"),
            (AskedSchedule { catch_up: "all", catch_up_max: Some(0), ..fine() }, "between 1 and 10000"),
            (AskedSchedule { catch_up: "all", catch_up_max: Some(u64::MAX), ..fine() }, "between 1 and"),
            (AskedSchedule { runs_max: Some(0), ..fine() }, "max_runs must be between 1"),
            (AskedSchedule { name: "", ..fine() }, "schedule name"),
        ] {
            let said = refused(asked);
            assert!(said.contains(text), "{said}");
        }
    }
}
