//! Every message of a queue that has an entry of its own, and what must hold for all of them.

use std::borrow::Cow;

use super::compact::CompactEntry;
use super::{MessageEntry, Queue};

impl Queue {
    /// Checks that nothing was lost or invented. For tests; it looks at every entry.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let behind: u64 = self.groups.values().map(|behind| behind.len() as u64).sum();
        assert_eq!(behind, self.grouped, "messages behind a group's head are counted");
        assert_eq!(self.behind.len() as u64, behind, "they are known by their offsets");
        for (group, entries) in &self.groups {
            for entry in entries {
                assert_eq!(self.behind.get(&entry.offset), Some(group), "with the right group");
            }
        }
        self.leased.check_invariants();
        self.delayed.check_invariants();
        self.returned.check_invariants();
        let bytes: u64 = self.loose().map(|entry| u64::from(entry.stored_bytes)).sum();
        assert_eq!(bytes, self.loose_bytes, "bytes of loose messages are counted");
        let leased: u64 = self.leased.iter().map(|lease| u64::from(lease.entry.stored_bytes)).sum();
        assert_eq!(leased, self.leased_bytes, "bytes of leased messages are counted");
        let dying: u64 = self.dying.values().map(|(entry, _)| u64::from(entry.stored_bytes)).sum();
        assert_eq!(dying, self.dying_bytes, "bytes of dying messages are counted");
        let cached: u64 = self.loose().map(|entry| entry.cached_bytes()).sum();
        assert_eq!(cached, self.loose_cached_bytes, "cached bytes of loose messages are counted");
        let warm = self.loose().filter(|entry| entry.is_warm()).count() as u64;
        assert_eq!(warm, self.loose_warm, "so are those whose bytes need not be in memory");
        self.lanes.check_invariants();
        for group in self.groups.keys() {
            let heads = self.loose_heads().filter(|entry| entry.group() == Some(group)).count();
            assert_eq!(heads, self.out_of(group) as usize, "messages of a group that are out are counted");
        }
    }

    /// Entries that are neither in a lane nor behind the head of their group.
    pub(super) fn loose_heads(&self) -> impl Iterator<Item = Cow<'_, MessageEntry>> {
        let waiting = self.returned.iter().chain(self.delayed.iter().map(|delayed| &delayed.0));
        waiting.map(CompactEntry::entry).chain(self.held_entries().map(Cow::Borrowed))
    }

    /// Entries of messages that are leased or dying.
    pub(super) fn held_entries(&self) -> impl Iterator<Item = &MessageEntry> {
        let leased = self.leased.iter().map(|lease| &lease.entry);
        leased.chain(self.dying.values().map(|(entry, _)| entry))
    }

    /// Every entry that is not in a lane.
    pub(super) fn loose(&self) -> impl Iterator<Item = Cow<'_, MessageEntry>> {
        self.loose_heads().chain(self.groups.values().flatten().map(Cow::Borrowed))
    }
}
