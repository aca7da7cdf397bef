//! Deciding what happens to a queue as a whole, and to messages that nobody can have any more: other settings, a purge, a
//! move by an operator, damage. What consumers do is decided in `settle.rs`, what time does in `due.rs`.

use std::collections::BTreeSet;

use nexo_types::{Offset, Timestamp};

use super::Queue;
use super::push::into_picks;
use crate::config::QueueConfig;
use crate::record::{Leave, Pick, Record};

impl Queue {
    /// Decides that these are the settings, all of them.
    #[must_use]
    pub const fn decide_configure(&self, now: Timestamp, config: QueueConfig) -> Record {
        Record::Configure { config, at: now }
    }

    /// Decides that all that waits leaves. What is with a consumer stays, so a replay must know of it: leases that are not
    /// written down come before.
    #[must_use]
    pub fn decide_purge(&self, now: Timestamp) -> Vec<Record> {
        let mut records = self.decide_unwritten_leases(usize::MAX);
        records.push(Record::Purge { before: self.next_offset, at: now });
        records
    }

    /// Decides that everything leaves, also what is with consumers, and that deduplication ids are forgotten. Leases that are
    /// not written down come before: they count as deliveries.
    #[must_use]
    pub fn decide_clear(&self, now: Timestamp) -> Vec<Record> {
        let mut records = self.decide_unwritten_leases(usize::MAX);
        records.push(Record::Clear { before: self.next_offset, at: now });
        records
    }

    /// Decides that a message which was taken aside leaves, because it is written to another queue in the same frame. `None`
    /// if it is not held any more.
    #[must_use]
    pub fn decide_move(&self, now: Timestamp, offset: Offset) -> Option<Record> {
        if !self.is_held(offset) {
            return None;
        }
        self.leave_records(vec![offset], Leave::Moved, now).pop()
    }

    /// Decides that those of these messages leave which are ready and in memory: the log has damaged bytes for them.
    #[must_use]
    pub fn decide_drop_damaged(&self, now: Timestamp, picks: &[Pick]) -> Option<Record> {
        let all = picks.iter().flat_map(|pick| pick.offsets.iter().map(|offset| (pick.lane, offset)));
        // In order, and each once, however they were found.
        let ready: BTreeSet<_> = all.filter(|(lane, offset)| self.is_ready_here(*lane, *offset)).collect();
        let picks = into_picks(ready.into_iter().collect());
        (!picks.is_empty()).then_some(Record::Drop { picks, why: Leave::Damaged, at: now })
    }

    /// Decides that those of these messages leave which are with consumers, or about to be moved: the log has damaged bytes for them.
    #[must_use]
    pub fn decide_settle_damaged(&self, now: Timestamp, offsets: &[Offset]) -> Vec<Record> {
        let held: BTreeSet<Offset> = offsets.iter().copied().filter(|offset| self.is_held(*offset)).collect();
        self.leave_records(held.into_iter().collect(), Leave::Damaged, now)
    }
}
