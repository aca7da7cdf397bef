//! Wakes queues at their deadlines. One thread sleeps until the earliest of them; an idle queue costs nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nexo_types::{QueueId, Timestamp};
use parking_lot::{Condvar, Mutex};

use crate::shared::Shared;
use crate::slot::Slot;

/// Longest sleep: the wall clock may be set, and a deadline must not be missed by more than this then.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// All deadlines of all queues.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alarms: BinaryHeap<Reverse<Alarm>>,
    stopping: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Alarm {
    at: Timestamp,
    queue: QueueId,
    slot: Weak<Slot>,
}

impl Timer {
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> std::io::Result<()> {
        let weak = Arc::downgrade(shared);
        let thread = thread::Builder::new().name("nexo-timer".into()).spawn(move || run(&weak))?;
        self.state.lock().thread = Some(thread);
        Ok(())
    }

    /// Wakes the queue at this moment, unless it has been told an earlier one.
    pub(crate) fn set(&self, slot: &Arc<Slot>, at: Timestamp) {
        let mut state = self.state.lock();
        let earliest = state.alarms.peek().is_none_or(|Reverse(first)| at < first.at);
        state.alarms.push(Reverse(Alarm { at, queue: slot.id, slot: Arc::downgrade(slot) }));
        if earliest {
            self.wake.notify_one();
        }
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

    /// Sleeps until something is due or the timer stops; gives back what is due.
    fn next(&self, shared: &Shared) -> Option<Vec<Alarm>> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            let now = shared.clock.now();
            let mut due = Vec::new();
            while state.alarms.peek().is_some_and(|Reverse(alarm)| alarm.at <= now)
                && let Some(Reverse(alarm)) = state.alarms.pop()
            {
                due.push(alarm);
            }
            if !due.is_empty() {
                return Some(due);
            }
            match state.alarms.peek().map(|Reverse(alarm)| alarm.at.since(now).as_duration()) {
                None => self.wake.wait(&mut state),
                Some(sleep) => {
                    self.wake.wait_until(&mut state, Instant::now() + sleep.min(SLEEP_MAX));
                }
            }
        }
    }
}

fn run(shared: &Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let Some(due) = shared.timer.next(&shared) else { return };
        for alarm in due {
            if let Some(slot) = alarm.slot.upgrade() {
                shared.wake_queue(&slot, alarm.at);
            }
        }
    }
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.queue).cmp(&(other.at, other.queue))
    }
}
