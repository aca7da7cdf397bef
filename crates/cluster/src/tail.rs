//! The end of a group's log as the library sees it: the terms of all entries, the bytes of the last ones.
//!
//! What is not applied yet is always here, and of what is, as much as its bound allows. A follower that is further behind
//! gets older entries; these are asked for as a [`Fetch`] and come later, so nobody waits for the disk in here. So are those of which
//! only the disk has the bytes, since this node proposed them as the only member.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use nexo_types::limits::RAFT_TAIL_BYTES_MAX;
use nexo_types::{LogIndex, NodeId, Term};
use raft::eraftpb::{ConfState, Entry as RaftEntry, HardState as RaftHardState, Snapshot as RaftSnapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

use crate::entry::{EntryId, Snapshot};
use crate::translate::{is_stored, snapshot_in};

/// Entries that are wanted from the disk: `from` up to, but not including, `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fetch {
    /// The first.
    pub from: LogIndex,
    /// The one behind the last.
    pub to: LogIndex,
    /// As many as fit into so many bytes, but one at least.
    pub bytes_max: usize,
}

#[derive(Debug)]
pub(crate) struct Tail {
    /// The first state of the library.
    initial: (RaftHardState, ConfState),
    /// The entry before the first that is there.
    purged: EntryId,
    /// Where each term begins, from the entry after `purged` on.
    terms: Vec<EntryId>,
    last: LogIndex,
    /// The last entries.
    entries: VecDeque<RaftEntry>,
    bytes: usize,
    applied: LogIndex,
    /// What came from the disk, for the one call that asked for it.
    fetched: Vec<RaftEntry>,
    /// What was asked for and has not come, with what the library wants to be told of it.
    wanted: RefCell<Vec<(Fetch, GetEntriesContext)>>,
    /// Those of them that nobody has been told of.
    untold: RefCell<Vec<Fetch>>,
    snapshot: Option<Snapshot>,
    snapshot_wanted: Cell<bool>,
    /// The last entry that the disk is known not to give back. Whoever needs it, or one before, gets a snapshot.
    unreadable: LogIndex,
}

impl Tail {
    /// A log whose entries up to `purged` are gone, and up to `applied` are applied.
    pub(crate) fn new(initial: (RaftHardState, ConfState), purged: EntryId, applied: LogIndex) -> Self {
        Self {
            initial,
            purged,
            terms: Vec::new(),
            last: purged.index,
            entries: VecDeque::new(),
            bytes: 0,
            applied,
            fetched: Vec::new(),
            wanted: RefCell::default(),
            untold: RefCell::default(),
            snapshot: None,
            snapshot_wanted: Cell::new(false),
            unreadable: LogIndex(0),
        }
    }

    /// An entry that is on disk, without its bytes.
    pub(crate) fn push_term(&mut self, id: EntryId) {
        debug_assert!(self.entries.is_empty() && id.index == self.last.next());
        self.note_term(id);
    }

    fn note_term(&mut self, id: EntryId) {
        if self.terms.last().is_none_or(|run| run.term != id.term) {
            self.terms.push(id);
        }
        self.last = id.index;
    }

    /// Appends entries in place of all from the first of them on.
    pub(crate) fn append(&mut self, entries: &[RaftEntry]) {
        let Some(first) = entries.first() else { return };
        self.truncate(LogIndex(first.index));
        for entry in entries {
            self.note_term(EntryId::new(Term(entry.term), LogIndex(entry.index)));
            self.bytes += weight(entry);
            self.entries.push_back(entry.clone());
        }
        self.trim();
    }

    fn truncate(&mut self, from: LogIndex) {
        while self.entries.back().is_some_and(|entry| entry.index >= from.0) {
            self.bytes -= self.entries.pop_back().map_or(0, |entry| weight(&entry));
        }
        while self.terms.last().is_some_and(|run| run.index >= from) {
            self.terms.pop();
        }
        self.last = LogIndex(from.0 - 1);
    }

    /// The machine has got so far.
    pub(crate) fn set_applied(&mut self, applied: LogIndex) {
        self.applied = applied;
        self.trim();
    }

    fn trim(&mut self) {
        while self.bytes > RAFT_TAIL_BYTES_MAX
            && self.entries.front().is_some_and(|entry| entry.index <= self.applied.0)
        {
            self.bytes -= self.entries.pop_front().map_or(0, |entry| weight(&entry));
        }
    }

    /// Everything is replaced by a snapshot.
    pub(crate) fn restore(&mut self, last: EntryId) {
        self.terms.clear();
        self.entries.clear();
        self.bytes = 0;
        self.purged = last;
        self.last = last.index;
        self.applied = last.index;
        self.snapshot = None;
        self.unreadable = LogIndex(0);
    }

    /// Entries up to this one are gone from the disk.
    pub(crate) fn purge(&mut self, upto: EntryId) {
        while self.entries.front().is_some_and(|entry| entry.index <= upto.index.0) {
            self.bytes -= self.entries.pop_front().map_or(0, |entry| weight(&entry));
        }
        let next = upto.index.next();
        let gone = self.terms.partition_point(|run| run.index <= next);
        let begun = self.terms[..gone].last().map(|run| EntryId::new(run.term, next));
        self.terms.drain(..gone);
        if let Some(run) = begun.filter(|_| self.last > upto.index) {
            self.terms.insert(0, run);
        }
        self.purged = upto;
        if self.snapshot.as_ref().is_some_and(|snapshot| snapshot.last.index < upto.index) {
            self.snapshot = None;
        }
    }

    pub(crate) const fn purged(&self) -> EntryId {
        self.purged
    }

    /// The term of an entry that is there, or the last that is gone.
    pub(crate) fn term_of(&self, index: LogIndex) -> Option<Term> {
        if index == self.purged.index {
            return Some(self.purged.term);
        }
        if index < self.purged.index || index > self.last {
            return None;
        }
        let run = self.terms.partition_point(|run| run.index <= index);
        run.checked_sub(1).map(|run| self.terms[run].term)
    }

    /// A snapshot that may be sent to followers.
    pub(crate) fn offer(&mut self, snapshot: Snapshot) {
        let is_newer = |offered: &Snapshot| offered.last.index <= snapshot.last.index;
        if snapshot.last.index >= self.purged.index && self.snapshot.as_ref().is_none_or(is_newer) {
            self.snapshot = Some(snapshot);
        }
    }

    /// There is none to be sent any more.
    pub(crate) fn withdraw(&mut self) {
        self.snapshot = None;
    }

    /// Whether the library has asked for a snapshot that is not there since this was last asked.
    pub(crate) fn take_snapshot_wanted(&self) -> bool {
        self.snapshot_wanted.take()
    }

    /// Whether entries or a snapshot are wanted, and nobody has been told.
    pub(crate) fn wants_something(&self) -> bool {
        self.snapshot_wanted.get() || !self.untold.borrow().is_empty()
    }

    /// Entries that are wanted from the disk. Each is told once.
    pub(crate) fn take_fetches(&self) -> Vec<Fetch> {
        self.untold.take()
    }

    /// The entries that a fetch asked for have come: gives back for whom.
    pub(crate) fn fetched(&mut self, fetch: Fetch, entries: Vec<RaftEntry>) -> Vec<GetEntriesContext> {
        let mut wanted = self.wanted.borrow_mut();
        let (these, others) = wanted.drain(..).partition(|(other, _)| *other == fetch);
        *wanted = others;
        drop(wanted);
        let these: Vec<_> = these;
        // Asking again would not help, and would have no end.
        if entries.is_empty() && fetch.from > self.purged.index {
            self.unreadable = self.unreadable.max(fetch.from);
        }
        // The log may have changed meanwhile.
        let is_current = |entry: &RaftEntry| self.term_of(LogIndex(entry.index)) == Some(Term(entry.term));
        self.fetched = if entries.iter().all(is_current) { entries } else { Vec::new() };
        these.into_iter().map(|(_, context)| context).collect()
    }

    /// Lets go of what was fetched.
    pub(crate) fn forget_fetched(&mut self) {
        self.fetched = Vec::new();
    }

    /// Entries from `low` on and before `high`, as many as fit into the bytes, but one at least. `None` if the first is not in
    /// memory. Who only looks what kind they are takes them without their bytes.
    fn slice(&self, low: u64, high: u64, bytes_max: usize, needs_bytes: bool) -> Option<Vec<RaftEntry>> {
        let from_cache = |at: u64| {
            let first = self.entries.front()?.index;
            let entry = self.entries.get(usize::try_from(at.checked_sub(first)?).ok()?)?;
            (!needs_bytes || !is_stored(entry)).then_some(entry)
        };
        let fetched = |at: u64| {
            let first = self.fetched.first()?.index;
            self.fetched.get(usize::try_from(at.checked_sub(first)?).ok()?)
        };
        let mut out: Vec<RaftEntry> = Vec::new();
        let mut bytes = 0usize;
        for at in low..high {
            let Some(entry) = from_cache(at).or_else(|| fetched(at)) else { break };
            bytes = bytes.saturating_add(entry.data.len());
            if bytes > bytes_max && !out.is_empty() {
                break;
            }
            out.push(entry.clone());
        }
        if out.is_empty() && low < high {
            return None;
        }
        Some(out)
    }
}

fn weight(entry: &RaftEntry) -> usize {
    size_of::<RaftEntry>() + entry.data.len()
}

impl Storage for Tail {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.initial.0.clone(), self.initial.1.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<RaftEntry>> {
        if low <= self.purged.index.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        let max_size = max_size.into();
        let bytes_max = max_size.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        // What is to be sent may come later; everything else is about what this node knows already.
        if let Some(entries) = self.slice(low, high, bytes_max, context.can_async()) {
            return Ok(entries);
        }
        if !context.can_async() || low <= self.unreadable.0 {
            // What is not applied is always here. For a follower that needs more the library wants a snapshot then.
            return Err(Error::Store(StorageError::Unavailable));
        }
        let fetch = Fetch { from: LogIndex(low), to: LogIndex(high), bytes_max };
        // Another follower that is behind as far asks again with its next heartbeat.
        let mut wanted = self.wanted.borrow_mut();
        if wanted.iter().all(|(other, _)| other.from != fetch.from) {
            wanted.push((fetch, context));
            self.untold.borrow_mut().push(fetch);
        }
        Err(Error::Store(StorageError::LogTemporarilyUnavailable))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        match self.term_of(LogIndex(index)) {
            Some(term) => Ok(term.0),
            None if index < self.purged.index.0 => Err(Error::Store(StorageError::Compacted)),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.purged.index.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last.0)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<RaftSnapshot> {
        // Whoever does not find himself among the members refuses it: it is older than his joining. And behind what cannot be
        // read it is of no use.
        let from = request_index.max(self.unreadable.0);
        let fits =
            |snapshot: &&Snapshot| snapshot.last.index.0 >= from && snapshot.members.contains(NodeId(to));
        match self.snapshot.as_ref().filter(fits) {
            Some(snapshot) => Ok(snapshot_in(snapshot.clone())),
            None => {
                self.snapshot_wanted.set(true);
                Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(term: u64, index: u64, len: usize) -> RaftEntry {
        RaftEntry { term, index, data: vec![0; len].into(), ..RaftEntry::default() }
    }

    fn tail() -> Tail {
        let purged = EntryId::new(Term(1), LogIndex(1));
        Tail::new(Default::default(), purged, LogIndex(1))
    }

    fn terms(tail: &Tail, indexes: std::ops::RangeInclusive<u64>) -> Vec<Option<u64>> {
        indexes.map(|index| tail.term_of(LogIndex(index)).map(|term| term.0)).collect()
    }

    #[test]
    fn terms_are_known_through_truncation_and_purge() {
        let mut tail = tail();
        tail.append(&[entry(1, 2, 1), entry(2, 3, 1), entry(2, 4, 1), entry(3, 5, 1)]);
        assert_eq!(terms(&tail, 0..=6), [None, Some(1), Some(1), Some(2), Some(2), Some(3), None]);
        tail.append(&[entry(4, 4, 1)]);
        assert_eq!(terms(&tail, 1..=5), [Some(1), Some(1), Some(2), Some(4), None]);
        tail.purge(EntryId::new(Term(1), LogIndex(2)));
        assert_eq!(terms(&tail, 1..=5), [None, Some(1), Some(2), Some(4), None]);
        tail.purge(EntryId::new(Term(4), LogIndex(4)));
        assert_eq!(terms(&tail, 3..=5), [None, Some(4), None]);
        assert_eq!(tail.last_index().unwrap(), 4);
    }

    #[test]
    fn what_is_applied_leaves_memory_and_is_fetched_when_it_is_wanted() {
        let mut tail = tail();
        let size = RAFT_TAIL_BYTES_MAX / 4;
        let all: Vec<RaftEntry> = (2..=11).map(|index| entry(1, index, size)).collect();
        tail.append(&all);
        assert_eq!(tail.entries.len(), 10, "nothing is applied yet");
        tail.set_applied(LogIndex(11));
        assert!(tail.entries.len() <= 4);
        let wanted = GetEntriesContext::empty(true);
        assert!(tail.entries(2, 5, None, wanted).is_err());
        let [fetch] = tail.take_fetches()[..] else { panic!("one fetch is asked for") };
        assert_eq!((fetch.from, fetch.to), (LogIndex(2), LogIndex(5)));
        // The disk gave fewer than were asked for.
        assert_eq!(tail.fetched(fetch, all[..2].to_vec()).len(), 1);
        let found = tail.entries(2, 5, None, GetEntriesContext::empty(true)).unwrap();
        assert_eq!(found, all[..2]);
        tail.forget_fetched();
        assert!(tail.take_fetches().is_empty() && tail.wanted.borrow().is_empty());
    }

    #[test]
    fn what_only_the_disk_has_is_fetched_for_others_and_known_here() {
        let mut tail = tail();
        let stored = RaftEntry { term: 1, index: 3, context: vec![1].into(), ..RaftEntry::default() };
        tail.append(&[entry(1, 2, 5), stored, entry(1, 4, 5)]);
        let kinds = tail.entries(2, 5, None, GetEntriesContext::empty(false)).unwrap();
        assert_eq!(kinds.len(), 3, "this node needs no bytes of what it wrote down itself");
        let sent = tail.entries(2, 5, None, GetEntriesContext::empty(true)).unwrap();
        assert_eq!(sent, [entry(1, 2, 5)]);
        assert!(tail.entries(3, 5, None, GetEntriesContext::empty(true)).is_err());
        let [fetch] = tail.take_fetches()[..] else { panic!("one fetch is asked for") };
        assert_eq!((fetch.from, fetch.to), (LogIndex(3), LogIndex(5)));
        tail.fetched(fetch, vec![entry(1, 3, 5)]);
        let sent = tail.entries(3, 5, None, GetEntriesContext::empty(true)).unwrap();
        assert_eq!(sent, [entry(1, 3, 5), entry(1, 4, 5)]);
    }

    #[test]
    fn for_what_the_disk_does_not_give_back_there_is_a_snapshot() {
        let mut tail = tail();
        let size = RAFT_TAIL_BYTES_MAX / 4;
        let all: Vec<RaftEntry> = (2..=11).map(|index| entry(1, index, size)).collect();
        tail.append(&all);
        tail.set_applied(LogIndex(11));
        let asks = |tail: &Tail, low| tail.entries(low, low + 2, None, GetEntriesContext::empty(true));
        assert!(asks(&tail, 4).is_err());
        let [fetch] = tail.take_fetches()[..] else { panic!("one fetch is asked for") };
        assert_eq!(tail.fetched(fetch, Vec::new()).len(), 1);
        let unavailable = Err(Error::Store(StorageError::Unavailable));
        assert_eq!(asks(&tail, 4), unavailable);
        assert_eq!(asks(&tail, 2), unavailable, "the way leads through what cannot be read");
        assert!(tail.take_fetches().is_empty(), "it is not asked for again");
        assert!(asks(&tail, 5).is_err() && tail.take_fetches().len() == 1, "others are");
        let snapshot = |index| Snapshot {
            last: EntryId::new(Term(1), LogIndex(index)),
            members: crate::Membership::of([NodeId(2)]),
            data: bytes::Bytes::new(),
        };
        tail.offer(snapshot(3));
        assert!(tail.snapshot(0, 2).is_err() && tail.take_snapshot_wanted(), "this one ends before it");
        tail.offer(snapshot(11));
        assert!(tail.snapshot(0, 2).is_ok());
    }
}
