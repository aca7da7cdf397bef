//! Leases that are not in the log. When the disk is full, what is left of it is for acknowledgements, and a delivery goes
//! out without a record: consumers must go on, since only what they acknowledge makes room.
//!
//! To the log such a message is ready still. So after a crash it is delivered again, as any message that was not
//! acknowledged; only that this delivery counted is forgotten. When the consumer says something about it before the
//! lease could be written, the record must make sense to a replay that knows of no lease: one that is done leaves as
//! a ready message does, and for anything else the lease is written first, in the same frame.

use std::collections::BTreeMap;

use nexo_types::{Offset, Priority, Timestamp};

use super::Queue;
use super::dispatch::{Dispatch, add_grant};
use super::push::into_picks;
use crate::record::{Grant, Leave, Record};

impl Queue {
    /// Notes that the leases of a dispatch, which was just committed, are not written down.
    pub fn note_unwritten(&mut self, dispatch: &Dispatch) {
        let Record::Lease { grants, .. } = &dispatch.record else { return };
        let offsets = grants.iter().flat_map(|grant| grant.pick.offsets.iter());
        self.unwritten_leases.extend(offsets.filter(|offset| self.leased.contains(*offset)));
    }

    /// Whether there are leases that are not written down.
    #[must_use]
    pub fn has_unwritten_leases(&self) -> bool {
        !self.unwritten_leases.is_empty()
    }

    /// The records of leases that are not written down, at most `max`. Applied, they change nothing but that.
    #[must_use]
    pub fn decide_unwritten_leases(&self, max: usize) -> Vec<Record> {
        self.lease_records(self.unwritten_leases.iter().copied().take(max))
    }

    /// The leases of those among these that are not written down.
    pub(super) fn lease_records(&self, offsets: impl Iterator<Item = Offset>) -> Vec<Record> {
        if self.unwritten_leases.is_empty() {
            return Vec::new();
        }
        let mut by_time: BTreeMap<Timestamp, Vec<Grant>> = BTreeMap::new();
        for offset in offsets.filter(|offset| self.unwritten_leases.contains(offset)) {
            let Some(lease) = self.leased.get(offset) else { continue };
            let grants = by_time.entry(lease.granted_at).or_default();
            add_grant(grants, &lease.entry, lease.until(), lease.phase);
        }
        by_time.into_iter().map(|(at, grants)| Record::Lease { grants, at }).collect()
    }

    /// The records by which leased messages leave.
    pub(super) fn leave_records(&self, held: Vec<Offset>, why: Leave, at: Timestamp) -> Vec<Record> {
        let mut unwritten: Vec<(Priority, Offset)> = Vec::new();
        let mut written = held;
        if !self.unwritten_leases.is_empty() {
            written.retain(|offset| {
                let lease = self.leased.get(*offset).filter(|_| self.unwritten_leases.contains(offset));
                unwritten.extend(lease.map(|lease| (lease.entry.priority, *offset)));
                lease.is_none()
            });
            unwritten.sort_unstable();
        }
        let mut records = Vec::new();
        if !written.is_empty() {
            records.push(Record::Settle { offsets: written.into_iter().collect(), why, at });
        }
        if !unwritten.is_empty() {
            records.push(Record::Drop { picks: into_picks(unwritten), why, at });
        }
        records
    }

    /// A lease has ended, or is in the log by now.
    pub(super) fn forget_unwritten(&mut self, offset: Offset) {
        if !self.unwritten_leases.is_empty() {
            self.unwritten_leases.remove(&offset);
        }
    }
}
