//! How many bytes a consumer may be handed before it has passed them on to its client: credit counts messages, and a
//! message may be large. One allowance for each consumer, and one sum for all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// While all consumers together hold more than they may, each gets only so much ahead: enough for a few hundred small
/// messages, or one large one.
const SMALL_BYTES: u64 = 64 << 10;

/// What all consumers have been handed and have not passed on.
#[derive(Debug)]
pub struct Outgoing {
    bytes: AtomicU64,
    bytes_max: AtomicU64,
}

impl Outgoing {
    /// Beyond `bytes_max` consumers are handed little at a time.
    #[must_use]
    pub const fn new(bytes_max: u64) -> Self {
        Self { bytes: AtomicU64::new(0), bytes_max: AtomicU64::new(bytes_max) }
    }

    /// Has another bound from now on.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Bytes that are with consumers now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // Two that report at once may be seen in the wrong order, and the sum be below nothing for a moment.
        u64::try_from(self.bytes.load(Ordering::Relaxed).cast_signed()).unwrap_or(0)
    }

    fn has_room(&self) -> bool {
        self.bytes() < self.bytes_max.load(Ordering::Relaxed)
    }
}

/// What one consumer has been handed and has not passed on, and how much that may be. As long as there is any room, one
/// more message may go over it: the largest must pass.
#[derive(Debug)]
pub struct Allowance {
    bytes: AtomicU64,
    bytes_max: u64,
    all: Arc<Outgoing>,
    /// What the sum knows of. It is told once for many messages: all consumers share it.
    reported: AtomicU64,
    /// Whether the queue passed the consumer over for want of room.
    passed_over: AtomicBool,
}

impl Allowance {
    /// For one consumer.
    #[must_use]
    pub const fn new(bytes_max: u64, all: Arc<Outgoing>) -> Self {
        let (bytes, reported) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { bytes, bytes_max, all, reported, passed_over: AtomicBool::new(false) }
    }

    /// Bytes that may be handed out now. If there are none, [`Self::passed_on`] will say that the queue should look
    /// again.
    pub(crate) fn room(&self) -> u64 {
        let room = self.room_now();
        if room > 0 {
            return room;
        }
        self.passed_over.store(true, Ordering::SeqCst);
        // The consumer may have passed on all it had before it could see that.
        self.room_now()
    }

    fn room_now(&self) -> u64 {
        let max = if self.all.has_room() { self.bytes_max } else { self.bytes_max.min(SMALL_BYTES) };
        max.saturating_sub(self.bytes.load(Ordering::SeqCst))
    }

    /// Notes bytes that were handed out; whoever passes them to the consumer calls [`Self::report`] before.
    pub fn take(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Tells the sum of all consumers what this one holds.
    pub fn report(&self) {
        loop {
            let now = self.bytes.load(Ordering::SeqCst);
            let before = self.reported.swap(now, Ordering::SeqCst);
            self.all.bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            // Somebody else may have reported later what it saw earlier.
            if self.bytes.load(Ordering::SeqCst) == now {
                return;
            }
        }
    }

    /// Corrects what messages count for, which are still with the consumer. It is not looked at again for that: whoever
    /// waits for it to pass them on must still be told then.
    pub fn recharge(&self, before: u64, now: u64) {
        // First what they count for now, so that it is never taken for less.
        self.bytes.fetch_add(now, Ordering::SeqCst);
        self.bytes.fetch_sub(before, Ordering::SeqCst);
        self.report();
    }

    /// Notes bytes that the consumer has passed on. `true` if the queue should look at it again: with a credit of 0.
    pub fn passed_on(&self, bytes: u64) -> bool {
        let before = self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "no more is passed on than was handed out");
        self.report();
        // Looking takes the queue's lock, so it is done for many messages at once.
        before.saturating_sub(bytes) <= self.bytes_max / 2 && self.passed_over.swap(false, Ordering::SeqCst)
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(*self.reported.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_is_looked_at_again_when_half_is_passed_on() {
        let allowance = Allowance::new(100, Arc::new(Outgoing::new(1000)));
        assert_eq!(allowance.room(), 100);
        allowance.take(130);
        assert_eq!(allowance.room(), 0);
        assert!(!allowance.passed_on(60));
        assert!(allowance.passed_on(30));
        assert!(!allowance.passed_on(40), "nobody waits");
    }

    #[test]
    fn a_correction_does_not_swallow_the_word_that_the_consumer_waits() {
        let allowance = Allowance::new(100, Arc::new(Outgoing::new(1000)));
        allowance.take(100);
        assert_eq!(allowance.room(), 0);
        allowance.recharge(100, 40);
        assert!(allowance.passed_on(40), "the queue must look again");
        assert_eq!(allowance.all.bytes(), 0);
    }

    #[test]
    fn beyond_the_sum_each_gets_little_but_never_nothing() {
        let all = Arc::new(Outgoing::new(1 << 20));
        let (idle, busy) =
            (Allowance::new(4 << 20, Arc::clone(&all)), Allowance::new(4 << 20, Arc::clone(&all)));
        idle.take(4 << 20);
        idle.report();
        assert_eq!((idle.room(), busy.room()), (0, SMALL_BYTES));
        busy.take(SMALL_BYTES);
        assert_eq!(busy.room(), 0);
        assert!(busy.passed_on(SMALL_BYTES));
        drop(idle);
        assert_eq!((all.bytes(), busy.room()), (0, 4 << 20));
    }
}
