//! What is in memory and what is not. None of it is durable state: the same messages wait either way.

use std::cmp::Reverse;

use bytes::Bytes;
use nexo_types::{Offset, Priority, Timestamp};

use super::compact::CompactEntry;
use super::cursor::Waiting;
use super::lanes::Front;
use super::{MessageEntry, PageRequest, Queue};
use crate::offsets::OffsetSet;

/// A place in the order of delivery: behind the message of this priority and offset.
pub type PeekPosition = (Priority, Offset);

/// A message that somebody looks at.
#[derive(Clone, Debug)]
pub struct Peeked {
    /// Its place in the queue.
    pub offset: Offset,
    /// How often it has been delivered.
    pub attempts: u32,
    /// When it was pushed.
    pub enqueued_at: Timestamp,
    /// Its priority; with the offset this is its place in the order of delivery.
    pub priority: Priority,
    /// When its lease or its delay ends. `None` for one that is ready, and for a lease that ends with its connection.
    pub until: Option<Timestamp>,
    /// What it is taken to cost on disk.
    pub stored_bytes: u32,
    /// Its stored form, if it is in memory.
    pub payload: Option<Bytes>,
}

impl Peeked {
    /// How large its stored form is. As long as that is not in memory, its properties are not counted.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.payload.as_ref().map_or(self.stored_bytes as usize, Bytes::len)
    }
}

impl From<&MessageEntry> for Peeked {
    fn from(entry: &MessageEntry) -> Self {
        Self {
            offset: entry.offset,
            attempts: entry.attempts,
            enqueued_at: entry.enqueued_at,
            priority: entry.priority,
            until: None,
            stored_bytes: entry.stored_bytes,
            payload: entry.payload.clone(),
        }
    }
}

impl Queue {
    /// What should come into memory, because consumers wait for it or soon will: the most urgent first. `readable` is given
    /// the messages of each page, as first offset and length of every range, and says which of the first of them can be read
    /// together with the pages before it, if any.
    #[must_use]
    pub fn wanted_pages(
        &self,
        readable: impl FnMut(&mut dyn Iterator<Item = (u64, u64)>) -> OffsetSet,
    ) -> Vec<PageRequest> {
        if self.config.paused || !self.consumers.anyone_waiting() {
            return Vec::new();
        }
        self.lanes.wanted_pages(readable)
    }

    /// What must come into memory for messages at the head to be seen by others than consumers.
    #[must_use]
    pub fn head_page(&self) -> Option<PageRequest> {
        self.lanes.first_page()
    }

    /// What must come into memory because messages in it may have ended their lives.
    #[must_use]
    pub fn expired_page(&self, now: Timestamp) -> Option<PageRequest> {
        self.lanes.expired_page(now)
    }

    /// Takes in messages that were paged out: the first ones of the request, without a gap. An answer to a
    /// question that is no longer asked is ignored, and `false` comes back.
    pub fn page_in(&mut self, request: &PageRequest, mut entries: Vec<MessageEntry>, now: Timestamp) -> bool {
        for entry in &mut entries {
            self.note_tenant(entry);
        }
        let expiring: Vec<MessageEntry> = entries
            .iter()
            .filter(|entry| entry.expires_at != Timestamp::MAX)
            .map(|entry| MessageEntry { payload: None, ..entry.clone() })
            .collect();
        if entries.is_empty() {
            return false;
        }
        if !self.lanes.page_in(request, entries, now) {
            return false;
        }
        for entry in &expiring {
            self.watch_expiry(entry);
        }
        true
    }

    /// Messages of this queue were in a part of the log that cannot be read, so it never knew them.
    pub fn note_damaged(&mut self, count: u64) {
        self.totals.damaged += count;
    }

    /// Frees this much memory, if messages take so much that can leave it: what is delivered last goes first. What consumers
    /// that wait get next stays.
    pub fn page_out(&mut self, bytes: u64) {
        let wanted = !self.config.paused && self.consumers.anyone_waiting();
        let freed = self.lanes.page_out(bytes, if wanted { Front::Kept } else { Front::PagedOut });
        if freed < bytes {
            self.cool_loose(wanted);
        }
        self.returned.trim();
        if self.leased.is_empty() {
            self.leased.take();
        } else {
            self.leased.trim();
        }
        if self.delayed.is_empty() {
            self.delayed.take();
        } else {
            self.delayed.trim();
        }
    }

    /// Forgets bytes of loose messages that the log has, but those that are ready only if nobody waits for them.
    fn cool_loose(&mut self, wanted: bool) {
        if self.loose_warm == 0 {
            return;
        }
        let (mut cooled, mut bytes) = (0, 0);
        let mut cool = |entry: &mut CompactEntry| {
            if let Some(freed) = entry.cool() {
                cooled += 1;
                bytes += freed;
            }
        };
        self.delayed.shrink_items(|delayed| cool(&mut delayed.0));
        if !wanted {
            self.returned.shrink_items(&mut cool);
        }
        if !self.dying.is_empty() {
            for (entry, _) in self.dying.values_mut().filter(|(entry, _)| entry.is_warm()) {
                cooled += 1;
                bytes += entry.cached_bytes();
                entry.cool();
            }
        }
        self.loose_warm -= cooled;
        self.loose_cached_bytes -= bytes;
    }

    /// Ready messages behind `after` in the order of delivery, at most `max`. If messages that are not in memory come
    /// next, the second part names them: read them, show them, and ask again from the last of them on. The queue
    /// stays as it is, so a look at a long backlog brings nothing into memory.
    #[must_use]
    pub fn peek_after(&self, after: Option<PeekPosition>, max: usize) -> (Vec<Peeked>, Option<PageRequest>) {
        let mut returned = self.returned.after(after).peekable();
        let mut cursor = self.lanes.seek(after);
        let mut seen = Vec::new();
        while seen.len() < max {
            let waiting = self.lanes.at(&mut cursor);
            let page = match waiting {
                Some(Waiting::Paged(..)) => self.lanes.page_at(cursor, after, max - seen.len()),
                Some(Waiting::Here(_)) | None => None,
            };
            let place = match (&waiting, &page) {
                (Some(Waiting::Here(entry)), _) => Some((Reverse(entry.priority), entry.offset)),
                (_, Some(page)) => page.offsets.first().map(|first| (Reverse(page.lane), first)),
                _ => None,
            };
            let early = |entry: &&CompactEntry| {
                place.is_none_or(|place| (Reverse(entry.priority()), entry.offset()) < place)
            };
            if let Some(entry) = returned.next_if(early) {
                seen.push(Peeked::from(&*entry.entry()));
                continue;
            }
            match (waiting, page) {
                (Some(Waiting::Here(entry)), _) => {
                    seen.push(Peeked::from(entry));
                    super::lanes::Lanes::step(&mut cursor);
                }
                (_, Some(mut page)) => {
                    // A message that came back has its place among those that are not in memory.
                    if let Some(next) = returned.peek().filter(|entry| entry.priority() == page.lane) {
                        let before = page.offsets.iter().filter(|offset| *offset < next.offset());
                        page.offsets = before.collect();
                    }
                    return (seen, Some(page));
                }
                (Some(Waiting::Paged(..)) | None, None) => break,
            }
        }
        (seen, None)
    }

    /// Whether this message is ready, and the page that must come into memory before it can be taken.
    #[must_use]
    pub fn find_ready(&self, offset: Offset) -> Option<Option<PageRequest>> {
        if self.returned.find(offset).is_some() {
            return Some(None);
        }
        let lane = self.lanes.lane_of(offset)?;
        Some(self.lanes.page_for(lane, offset))
    }

    /// Durable messages that are not in a lane, from `start` on and before `end`, by offset.
    #[must_use]
    pub fn loose_in(&self, start: Offset, end: Offset) -> Vec<(Priority, Offset)> {
        let held = self.held_in(start, end).filter(|entry| entry.is_durable());
        let mut found: Vec<_> = held.map(|entry| (entry.priority, entry.offset)).collect();
        found.extend(self.loose_waiting_in(start, end).map(|entry| (entry.priority, entry.offset)));
        found.sort_unstable_by_key(|(_, offset)| *offset);
        found
    }

    /// Durable messages that wait in a lane, in memory or not, from `start` on and before `end`, by lane.
    #[must_use]
    pub fn in_lanes(&self, start: Offset, end: Offset) -> Vec<(Priority, Offset)> {
        let mut found = Vec::new();
        self.lanes.durable_in(start, end, &mut found);
        found
    }

    /// Those of these messages that are in the queue and durable; all of them have this priority.
    #[must_use]
    pub fn durable_among(&self, priority: Priority, offsets: &OffsetSet) -> OffsetSet {
        let is_loose = |offset: &Offset| {
            let lease = self.leased.get(*offset).map(|lease| lease.entry.is_durable());
            let dying = || self.dying.get(offset).map(|(entry, _)| entry.is_durable());
            let delayed = || self.delayed.get(*offset).map(|delayed| delayed.0.is_durable());
            let returned = || self.returned.get(priority, *offset).map(CompactEntry::is_durable);
            let behind = || self.behind.get(offset).map(|_| self.loose_in(*offset, offset.next()).len() == 1);
            lease.or_else(dying).or_else(delayed).or_else(returned).or_else(behind).unwrap_or(false)
        };
        let in_lane = self.lanes.durable_among(priority, offsets);
        if in_lane.len() == offsets.len() {
            return in_lane;
        }
        offsets.iter().filter(is_loose).chain(in_lane.iter()).collect()
    }

    /// Durable messages that are leased or about to be moved, with what they are taken to cost on disk.
    pub fn held(&self) -> impl Iterator<Item = (Offset, u32)> + '_ {
        let durable = self.held_entries().filter(|entry| entry.is_durable());
        durable.map(|entry| (entry.offset, entry.stored_bytes))
    }

    /// Every durable message: the first of some side by side, how many they are, and what they are taken to cost on disk. Where
    /// that is known only of many, each has its share.
    pub fn durable_messages(&self, mut each: impl FnMut(Offset, u64, u64)) {
        let in_lanes = self.lanes.resident().map(std::borrow::Cow::Borrowed);
        for entry in in_lanes.chain(self.loose()).filter(|entry| entry.is_durable()) {
            each(entry.offset, 1, entry.stored_bytes.into());
        }
        for (_, bytes, ranges) in self.lanes.runs() {
            let messages: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            let mut left = (messages, bytes);
            for range in ranges {
                let count = range.end - range.start;
                let share = (u128::from(left.1) * u128::from(count) / u128::from(left.0.max(1))) as u64;
                left = (left.0 - count, left.1 - share);
                each(Offset(range.start), count, share);
            }
        }
    }
}
