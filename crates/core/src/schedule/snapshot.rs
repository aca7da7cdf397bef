//! All schedules as bytes, so that recovery need not read the log from its beginning.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::Timestamp;

use super::record::{decode_vhost, put_time, take_time};
use super::schedule::Schedule;
use super::state::{ScheduleEntry, ScheduleStatus, Schedules};
use crate::wire::{Reader, WireError, Writer};

/// The version in which a snapshot is written.
const VERSION: u64 = 1;

impl Schedules {
    /// The state as bytes.
    #[must_use]
    pub fn snapshot(&self) -> Bytes {
        let mut out = Writer::with_capacity(256);
        out.version(VERSION);
        out.u64(self.len() as u64);
        for (vhost, entry) in self.all() {
            out.text(vhost.as_str());
            entry.schedule.encode(&mut out);
            entry.status.encode(&mut out);
        }
        out.into_bytes()
    }

    /// The state of a snapshot.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        input.version("the snapshot of schedules", VERSION)?;
        let mut schedules = Self::new();
        for _ in 0..input.u64()? {
            let vhost = decode_vhost(&mut input)?;
            let schedule = Arc::new(Schedule::decode(&mut input)?);
            let status = ScheduleStatus::decode(&mut input)?;
            schedules.insert((vhost, Arc::clone(&schedule.name)), ScheduleEntry { schedule, status });
        }
        input.finish()?;
        Ok(schedules)
    }
}

impl ScheduleStatus {
    fn encode(&self, out: &mut Writer) {
        out.text(&self.set_by);
        out.u64(self.anchor.0);
        out.u8(self.is_paused.into());
        put_time(out, self.next);
        put_time(out, self.last_scheduled);
        put_time(out, self.last_run);
        [self.runs, self.manual_runs, self.failures, self.missed]
            .into_iter()
            .for_each(|count| out.u64(count));
        match &self.last_error {
            None => put_time(out, None),
            Some((at, error)) => {
                put_time(out, Some(*at));
                out.text(error);
            }
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            set_by: input.text()?.into(),
            anchor: Timestamp(input.u64()?),
            is_paused: input.flag()?,
            next: take_time(input)?,
            last_scheduled: take_time(input)?,
            last_run: take_time(input)?,
            runs: input.u64()?,
            manual_runs: input.u64()?,
            failures: input.u64()?,
            missed: input.u64()?,
            last_error: match take_time(input)? {
                None => None,
                Some(at) => Some((at, input.text()?.into())),
            },
        })
    }
}
