//! Where what is stored of a group lies, by what a store calls a place.
//!
//! It is built from records in the order in which they were written. So opening a store and writing to it are the same: an
//! entry at an index takes the place of all from there on, and no record says that something was cut off.

use std::collections::VecDeque;
use std::ops::Range;

use nexo_types::LogIndex;

use super::record::GroupRecord;
use crate::entry::{EntryId, HardState, Snapshot};
use crate::group::Write;
use crate::membership::Membership;

#[derive(Clone, Debug, Default)]
pub(crate) struct Directory<P> {
    pub(crate) hard_state: HardState,
    pub(crate) snapshot: EntryId,
    pub(crate) members: Membership,
    /// Where the record of the snapshot lies.
    pub(crate) snapshot_at: Option<P>,
    pub(crate) purged: EntryId,
    /// The entries behind `purged`.
    entries: VecDeque<(EntryId, P)>,
}

impl<P: Copy> Directory<P> {
    /// A record lies at `at`. `false` if it does not fit to those before.
    pub(crate) fn note(&mut self, record: &GroupRecord, at: P) -> bool {
        match record {
            GroupRecord::Entry(id, _) => {
                let Some(place) = self.place_of(id.index).filter(|place| *place <= self.entries.len()) else {
                    return false;
                };
                self.entries.truncate(place);
                self.entries.push_back((*id, at));
            }
            GroupRecord::HardState(state) => self.hard_state = *state,
            GroupRecord::Installed(snapshot) => {
                self.entries.clear();
                self.purged = snapshot.last;
                self.note_snapshot(snapshot, at);
            }
            GroupRecord::Taken(snapshot) => self.note_snapshot(snapshot, at),
            GroupRecord::Purged(id) => {
                if id.index > self.snapshot.index {
                    return false;
                }
                while self.entries.front().is_some_and(|(entry, _)| entry.index <= id.index) {
                    self.entries.pop_front();
                }
                self.purged = *id;
            }
        }
        true
    }

    fn note_snapshot(&mut self, snapshot: &Snapshot, at: P) {
        self.snapshot = snapshot.last;
        self.members = snapshot.members.clone();
        self.snapshot_at = Some(at);
    }

    fn place_of(&self, index: LogIndex) -> Option<usize> {
        usize::try_from(index.0.checked_sub(self.purged.index.0 + 1)?).ok()
    }

    /// The entries in a range, with their places.
    pub(crate) fn range(&self, range: &Range<LogIndex>) -> Option<impl Iterator<Item = (EntryId, P)>> {
        let from = self.place_of(range.start)?;
        let to = self.place_of(range.end)?.min(self.entries.len());
        (from < to).then(|| self.entries.range(from..to).copied())
    }

    /// The names of all entries behind the last that is gone.
    pub(crate) fn ids(&self) -> impl Iterator<Item = EntryId> {
        self.entries.iter().map(|(id, _)| *id)
    }

    /// The index behind the last entry.
    pub(crate) fn end(&self) -> LogIndex {
        self.entries.back().map_or(self.purged.index, |(id, _)| id.index).next()
    }
}

/// The records of a write that stand by themselves, in the order in which they are stored; entries come between the two.
pub(crate) fn records_of(write: &Write) -> (Vec<GroupRecord>, Option<GroupRecord>) {
    let installed = write.installed.clone().map(GroupRecord::Installed);
    let taken = write.taken.clone().map(GroupRecord::Taken);
    let purged = write.purged.map(GroupRecord::Purged);
    // The hard state comes last: its commit may name an entry of the same write.
    (installed.into_iter().chain(taken).chain(purged).collect(), write.hard_state.map(GroupRecord::HardState))
}
