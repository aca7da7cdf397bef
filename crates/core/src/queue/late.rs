//! Deciding that a message is done although its lease has ended: it came back, nobody has been given it since, and the
//! worker that was late says that it has finished.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use nexo_types::{Offset, Priority, Timestamp};

use super::push::into_picks;
use super::{Entry, LeaseError, Queue, Verdict};
use crate::record::{Leave, Record};

/// A delivery that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastDelivery {
    /// The message.
    pub offset: Offset,
    /// Which delivery of it, counting from 1.
    pub attempt: u32,
    /// When it was delivered.
    pub granted_at: Timestamp,
}

impl Queue {
    /// Decides which of these messages are done. Only those that wait to be delivered again, with no delivery after the
    /// one that is named.
    #[must_use]
    pub fn decide_late_ack(&self, now: Timestamp, past: &[PastDelivery]) -> Verdict<()> {
        let mut picked = Vec::new();
        let mut seen = BTreeSet::new();
        let mut durable = false;
        let answers = past
            .iter()
            .map(|past| {
                let entry = self.returned(past).filter(|entry| seen.insert(entry.offset));
                let entry = entry.ok_or(LeaseError::NotLeased)?;
                durable |= entry.is_durable();
                picked.push((entry.priority, entry.offset));
                Ok(())
            })
            .collect();
        let records = if picked.is_empty() {
            Vec::new()
        } else {
            vec![Record::Drop { picks: into_picks(picked), why: Leave::Acked, at: now }]
        };
        Verdict { answers, records, durable }
    }

    /// Whether the message of a delivery that has ended waits to be delivered again, and has not been since.
    #[must_use]
    pub fn has_returned(&self, past: &PastDelivery) -> bool {
        self.returned(past).is_some()
    }

    /// The message of a delivery that has ended, if it waits to be delivered again.
    fn returned(&self, past: &PastDelivery) -> Option<&Entry> {
        let at = |priority| self.rejoined.get(&(Reverse(Priority(priority)), past.offset));
        let entry = (0..=u8::MAX).find_map(at)?;
        // A crash may have taken the delivered message back and given its offset to one that came later.
        let same = entry.attempts == past.attempt && past.attempt > 0 && past.granted_at >= entry.enqueued_at;
        same.then_some(entry)
    }
}
