//! Wakes queues, and schedules, at their deadlines. One thread sleeps until the earliest of them; an idle queue costs nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use nexo_types::{Millis, QueueId, Timestamp};
use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;
use crate::queue_cell::QueueCell;
use crate::shared::Shared;

const NAME: &str = "nexo-timer";
/// Longest sleep: a moment that never comes must not overflow the system's clock.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// All deadlines of all queues.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// One for each queue that has a deadline, in the order of their times.
    alarms: BTreeMap<(Timestamp, QueueId), Weak<QueueCell>>,
    times: HashMap<QueueId, Timestamp, RandomState>,
    /// When the first schedule is due, by the calendar. That may be set while this sleeps, for a minute at most.
    schedules: Option<Timestamp>,
    stopping: bool,
    thread: Option<JoinHandle<()>>,
}

/// What is due.
#[derive(Default)]
struct Due {
    queues: Vec<(Timestamp, Weak<QueueCell>)>,
    schedules: bool,
}

impl Timer {
    pub(crate) fn start(self: &Arc<Self>, shared: &Arc<Shared>) -> std::io::Result<()> {
        let (timer, clock, weak) = (Arc::clone(self), Arc::clone(&shared.clock), Arc::downgrade(shared));
        let run = move || timer.run(&clock, &weak);
        let thread = shared.threads.spawn(NAME, run)?;
        self.state.lock().thread = Some(thread);
        Ok(())
    }

    /// Wakes the queue at this moment, and at no other.
    pub(crate) fn set(&self, cell: &Arc<QueueCell>, at: Timestamp) {
        let mut state = self.state.lock();
        let earliest = state.alarms.first_key_value().is_none_or(|((first, _), _)| at < *first);
        if let Some(before) = state.times.insert(cell.id, at) {
            state.alarms.remove(&(before, cell.id));
        }
        state.alarms.insert((at, cell.id), Arc::downgrade(cell));
        if earliest {
            self.wake.notify_one();
        }
    }

    /// Wakes schedules at this moment of the calendar, and at no other.
    pub(crate) fn set_schedules(&self, next: Option<Timestamp>) {
        self.state.lock().schedules = next;
        self.wake.notify_one();
    }

    pub(crate) fn stop(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.stopping = true;
            self.wake.notify_one();
            state.thread.take()
        };
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the timer thread panicked");
        }
    }

    fn run(&self, clock: &Clock, shared: &Weak<Shared>) {
        while let Some(due) = self.next(clock) {
            // Held only while there is something to do, so that a broker that is dropped can end.
            let Some(shared) = shared.upgrade() else { return };
            #[cfg(test)]
            shared.threads.panic_if_asked(NAME);
            if due.schedules {
                shared.wake_schedules();
            }
            for (at, cell) in due.queues {
                if let Some(cell) = cell.upgrade() {
                    shared.wake_queue(&cell, at);
                }
            }
        }
    }

    /// Sleeps until something is due or the timer stops; gives back what is due.
    fn next(&self, clock: &Clock) -> Option<Due> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            let now = clock.now();
            let calendar = clock.calendar();
            let mut due = Due::default();
            while state.alarms.first_key_value().is_some_and(|((at, _), _)| *at <= now)
                && let Some(((at, queue), cell)) = state.alarms.pop_first()
            {
                state.times.remove(&queue);
                due.queues.push((at, cell));
            }
            if state.schedules.is_some_and(|at| at <= calendar) {
                // Whoever fires them says when the next is due.
                state.schedules = None;
                due.schedules = true;
            }
            if due.schedules || !due.queues.is_empty() {
                return Some(due);
            }
            let queues = state.alarms.first_key_value().map(|((at, _), _)| at.since(now));
            let schedules = state.schedules.map(|at| at.since(calendar));
            match queues.into_iter().chain(schedules).min().map(Millis::as_duration) {
                None => self.wake.wait(&mut state),
                Some(sleep) => {
                    self.wake.wait_until(&mut state, Instant::now() + sleep.min(SLEEP_MAX));
                }
            }
        }
    }
}
