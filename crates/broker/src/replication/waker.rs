//! Wakes the driver. It has nothing else in it, so that the log may hold one: whoever syncs must not own the log.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Waker {
    is_called: AtomicBool,
    /// Nobody is told of syncs by the driver: the next tick is soon enough.
    ignores_syncs: AtomicBool,
    sleeper: OnceLock<Thread>,
}

impl Waker {
    /// Has the driver look for work. Never waits, and is not forgotten if it is busy.
    pub(super) fn wake(&self) {
        if !self.is_called.swap(true, Ordering::AcqRel)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// More is synced than before.
    pub(super) fn synced(&self) {
        if !self.ignores_syncs.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// Whether the driver is to be woken by syncs.
    pub(super) fn set_ignores_syncs(&self, ignores: bool) {
        self.ignores_syncs.store(ignores, Ordering::Release);
    }

    /// Sleeps until somebody calls, or has called since the last time, or it is time. One thread does that.
    pub(super) fn sleep_until(&self, end: Instant) {
        self.sleeper.get_or_init(thread::current);
        while !self.is_called.swap(false, Ordering::AcqRel) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }
}
