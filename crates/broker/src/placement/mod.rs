//! Where the durable messages of a queue lie on this node, and how much of each segment they keep alive.
//!
//! A queue (`nexo_core`) is the same on every node and knows nothing of this. It says which messages join and leave; the
//! rest is here, beside it under the same lock. Messages of a queue are appended under its lock, so where they were pushed
//! to is a row of *extents*: offsets from here to there lie in this segment. Those that maintenance has copied forward since
//! are exceptions: for each segment that holds copies, a set of offsets. What is alive is counted for each extent and each
//! set: the number of messages is exact, and when it is zero, so are the bytes.
//!
//! - `pages.rs`: which part of a page can be read at once. `copy_forward.rs`: what is left in a nearly empty segment.
//! - `snapshot.rs`: as bytes, for a checkpoint. `recount.rs`: counting again what is alive, where damage took some.
//! - `pushes.rs`: pushes that are not safe yet, where the journal can lose them.

mod copy_forward;
mod offset_blocks;
mod pages;
mod pushes;
mod recount;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use nexo_core::batch::MessageBatch;
use nexo_core::offsets::OffsetSet;
use nexo_core::queue::{MessageEntry, Queue, UsageChange, Way};
use nexo_core::rare::{Empty, Rare};
use nexo_types::{Offset, Position, Priority, SegmentId};

use offset_blocks::OffsetBlocks;
pub(crate) use pages::{PlacedPage, PlacedPages};
use pushes::RecentPushes;
pub(crate) use snapshot::OldPlaces;

/// Where a message lies that nothing is known of. No segment has this number, so whoever looks for it there does not find it.
pub(crate) const NOWHERE: SegmentId = SegmentId(0);

/// The placement of one queue: see the file.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// By rising offset. None is empty.
    extents: Vec<Extent>,
    copies: Rare<Copies>,
    recent: Rare<RecentPushes>,
}

/// Messages that lie where they were pushed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    first: u64,
    /// Behind the last that was pushed there.
    end: u64,
    segment: SegmentId,
    alive: Alive,
}

/// Messages that were copied forward.
#[derive(Clone, Debug, Default)]
struct Copies {
    /// In no order. None is empty.
    targets: Vec<CopiedTo>,
    /// No message behind this one was ever copied.
    last: u64,
}

/// Those whose copies lie in one segment.
#[derive(Clone, Debug)]
struct CopiedTo {
    segment: SegmentId,
    offsets: OffsetBlocks,
    alive: Alive,
}

/// What is alive: so many messages, and about so many bytes, at least one for each message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Alive {
    messages: u64,
    bytes: u64,
}

/// Where messages are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Extent(usize),
    Copies(usize),
    Nowhere,
}

/// What has changed about the bytes alive in segments, told as few times as may be.
struct Deltas<F: FnMut(SegmentId, i64)> {
    last: Option<(SegmentId, i64)>,
    account: F,
}

impl Empty for Copies {
    const EMPTY: &'static Self = &Self { targets: Vec::new(), last: 0 };
}

impl Alive {
    fn add(&mut self, messages: u64, bytes: u64) -> u64 {
        self.messages += messages;
        let bytes = bytes.max(messages);
        self.bytes += bytes;
        bytes
    }

    /// Gives back how many bytes less are alive.
    fn remove(&mut self, messages: u64, bytes: u64) -> u64 {
        debug_assert!(self.messages >= messages, "what leaves was there");
        let before = self.bytes;
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = if self.messages == 0 { 0 } else { self.bytes.saturating_sub(bytes).max(self.messages) };
        before - self.bytes
    }
}

impl<F: FnMut(SegmentId, i64)> Deltas<F> {
    const fn new(account: F) -> Self {
        Self { last: None, account }
    }

    fn note(&mut self, segment: SegmentId, bytes: i64) {
        match &mut self.last {
            Some((last, sum)) if *last == segment => *sum += bytes,
            _ => {
                let before = self.last.replace((segment, bytes));
                self.tell(before);
            }
        }
    }

    fn finish(mut self) {
        let last = self.last.take();
        self.tell(last);
    }

    fn tell(&mut self, delta: Option<(SegmentId, i64)>) {
        if let Some((segment, bytes)) = delta.filter(|(_, bytes)| *bytes != 0) {
            (self.account)(segment, bytes);
        }
    }
}

impl Placement {
    /// Takes note of what a record that lies at `at` has changed when it was applied. `removed` says that it took out all
    /// that was not held, or everything. `account` is told by how much more, or less, is alive in segments.
    pub(crate) fn follow(
        &mut self,
        queue: &mut Queue,
        at: Position,
        removed: bool,
        account: impl FnMut(SegmentId, i64),
    ) {
        let mut deltas = Deltas::new(account);
        queue.drain_usage(|change| match change.way {
            Way::In => self.join(change, at.segment, &mut deltas),
            Way::Out => self.leave(change, &mut deltas),
        });
        if removed {
            self.keep_only(queue.held(), &mut deltas);
        }
        deltas.finish();
    }

    /// Takes note of copies that lie in the frame at `at`, of messages that are in the queue.
    pub(crate) fn relocate(
        &mut self,
        batch: &MessageBatch,
        at: Position,
        account: impl FnMut(SegmentId, i64),
    ) {
        let mut deltas = Deltas::new(account);
        for item in batch.items() {
            // What cannot be read was not made by this version, and the format version has been checked.
            if let Ok(entry) = MessageEntry::from_batch(batch, item) {
                self.move_to(at.segment, item.offset.0, entry.stored_bytes.into(), &mut deltas);
            }
        }
        deltas.finish();
    }

    /// The same for a batch of copies that is replayed: those of messages that the queue does not have are passed over.
    pub(crate) fn replay_copies(&mut self, queue: &Queue, batch: &MessageBatch, at: Position) {
        let mut lanes: Vec<(Priority, Vec<(Offset, u32)>)> = Vec::new();
        for item in batch.items() {
            let Ok(entry) = MessageEntry::from_batch(batch, item) else { continue };
            let message = (entry.offset, entry.stored_bytes);
            match lanes.iter_mut().find(|(lane, _)| *lane == entry.priority) {
                Some((_, messages)) => messages.push(message),
                None => lanes.push((entry.priority, vec![message])),
            }
        }
        let mut deltas = Deltas::new(|_, _| ());
        for (lane, messages) in lanes {
            let offsets: OffsetSet = messages.iter().map(|(offset, _)| *offset).collect();
            let there = queue.durable_among(lane, &offsets);
            for (offset, bytes) in messages.into_iter().filter(|(offset, _)| there.contains(*offset)) {
                self.move_to(at.segment, offset.0, bytes.into(), &mut deltas);
            }
        }
    }

    /// Takes note of a message that was appended in the frame at `at`, behind all others.
    pub(crate) fn note_appended(
        &mut self,
        entry: &MessageEntry,
        at: Position,
        account: impl FnMut(SegmentId, i64),
    ) {
        let mut deltas = Deltas::new(account);
        let (first, bytes_each) = (entry.offset, entry.stored_bytes);
        self.join(UsageChange { first, messages: 1, bytes_each, way: Way::In }, at.segment, &mut deltas);
        deltas.finish();
    }

    /// The segment that holds a message of the queue.
    pub(crate) fn segment_of(&self, offset: Offset) -> SegmentId {
        self.segment_at(self.locate(offset.0, offset.0 + 1).0)
    }

    /// Whether no durable message is in the queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.copies.targets.is_empty()
    }

    /// Bytes alive in segments. One may come several times.
    pub(crate) fn bytes_by_segment(&self) -> impl Iterator<Item = (SegmentId, u64)> + '_ {
        let extents = self.extents.iter().map(|extent| (extent.segment, extent.alive.bytes));
        extents.chain(self.copies.targets.iter().map(|copies| (copies.segment, copies.alive.bytes)))
    }

    /// The next offsets, from this one on and at most `max`, among which may be messages that lie in a segment.
    pub(crate) fn next_part(&self, segment: SegmentId, from: Offset, max: u64) -> Option<Range<u64>> {
        let of_extent = |extent: &Extent| {
            let start = extent.first.max(from.0);
            (extent.segment == segment && start < extent.end).then(|| start..extent.end.min(start + max))
        };
        let of_copies = |copies: &CopiedTo| {
            let start = copies.offsets.next_from(from.0).filter(|_| copies.segment == segment)?;
            Some(start..start + max)
        };
        let extents = self.extents.iter().filter_map(of_extent);
        let parts = extents.chain(self.copies.targets.iter().filter_map(of_copies));
        parts.min_by_key(|part| part.start)
    }

    fn join(
        &mut self,
        change: UsageChange,
        segment: SegmentId,
        deltas: &mut Deltas<impl FnMut(SegmentId, i64)>,
    ) {
        let messages = u64::from(change.messages);
        let bytes = messages * u64::from(change.bytes_each);
        let (first, end) = (change.first.0, change.end().0);
        match self.extents.last_mut() {
            Some(last) if first < last.end => {
                debug_assert!(false, "a queue gives its offsets in order");
                for offset in first..end {
                    let bytes = self.copies.add(segment, offset, change.bytes_each.into());
                    deltas.note(segment, bytes as i64);
                }
            }
            Some(last) if last.segment == segment => {
                last.end = end;
                deltas.note(segment, last.alive.add(messages, bytes) as i64);
            }
            _ => {
                let mut alive = Alive::default();
                deltas.note(segment, alive.add(messages, bytes) as i64);
                if self.extents.capacity() == 0 {
                    // Most queues have one, and keep this room.
                    self.extents.reserve_exact(1);
                }
                self.extents.push(Extent { first, end, segment, alive });
            }
        }
    }

    fn leave(&mut self, change: UsageChange, deltas: &mut Deltas<impl FnMut(SegmentId, i64)>) {
        let (mut at, end) = (change.first.0, change.end().0);
        while at < end {
            let (place, until) = self.locate(at, end);
            self.remove_at(place, at, until, change.bytes_each.into(), deltas);
            at = until;
        }
    }

    fn move_to(
        &mut self,
        to: SegmentId,
        offset: u64,
        bytes: u64,
        deltas: &mut Deltas<impl FnMut(SegmentId, i64)>,
    ) {
        let (place, until) = self.locate(offset, offset + 1);
        if place == Place::Nowhere || self.segment_at(place) == to {
            return;
        }
        self.remove_at(place, offset, until, bytes, deltas);
        deltas.note(to, self.copies.add(to, offset, bytes) as i64);
    }

    /// Messages of one place are not there any more.
    fn remove_at(
        &mut self,
        place: Place,
        first: u64,
        end: u64,
        bytes_each: u64,
        deltas: &mut Deltas<impl FnMut(SegmentId, i64)>,
    ) {
        let (messages, bytes) = (end - first, (end - first) * bytes_each);
        match place {
            Place::Extent(at) => {
                let extent = &mut self.extents[at];
                let less = extent.alive.remove(messages, bytes);
                deltas.note(extent.segment, -(less as i64));
                if extent.alive.messages == 0 {
                    self.extents.remove(at);
                }
            }
            Place::Copies(at) => {
                let copies = &mut self.copies.targets[at];
                for offset in first..end {
                    copies.offsets.remove(offset);
                }
                let less = copies.alive.remove(messages, bytes);
                deltas.note(copies.segment, -(less as i64));
                if copies.alive.messages == 0 {
                    self.copies.targets.swap_remove(at);
                    if self.copies.targets.is_empty() {
                        self.copies.take();
                    }
                }
            }
            Place::Nowhere => debug_assert!(false, "message {first} lies nowhere"),
        }
    }

    /// All others have left.
    fn keep_only(
        &mut self,
        held: impl Iterator<Item = (Offset, u32)>,
        deltas: &mut Deltas<impl FnMut(SegmentId, i64)>,
    ) {
        // Told once for each segment: one that still holds something must not look empty in between.
        let mut changes: BTreeMap<SegmentId, i64> = BTreeMap::new();
        for (segment, bytes) in self.bytes_by_segment() {
            *changes.entry(segment).or_default() -= bytes as i64;
        }
        self.count_again(held.map(|(offset, bytes)| (offset.0, 1, u64::from(bytes))));
        for (segment, bytes) in self.bytes_by_segment() {
            *changes.entry(segment).or_default() += bytes as i64;
        }
        for (segment, bytes) in changes {
            deltas.note(segment, bytes);
        }
    }

    /// Where a message lies, and up to where all before `end` lie there too, as far as that is known without searching.
    fn locate(&self, offset: u64, end: u64) -> (Place, u64) {
        let may_be_copied = !self.copies.targets.is_empty() && offset <= self.copies.last;
        if may_be_copied
            && let Some(at) = self.copies.targets.iter().position(|copies| copies.offsets.contains(offset))
        {
            return (Place::Copies(at), offset + 1);
        }
        let end = if may_be_copied { offset + 1 } else { end };
        // Nearly always in the last one.
        let behind = match self.extents.last() {
            Some(last) if last.first <= offset => self.extents.len(),
            _ => self.extents.partition_point(|extent| extent.first <= offset),
        };
        match behind.checked_sub(1).map(|at| (at, &self.extents[at])) {
            Some((at, extent)) if offset < extent.end => (Place::Extent(at), end.min(extent.end)),
            _ => (Place::Nowhere, end.min(offset + 1)),
        }
    }

    fn segment_at(&self, place: Place) -> SegmentId {
        match place {
            Place::Extent(at) => self.extents[at].segment,
            Place::Copies(at) => self.copies.targets[at].segment,
            Place::Nowhere => NOWHERE,
        }
    }
}

impl Copies {
    /// Adds a message, and gives back how many bytes more are alive there.
    fn add(&mut self, segment: SegmentId, offset: u64, bytes: u64) -> u64 {
        self.last = self.last.max(offset);
        let at = self.targets.iter().position(|copies| copies.segment == segment).unwrap_or_else(|| {
            let copies = CopiedTo { segment, offsets: OffsetBlocks::default(), alive: Alive::default() };
            self.targets.push(copies);
            self.targets.len() - 1
        });
        let copies = &mut self.targets[at];
        if copies.offsets.insert(offset) { copies.alive.add(1, bytes) } else { 0 }
    }
}
