//! A schedule in the plain words in which all ways in ask for one, and what it becomes.

use nexo_types::{ExchangeName, Millis, QueueName, Timestamp, VhostName, limits};

use super::error::ScheduleError;
use super::schedule::{Action, CatchUp, Schedule, ScheduledMessage};
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
            ("", "") => return invalid("a schedule needs a queue or an exchange to send to"),
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
        assert!(fine().schedule(&VhostName::DEFAULT).is_ok());
        let every = Some(Millis(1000));
        for (asked, text) in [
            (AskedSchedule { every, ..fine() }, "not both"),
            (AskedSchedule { cron: "", ..fine() }, "needs a cron expression or an interval"),
            (AskedSchedule { cron: "", every, time_zone: "UTC", ..fine() }, "a time zone is for cron"),
            (AskedSchedule { start: Some(Timestamp(1)), ..fine() }, "a start is for intervals"),
            (AskedSchedule { exchange: "x", ..fine() }, "not to both"),
            (AskedSchedule { queue: "", ..fine() }, "needs a queue or an exchange"),
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
