//! A publisher that keeps a schedule. A request is on its way until its answer comes, so there are several connections:
//! each burst goes out on one that is free. If none is, the broker cannot keep up, and what is due waits and counts.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::SqsUrl;
use super::answers::all_taken;
use super::connection::{AnswerSize, Connection, PATIENCE};
use super::requests::{BATCH_MAX, MARK_BYTES, Request};
use crate::percentiles;
use crate::protocol::PublishPaced;
use crate::schedule::{SPIN, Schedule};
use crate::tally::Tally;
use crate::work::{MessageShape, Paced};

/// Connections if no window says how many messages may be unconfirmed.
const CONNECTIONS: u64 = 16;
/// More would only be waited for in turn.
const CONNECTIONS_MAX: u64 = 256;
const ACTION: &str = "SendMessageBatch";

/// Connections that publish by a schedule.
pub(super) struct PacedPublisher {
    lines: Vec<Line>,
    batch: Request,
    schedule: Schedule,
    tally: Arc<Tally>,
    published: u64,
    confirmed: u64,
    confirm_nanos: Histogram<u64>,
}

struct Line {
    connection: Connection,
    state: State,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// A burst is on its way, which was due at this moment if that is measured.
    Busy(Option<Instant>),
}

impl PacedPublisher {
    pub(super) fn open(
        url: &SqsUrl,
        shape: &MessageShape,
        window: u32,
        schedule: Schedule,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Self> {
        ensure!(
            shape.body_bytes >= MARK_BYTES,
            "over SQS a message tells its time as text; --size must be at least {MARK_BYTES}"
        );
        let burst = u16::try_from(schedule.burst).unwrap_or(u16::MAX);
        ensure!(
            burst <= BATCH_MAX,
            "at this rate {burst} messages are due at once, and over SQS a request takes {BATCH_MAX}"
        );
        let [queue] = shape.routing_keys.as_slice() else {
            anyhow::bail!("over SQS a publisher with a schedule has one queue");
        };
        let count = if window == 0 { CONNECTIONS } else { u64::from(window) / schedule.burst };
        let mut lines = Vec::new();
        for _ in 0..count.clamp(1, CONNECTIONS_MAX) {
            lines.push(Line { connection: Connection::open(url, AnswerSize::Small)?, state: State::Free });
        }
        let queue_url = url.queue_url(&mut lines[0].connection, queue)?;
        Ok(Self {
            lines,
            batch: Request::send_batch(url, &queue_url, burst, shape.body_bytes),
            schedule,
            tally,
            published: 0,
            confirmed: 0,
            confirm_nanos: percentiles::nanos(),
        })
    }

    /// Waits until the moment has come and a connection is free, taking answers on the way; gives back which.
    fn free_at(&mut self, due: Instant) -> anyhow::Result<usize> {
        let end = due.max(Instant::now()) + PATIENCE;
        loop {
            let free = self.lines.iter().position(|line| line.state == State::Free);
            let left = due.saturating_duration_since(Instant::now());
            match free {
                None => {
                    ensure!(Instant::now() < end, "nothing was confirmed for {PATIENCE:?}");
                    self.take_answers(PATIENCE)?;
                }
                Some(free) if left.is_zero() => return Ok(free),
                Some(_) if left > SPIN => self.take_answers(left - SPIN)?,
                Some(_) => std::hint::spin_loop(),
            }
        }
    }

    /// Waits so long for answers, and takes those that have come.
    fn take_answers(&mut self, time: Duration) -> anyhow::Result<()> {
        let timeout = Timespec::try_from(time).context("a time between two messages is short")?;
        let busy: Vec<usize> =
            (0..self.lines.len()).filter(|index| self.lines[*index].state != State::Free).collect();
        let mut sockets: Vec<PollFd<'_>> = busy
            .iter()
            .map(|index| PollFd::new(self.lines[*index].connection.socket(), PollFlags::IN))
            .collect();
        match poll(&mut sockets, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = sockets.iter().map(|socket| !socket.revents().is_empty()).collect();
        for (index, _) in busy.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            self.take_answer(index)?;
        }
        Ok(())
    }

    fn take_answer(&mut self, index: usize) -> anyhow::Result<()> {
        let line = &mut self.lines[index];
        let Some(answer) = line.connection.read(ACTION)? else { return Ok(()) };
        all_taken(ACTION, self.schedule.burst, &line.connection.body(&answer))?;
        if let State::Busy(Some(due)) = line.state {
            let time = Instant::now().saturating_duration_since(due);
            percentiles::note(&mut self.confirm_nanos, time, self.schedule.burst);
        }
        line.state = State::Free;
        self.confirmed += self.schedule.burst;
        self.tally.confirmed.set(self.confirmed);
        Ok(())
    }

    fn publish(&mut self, free: usize, due: Duration, measured: Option<Instant>) -> anyhow::Result<()> {
        self.batch.mark(u64::try_from(due.as_nanos()).context("a run takes less than five hundred years")?);
        let line = &mut self.lines[free];
        line.connection.send(&self.batch)?;
        line.state = State::Busy(measured);
        self.published += self.schedule.burst;
        self.tally.published.set(self.published);
        Ok(())
    }
}

impl PublishPaced for PacedPublisher {
    fn run(
        mut self: Box<Self>,
        began: Instant,
        measured: Duration,
        stop: &AtomicBool,
    ) -> anyhow::Result<Paced> {
        // As in the publisher for AMQP: a sleep may otherwise be 50 µs longer than asked for.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
        let mut late_nanos = percentiles::nanos();
        for index in 0.. {
            let due = self.schedule.due(index);
            let free = self.free_at(began + due)?;
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let is_measured = due >= measured;
            if is_measured {
                let late = began.elapsed().saturating_sub(due);
                percentiles::note(&mut late_nanos, late, self.schedule.burst);
            }
            self.publish(free, due, is_measured.then_some(began + due))?;
        }
        let end = Instant::now() + PATIENCE;
        while self.confirmed < self.published {
            ensure!(Instant::now() < end, "{} messages were not confirmed", self.published - self.confirmed);
            self.take_answers(PATIENCE)?;
        }
        Ok(Paced { late_nanos, confirm_nanos: Some(self.confirm_nanos) })
    }
}
