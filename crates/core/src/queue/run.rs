//! Messages of a lane that are not in memory: their offsets, and what is known of all of them together.

use nexo_types::{Offset, Priority, Timestamp};

use super::entry::MessageEntry;
use super::lane::PageRequest;
use crate::offsets::{OffsetSet, PackedOffsets};

/// Paged stretches side by side become one up to this many messages: what is asked of one is looked for in all of it …
pub(super) const RUN_MESSAGES_MAX: u64 = if cfg!(test) { 16 } else { 64 * 1024 };
/// … or this many bytes.
const RUN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Messages of one lane that are not in memory.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) offsets: PackedOffsets,
    pub(super) bytes: u64,
    /// No message of it ends its life before this, as far as is known without reading them.
    pub(super) expires_at: Timestamp,
}

impl Default for Run {
    fn default() -> Self {
        Self { offsets: PackedOffsets::default(), bytes: 0, expires_at: Timestamp::MAX }
    }
}

impl Run {
    /// Whether what is behind it may become part of it.
    pub(super) const fn may_take(&self, later: &Self) -> bool {
        self.offsets.len() + later.offsets.len() <= RUN_MESSAGES_MAX
            && self.bytes + later.bytes <= RUN_BYTES_MAX
    }

    /// What is behind it becomes part of it.
    pub(super) fn take(&mut self, later: &Self) {
        for (first, len) in later.offsets.ranges() {
            self.offsets.push_range(first, len);
        }
        self.bytes += later.bytes;
        self.expires_at = self.expires_at.min(later.expires_at);
    }

    pub(super) fn push(&mut self, entry: &MessageEntry) {
        self.offsets.push(entry.offset);
        self.bytes += u64::from(entry.stored_bytes);
        self.expires_at = self.expires_at.min(entry.expires_at);
    }

    /// Whether these are its first messages.
    pub(super) fn begins_with(&self, mut offsets: impl Iterator<Item = Offset>) -> bool {
        let mut own = self.offsets.ranges().flat_map(|(first, len)| first..first + len).map(Offset);
        offsets.all(|offset| own.next() == Some(offset))
    }

    /// Whether it may have messages from `start` on and before `end`.
    pub(super) fn overlaps(&self, start: Offset, end: Offset) -> bool {
        self.offsets.first().is_some_and(|first| first < end)
            && self.offsets.last().is_some_and(|last| last >= start)
    }

    pub(super) fn contains(&self, offset: Offset) -> bool {
        self.overlaps(offset, offset.next())
            && self
                .offsets
                .ranges()
                .take_while(|(first, _)| *first <= offset.0)
                .any(|(first, len)| offset.0 < first + len)
    }

    /// Its messages behind this one, or all.
    pub(super) fn after(&self, after: Option<Offset>) -> impl Iterator<Item = Offset> + '_ {
        let from = after.map_or(0, |offset| offset.0 + 1);
        self.offsets
            .ranges()
            .skip_while(move |(first, len)| first + len <= from)
            .flat_map(move |(first, len)| first.max(from)..first + len)
            .map(Offset)
    }

    /// How large its messages are, on the whole.
    pub(super) fn mean_bytes(&self) -> u64 {
        self.bytes / self.offsets.len().max(1)
    }

    /// Its first messages, at most so many: first offset and length of every range.
    pub(super) fn first_ranges(&self, max: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut room = max;
        self.offsets.ranges().map_while(move |(first, len)| {
            let part = len.min(room);
            room -= part;
            (part > 0).then_some((first, part))
        })
    }

    /// Asks for its first messages, at most so many.
    pub(super) fn request(&self, lane: Priority, max: u64) -> PageRequest {
        PageRequest { lane, offsets: OffsetSet::from_ranges(self.first_ranges(max)) }
    }
}
