//! Messages of one queue as they are written down together. The bytes of a batch are made once, when it is
//! pushed: the log copies them, memory keeps slices of them, a consumer is sent slices of them.
//!
//! A batch of messages that go to several queues holds no messages itself: it names the entry of its frame in which they
//! lie (`shared_messages.rs`).

use bytes::Bytes;
use nexo_types::{Millis, Offset, Priority, Timestamp, varint};

use crate::draft::Draft;
use crate::message::StoredMessage;
use crate::wire::{Reader, WireError, Writer};

/// A batch is closed when it has reached this size, so that reading one message back reads little else.
pub const BATCH_BYTES_MAX: usize = 128 * 1024;

/// The longest head of a batch of new messages: its kind, the first offset and the moment.
pub(crate) const HEAD_BYTES_MAX: usize = 1 + 2 * varint::BYTES_MAX;

/// The first byte of a batch, or of what batches share.
pub(crate) mod code {
    /// The version in which batches are written; a batch begins with a tag, that is, with its kind.
    pub(crate) const VERSION: u8 = 1;
    /// New messages.
    pub(crate) const PUSHED: u8 = 0;
    /// Messages that were copied.
    pub(crate) const RELOCATED: u8 = 1;
    /// New messages that lie in another entry of the frame.
    pub(crate) const SHARED: u8 = 2;
    /// Messages for batches of that kind.
    pub(crate) const STORE: u8 = 3;
}

/// What a batch means to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// New messages with consecutive offsets, pushed at one moment.
    Pushed,
    /// Messages that the queue has already, copied to where they lie now.
    Relocated,
}

/// Where a message lies in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchItem {
    /// Its offset in the queue.
    pub offset: Offset,
    /// When it was pushed.
    pub enqueued_at: Timestamp,
    start: u32,
    len: u32,
}

/// Which messages of one priority a batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSpan {
    /// The priority.
    pub lane: Priority,
    /// The lowest offset.
    pub first: Offset,
    /// The highest offset.
    pub last: Offset,
    /// How many there are; fewer than the range has if others lie between.
    pub count: u32,
}

/// Messages of one queue, in the order of their offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageBatch {
    kind: BatchKind,
    bytes: Bytes,
    /// Where the messages lie, if not in `bytes`.
    store: Option<Store>,
    items: Vec<BatchItem>,
}

/// Messages that lie outside of their batch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Store {
    bytes: Bytes,
    memory: StoreMemory,
}

/// Who counts the memory that a store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreMemory {
    /// Each queue that keeps messages of it.
    ByQueue,
    /// [`crate::shared_messages::SharedMemory`], once for all queues.
    Once,
}

impl MessageBatch {
    /// Reads a batch back. `entry` gives the payload of another entry of the same frame by its place, if that holds what
    /// batches share.
    ///
    /// # Errors
    /// If the bytes are not a batch.
    pub fn decode_in(bytes: Bytes, entry: impl FnOnce(u64) -> Option<Bytes>) -> Result<Self, WireError> {
        let mut input = Reader::new(&bytes);
        let (_, kind) = input.tag("a batch of messages", code::VERSION)?;
        let kind = match kind {
            code::PUSHED => BatchKind::Pushed,
            code::RELOCATED => BatchKind::Relocated,
            code::SHARED => {
                let (first, at) = (Offset(input.u64()?), Timestamp(input.u64()?));
                let place = input.u64()?;
                input.finish()?;
                let store = entry(place).ok_or(WireError::NoSuchEntry { place })?;
                let places = decode_store(&store)?;
                return Self::of_store(bytes, store, StoreMemory::ByQueue, &places, first, at);
            }
            value => return Err(WireError::Unknown { what: "kind of batch", value }),
        };
        let mut offset = input.u64()?;
        let at = Timestamp(input.u64()?);
        let mut items = Vec::new();
        while input.left() > 0 {
            let mut enqueued_at = at;
            if kind != BatchKind::Pushed {
                offset = offset.checked_add(input.u64()?).ok_or(WireError::Range)?;
                enqueued_at = Timestamp(input.u64()?);
            }
            let message = input.bytes()?;
            let end = bytes.len() - input.left();
            items.push(BatchItem {
                offset: Offset(offset),
                enqueued_at,
                start: u32::try_from(end - message.len()).map_err(|_| WireError::Range)?,
                len: u32::try_from(message.len()).map_err(|_| WireError::Range)?,
            });
            if message.len() < 2 {
                return Err(WireError::Short);
            }
            offset = offset.checked_add(1).ok_or(WireError::Range)?;
        }
        Ok(Self { kind, bytes, store: None, items })
    }

    /// Reads a batch back that shares nothing.
    #[cfg(test)]
    pub(crate) fn decode(bytes: Bytes) -> Result<Self, WireError> {
        Self::decode_in(bytes, |_| None)
    }

    /// New messages that lie in `store`, which is the entry at `place` of the frame that the batch will be in.
    pub(crate) fn shared(
        store: Bytes,
        places: &[(u32, u32)],
        place: u64,
        first: Offset,
        at: Timestamp,
    ) -> Self {
        let mut out = Writer::with_capacity(HEAD_BYTES_MAX + varint::BYTES_MAX);
        out.tag(code::VERSION, code::SHARED);
        out.u64(first.0);
        out.u64(at.0);
        out.u64(place);
        Self::of_store(out.into_bytes(), store, StoreMemory::Once, places, first, at)
            .expect("a queue does not run out of offsets")
    }

    fn of_store(
        bytes: Bytes,
        store: Bytes,
        memory: StoreMemory,
        places: &[(u32, u32)],
        first: Offset,
        at: Timestamp,
    ) -> Result<Self, WireError> {
        first.0.checked_add(places.len() as u64).ok_or(WireError::Range)?;
        let items = places.iter().enumerate().map(|(index, &(start, len))| BatchItem {
            offset: Offset(first.0 + index as u64),
            enqueued_at: at,
            start,
            len,
        });
        let items = items.collect();
        Ok(Self { kind: BatchKind::Pushed, bytes, store: Some(Store { bytes: store, memory }), items })
    }

    /// New messages whose bytes are in place, behind [`HEAD_BYTES_MAX`] bytes that are free for the head and begin at
    /// `start`. `places` says where each begins and how long it is.
    pub(crate) fn seal(
        mut bytes: Vec<u8>,
        start: usize,
        places: &[(u32, u32)],
        first: Offset,
        at: Timestamp,
    ) -> Self {
        let mut head = Writer::with_capacity(HEAD_BYTES_MAX);
        head.tag(code::VERSION, code::PUSHED);
        head.u64(first.0);
        head.u64(at.0);
        let head = head.into_bytes();
        let unused = start + HEAD_BYTES_MAX - head.len();
        bytes[unused..start + HEAD_BYTES_MAX].copy_from_slice(&head);
        let items = places.iter().enumerate().map(|(index, &(start, len))| BatchItem {
            offset: Offset(first.0 + index as u64),
            enqueued_at: at,
            start: start - unused as u32,
            len,
        });
        let items = items.collect();
        Self { kind: BatchKind::Pushed, bytes: Bytes::from(bytes).slice(unused..), store: None, items }
    }

    /// What it means to the queue.
    #[must_use]
    pub const fn kind(&self) -> BatchKind {
        self.kind
    }

    /// The bytes to write down.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Its messages, by offset.
    #[must_use]
    pub fn items(&self) -> &[BatchItem] {
        &self.items
    }

    /// What holds its messages.
    pub(crate) fn stored(&self) -> &Bytes {
        self.store.as_ref().map_or(&self.bytes, |store| &store.bytes)
    }

    /// The bytes that a message of it keeps in memory.
    #[must_use]
    pub fn stored_len(&self) -> usize {
        self.stored().len()
    }

    /// Whether its messages lie in another entry of its frame.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        self.store.is_some()
    }

    /// Whether the memory of its messages is counted for all queues that share them, and not for each.
    pub(crate) fn is_counted_once(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.memory == StoreMemory::Once)
    }

    /// The stored form of one of its messages, sharing the batch's memory.
    #[must_use]
    pub fn payload(&self, item: &BatchItem) -> Bytes {
        self.stored().slice(item.start as usize..(item.start + item.len) as usize)
    }

    /// The message with this offset, if it is here.
    #[must_use]
    pub fn find(&self, offset: Offset) -> Option<&BatchItem> {
        self.items.binary_search_by_key(&offset, |item| item.offset).ok().map(|at| &self.items[at])
    }

    /// The priority of one of its messages.
    #[must_use]
    pub fn priority(&self, item: &BatchItem) -> Priority {
        Priority(StoredMessage::priority_byte(&self.stored()[item.start as usize..]))
    }

    /// Which priorities it holds, and between which offsets.
    #[must_use]
    pub fn spans(&self) -> Vec<LaneSpan> {
        let mut spans: Vec<LaneSpan> = Vec::new();
        // Where the span of a priority is, once there are several.
        let mut places = [u8::MAX; 256];
        for item in &self.items {
            let lane = self.priority(item);
            let place = match spans.last() {
                // A batch has one priority nearly always.
                Some(span) if span.lane == lane => spans.len() - 1,
                _ => usize::from(places[usize::from(lane.0)]),
            };
            match spans.get_mut(place).filter(|span| span.lane == lane) {
                Some(span) => {
                    span.last = item.offset;
                    span.count += 1;
                }
                None => {
                    places[usize::from(lane.0)] = spans.len() as u8;
                    spans.push(LaneSpan { lane, first: item.offset, last: item.offset, count: 1 });
                }
            }
        }
        spans
    }
}

/// Makes a batch.
#[derive(Debug)]
pub(crate) struct BatchBuilder {
    kind: BatchKind,
    out: Writer,
    next: u64,
    at: Timestamp,
    items: Vec<BatchItem>,
}

impl BatchBuilder {
    pub(crate) fn new(kind: BatchKind, first: Offset, at: Timestamp, bytes_hint: usize) -> Self {
        let mut out = Writer::with_capacity(bytes_hint.min(BATCH_BYTES_MAX) + 24);
        out.u8(match kind {
            BatchKind::Pushed => code::PUSHED,
            BatchKind::Relocated => code::RELOCATED,
        });
        out.u64(first.0);
        out.u64(at.0);
        Self { kind, out, next: first.0, at, items: Vec::new() }
    }

    pub(crate) fn push(&mut self, offset: Offset, message: &Draft<'_>, lifetime: Option<Millis>) {
        self.begin(offset, self.at, message.encoded_len(lifetime));
        message.encode(lifetime, &mut self.out);
    }

    /// Adds a message that is in its stored form already.
    pub(crate) fn push_stored(&mut self, offset: Offset, enqueued_at: Timestamp, payload: &[u8]) {
        self.begin(offset, enqueued_at, payload.len());
        self.out.raw(payload);
    }

    fn begin(&mut self, offset: Offset, enqueued_at: Timestamp, len: usize) {
        if self.kind == BatchKind::Pushed {
            debug_assert_eq!(offset.0, self.next, "a pushed batch has consecutive offsets");
        } else {
            self.out.u64(offset.0 - self.next);
            self.out.u64(enqueued_at.0);
        }
        self.next = offset.0 + 1;
        self.out.u64(len as u64);
        let start = self.out.len() as u32;
        self.items.push(BatchItem { offset, enqueued_at, start, len: len as u32 });
    }

    /// Whether a message of `len` bytes may join. An empty batch takes any.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.items.is_empty() || self.out.len() + len <= BATCH_BYTES_MAX
    }

    pub(crate) fn finish(self) -> MessageBatch {
        MessageBatch { kind: self.kind, bytes: self.out.into_bytes(), store: None, items: self.items }
    }
}

/// Where each message of a store begins, and its length.
fn decode_store(store: &Bytes) -> Result<Vec<(u32, u32)>, WireError> {
    let mut input = Reader::new(store);
    match input.tag("a batch of messages", code::VERSION)?.1 {
        code::STORE => {}
        value => return Err(WireError::Unknown { what: "kind of store", value }),
    }
    let mut places = Vec::new();
    while input.left() > 0 {
        let message = input.bytes()?;
        if message.len() < 2 {
            return Err(WireError::Short);
        }
        let start = store.len() - input.left() - message.len();
        places.push((
            u32::try_from(start).map_err(|_| WireError::Range)?,
            u32::try_from(message.len()).map_err(|_| WireError::Range)?,
        ));
    }
    Ok(places)
}

/// Copies messages of a queue into batches that say where they lie now. The messages come by offset; each
/// batch is closed at [`BATCH_BYTES_MAX`].
#[must_use]
pub fn relocate(messages: &[(Offset, Timestamp, Bytes)]) -> Vec<MessageBatch> {
    let mut batches = Vec::new();
    let mut open: Option<BatchBuilder> = None;
    for (offset, enqueued_at, payload) in messages {
        if open.as_ref().is_some_and(|batch| !batch.has_room(payload.len())) {
            batches.extend(open.take().map(BatchBuilder::finish));
        }
        let builder = open.get_or_insert_with(|| {
            BatchBuilder::new(BatchKind::Relocated, *offset, *enqueued_at, payload.len())
        });
        builder.push_stored(*offset, *enqueued_at, payload);
    }
    batches.extend(open.map(BatchBuilder::finish));
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NewMessage;

    #[test]
    fn a_batch_reads_back_as_it_was_written() {
        for kind in [BatchKind::Pushed, BatchKind::Relocated] {
            let mut builder = BatchBuilder::new(kind, Offset(5), Timestamp(99), 100);
            for i in 0..3u8 {
                let gap = if kind == BatchKind::Pushed { 1 } else { 4 };
                let message = NewMessage { priority: Priority(i % 2), ..NewMessage::new(vec![i; 3]) };
                builder.push(Offset(5 + u64::from(i) * gap), &message.as_draft(), None);
            }
            let batch = builder.finish();
            let read = MessageBatch::decode(batch.bytes().clone()).unwrap();
            assert_eq!(read, batch);
            let last = read.items()[2];
            assert_eq!(StoredMessage::parse(&read.payload(&last)).unwrap().body, vec![2u8; 3]);
            assert_eq!(read.find(last.offset), Some(&last));
            let spans: Vec<_> = read.spans().iter().map(|s| (s.lane.0, s.count)).collect();
            assert_eq!(spans, [(0, 2), (1, 1)]);
        }
    }

    #[test]
    fn bytes_that_are_no_batch_are_refused() {
        let mut builder = BatchBuilder::new(BatchKind::Pushed, Offset(5), Timestamp(99), 100);
        builder.push(Offset(5), &NewMessage::new("hello").as_draft(), None);
        let bytes = builder.finish().bytes().clone();
        assert!(MessageBatch::decode(bytes.slice(..bytes.len() - 1)).is_err());
        assert!(MessageBatch::decode(Bytes::from_static(&[9, 0, 0])).is_err());
        assert!(MessageBatch::decode(Bytes::from_static(&[0, 0, 0, 1, 0])).is_err());
    }
}
