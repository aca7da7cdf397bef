//! Deliveries that have ended: the message came back, and may have been delivered again since, when the worker that was
//! late says something about it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use nexo_types::{Offset, Timestamp};

use super::compact::CompactEntry;
use super::push::into_picks;
use super::{LeaseError, MessageEntry, Queue, Verdict};
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

/// Where the message of a delivery is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// With a consumer, as this attempt: that of the delivery or a later one.
    Leased {
        /// The attempt.
        attempt: u32,
    },
    /// In the queue, to be delivered again.
    Waiting,
    /// Not here any more.
    Gone,
}

impl Queue {
    /// Decides which of these messages are done: those that wait to be delivered again.
    #[must_use]
    pub fn decide_late_ack(&self, now: Timestamp, past: &[PastDelivery]) -> Verdict<()> {
        let mut picked = Vec::new();
        let mut seen = BTreeSet::new();
        let mut durable = false;
        let answers = past
            .iter()
            .map(|past| {
                let entry = self.waiting_again(past).filter(|entry| seen.insert(entry.offset));
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

    /// Where the message of a delivery is now.
    #[must_use]
    pub fn standing(&self, past: &PastDelivery) -> Standing {
        match self.leased.get(past.offset) {
            Some(lease) if past.is_of(&lease.entry) => {
                let attempt = lease.entry.attempts;
                // A crash may have forgotten this very delivery, and the message was delivered again as the same attempt.
                let same = past.attempt < attempt || past.granted_at == lease.granted_at;
                if same { Standing::Leased { attempt } } else { Standing::Gone }
            }
            Some(_) => Standing::Gone,
            None if self.waiting_again(past).is_some() => Standing::Waiting,
            None => Standing::Gone,
        }
    }

    /// The message of a delivery that has ended, if it waits to be delivered again.
    fn waiting_again(&self, past: &PastDelivery) -> Option<Cow<'_, MessageEntry>> {
        let delayed = self.delayed.get(past.offset).map(|delayed| &delayed.0);
        let entry = delayed.or_else(|| self.returned.find(past.offset)).map(CompactEntry::entry);
        let in_line = || self.returned_to_group(past.offset).map(Cow::Borrowed);
        entry.or_else(in_line).filter(|entry| past.is_of(entry))
    }
}

impl PastDelivery {
    /// Whether it can have been a delivery of this message. A crash may have taken the delivered message back and given
    /// its offset to one that came later.
    fn is_of(&self, entry: &MessageEntry) -> bool {
        (1..=entry.attempts).contains(&self.attempt) && self.granted_at >= entry.enqueued_at
    }
}
