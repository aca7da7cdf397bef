//! The memory watermark: how much the whole process may take before publishers must wait. Everything counts that is resident:
//! messages, queues, connections, buffers, what the allocator keeps.
//!
//! Messages are left on disk long before that (`Shared::message_bytes_max`). The watermark is for what cannot be: entries of
//! messages that are leased or delayed, deduplication ids, connections, and publishers that are faster than the disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thiserror::Error;

use crate::alarms::Latch;
use crate::memory_total::memory_bytes;

/// The alarm goes off when this part of the watermark is free again: one in 20. Less would flap with every message, and more
/// would keep publishers waiting for memory that nobody frees.
const MARGIN_PART: u64 = 20;
/// And not before this: a client is told no more often than RabbitMQ, which looks once a second, would tell it.
const ALARM_MIN: Duration = Duration::from_secs(1);
/// Messages are left on disk as if this part of the watermark, in fifths, were all there is. So paging comes before the alarm.
const PAGING_FIFTHS: u64 = 4;

/// How often the system is asked what the process takes, while that grows; it costs some microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The same where three quarters of the watermark are taken: a fast disk's publishers bring a megabyte meanwhile.
const LOOK_EVERY_CLOSE: Duration = Duration::from_millis(1);

/// How much memory the process may take before publishers must wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryHigh {
    /// So much of what the machine, or the process's cgroup, has.
    Fraction(f64),
    /// So many bytes.
    Bytes(u64),
}

/// A watermark that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("a part of the memory is a number from 0 to 1; it is {fraction}")]
pub struct MemoryHighError {
    /// What was given.
    pub fraction: f64,
}

impl MemoryHigh {
    /// As RabbitMQ 4 has it: what is left is for the system's page cache, which the log's reads live on.
    pub const DEFAULT: Self = Self::Fraction(0.6);

    /// A part of what there is.
    ///
    /// # Errors
    /// If it is none.
    pub fn fraction(fraction: f64) -> Result<Self, MemoryHighError> {
        if (0.0..=1.0).contains(&fraction) {
            Ok(Self::Fraction(fraction))
        } else {
            Err(MemoryHighError { fraction })
        }
    }

    /// What it comes to, of `total` bytes. Nobody can tell a part of what nobody knows.
    fn bytes(self, total: Option<u64>) -> u64 {
        match (self, total) {
            (Self::Bytes(bytes), _) => bytes,
            (Self::Fraction(fraction), Some(total)) => (total as f64 * fraction) as u64,
            (Self::Fraction(_), None) => u64::MAX,
        }
    }
}

/// The watermark and what is known of the process, for those who look after the broker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryState {
    /// As it was set.
    pub high: MemoryHigh,
    /// What that comes to.
    pub limit_bytes: u64,
    /// What the process takes.
    pub used_bytes: u64,
    /// What the machine or the cgroup has; 0 where the system does not say.
    pub total_bytes: u64,
    /// Whether publishers wait.
    pub is_alarm: bool,
}

/// The watermark, and whether it is passed.
#[derive(Debug)]
pub(crate) struct MemoryWatermark {
    /// Not if the process is not the broker's alone: nobody knows what others in it take.
    is_watched: bool,
    high: Mutex<MemoryHigh>,
    total: Option<u64>,
    limit: AtomicU64,
    used: AtomicU64,
    alarm: Latch,
    began: Instant,
    /// When the watermark was last found to be passed, in microseconds since it began.
    passed_at: AtomicU64,
}

impl MemoryWatermark {
    pub(crate) fn new(high: MemoryHigh, is_watched: bool) -> Self {
        Self::of(high, is_watched, memory_bytes())
    }

    fn of(high: MemoryHigh, is_watched: bool, total: Option<u64>) -> Self {
        let limit = if is_watched { high.bytes(total) } else { u64::MAX };
        Self {
            is_watched,
            high: Mutex::new(high),
            total,
            limit: limit.into(),
            used: AtomicU64::new(0),
            alarm: Latch::default(),
            began: Instant::now(),
            passed_at: AtomicU64::new(0),
        }
    }

    /// Sets another.
    pub(crate) fn set(&self, high: MemoryHigh) {
        *self.high.lock() = high;
        if self.is_watched {
            self.limit.store(high.bytes(self.total), Ordering::Relaxed);
        }
    }

    /// Judges what was noted last by the limit there is now.
    pub(crate) fn look_again(&self) {
        self.alarm.reset();
        self.note(self.used.load(Ordering::Relaxed));
    }

    /// The process takes so much now.
    pub(crate) fn note(&self, used: u64) {
        self.note_at(used, self.began.elapsed());
    }

    fn note_at(&self, used: u64, now: Duration) {
        let (limit, now) = (self.limit(), u64::try_from(now.as_micros()).unwrap_or(u64::MAX));
        self.used.store(used, Ordering::Relaxed);
        let is_past = used > limit;
        if is_past && !self.alarm.is_on() {
            self.passed_at.store(now, Ordering::Relaxed);
        }
        let has_lasted =
            now.saturating_sub(self.passed_at.load(Ordering::Relaxed)) >= ALARM_MIN.as_micros() as u64;
        self.alarm.note(is_past, has_lasted && used <= limit - limit / MARGIN_PART);
    }

    pub(crate) fn is_alarm(&self) -> bool {
        self.alarm.is_on()
    }

    /// Why publishers must wait, if they must.
    pub(crate) fn shortage(&self) -> Option<String> {
        self.alarm.is_on().then(|| {
            let (used, limit) = (self.used.load(Ordering::Relaxed), self.limit());
            format!(
                "the broker takes {used} bytes of memory; publishers wait above {limit}, until a twentieth of it is free (memory_high)"
            )
        })
    }

    /// Whether it may soon be passed.
    pub(crate) fn is_near(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.limit() / 2
    }

    /// How long what was noted last is good for.
    pub(crate) fn look_every(&self) -> Duration {
        let is_close = self.used.load(Ordering::Relaxed) > self.limit() / 4 * 3;
        if is_close { LOOK_EVERY_CLOSE } else { LOOK_EVERY }
    }

    /// What the process should take with the messages that it keeps in memory.
    pub(crate) fn paging_bytes(&self) -> u64 {
        self.limit() / 5 * PAGING_FIFTHS
    }

    pub(crate) fn state(&self) -> MemoryState {
        MemoryState {
            high: *self.high.lock(),
            limit_bytes: self.limit(),
            used_bytes: self.used.load(Ordering::Relaxed),
            total_bytes: self.total.unwrap_or(0),
            is_alarm: self.alarm.is_on(),
        }
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_watermark_publishers_wait_until_a_twentieth_is_free() {
        let memory = MemoryWatermark::of(MemoryHigh::Fraction(0.5), true, Some(2_000));
        let note = |used, millis| {
            memory.note_at(used, Duration::from_millis(millis));
            memory.shortage()
        };
        assert_eq!(note(1_000, 0), None);
        let reason = note(1_001, 10).expect("it is passed");
        assert!(reason.contains("1001 bytes") && reason.contains("above 1000"), "{reason}");
        assert!(note(951, 2_000).is_some(), "so near it would be passed again at once");
        assert_eq!(note(950, 2_001), None);
        assert!(note(1_001, 3_000).is_some());
        assert!(note(100, 3_999).is_some(), "an alarm lasts for a second");
        assert_eq!(note(100, 4_000), None);
    }

    #[test]
    fn another_watermark_counts_at_once_and_both_ways() {
        let memory = MemoryWatermark::of(MemoryHigh::DEFAULT, true, Some(1_000));
        memory.note(590);
        memory.set(MemoryHigh::Bytes(500));
        memory.look_again();
        assert!(memory.state().is_alarm);
        memory.set(MemoryHigh::Bytes(595));
        memory.look_again();
        assert!(!memory.state().is_alarm, "what was past another limit says nothing of this one");
        memory.set(MemoryHigh::Bytes(0));
        memory.look_again();
        assert!(memory.state().is_alarm, "0 stops all publishers");
    }

    #[test]
    fn a_part_of_what_nobody_knows_is_never_passed() {
        let memory = MemoryWatermark::of(MemoryHigh::DEFAULT, true, None);
        memory.note(u64::MAX - 1);
        assert_eq!(memory.shortage(), None);
        let others = MemoryWatermark::of(MemoryHigh::Bytes(1), false, Some(1_000));
        others.note(1_000);
        assert_eq!(others.shortage(), None, "the process is not the broker's alone");
    }

    #[test]
    fn a_part_is_from_0_to_1() {
        assert_eq!(MemoryHigh::fraction(0.4), Ok(MemoryHigh::Fraction(0.4)));
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(MemoryHigh::fraction(wrong).is_err(), "{wrong}");
        }
    }
}
