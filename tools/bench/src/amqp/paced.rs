//! A publisher that keeps a schedule, whatever the broker does.
//!
//! One thread does everything: until shortly before the next message is due it sleeps in `poll`, which ends early when
//! confirms arrive; the last few microseconds it spins, because a sleep is not that exact.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::publisher::{Publisher, Times};
use crate::percentiles;
use crate::schedule::{SPIN, Schedule};
use crate::tally::Tally;
use crate::work::Paced;

/// A publisher with a schedule.
pub(crate) struct PacedPublisher {
    publisher: Publisher,
    schedule: Schedule,
}

impl PacedPublisher {
    pub(crate) fn new(publisher: Publisher, schedule: Schedule) -> Self {
        Self { publisher, schedule }
    }

    /// Publishes by the schedule from `began` on until told to stop. The first eight bytes of each body are the
    /// nanoseconds from `began` to the moment when the message was due. What is due before `measured` is not measured.
    pub(crate) fn run(
        mut self,
        began: Instant,
        measured: Duration,
        stop: &AtomicBool,
        tally: &Tally,
    ) -> anyhow::Result<Paced> {
        // A sleep may otherwise be 50 µs longer than asked for. Where this is not allowed, jitter shows it.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
        let mut late_nanos = percentiles::nanos();
        for index in 0.. {
            let due = self.schedule.due(index);
            self.wait_until(began + due, tally)?;
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let late = began.elapsed().saturating_sub(due);
            if due >= measured {
                percentiles::note(&mut late_nanos, late, self.schedule.burst);
            }
            let times = if due >= measured { Times::From(began + due) } else { Times::Ignored };
            self.publisher.publish_marked(due, self.schedule.burst, times, tally)?;
        }
        while self.publisher.unconfirmed() > 0 {
            self.publisher.await_confirms(tally)?;
        }
        Ok(Paced { late_nanos, confirm_nanos: self.publisher.finish()? })
    }

    /// Waits until the moment has come and there is room for a burst, taking confirms on the way.
    fn wait_until(&mut self, due: Instant, tally: &Tally) -> anyhow::Result<()> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if self.publisher.room() < self.schedule.burst {
                self.publisher.await_confirms(tally)?;
            } else if left.is_zero() {
                return Ok(());
            } else if left > SPIN {
                if self.readable_within(left - SPIN)? {
                    self.publisher.await_confirms(tally)?;
                }
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn readable_within(&self, time: Duration) -> anyhow::Result<bool> {
        let mut sockets = [PollFd::new(self.publisher.socket(), PollFlags::IN)];
        let timeout = Timespec::try_from(time).context("a time between two messages is short")?;
        match poll(&mut sockets, Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
