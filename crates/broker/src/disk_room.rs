//! How much of the disk must stay free for others. Below it there is an alarm (`alarms.rs`): nothing is pushed, and everything
//! else goes on, so that consumers can make room.
//!
//! The log says by itself when it finds no room for another segment. This is the limit that an operator sets before that.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use nexo_types::{Millis, Timestamp};

use crate::alarms::Latch;
use crate::clock::Clock;
use crate::system;

/// How long an answer of the file system is good for: asking takes a microsecond, and pushes come by the thousand.
const FRESH: Millis = Millis(200);
/// The alarm goes off when so much more than the limit is free: one part in 20 of it.
const MARGIN_PART: u64 = 20;
/// The system does not say how much is free.
const UNKNOWN: u64 = u64::MAX;

/// The limit, and what is known of the disk.
#[derive(Debug)]
pub(crate) struct DiskRoom {
    path: PathBuf,
    free_min: AtomicU64,
    free: AtomicU64,
    asked_at: AtomicU64,
    alarm: Latch,
}

impl DiskRoom {
    /// On the disk that holds `path`.
    pub(crate) fn new(path: PathBuf, free_min: u64) -> Self {
        let (free, asked_at) = (UNKNOWN.into(), AtomicU64::new(0));
        Self { path, free_min: free_min.into(), free, asked_at, alarm: Latch::default() }
    }

    pub(crate) fn free_min(&self) -> u64 {
        self.free_min.load(Ordering::Relaxed)
    }

    /// Sets another limit; 0 for none.
    pub(crate) fn set_free_min(&self, bytes: u64) {
        self.free_min.store(bytes, Ordering::Relaxed);
        self.asked_at.store(0, Ordering::Relaxed);
        self.alarm.reset();
    }

    /// Why nothing may be pushed, if so.
    pub(crate) fn shortage(&self, clock: &Clock) -> Option<String> {
        let min = self.free_min.load(Ordering::Relaxed);
        if min == 0 {
            return None;
        }
        let now = clock.now();
        let asked_at = Timestamp(self.asked_at.load(Ordering::Relaxed));
        if asked_at.plus(FRESH) <= now {
            self.asked_at.store(now.0, Ordering::Relaxed);
            let free = system::disk_free_bytes(&self.path).unwrap_or(UNKNOWN);
            self.free.store(free, Ordering::Relaxed);
        }
        let free = self.free.load(Ordering::Relaxed);
        let is_short = free < min && free != UNKNOWN;
        self.alarm.note(is_short, free >= min.saturating_add(min / MARGIN_PART)).then(|| {
            format!(
                "the disk of '{}' has {free} free bytes, and {min} must stay free (disk_free_min)",
                self.path.display()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_less_than_the_limit_is_a_shortage() {
        let (room, clock) = (DiskRoom::new(std::env::temp_dir(), 0), Clock::default());
        assert_eq!(room.shortage(&clock), None);
        room.set_free_min(u64::MAX);
        let reason = room.shortage(&clock).expect("no disk is that large");
        assert!(reason.contains("must stay free (disk_free_min)"), "{reason}");
        room.set_free_min(1);
        assert_eq!(room.shortage(&clock), None, "a new limit counts at once");
    }

    #[test]
    fn a_disk_that_nobody_knows_is_never_short() {
        let room = DiskRoom::new("/no/such/place".into(), 1 << 40);
        assert_eq!(room.shortage(&Clock::default()), None);
    }

    #[test]
    fn a_disk_that_was_short_must_have_some_more_than_the_limit() {
        let (room, clock) = (DiskRoom::new("/no/such/place".into(), 1_000), Clock::default());
        let shortage_at = |free: u64| {
            // As if the system had just said so.
            room.asked_at.store(clock.now().0, Ordering::Relaxed);
            room.free.store(free, Ordering::Relaxed);
            room.shortage(&clock).is_some()
        };
        assert_eq!([1_000, 999, 1_000, 1_049].map(shortage_at), [false, true, true, true]);
        assert_eq!([1_050, 1_000].map(shortage_at), [false, false]);
    }
}
