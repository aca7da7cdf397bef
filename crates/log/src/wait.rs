//! Waiting for the log to get to a position.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use nexo_types::{Position, SegmentId};
use tokio::sync::oneshot;

use crate::error::LogError;

/// Resolves once the log has got to a position, or has failed before.
#[derive(Debug)]
#[must_use = "nothing is known about the append until this was awaited"]
pub struct Reached(Inner);

#[derive(Debug)]
enum Inner {
    Ready(Result<(), LogError>),
    Waiting(oneshot::Receiver<Result<(), LogError>>),
}

impl Reached {
    pub(crate) fn ready(result: Result<(), LogError>) -> Self {
        Self(Inner::Ready(result))
    }

    /// Waits without an executor.
    pub fn wait_blocking(self) -> Result<(), LogError> {
        match self.0 {
            Inner::Ready(result) => result,
            Inner::Waiting(receiver) => receiver.blocking_recv().unwrap_or(Err(LogError::Closed)),
        }
    }
}

impl Future for Reached {
    type Output = Result<(), LogError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(result) => Poll::Ready(result.clone()),
            Inner::Waiting(receiver) => {
                Pin::new(receiver).poll(cx).map(|sent| sent.unwrap_or(Err(LogError::Closed)))
            }
        }
    }
}

/// Those who wait, in the order of what they wait for.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    until: Position,
    sender: oneshot::Sender<Result<(), LogError>>,
}

impl Waiters {
    pub(crate) fn add(&mut self, until: Position) -> Reached {
        let (sender, receiver) = oneshot::channel();
        // Nearly always the last; the search is for those who ask late.
        let at = match self.queue.back() {
            Some(last) if last.until > until => self.queue.partition_point(|w| w.until <= until),
            Some(_) | None => self.queue.len(),
        };
        self.queue.insert(at, Waiter { until, sender });
        Reached(Inner::Waiting(receiver))
    }

    /// Moves those who waited for `reached` or less to `out`; they are woken without the lock.
    pub(crate) fn take_until(&mut self, reached: Position, out: &mut Vec<Waiter>) {
        let n = self.queue.partition_point(|waiter| waiter.until <= reached);
        out.extend(self.queue.drain(..n));
    }

    pub(crate) fn take_all(&mut self, out: &mut Vec<Waiter>) {
        out.extend(self.queue.drain(..));
    }
}

impl Waiter {
    pub(crate) fn wake(self, result: Result<(), LogError>) {
        // Whoever waited may have gone; nobody minds.
        let _ = self.sender.send(result);
    }
}

/// A position that only goes up, to be read without a lock.
#[derive(Debug)]
pub(crate) struct Mark(AtomicU64);

impl Mark {
    pub(crate) fn new(at: Position) -> Self {
        Self(AtomicU64::new(pack(at)))
    }

    pub(crate) fn get(&self) -> Position {
        let packed = self.0.load(Ordering::Acquire);
        Position { segment: SegmentId((packed >> 32) as u32), byte: packed as u32 }
    }

    pub(crate) fn raise(&self, to: Position) {
        self.0.fetch_max(pack(to), Ordering::AcqRel);
    }
}

fn pack(at: Position) -> u64 {
    u64::from(at.segment.0) << 32 | u64::from(at.byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(byte: u32) -> Position {
        Position { segment: SegmentId(1), byte }
    }

    #[test]
    fn those_who_ask_late_are_still_woken_in_order() {
        let mut waiters = Waiters::default();
        let _kept: Vec<_> = [10, 30, 20, 20, 5].into_iter().map(|byte| waiters.add(at(byte))).collect();
        let mut woken = Vec::new();
        waiters.take_until(at(20), &mut woken);
        assert_eq!(woken.iter().map(|w| w.until.byte).collect::<Vec<_>>(), [5, 10, 20, 20]);
        waiters.take_all(&mut woken);
        assert_eq!(woken.len(), 5);
    }
}
