//! Alarms: memory or the disk runs short. While one is on nothing is pushed, and everything else goes on, since consumers and
//! acknowledgements make room.
//!
//! Both resources have one mechanism. Each says by itself whether it is short: `memory_high.rs`, `disk_room.rs`, and the log
//! when it finds no room. An alarm goes on past a limit and off with some margin, so that it does not flap ([`Latch`]). Pushes
//! ask `Shared::refuse_pushes`, which costs them a load; a thread of its own looks after memory that grows without any push,
//! and tells the log what changes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::QueueError;
use crate::events::Events;
use crate::shared::Shared;

const NAME: &str = "nexo-alarms";
/// How often is looked while an alarm is on or not far: an operator, and a client that was blocked, wait so long.
const LOOK_OFTEN: Duration = Duration::from_millis(100);
/// How often otherwise. What messages take is looked at when they come, so this is for everything else.
const LOOK_SELDOM: Duration = Duration::from_secs(1);

/// What can run short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Memory of the process.
    Memory,
    /// The disk that holds the data.
    Disk,
}

impl Resource {
    /// In the words of RabbitMQ's API and of the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }

    const ALL: [Self; 2] = [Self::Memory, Self::Disk];
}

/// A resource that runs short. Nothing is pushed until it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// What runs short.
    pub resource: Resource,
    /// How short, in words for whoever has to make room.
    pub reason: String,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// What an alarm means to a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DuringAlarm {
    /// It is refused, as all that clients push.
    Refused,
    /// It is taken: the broker's own, which is little (`tell.rs`).
    Taken,
}

/// Whether an alarm is on: from when a limit is passed until there is some margin to it.
#[derive(Debug, Default)]
pub(crate) struct Latch(AtomicBool);

impl Latch {
    pub(crate) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes how things are, and says whether the alarm is on.
    pub(crate) fn note(&self, is_past: bool, has_margin: bool) -> bool {
        debug_assert!(!(is_past && has_margin), "past a limit there is no margin to it");
        if is_past || (has_margin && self.is_on()) {
            self.0.store(is_past, Ordering::Relaxed);
        }
        self.is_on()
    }

    /// The limit is another one: what was before says nothing.
    pub(crate) fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The thread that looks, and what it told last.
#[derive(Debug, Default)]
pub(crate) struct AlarmWatch {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
    told: Mutex<Vec<Resource>>,
}

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<Asked>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Asked {
    to_look: bool,
    to_stop: bool,
}

impl AlarmWatch {
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> std::io::Result<()> {
        let (weak, signal) = (Arc::downgrade(shared), Arc::clone(&self.signal));
        let run = move || {
            // Not at once: whoever opens a broker and drops it should find nobody who still has it.
            let mut wait = LOOK_SELDOM;
            loop {
                let mut asked = signal.state.lock();
                if !asked.to_look && !asked.to_stop {
                    signal.wake.wait_for(&mut asked, wait);
                }
                if asked.to_stop {
                    return;
                }
                asked.to_look = false;
                drop(asked);
                let Some(shared) = weak.upgrade() else { return };
                wait = shared.look_at_alarms();
            }
        };
        *self.thread.lock() = Some(shared.threads.spawn(NAME, run)?);
        Ok(())
    }

    /// Has it look at once: a limit has changed.
    fn look_now(&self) {
        self.signal.state.lock().to_look = true;
        self.signal.wake.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.signal.state.lock().to_stop = true;
        self.signal.wake.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after alarms panicked");
        }
    }

    /// Tells what has changed since it was told last.
    fn tell(&self, alarms: &[Alarm], events: &Events) {
        let mut told = self.told.lock();
        for resource in Resource::ALL {
            let alarm = alarms.iter().find(|alarm| alarm.resource == resource);
            match (alarm, told.contains(&resource)) {
                (Some(Alarm { reason, .. }), false) => {
                    events.alarm_set(resource.name(), reason);
                    told.push(resource);
                }
                (None, true) => {
                    events.alarm_cleared(resource.name());
                    told.retain(|other| *other != resource);
                }
                (Some(_), true) | (None, false) => {}
            }
        }
    }
}

impl Shared {
    /// What runs short now.
    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        self.note_if_pressed();
        let memory = self.memory.shortage().map(|reason| Alarm { resource: Resource::Memory, reason });
        let disk = self.want_of_space().map(|reason| Alarm { resource: Resource::Disk, reason });
        memory.into_iter().chain(disk).collect()
    }

    /// Why nothing new is written for want of space, if so.
    pub(crate) fn want_of_space(&self) -> Option<String> {
        match self.journal.health() {
            nexo_log::LogHealth::Full { reason } => Some(format!("the disk is full: {reason}")),
            nexo_log::LogHealth::Ok => self.room.shortage(&self.clock),
            nexo_log::LogHealth::Failed { .. } => None,
        }
    }

    /// Whether messages are taken at all. That the log has no room it says by itself when they are appended.
    pub(crate) fn refuse_pushes(&self) -> Result<(), QueueError> {
        self.refuse_if_stopping()?;
        if self.memory.is_near() {
            // What is pushed may be on its way to the disk and in no queue's memory: nobody else would look.
            self.note_if_pressed();
        }
        if let Some(reason) = self.memory.shortage() {
            return Err(QueueError::Alarm(Alarm { resource: Resource::Memory, reason }));
        }
        match self.room.shortage(&self.clock) {
            Some(reason) => Err(QueueError::Alarm(Alarm { resource: Resource::Disk, reason })),
            None => Ok(()),
        }
    }

    /// Has changed limits count at once.
    pub(crate) fn limits_changed(&self) {
        self.memory.look_again();
        self.note_if_pressed();
        self.alarm_watch.look_now();
    }

    /// Looks, and tells the log. Gives back when to look again.
    fn look_at_alarms(&self) -> Duration {
        let alarms = self.alarms();
        self.alarm_watch.tell(&alarms, &self.events);
        if alarms.is_empty() && !self.memory.is_near() { LOOK_SELDOM } else { LOOK_OFTEN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_goes_off_with_some_margin_only() {
        let latch = Latch::default();
        assert!(!latch.note(false, false), "near its limit nothing is past it");
        assert!(latch.note(true, false));
        assert!(latch.note(false, false), "it is not past its limit any more, but near it");
        assert!(!latch.note(false, true));
        assert!(!latch.note(false, false));
    }
}
