//! When a schedule is due: a cron expression with a time zone, or an interval.
//!
//! Cron expressions have five fields, or six with seconds in front; `croner` reads them. Time zones come from the database that
//! is compiled in, never from that of the machine: the same build gives the same times everywhere.
//!
//! What happens when clocks are changed is said here and not by `croner`, which is asked for times without a zone:
//! - A line that names hours (`30 2 * * *`, `0 */2 * * *`) fires once for each time that it names. A time that is left out is fired at
//!   the first moment after the gap, and several of them once. A time that comes twice is fired the first time.
//! - A line for every hour (`*`: `30 * * * *`, `*/10 * * * *`) goes by the clock: nothing in the gap, and in the hour that comes twice it
//!   fires both times. So what is hourly stays hourly.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use croner::Cron;
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use nexo_types::{Millis, Timestamp, limits};

use super::error::ScheduleError;
use crate::wire::{Reader, WireError, Writer};

/// The database that is compiled in.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
/// The first window that is searched for the latest times before a moment.
const WINDOW: Millis = Millis::from_secs(3600);

/// When a schedule is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeTable {
    /// At the times of a cron expression.
    Cron {
        /// As it was given.
        expression: Arc<str>,
        /// The name of the time zone.
        zone: Arc<str>,
    },
    /// Again and again after the same time.
    Every {
        /// How long.
        interval: Millis,
        /// The first time; if it is not given, one interval after the schedule was set.
        start: Option<Timestamp>,
    },
}

impl TimeTable {
    /// The times of a cron expression, in a time zone.
    ///
    /// # Errors
    /// If it is no expression, names a moment that never comes, or there is no such zone.
    pub fn cron(expression: &str, zone: &str) -> Result<Self, ScheduleError> {
        let (max, bytes) = (limits::CRON_BYTES_MAX, expression.len().max(zone.len()));
        if bytes > max {
            return Err(ScheduleError::TooLarge { what: "a cron expression", max, bytes });
        }
        let expression = expression.trim();
        parse(expression)
            .map_err(|reason| ScheduleError::Cron { expression: expression.to_owned(), reason })?;
        let found = ZONES.get(zone).map_err(|_| ScheduleError::Zone { zone: zone.to_owned() })?;
        // As the database spells it.
        let zone = found.iana_name().unwrap_or(zone).into();
        let table = Self::Cron { expression: expression.into(), zone };
        // An expression has no years: what does not come from some moment on never does.
        match table.next_after(Timestamp(0), Timestamp(0)) {
            Some(_) => Ok(table),
            None => Err(table.never()),
        }
    }

    /// Every so often, from `start` on.
    ///
    /// # Errors
    /// If that is too often, or hardly ever.
    pub fn every(interval: Millis, start: Option<Timestamp>) -> Result<Self, ScheduleError> {
        let (min, max) = (limits::SCHEDULE_INTERVAL_MIN, limits::DELAY_MAX);
        if !(min..=max).contains(&interval) {
            return Err(ScheduleError::Interval { interval, min, max });
        }
        start.map_or(Ok(()), |start| check_time("start", start))?;
        Ok(Self::Every { interval, start })
    }

    /// The first time after a moment. Intervals are counted from `anchor`, unless they have a start of their own. `None` if there
    /// is none.
    #[must_use]
    pub fn next_after(&self, after: Timestamp, anchor: Timestamp) -> Option<Timestamp> {
        self.times(after, anchor)?.next()
    }

    /// What is said of a table that has no time.
    pub(super) fn never(&self) -> ScheduleError {
        let expression = match self {
            Self::Cron { expression, .. } => expression.to_string(),
            Self::Every { interval, .. } => format!("every {interval}"),
        };
        ScheduleError::Never { expression }
    }

    /// The times after a moment, in their order. `None` if this build knows the expression or the zone no more.
    fn times(&self, after: Timestamp, anchor: Timestamp) -> Option<Times> {
        match self {
            Self::Cron { expression, zone } => {
                let cron = parse(expression).ok()?;
                let zone = ZONES.get(zone).ok()?;
                // Whole seconds: what the expression names has no parts of them.
                let seconds = i64::try_from(after.0 / 1000).ok()?;
                let after = jiff::Timestamp::from_second(seconds).ok()?;
                let is_by_clock = is_by_clock(expression);
                Some(Times::Cron(Box::new(CronTimes { cron, zone, is_by_clock, after })))
            }
            Self::Every { interval, start } => {
                let first = start.unwrap_or_else(|| anchor.plus(*interval));
                let step = interval.0.max(1);
                let passed = after.0.checked_sub(first.0).map_or(0, |since| since / step + 1);
                let next = passed.checked_mul(step).and_then(|span| first.0.checked_add(span));
                Some(Times::Every { next: next.map(Timestamp), step: Millis(step) })
            }
        }
    }

    /// The times from `first`, which is one of them, until `limit`: the latest `wanted`, and how many were before them. Of very
    /// many not all are counted: more than [`limits::MISSED_COUNTED_MAX`] are that many.
    pub(super) fn latest(
        &self,
        first: Timestamp,
        limit: Timestamp,
        wanted: usize,
        anchor: Timestamp,
    ) -> (Vec<Timestamp>, u64) {
        if let Self::Every { interval, .. } = self {
            let step = interval.0.max(1);
            let count = limit.0.saturating_sub(first.0) / step + 1;
            let kept = count.min(wanted as u64);
            let before = count - kept;
            let nth = |number: u64| first.plus(Millis((before + number).saturating_mul(step)));
            return ((0..kept).map(nth).collect(), before);
        }
        let mut kept: VecDeque<Timestamp> = VecDeque::from([first]);
        let mut count: u64 = 1;
        let is_before = |at: &Timestamp| *at <= limit;
        for at in self.times(first, anchor).into_iter().flatten().take_while(is_before) {
            kept.push_back(at);
            count += 1;
            if kept.len() > wanted {
                kept.pop_front();
            }
            if count > limits::MISSED_COUNTED_MAX {
                return (self.tail(first, limit, wanted, anchor), limits::MISSED_COUNTED_MAX);
            }
        }
        while kept.len() > wanted {
            kept.pop_front();
        }
        let before = count - kept.len() as u64;
        (kept.into(), before)
    }

    /// The latest times until `limit`, where there are too many to go through all of them: looked for in a window before it, which
    /// grows until it has enough.
    fn tail(&self, first: Timestamp, limit: Timestamp, wanted: usize, anchor: Timestamp) -> Vec<Timestamp> {
        let mut window = WINDOW;
        loop {
            let from = Timestamp(limit.0.saturating_sub(window.0)).max(first);
            let mut kept = VecDeque::new();
            let found = self.times(from, anchor).into_iter().flatten();
            for at in found.take_while(|at| *at <= limit) {
                kept.push_back(at);
                if kept.len() > wanted {
                    kept.pop_front();
                }
            }
            if kept.len() >= wanted || from == first {
                return kept.into();
            }
            window = Millis(window.0.saturating_mul(2));
        }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        match self {
            Self::Cron { expression, zone } => {
                out.u8(0);
                out.text(expression);
                out.text(zone);
            }
            Self::Every { interval, start } => {
                out.u8(1);
                out.u64(interval.0);
                out.optional(start.map(|start| start.0));
            }
        }
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        match input.u8()? {
            0 => Ok(Self::Cron { expression: input.text()?.into(), zone: input.text()?.into() }),
            1 => {
                let interval = Millis(input.u64()?);
                Ok(Self::Every { interval, start: input.optional()?.map(Timestamp) })
            }
            value => Err(WireError::Unknown { what: "kind of time table", value }),
        }
    }
}

/// The times of a table after a moment, one after the other.
enum Times {
    Cron(Box<CronTimes>),
    Every { next: Option<Timestamp>, step: Millis },
}

impl Iterator for Times {
    type Item = Timestamp;

    fn next(&mut self) -> Option<Timestamp> {
        match self {
            Self::Cron(times) => {
                times.after = if times.is_by_clock { times.next_by_clock() } else { times.next_named() }?;
                u64::try_from(times.after.as_millisecond()).ok().map(Timestamp)
            }
            Self::Every { next, step } => {
                let at = (*next)?;
                *next = at.0.checked_add(step.0).map(Timestamp);
                Some(at)
            }
        }
    }
}

/// The times of a cron expression.
struct CronTimes {
    cron: Cron,
    zone: TimeZone,
    is_by_clock: bool,
    /// The one before.
    after: jiff::Timestamp,
}

impl CronTimes {
    /// The next time that the line names, at the moment at which it comes.
    fn next_named(&self) -> Option<jiff::Timestamp> {
        let mut named = self.zone.to_datetime(self.after);
        loop {
            named = self.cron.find_next_occurrence(&named, false).ok()?;
            let at = self.moment_of(named)?;
            // In the second half of what comes twice, the first was before.
            if at > self.after {
                return Some(at);
            }
        }
    }

    /// The next moment at which the clock shows a time of the line.
    fn next_by_clock(&self) -> Option<jiff::Timestamp> {
        let (mut at, mut inclusive) = (self.after, false);
        loop {
            let offset = self.zone.to_offset(at);
            let shown = self.cron.find_next_occurrence(&offset.to_datetime(at), inclusive).ok()?;
            let found = offset.to_timestamp(shown).ok()?;
            match self.zone.following(at).next().map(|change| change.timestamp()) {
                // The clock is changed before. It may show a time of the line at once.
                Some(change) if change <= found => (at, inclusive) = (change, true),
                Some(_) | None => return Some(found),
            }
        }
    }

    /// When the clock shows this time: the first time if twice, and right after the gap if never.
    fn moment_of(&self, named: DateTime) -> Option<jiff::Timestamp> {
        match self.zone.to_ambiguous_timestamp(named).offset() {
            AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                offset.to_timestamp(named).ok()
            }
            AmbiguousOffset::Gap { before, .. } => {
                // By the clock that was not changed it is as long after the change as it is into the gap.
                let inside =
                    before.to_timestamp(named).ok()?.checked_add(jiff::SignedDuration::from_secs(1)).ok()?;
                self.zone.preceding(inside).next().map(|change| change.timestamp())
            }
        }
    }
}

/// Whether an expression is for every hour.
fn is_by_clock(expression: &str) -> bool {
    let fields: Vec<&str> = expression.split_whitespace().collect();
    match fields.as_slice() {
        [nickname] => nickname.eq_ignore_ascii_case("@hourly"),
        [.., hours, _, _, _] => matches!(*hours, "*" | "?"),
        _ => false,
    }
}

fn parse(expression: &str) -> Result<Cron, String> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(expression).map_err(|error| match error {
        CronError::InvalidPattern(reason)
        | CronError::IllegalCharacters(reason)
        | CronError::ComponentError(reason) => reason,
        CronError::EmptyPattern => "it is empty".to_owned(),
        CronError::InvalidDate | CronError::InvalidTime | CronError::TimeSearchLimitExceeded => {
            error.to_string()
        }
    })
}

/// Whether calendars have such a moment.
pub(super) fn check_time(field: &'static str, at: Timestamp) -> Result<(), ScheduleError> {
    let (max, value) = (limits::SCHEDULE_TIME_MAX, at.0);
    if value > max { Err(ScheduleError::OutOfRange { field, min: 0, max, value }) } else { Ok(()) }
}

/// A moment as RFC 3339 has it, in UTC.
#[must_use]
pub fn as_text(at: Timestamp) -> String {
    let moment = i64::try_from(at.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    moment.map_or_else(|| at.to_string(), |moment| moment.to_string())
}

/// A moment that somebody wrote as RFC 3339 has it.
#[must_use]
pub fn from_text(text: &str) -> Option<Timestamp> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(moment.as_millisecond()).ok().map(Timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(text: &str) -> Timestamp {
        let at: jiff::Timestamp = text.parse().unwrap();
        Timestamp(at.as_millisecond().try_into().unwrap())
    }

    /// The next times after a moment, as text in UTC.
    fn next(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let table = TimeTable::cron(expression, zone).unwrap();
        let times = table.times(moment(after), Timestamp(0)).unwrap();
        times.take(count).map(as_text).collect()
    }

    #[test]
    fn five_fields_are_minutes_and_six_have_seconds() {
        let after = "2026-01-05T11:59:59.999Z";
        assert_eq!(next("0 12 * * 1-5", "UTC", after, 2), ["2026-01-05T12:00:00Z", "2026-01-06T12:00:00Z"]);
        assert_eq!(
            next("*/20 0 12 * * *", "UTC", "2026-01-05T12:00:20Z", 2),
            ["2026-01-05T12:00:40Z", "2026-01-06T12:00:00Z"]
        );
        assert_eq!(next("@daily", "UTC", after, 1), ["2026-01-06T00:00:00Z"]);
        assert_eq!(next("0 9 L * *", "UTC", "2028-02-01T00:00:00Z", 1), ["2028-02-29T09:00:00Z"]);
        // As in every cron: where both are named, either day will do.
        assert_eq!(
            next("0 0 13 * FRI", "UTC", "2026-11-10T00:00:00Z", 3),
            ["2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z"]
        );
    }

    #[test]
    fn a_time_zone_moves_with_its_summer_time() {
        let nine = |after| next("0 9 * * *", "Europe/Berlin", after, 1);
        assert_eq!(nine("2026-01-10T00:00:00Z"), ["2026-01-10T08:00:00Z"]);
        assert_eq!(nine("2026-07-10T00:00:00Z"), ["2026-07-10T07:00:00Z"]);
        let spelled = TimeTable::cron("* * * * *", "europe/berlin").unwrap();
        assert!(matches!(spelled, TimeTable::Cron { zone, .. } if &*zone == "Europe/Berlin"));
    }

    /// In Berlin there is no time from 2 to 3 on 29 March 2026.
    #[test]
    fn a_time_that_does_not_exist_is_fired_right_after_the_gap_and_once() {
        let after = "2026-03-28T12:00:00Z";
        assert_eq!(
            next("30 2 * * *", "Europe/Berlin", after, 2),
            ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
            "at 3 o'clock, and the day after at half past 2 again"
        );
        assert_eq!(
            next("15,45 2 * * *", "Europe/Berlin", after, 2),
            ["2026-03-29T01:00:00Z", "2026-03-30T00:15:00Z"],
            "two times that do not exist are one"
        );
        assert_eq!(
            next("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:29:00Z", 3),
            ["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"],
            "what goes by the clock has nothing in the gap"
        );
        assert_eq!(
            next("0 */2 * * *", "Europe/Berlin", "2026-03-28T23:30:00Z", 2),
            ["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"],
            "2 o'clock comes at 3"
        );
        let midnight = next("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00:00Z", 2);
        assert_eq!(midnight, ["2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"], "a day that begins at 1");
    }

    /// In Berlin the time from 2 to 3 comes twice on 25 October 2026.
    #[test]
    fn a_time_that_comes_twice_is_fired_the_first_time() {
        assert_eq!(
            next("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
        assert_eq!(
            next("30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 3),
            ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"],
            "what is hourly stays hourly"
        );
        assert_eq!(next("@hourly", "Europe/Berlin", "2026-10-25T00:00:00Z", 1), ["2026-10-25T01:00:00Z"]);
    }

    #[test]
    fn what_is_no_expression_and_no_zone_is_refused() {
        for wrong in ["", "* * * *", "60 * * * *", "* * * * * * 2027", "a * * * *", "0/5 * * * *"] {
            let refused = TimeTable::cron(wrong, "UTC").unwrap_err();
            assert!(matches!(refused, ScheduleError::Cron { .. }), "{wrong}: {refused}");
        }
        for wrong in ["", "Mars/Olympus", "CEST", "+02:00", "../../etc/localtime"] {
            let refused = TimeTable::cron("* * * * *", wrong).unwrap_err();
            assert!(matches!(refused, ScheduleError::Zone { .. }), "{wrong}: {refused}");
        }
        let long = "1,".repeat(limits::CRON_BYTES_MAX);
        assert!(matches!(TimeTable::cron(&long, "UTC"), Err(ScheduleError::TooLarge { .. })));
    }

    #[test]
    fn a_line_that_names_no_day_is_refused() {
        let refused = TimeTable::cron("0 0 30 2 *", "UTC").unwrap_err();
        assert_eq!(refused.to_string(), "the cron expression '0 0 30 2 *' names a moment that never comes");
        assert_eq!(next("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", 1), ["2028-02-29T00:00:00Z"]);
    }

    #[test]
    fn an_interval_counts_from_its_start_or_from_when_it_was_set() {
        let from_start = TimeTable::every(Millis(1000), Some(Timestamp(5500))).unwrap();
        let next = |table: &TimeTable, after| table.next_after(Timestamp(after), Timestamp(300)).unwrap().0;
        assert_eq!(
            [next(&from_start, 0), next(&from_start, 5500), next(&from_start, 7499)],
            [5500, 6500, 7500]
        );
        let from_set = TimeTable::every(Millis(1000), None).unwrap();
        assert_eq!([next(&from_set, 300), next(&from_set, 1300), next(&from_set, 1301)], [1300, 2300, 2300]);
        for wrong in [0, 99, limits::DELAY_MAX.0 + 1] {
            let refused = TimeTable::every(Millis(wrong), None).unwrap_err();
            assert!(matches!(refused, ScheduleError::Interval { .. }), "{refused}");
        }
    }

    #[test]
    fn the_latest_times_are_found_however_many_there_are() {
        let each_second = TimeTable::cron("* * * * * *", "UTC").unwrap();
        let (first, limit) = (moment("2026-01-01T00:00:00Z"), moment("2026-06-01T00:00:00.500Z"));
        let (times, before) = each_second.latest(first, limit, 5000, Timestamp(0));
        assert_eq!((times.len(), before), (5000, limits::MISSED_COUNTED_MAX));
        assert_eq!(times.last(), Some(&moment("2026-06-01T00:00:00Z")));
        assert!(times.windows(2).all(|pair| pair[1].since(pair[0]) == Millis(1000)));
        let (times, before) = each_second.latest(first, first.plus(Millis(9_999)), 4, Timestamp(0));
        assert_eq!((times[0], times.len(), before), (first.plus(Millis(6_000)), 4, 6));
        let every = TimeTable::every(Millis(1000), Some(first)).unwrap();
        assert_eq!(every.latest(first, first.plus(Millis(9_999)), 4, Timestamp(0)), (times, 6));
    }

    /// Goes through the minutes one by one and looks at the clock.
    fn naive(zone: &str, hour: Option<i8>, minute: i8, after: Timestamp, count: usize) -> Vec<Timestamp> {
        let zone = ZONES.get(zone).unwrap();
        let shown =
            |ms: u64| zone.to_datetime(jiff::Timestamp::from_millisecond(ms.try_into().unwrap()).unwrap());
        let is_named =
            |time: DateTime| hour.is_none_or(|hour| time.hour() == hour) && time.minute() == minute;
        let mut at = after.0 / 60_000 * 60_000;
        // What was shown before, so that what comes a second time is known.
        let mut latest = (0..180).map(|back| shown(at - back * 60_000)).max().unwrap();
        let mut found = Vec::new();
        while found.len() < count {
            at += 60_000;
            let (before, now) = (shown(at - 60_000), shown(at));
            let mut left_out = Vec::new();
            let mut skipped = before.checked_add(jiff::SignedDuration::from_mins(1)).unwrap();
            while skipped < now {
                left_out.push(skipped);
                skipped = skipped.checked_add(jiff::SignedDuration::from_mins(1)).unwrap();
            }
            let is_time = match hour {
                None => is_named(now),
                Some(_) => (is_named(now) && now > latest) || left_out.into_iter().any(is_named),
            };
            latest = latest.max(now);
            if is_time {
                found.push(Timestamp(at));
            }
        }
        found
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { cases: 60, ..Default::default() })]

        /// Around the moments of 2026 at which clocks are changed somewhere, and elsewhere.
        #[test]
        fn times_are_those_of_somebody_who_watches_the_clock(
            zone in proptest::sample::select(vec![
                "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "America/St_Johns", "Asia/Kolkata", "UTC",
            ]),
            change in proptest::sample::select(vec![
                "2026-03-08T06:00:00Z", "2026-03-29T01:00:00Z", "2026-04-23T22:00:00Z", "2026-04-04T15:00:00Z",
                "2026-10-03T15:30:00Z", "2026-10-25T01:00:00Z", "2026-10-29T21:00:00Z", "2026-11-01T06:00:00Z",
            ]),
            before_minutes in 0..400u64,
            hour in proptest::option::of(0..24i8),
            minute in 0..60i8,
        ) {
            let after = Timestamp(moment(change).0 - before_minutes * 60_000);
            let hours = hour.map_or_else(|| "*".to_owned(), |hour| hour.to_string());
            let table = TimeTable::cron(&format!("{minute} {hours} * * *"), zone).unwrap();
            let times: Vec<Timestamp> = table.times(after, Timestamp(0)).unwrap().take(4).collect();
            assert_eq!(times, naive(zone, hour, minute, after, 4));
        }
    }
}
