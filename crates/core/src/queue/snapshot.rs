//! The durable state of a queue as bytes, so that recovery need not read the log from its beginning.
//!
//! A snapshot is a *head* (settings, figures, and the ready messages that were never delivered, as ranges) and *chunks*
//! (all other messages and the deduplication ids, one by one, by offset). Bodies are not written: the log has them; nor is
//! it written where. The same records give the same bytes on every node, whatever is in memory there.
//! Chunks that have not changed since an earlier snapshot are not written again: see `changes.rs`.
//!
//! What makes it right: head and chunks together are the state at the moment of [`Queue::begin_snapshot`]. The head is
//! encoded then; a chunk is encoded later, but as it was then. A chunk that is not written again has not changed
//! between its own snapshot and this one. So the records after that moment, applied to it, give the present state.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use nexo_types::{DedupId, GroupId, Offset, Priority, QueueId, QueueName, Timestamp};
use thiserror::Error;

use super::changes::ChunkId;
use super::compact::CompactEntry;
use super::entry::{MessageEntry, PayloadMemory};
use super::lanes::Lanes;
use super::lease::Lease;
use super::{Queue, Totals};
use crate::config::QueueConfig;
use crate::message::{DeathReason, Durability};
use crate::offsets::OffsetSet;
use crate::record::LeasePhase;
use crate::wire::{Reader, WireError, Writer};

/// The versions in which the parts of a snapshot are written. Version 1 of a chunk has no messages that are dying. Version 1
/// of a head and versions 1 and 2 of a chunk also say where each message was stored.
const HEAD_VERSION: u64 = 2;
const CHUNK_VERSION: u64 = 3;
/// The first version of a chunk that does not.
const CHUNK_VERSION_LOGICAL: u64 = 3;

const WAITING: u8 = 0;
const LEASED: u8 = 1;
const DEDUP: u8 = 2;
/// It was ready when it died.
const DYING: u8 = 3;
/// It was leased when it died, and is still.
const DYING_LEASED: u8 = 4;

/// A snapshot that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the snapshot of a queue cannot be read: {0}")]
pub struct SnapshotError(#[from] pub(crate) WireError);

/// Where messages were stored, as a snapshot of an earlier version says.
#[derive(Clone, Copy, Debug)]
pub struct StoredIn<'a> {
    /// The messages.
    pub offsets: &'a OffsetSet,
    /// What they are taken to cost on disk.
    pub bytes: u64,
    /// A number of a file, which only the node that wrote it understands.
    pub file: u32,
}

/// Chunks of a snapshot that was begun, as many as one hold of a queue's lock should encode.
#[derive(Debug, Default)]
pub struct ChunkSlice {
    /// Each with its bytes. No bytes: there is nothing in it (any more).
    pub chunks: Vec<(ChunkId, Bytes)>,
    /// Whether there are more to come.
    pub more: bool,
}

/// What a chunk says of one offset.
enum Item<'a> {
    Waiting(Cow<'a, MessageEntry>),
    Leased(&'a Lease),
    Dying(&'a MessageEntry, DeathReason),
    Dedup(&'a DedupId, Timestamp),
}

impl Queue {
    /// Whether chunks have changed since the last snapshot was begun.
    #[must_use]
    pub fn has_changed_chunks(&self) -> bool {
        self.changes.any()
    }

    /// Whether this one has.
    #[must_use]
    pub fn has_chunk_changed(&self, chunk: ChunkId) -> bool {
        self.changes.has(chunk)
    }

    /// Begins a snapshot, and gives back its head. `known` are the chunks that earlier snapshots wrote; `stale` those of
    /// them that are to be written again although they have not changed.
    pub fn begin_snapshot(&mut self, known: impl Iterator<Item = ChunkId>, stale: &[ChunkId]) -> Bytes {
        self.changes.begin(known, stale);
        self.encode_head()
    }

    pub(super) fn encode_head(&self) -> Bytes {
        let mut out = Writer::with_capacity(256);
        out.version(HEAD_VERSION);
        out.u64(self.id.0);
        out.text(self.name.stored());
        out.u64(self.created_at.0);
        self.config.encode(&mut out);
        out.u64(self.next_offset.0);
        out.u64(self.reserved.0);
        self.totals.encode(&mut out);
        self.lanes.encode(&mut out);
        out.into_bytes()
    }

    /// The next chunks of the snapshot: until `messages_max` messages are encoded or `chunks_max` chunks looked at.
    /// `None` if the snapshot has been cancelled, or none was begun.
    pub fn next_chunks(&mut self, chunks_max: usize, messages_max: usize) -> Option<ChunkSlice> {
        if !self.changes.is_ongoing() {
            return None;
        }
        let mut slice = ChunkSlice::default();
        let mut messages = 0;
        while slice.chunks.len() < chunks_max && messages < messages_max {
            let Some((chunk, before)) = self.changes.next() else { break };
            let (bytes, count) = self.encode_chunk(chunk, &before);
            messages += count;
            slice.chunks.push((chunk, bytes));
        }
        slice.more = self.changes.has_pending();
        if !slice.more {
            self.changes.end();
        }
        Some(slice)
    }

    /// The snapshot comes to nothing. `taken` are the chunks that [`Self::next_chunks`] gave for it.
    pub fn abandon_snapshot(&mut self, taken: &[ChunkId]) {
        self.changes.abandon(taken);
    }

    /// A queue in the state of a snapshot. Everything that can be on disk only is. The chunks must be in the order of
    /// their numbers.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn restore<'a>(head: &[u8], chunks: impl Iterator<Item = &'a [u8]>) -> Result<Self, SnapshotError> {
        Self::restore_stored(head, chunks, &mut |_| ())
    }

    /// As [`Self::restore`]. A snapshot of an earlier version says where its messages were stored: `stored` is told.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn restore_stored<'a>(
        head: &[u8],
        chunks: impl Iterator<Item = &'a [u8]>,
        stored: &mut dyn FnMut(StoredIn<'_>),
    ) -> Result<Self, SnapshotError> {
        let mut input = Reader::new(head);
        let mut queue = Self::restore_head(&mut input, stored)?;
        input.finish()?;
        let mut waiting = Vec::new();
        for chunk in chunks {
            queue.restore_chunk(&mut Reader::new(chunk), &mut waiting, stored)?;
        }
        // Only when all that are leased are known: who is of the same group waits behind them.
        waiting.into_iter().for_each(|entry| queue.restore_waiting(entry));
        Ok(queue)
    }

    fn restore_head(input: &mut Reader<'_>, stored: &mut dyn FnMut(StoredIn<'_>)) -> Result<Self, WireError> {
        let version = input.version("the snapshot of a queue", HEAD_VERSION)?;
        let id = QueueId(input.u64()?);
        let name = QueueName::from_stored(input.text()?).map_err(|_| WireError::BadName)?;
        let created_at = Timestamp(input.u64()?);
        let config = QueueConfig::decode(input)?;
        let mut queue = Self::new(id, name, config, created_at);
        queue.next_offset = Offset(input.u64()?);
        queue.reserved = Offset(input.u64()?);
        queue.totals = Totals::decode(input)?;
        queue.lanes = Lanes::decode(input, version, stored)?;
        Ok(queue)
    }

    /// To be called once all records after the snapshot are applied: offsets that transient messages may
    /// have had are passed over, what recovery brought into memory leaves it, and what was replayed counts for no rate.
    pub fn finish_recovery(&mut self) {
        self.next_offset = self.next_offset.max(self.reserved);
        self.usage.clear();
        self.rates = super::Rates::default();
        self.page_out(u64::MAX);
    }

    /// The chunk as it was when the snapshot began, and how many items it has. `before` has what has changed since.
    pub(super) fn encode_chunk<'a>(
        &'a self,
        chunk: ChunkId,
        before: &BTreeMap<Offset, Vec<u8>>,
    ) -> (Bytes, usize) {
        let (start, end) = chunk.offsets();
        let mut items: Vec<(Offset, Item<'a>)> = Vec::new();
        let mut add = |offset: Offset, item: Item<'a>| {
            if !before.contains_key(&offset) {
                items.push((offset, item));
            }
        };
        for entry in self.loose_waiting_in(start, end) {
            add(entry.offset, Item::Waiting(entry));
        }
        for lease in self.leased.range(start, end).filter(|lease| lease.entry.is_durable()) {
            add(lease.entry.offset, Item::Leased(lease));
        }
        for (offset, (entry, reason)) in in_range(&self.dying, start, end) {
            if entry.is_durable() {
                add(offset, Item::Dying(entry, *reason));
            }
        }
        for (id, until, offset) in self.dedup.range(start, end) {
            add(offset, Item::Dedup(id, until));
        }
        // Those of one offset stay in the order in which they were added: every node has the same bytes.
        items.sort_by_key(|(offset, _)| *offset);
        let mut out = Writer::with_capacity(items.len() * 48);
        out.version(CHUNK_VERSION);
        let empty = out.len();
        let mut before = before.iter().peekable();
        let count = items.len() + before.len();
        for (offset, item) in items {
            while let Some((_, bytes)) = before.next_if(|(changed, _)| **changed < offset) {
                out.raw(bytes);
            }
            item.encode(offset, &mut out);
        }
        before.for_each(|(_, bytes)| out.raw(bytes));
        let bytes = if out.len() == empty { Bytes::new() } else { out.into_bytes() };
        (bytes, count)
    }

    /// What a chunk says of one offset.
    pub(super) fn encode_items_of(&self, offset: Offset, out: &mut Writer) {
        let next = offset.next();
        if let Some(entry) = self.loose_waiting_in(offset, next).next() {
            Item::Waiting(entry).encode(offset, out);
        }
        if let Some(lease) = self.leased.get(offset).filter(|lease| lease.entry.is_durable()) {
            Item::Leased(lease).encode(offset, out);
        }
        if let Some((entry, reason)) = self.dying.get(&offset).filter(|(entry, _)| entry.is_durable()) {
            Item::Dying(entry, *reason).encode(offset, out);
        }
        for (id, until, _) in self.dedup.range(offset, next) {
            Item::Dedup(id, until).encode(offset, out);
        }
    }

    /// Durable messages of these offsets that are neither leased, nor dying, nor in a lane.
    pub(super) fn loose_waiting_in(
        &self,
        start: Offset,
        end: Offset,
    ) -> impl Iterator<Item = Cow<'_, MessageEntry>> {
        let delayed = self.delayed.range(start, end).map(|delayed| &delayed.0);
        let compact = delayed.chain(self.returned.range(start, end)).map(CompactEntry::entry);
        let behind = in_range(&self.behind, start, end).filter_map(|(offset, group)| {
            let behind = self.groups.get(group)?;
            behind.get(behind.binary_search_by_key(&offset, |entry| entry.offset).ok()?)
        });
        compact.chain(behind.map(Cow::Borrowed)).filter(|entry| entry.is_durable())
    }

    /// Messages of these offsets that are leased or dying.
    pub(super) fn held_in(&self, start: Offset, end: Offset) -> impl Iterator<Item = &MessageEntry> {
        let leased = self.leased.range(start, end).map(|lease| &lease.entry);
        leased.chain(in_range(&self.dying, start, end).map(|(_, (entry, _))| entry))
    }

    /// Takes in a chunk, but for messages of groups that wait: those are added to `waiting`.
    fn restore_chunk(
        &mut self,
        input: &mut Reader<'_>,
        waiting: &mut Vec<MessageEntry>,
        stored: &mut dyn FnMut(StoredIn<'_>),
    ) -> Result<(), WireError> {
        let version = input.version("a chunk of a queue's snapshot", CHUNK_VERSION)?;
        let mut decode_item = |input: &mut Reader<'_>| MessageEntry::decode_item(input, version, stored);
        while input.left() > 0 {
            match input.u8()? {
                WAITING => {
                    let entry = decode_item(input)?;
                    if entry.group().is_some() { waiting.push(entry) } else { self.restore_waiting(entry) }
                }
                kind @ (LEASED | DYING_LEASED) => {
                    let entry = decode_item(input)?;
                    let mut lease = self.restore_lease(entry, input)?;
                    if kind == DYING_LEASED {
                        lease.dying = Some(DeathReason::from_code(input.u8()?)?);
                    }
                    self.leased.insert(lease);
                }
                DYING => {
                    let entry = decode_item(input)?;
                    self.note_held(&entry);
                    self.put_aside(entry, DeathReason::from_code(input.u8()?)?);
                }
                DEDUP => {
                    let offset = Offset(input.u64()?);
                    let until = Timestamp(input.u64()?);
                    let id = DedupId::new(input.text()?).map_err(|_| WireError::BadName)?;
                    self.dedup.insert(id, offset, until);
                }
                value => return Err(WireError::Unknown { what: "item of a snapshot", value }),
            }
        }
        Ok(())
    }

    /// Messages come by rising offset; those of groups after all that are leased. While any of a group is leased, the others wait behind it;
    /// otherwise the first is out. (So it is if the one before was transient and has not survived.)
    fn restore_waiting(&mut self, entry: MessageEntry) {
        self.loose_bytes += u64::from(entry.stored_bytes);
        if let Some(group) = entry.group().cloned() {
            if let Some(behind) = self.groups.get_mut(&group) {
                self.behind.insert(entry.offset, group.clone());
                self.grouped += 1;
                let returned = (entry.attempts > 0).then_some(entry.offset);
                behind.push_back(entry);
                if let Some(offset) = returned {
                    self.note_returned_to_group(&group, offset);
                }
                return;
            }
            self.note_out(&group);
        }
        self.place(entry, Timestamp(0));
    }

    fn restore_lease(&mut self, entry: MessageEntry, input: &mut Reader<'_>) -> Result<Lease, WireError> {
        let until = input.optional()?.map(Timestamp);
        let phase = LeasePhase::from_code(input.u8()?)?;
        let granted_at = Timestamp(input.u64()?);
        self.note_held(&entry);
        self.leased_bytes += u64::from(entry.stored_bytes);
        Ok(Lease::new(entry, until, phase, granted_at))
    }

    /// A message of a snapshot that is leased or dying: those of its group wait behind it.
    fn note_held(&mut self, entry: &MessageEntry) {
        if let Some(group) = entry.group() {
            self.note_out(group);
        }
        self.loose_bytes += u64::from(entry.stored_bytes);
    }
}

type ByOffset<V> = hashbrown::HashMap<Offset, V, foldhash::fast::FixedState>;

/// What a map has of these offsets: by looking each of them up, or, if that is less, by going through the map.
fn in_range<V>(map: &ByOffset<V>, start: Offset, end: Offset) -> impl Iterator<Item = (Offset, &V)> {
    let few = (map.len() as u64) < end.0 - start.0;
    let through = few.then(|| map.iter().map(|(offset, value)| (*offset, value)));
    let looked_up = (!few).then(|| (start.0..end.0).map(Offset));
    let through = through.into_iter().flatten().filter(move |(offset, _)| (start..end).contains(offset));
    let looked_up = looked_up.into_iter().flatten().filter_map(|offset| Some((offset, map.get(&offset)?)));
    through.chain(looked_up)
}

impl Item<'_> {
    fn encode(&self, offset: Offset, out: &mut Writer) {
        match self {
            Self::Waiting(entry) => {
                out.u8(WAITING);
                entry.encode_item(out);
            }
            Self::Dying(entry, reason) => {
                out.u8(DYING);
                entry.encode_item(out);
                out.u8(reason.code());
            }
            Self::Leased(lease) => {
                out.u8(if lease.dying.is_some() { DYING_LEASED } else { LEASED });
                lease.entry.encode_item(out);
                out.optional(lease.until().map(|until| until.0));
                out.u8(lease.phase.code());
                out.u64(lease.granted_at.0);
                if let Some(reason) = lease.dying {
                    out.u8(reason.code());
                }
            }
            Self::Dedup(id, until) => {
                out.u8(DEDUP);
                out.u64(offset.0);
                out.u64(until.0);
                out.text(id.as_str());
            }
        }
    }
}

impl MessageEntry {
    fn encode_item(&self, out: &mut Writer) {
        out.u64(self.offset.0);
        out.u64(self.stored_bytes.into());
        out.u8(self.priority.0);
        out.u64(self.attempts.into());
        out.u64(self.enqueued_at.0);
        out.u64(self.ready_at.0);
        out.u64(self.expires_at.0);
        // No group has the empty name.
        out.text(self.group().map_or("", GroupId::as_str));
    }

    fn decode_item(
        input: &mut Reader<'_>,
        version: u64,
        stored: &mut dyn FnMut(StoredIn<'_>),
    ) -> Result<Self, WireError> {
        let mut entry = Self::decode_fields(input, version, stored)?;
        let group = input.text()?;
        if !group.is_empty() {
            entry.named_group = Some(GroupId::new(group).map_err(|_| WireError::BadName)?);
        }
        Ok(entry)
    }

    fn decode_fields(
        input: &mut Reader<'_>,
        version: u64,
        stored: &mut dyn FnMut(StoredIn<'_>),
    ) -> Result<Self, WireError> {
        let offset = Offset(input.u64()?);
        let place = if version < CHUNK_VERSION_LOGICAL { Some((input.u32()?, input.u32()?)) } else { None };
        let stored_bytes = input.u32()?;
        if let Some((file, _)) = place {
            stored(StoredIn { offsets: &OffsetSet::one(offset), bytes: stored_bytes.into(), file });
        }
        Ok(Self {
            offset,
            stored_bytes,
            priority: Priority(input.u8()?),
            attempts: input.u32()?,
            enqueued_at: Timestamp(input.u64()?),
            ready_at: Timestamp(input.u64()?),
            expires_at: Timestamp(input.u64()?),
            named_group: None,
            is_tenant: false,
            durability: Durability::Durable,
            payload: None,
            payload_memory: PayloadMemory::ALONE,
        })
    }
}

impl Totals {
    fn encode(&self, out: &mut Writer) {
        for total in self.all() {
            out.u64(total);
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            pushed: input.u64()?,
            delivered: input.u64()?,
            redelivered: input.u64()?,
            acked: input.u64()?,
            dead_lettered: input.u64()?,
            expired: input.u64()?,
            overflowed: input.u64()?,
            purged: input.u64()?,
            damaged: input.u64()?,
        })
    }

    const fn all(&self) -> [u64; 9] {
        let Self {
            pushed,
            delivered,
            redelivered,
            acked,
            dead_lettered,
            expired,
            overflowed,
            purged,
            damaged,
        } = *self;
        [pushed, delivered, redelivered, acked, dead_lettered, expired, overflowed, purged, damaged]
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::Millis;

    use super::super::changes::CHUNK_OFFSETS;
    use super::*;
    use crate::message::NewMessage;
    use crate::queue::Admission;
    use crate::record::{Leave, Record};

    const NOW: Timestamp = Timestamp(1000);

    fn with_delayed(count: usize) -> Queue {
        let name = QueueName::new("q").unwrap();
        let mut queue = Queue::new(QueueId(1), name, QueueConfig::default(), NOW);
        let messages = vec![NewMessage { delay: Millis(500), ..NewMessage::new("x") }; count];
        for (_, batch) in queue.decide_push(NOW, &messages, Admission::Checked).batches {
            queue.apply(&Record::Messages(batch)).unwrap();
        }
        queue
    }

    #[test]
    fn a_slice_encodes_no_more_than_it_may() {
        let mut queue = with_delayed(400);
        queue.begin_snapshot(std::iter::empty(), &[]);
        let mut slices = 0;
        loop {
            let slice = queue.next_chunks(usize::MAX, 10).unwrap();
            assert!(slice.chunks.len() as u64 * CHUNK_OFFSETS < 10 + CHUNK_OFFSETS);
            slices += 1;
            if !slice.more {
                break;
            }
        }
        assert!(slices > 30, "a snapshot of 400 messages takes many holds of the lock, not {slices}");
        assert!(queue.next_chunks(1, 1).is_none(), "it is complete");
    }

    #[test]
    fn what_has_not_changed_is_not_written_again() {
        let mut queue = with_delayed(400);
        queue.begin_snapshot(std::iter::empty(), &[]);
        let first = queue.next_chunks(usize::MAX, usize::MAX).unwrap().chunks;
        assert_eq!(first.len() as u64, 400 / CHUNK_OFFSETS);
        assert!(!queue.has_changed_chunks());
        let gone: OffsetSet = [Offset(41)].into_iter().collect();
        queue.apply(&Record::Settle { offsets: gone, why: Leave::Acked, at: NOW }).unwrap();
        let known: Vec<ChunkId> = first.iter().map(|(chunk, _)| *chunk).collect();
        queue.begin_snapshot(known.into_iter(), &[ChunkId(3)]);
        let second = queue.next_chunks(usize::MAX, usize::MAX).unwrap().chunks;
        let written: Vec<ChunkId> = second.iter().map(|(chunk, _)| *chunk).collect();
        assert_eq!(
            written,
            [ChunkId(3), ChunkId::of(Offset(41))],
            "what was asked for, and what has changed"
        );
    }

    #[test]
    fn ids_that_are_forgotten_leave_their_chunks() {
        let name = QueueName::new("q").unwrap();
        let config = QueueConfig { dedup_window: Millis(10), ..QueueConfig::default() };
        let mut queue = Queue::new(QueueId(1), name, config, NOW);
        let message = NewMessage { dedup: Some(DedupId::new("a").unwrap()), ..NewMessage::new("x") };
        for (_, batch) in queue.decide_push(NOW, &[message], Admission::Checked).batches {
            queue.apply(&Record::Messages(batch)).unwrap();
        }
        queue.begin_snapshot(std::iter::empty(), &[]);
        assert!(!queue.next_chunks(9, 9).unwrap().chunks[0].1.is_empty());
        queue.advance_time(NOW.plus(Millis(10)), 1);
        assert!(queue.has_changed_chunks());
        queue.begin_snapshot(std::iter::empty(), &[]);
        assert!(queue.next_chunks(9, 9).unwrap().chunks[0].1.is_empty(), "nothing is left to keep");
    }
}
