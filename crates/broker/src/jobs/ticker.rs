//! The thread that brings time to job queues: leases that end, deadlines, results that are forgotten, scores that follow the
//! clock, and tokens that arrive for workers that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nexo_core::jobs::{JobAnswer, JobCommand, Jobs};
use nexo_types::Timestamp;
use parking_lot::{Condvar, Mutex};

use crate::journal::Standing;
use crate::shared::Shared;

const NAME: &str = "nexo-jobs";
/// Jobs that are looked at in one command.
const DUE_MAX: usize = 256;
/// Scores are brought up to date no more often than this: who hands out looks by itself besides, and finds little to do.
pub(super) const REFRESH_EVERY: Duration = Duration::from_millis(5);
/// Jobs whose scores are looked at under one hold of the lock: less than a tenth of a millisecond, which nobody notices.
const REFRESH_SLICE: usize = 24;
/// How long scores are looked at before something else has its turn. After a start a million jobs have none.
const REFRESH_TURN: Duration = Duration::from_millis(20);
/// How long to wait where the log has no room.
const BUSY_WAIT: Duration = Duration::from_millis(5);
/// Longest sleep: what jobs take in memory is looked at meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// When to look next, and the thread that does.
#[derive(Debug, Default)]
pub(super) struct Ticker {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// How often it has looked.
    ticks: AtomicU64,
}

#[derive(Debug)]
struct Signal {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    at: Timestamp,
    is_stopping: bool,
}

impl Default for Signal {
    fn default() -> Self {
        Self { state: Mutex::new(State { at: Timestamp::MAX, is_stopping: false }), wake: Condvar::new() }
    }
}

impl Ticker {
    pub(super) fn start(&self, shared: &Arc<Shared>) -> std::io::Result<()> {
        let (weak, signal, clock) =
            (Arc::downgrade(shared), Arc::clone(&self.signal), Arc::clone(&shared.clock));
        self.wake_by(Timestamp(0));
        let run = move || {
            while signal.wait(&clock) {
                // Held only while there is something to do, so that a broker that is dropped can end.
                let Some(shared) = weak.upgrade() else { return };
                #[cfg(test)]
                shared.threads.panic_if_asked(NAME);
                let next = shared.tick_jobs();
                signal.wake_by(next);
            }
        };
        *self.thread.lock() = Some(shared.threads.spawn(NAME, run)?);
        Ok(())
    }

    /// How often it has looked.
    pub(super) fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Has it look at this moment, or before.
    pub(super) fn wake_by(&self, at: Timestamp) {
        self.signal.wake_by(at);
    }

    pub(super) fn stop(&self) {
        self.signal.state.lock().is_stopping = true;
        self.signal.wake.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread of job queues panicked");
        }
    }
}

impl Signal {
    fn wake_by(&self, at: Timestamp) {
        let mut state = self.state.lock();
        if at < state.at {
            state.at = at;
            self.wake.notify_one();
        }
    }

    /// Sleeps until it is time. `false` if it has to stop.
    fn wait(&self, clock: &crate::clock::Clock) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.is_stopping {
                return false;
            }
            let left = state.at.since(clock.now()).as_duration();
            if left.is_zero() {
                state.at = Timestamp::MAX;
                return true;
            }
            if state.at == Timestamp::MAX {
                self.wake.wait(&mut state);
            } else {
                self.wake.wait_until(&mut state, Instant::now() + left.min(SLEEP_MAX));
            }
        }
    }
}

impl Shared {
    /// Does what time brings, in slices, and says when to look again.
    fn tick_jobs(self: &Arc<Self>) -> Timestamp {
        self.jobs.ticker.ticks.fetch_add(1, Ordering::Relaxed);
        let soon = |wait: Duration| self.clock.now().plus(wait.into());
        if self.journal.standing() != Standing::Serving {
            // Another node brings them time. Whoever is elected is woken.
            return soon(SLEEP_MAX);
        }
        loop {
            match self.change_jobs(&JobCommand::Due { max: DUE_MAX }) {
                Ok((JobAnswer::Looked(count), _)) if count >= DUE_MAX => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(%error, "what is due in job queues has to wait");
                    return soon(BUSY_WAIT);
                }
            }
        }
        let (now, began) = (self.clock.now(), Instant::now());
        let mut more = self.jobs.cell.change(|jobs| jobs.refresh(now, REFRESH_SLICE));
        while more && began.elapsed() < REFRESH_TURN {
            // Whoever asks for something goes first.
            std::thread::yield_now();
            more = self.jobs.cell.change(|jobs| jobs.refresh(now, REFRESH_SLICE));
        }
        let (moved, errors) = self.jobs.cell.change(|jobs| (jobs.take_moved(), jobs.take_score_errors()));
        self.serve_takers_at(now, &moved);
        for (queue, error) in errors {
            tracing::warn!(%queue, %error, "a job's score cannot be evaluated, so it goes last; this is said once");
        }
        drop(self.jobs.cell.change(Jobs::take_garbage));
        self.note_jobs_memory();
        if self.jobs.is_unanswered.swap(false, Ordering::SeqCst) {
            self.answer_jobs_soon();
        }
        if more {
            return self.clock.now();
        }
        let (due, refresh) = self.jobs.look(|jobs| (jobs.next_due(), jobs.next_refresh()));
        let refresh = refresh.map(|at| at.max(soon(REFRESH_EVERY)));
        let again = self.jobs.takers.lock().next_again();
        due.into_iter().chain(refresh).chain(again).min().unwrap_or(Timestamp::MAX)
    }
}
