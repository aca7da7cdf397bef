//! Places of the log that the disk does not give back: a bad sector, or a disk that is away.
//!
//! Nothing is dropped for that, because the disk may come back. What lies there is tried again, less and less often, and
//! health says degraded until it can be read.

use std::collections::BTreeMap;
use std::time::Instant;

use nexo_types::{Millis, Position, QueueId, SegmentId};
use parking_lot::Mutex;

/// Places that are remembered one by one. A disk that is away has more; the first ones tell enough.
const PLACES_MAX: usize = 1_000;
/// Before the second try.
const DELAY_MIN: Millis = Millis(500);
/// The longest pause between two tries: a disk that is back is noticed after so long.
const DELAY_MAX: Millis = Millis(30_000);

/// What cannot be read now.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    by_position: BTreeMap<Position, Trouble>,
    /// Places that are not remembered are not tried until then.
    others_from: Option<Instant>,
    /// Queues that do not ask for messages until then.
    postponed: BTreeMap<QueueId, Instant>,
}

#[derive(Debug)]
struct Trouble {
    reason: String,
    tries: u32,
    retry_at: Instant,
}

impl Unreadable {
    /// Takes note of a read that failed, and says after which time it may be tried again, and how often it was.
    pub(crate) fn note(&self, at: Position, reason: &str) -> (Millis, u32) {
        let now = Instant::now();
        let mut places = self.0.lock();
        if places.by_position.len() >= PLACES_MAX && !places.by_position.contains_key(&at) {
            places.others_from = Some(now + DELAY_MAX.as_duration());
            return (DELAY_MAX, 1);
        }
        let trouble = places.by_position.entry(at).or_insert_with(|| {
            tracing::error!(%at, reason, "messages cannot be read from the log; trying again, less and less often");
            Trouble { reason: reason.to_owned(), tries: 0, retry_at: now }
        });
        trouble.tries = trouble.tries.saturating_add(1);
        let delay = DELAY_MIN.0.saturating_mul(1 << (trouble.tries - 1).min(16));
        let delay = Millis(delay).min(DELAY_MAX);
        trouble.retry_at = now + delay.as_duration();
        (delay, trouble.tries)
    }

    /// Whether it is time to read what lies there, as far as reading it has failed.
    pub(crate) fn is_time(&self, at: Position) -> bool {
        let now = Instant::now();
        let places = self.0.lock();
        match places.by_position.get(&at) {
            Some(trouble) => now >= trouble.retry_at,
            None => places.others_from.is_none_or(|from| now >= from),
        }
    }

    /// What lies there was read.
    pub(crate) fn clear(&self, at: Position) {
        let mut places = self.0.lock();
        if !places.by_position.is_empty() && places.by_position.remove(&at).is_some() {
            tracing::warn!(%at, "messages can be read from the log again");
        }
    }

    /// Has a queue wait before it asks for messages again.
    pub(crate) fn postpone(&self, queue: QueueId, delay: Millis) {
        let now = Instant::now();
        let mut places = self.0.lock();
        // Queues that are gone leave nothing behind.
        places.postponed.retain(|_, until| *until > now);
        places.postponed.insert(queue, now + delay.as_duration());
    }

    /// Whether a queue has to wait still.
    pub(crate) fn is_postponed(&self, queue: QueueId) -> bool {
        self.0.lock().postponed.get(&queue).is_some_and(|until| *until > Instant::now())
    }

    /// A queue may ask again.
    pub(crate) fn resume(&self, queue: QueueId) {
        self.0.lock().postponed.remove(&queue);
    }

    /// What cannot be read, in words, if anything. Segments that are not there any more are forgotten.
    pub(crate) fn reason(&self, is_there: impl Fn(SegmentId) -> bool) -> Option<String> {
        let mut places = self.0.lock();
        places.by_position.retain(|at, _| is_there(at.segment));
        let count = places.by_position.len();
        let (at, trouble) = places.by_position.first_key_value()?;
        let more = if count > 1 { format!(", and {} places more", count - 1) } else { String::new() };
        Some(format!(
            "segments/{}.seg cannot be read at byte {}: {}{more}; messages there wait until they can be read",
            at.segment, at.byte, trouble.reason
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_a_place_that_can_be_read_is_forgotten() {
        let unreadable = Unreadable::default();
        let at = Position { segment: SegmentId(3), byte: 5000 };
        let delays: Vec<u64> = (0..9).map(|_| unreadable.note(at, "EIO").0.0).collect();
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        let reason = unreadable.reason(|_| true).unwrap();
        assert!(reason.contains("0000000003.seg cannot be read at byte 5000: EIO"), "{reason}");
        unreadable.clear(at);
        assert_eq!(unreadable.reason(|_| true), None);
        unreadable.note(at, "EIO");
        assert_eq!(unreadable.reason(|_| false), None, "the segment was retired");
    }

    #[test]
    fn a_place_is_not_tried_before_its_time() {
        let unreadable = Unreadable::default();
        let at = |byte| Position { segment: SegmentId(3), byte };
        assert!(unreadable.is_time(at(1)));
        for _ in 0..9 {
            unreadable.note(at(1), "EIO");
        }
        assert!(!unreadable.is_time(at(1)), "it is tried in half a minute");
        assert!(unreadable.is_time(at(2)), "another place is good for all that is known");
        unreadable.0.lock().by_position.get_mut(&at(1)).unwrap().retry_at = Instant::now();
        assert!(unreadable.is_time(at(1)));
    }

    #[test]
    fn no_more_places_are_remembered_than_there_is_room_for() {
        let unreadable = Unreadable::default();
        let at = |byte| Position { segment: SegmentId(1), byte };
        for byte in 0..PLACES_MAX as u32 + 10 {
            assert!(unreadable.is_time(at(byte)) || byte > PLACES_MAX as u32);
            unreadable.note(at(byte), "EIO");
        }
        assert_eq!(unreadable.0.lock().by_position.len(), PLACES_MAX);
        assert!(!unreadable.is_time(at(PLACES_MAX as u32 + 5)), "those beyond it wait together");
    }
}
