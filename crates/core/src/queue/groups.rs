//! Groups: messages of one group go out in order.
//!
//! `Queue::groups` has a line for each group: the messages that wait behind those that are out. A message is out when it
//! is ready, delayed, leased or dying. Usually one is, the head of its group. A consumer that takes runs
//! ([`GroupTake::Run`]) gets the messages behind the head as well; then the group stays as it is until all of them have
//! left or come back, and goes on with the first that is left.

use std::collections::BTreeMap;

use nexo_types::{GroupId, Offset, Timestamp};

use super::{MessageEntry, Queue};
use crate::rare::{Empty, Rare};

/// How much of a group one consumer may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupTake {
    /// One message at a time.
    #[default]
    Head,
    /// With the head as many behind it as its credit allows, in order. Nobody gets more of the group meanwhile.
    Run,
}

/// What is known of groups besides their lines.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// For groups of which several messages are out: how many besides the first.
    extra: BTreeMap<GroupId, u32>,
    /// Messages in a line that had been delivered and came back while others of their group were out.
    returned: BTreeMap<Offset, GroupId>,
}

impl Empty for Runs {
    const EMPTY: &'static Self = &Self { extra: BTreeMap::new(), returned: BTreeMap::new() };
}

impl Queue {
    /// How many messages of a group are out, if it has any.
    pub(super) fn out_of(&self, group: &GroupId) -> u32 {
        1 + self.runs.extra.get(group).copied().unwrap_or(0)
    }

    /// A message is out; its group has a line from now on.
    pub(super) fn note_out(&mut self, group: &GroupId) {
        if self.groups.contains_key(group) {
            *self.runs.extra.entry(group.clone()).or_default() += 1;
        } else {
            self.groups.insert(group.clone(), std::collections::VecDeque::new());
        }
    }

    /// Takes the first message of a line out, if it is this one.
    pub(super) fn take_follower(&mut self, group: &GroupId, offset: Offset) -> Option<MessageEntry> {
        let first = self.groups.get(group)?.front()?;
        if first.offset != offset {
            return None;
        }
        self.touch(offset);
        let entry = self.pop_line(group)?;
        self.note_out(group);
        Some(entry)
    }

    /// A message of a group that was out has left: if it was the last that was out, the next one may go.
    pub(super) fn release_group(&mut self, group: &GroupId, at: Timestamp) {
        if let Some(extra) = self.runs.extra.get_mut(group) {
            *extra -= 1;
            if *extra == 0 {
                self.runs.extra.remove(group);
            }
            return;
        }
        match self.pop_line(group) {
            Some(next) => self.place(next, at),
            None => {
                self.groups.remove(group);
            }
        }
    }

    /// A leased message comes back: to its place if it is the head of its group, otherwise into the line, in order.
    pub(super) fn come_back(&mut self, mut entry: MessageEntry, at: Timestamp) {
        let Some(group) = entry.group().cloned() else { return self.place(entry, at) };
        let alone = !self.runs.extra.contains_key(&group);
        let Some(line) = self.groups.get_mut(&group) else { return self.place(entry, at) };
        if alone && line.front().is_none_or(|first| first.offset > entry.offset) {
            return self.place(entry, at);
        }
        entry.cool();
        let cached = entry.cached_bytes();
        let place = line.partition_point(|other| other.offset < entry.offset);
        self.runs.returned.insert(entry.offset, group.clone());
        self.behind.insert(entry.offset, group.clone());
        line.insert(place, entry);
        self.loose_cached_bytes += cached;
        self.grouped += 1;
        self.release_group(&group, at);
    }

    /// A message that is in the line of a snapshot has been delivered before.
    pub(super) fn note_returned_to_group(&mut self, group: &GroupId, offset: Offset) {
        self.runs.returned.insert(offset, group.clone());
    }

    /// A message that came back into a line.
    pub(super) fn returned_to_group(&self, offset: Offset) -> Option<&MessageEntry> {
        let line = self.groups.get(self.runs.returned.get(&offset)?)?;
        line.get(line.binary_search_by_key(&offset, |entry| entry.offset).ok()?)
    }

    /// Takes it out of the line for good.
    pub(super) fn take_returned_to_group(&mut self, offset: Offset) -> Option<MessageEntry> {
        self.touch(offset);
        let group = self.runs.returned.remove(&offset)?;
        let line = self.groups.get_mut(&group)?;
        let at = line.binary_search_by_key(&offset, |entry| entry.offset).ok()?;
        let entry = line.remove(at)?;
        self.behind.remove(&offset);
        self.grouped -= 1;
        self.uncount(&entry);
        Some(entry)
    }

    /// All lines are gone; only what these messages are out for is left.
    pub(super) fn reset_groups(&mut self, out: &[GroupId]) {
        self.grouped = 0;
        self.groups.clear();
        self.behind.clear();
        self.runs = Rare::default();
        for group in out {
            self.note_out(group);
        }
    }

    fn pop_line(&mut self, group: &GroupId) -> Option<MessageEntry> {
        let entry = self.groups.get_mut(group)?.pop_front()?;
        self.grouped -= 1;
        self.behind.remove(&entry.offset);
        self.uncount(&entry);
        self.runs.returned.remove(&entry.offset);
        Some(entry)
    }
}
