//! What happened to schedules, as it is written down.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{Timestamp, VhostName};

use super::schedule::Schedule;
use crate::wire::{Reader, WireError, Writer};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleRecord {
    /// A schedule, new or instead of the one of that name, which keeps its figures.
    Put {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// All of it, also what stays as it was.
        schedule: Arc<Schedule>,
        /// Their name, for whoever looks at it; empty if nobody is known.
        set_by: Arc<str>,
        /// When its time table was set, by the calendar: intervals without a start count from here.
        anchor: Timestamp,
        /// Whether its times pass by unnoticed.
        is_paused: bool,
        /// By the calendar; `None` if it is paused or never due again.
        next: Option<Timestamp>,
    },
    /// A schedule is gone.
    Delete {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// One that is there.
        name: Arc<str>,
    },
    /// A schedule was paused or resumed.
    Pause {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// One that is there.
        name: Arc<str>,
        /// Whether its times pass by unnoticed.
        is_paused: bool,
        /// By the calendar; `None` if it is paused.
        next: Option<Timestamp>,
    },
    /// Times of a schedule were fired, or passed. What it sent, or the job that it asked for, is in the same frame.
    Fired {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// The one whose times have come.
        name: Arc<str>,
        /// What the calendar said then.
        at: Timestamp,
        /// Those of the table that were fired, in order; none if all passed.
        scheduled: Vec<Timestamp>,
        /// Times of the table that passed and are not fired.
        missed: u64,
        /// By the calendar; the time may have come already. `None` if it has ended.
        next: Option<Timestamp>,
    },
    /// Times of a schedule came, and it could not do what it should.
    Failed {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// The one whose times have come.
        name: Arc<str>,
        /// What the calendar said then.
        at: Timestamp,
        /// Those of the table at which it failed, in order.
        scheduled: Vec<Timestamp>,
        /// Times of the table that passed and were not tried.
        missed: u64,
        /// By the calendar; the time may have come already. `None` if it has ended.
        next: Option<Timestamp>,
        /// What went wrong, in words for the operator.
        error: Arc<str>,
    },
    /// Somebody had a schedule run, whatever its time table says.
    Ran {
        /// The virtual host that it is in.
        vhost: VhostName,
        /// The one that was run.
        name: Arc<str>,
        /// What the calendar said then.
        at: Timestamp,
    },
    /// A virtual host is gone, and its schedules.
    ForgetVhost {
        /// Its schedules go with it.
        vhost: VhostName,
    },
}

/// The version in which records are written.
const VERSION: u8 = 1;

impl ScheduleRecord {
    /// The bytes to write down.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(64);
        match self {
            Self::Put { vhost, schedule, set_by, anchor, is_paused, next } => {
                out.tag(VERSION, 0);
                out.text(vhost.as_str());
                schedule.encode(&mut out);
                out.text(set_by);
                out.u64(anchor.0);
                out.u8((*is_paused).into());
                put_time(&mut out, *next);
            }
            Self::Delete { vhost, name } => {
                out.tag(VERSION, 1);
                out.text(vhost.as_str());
                out.text(name);
            }
            Self::Pause { vhost, name, is_paused, next } => {
                out.tag(VERSION, 2);
                out.text(vhost.as_str());
                out.text(name);
                out.u8((*is_paused).into());
                put_time(&mut out, *next);
            }
            Self::Fired { vhost, name, at, scheduled, missed, next } => {
                out.tag(VERSION, 3);
                put_times(&mut out, (vhost, name), *at, scheduled, (*missed, *next));
            }
            Self::Failed { vhost, name, at, scheduled, missed, next, error } => {
                out.tag(VERSION, 4);
                put_times(&mut out, (vhost, name), *at, scheduled, (*missed, *next));
                out.text(error);
            }
            Self::Ran { vhost, name, at } => {
                out.tag(VERSION, 5);
                out.text(vhost.as_str());
                out.text(name);
                out.u64(at.0);
            }
            Self::ForgetVhost { vhost } => {
                out.tag(VERSION, 6);
                out.text(vhost.as_str());
            }
        }
        out.into_bytes()
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        let (_, kind) = input.tag("a record of schedules", VERSION)?;
        let vhost = decode_vhost(&mut input)?;
        let from = &mut input;
        let record = match kind {
            0 => Self::Put {
                vhost,
                schedule: Arc::new(Schedule::decode(from)?),
                set_by: from.text()?.into(),
                anchor: Timestamp(from.u64()?),
                is_paused: from.flag()?,
                next: take_time(from)?,
            },
            1 => Self::Delete { vhost, name: from.text()?.into() },
            2 => Self::Pause {
                vhost,
                name: from.text()?.into(),
                is_paused: from.flag()?,
                next: take_time(from)?,
            },
            3 => {
                let (name, at, scheduled, missed, next) = take_times(from)?;
                Self::Fired { vhost, name, at, scheduled, missed, next }
            }
            4 => {
                let (name, at, scheduled, missed, next) = take_times(from)?;
                Self::Failed { vhost, name, at, scheduled, missed, next, error: from.text()?.into() }
            }
            5 => Self::Ran { vhost, name: from.text()?.into(), at: Timestamp(from.u64()?) },
            6 => Self::ForgetVhost { vhost },
            value => return Err(WireError::Unknown { what: "kind of record of schedules", value }),
        };
        input.finish()?;
        Ok(record)
    }
}

fn put_times(
    out: &mut Writer,
    (vhost, name): (&VhostName, &str),
    at: Timestamp,
    scheduled: &[Timestamp],
    (missed, next): (u64, Option<Timestamp>),
) {
    out.text(vhost.as_str());
    out.text(name);
    out.u64(at.0);
    out.u64(scheduled.len() as u64);
    for time in scheduled {
        out.u64(time.0);
    }
    out.u64(missed);
    put_time(out, next);
}

type Times = (Arc<str>, Timestamp, Vec<Timestamp>, u64, Option<Timestamp>);

fn take_times(input: &mut Reader<'_>) -> Result<Times, WireError> {
    let (name, at) = (input.text()?.into(), Timestamp(input.u64()?));
    let mut scheduled = Vec::new();
    for _ in 0..input.u64()? {
        scheduled.push(Timestamp(input.u64()?));
    }
    Ok((name, at, scheduled, input.u64()?, take_time(input)?))
}

pub(super) fn put_time(out: &mut Writer, time: Option<Timestamp>) {
    out.optional(time.map(|time| time.0));
}

pub(super) fn take_time(input: &mut Reader<'_>) -> Result<Option<Timestamp>, WireError> {
    Ok(input.optional()?.map(Timestamp))
}

pub(super) fn decode_vhost(input: &mut Reader<'_>) -> Result<VhostName, WireError> {
    VhostName::new(input.text()?).map_err(|_| WireError::BadName)
}
