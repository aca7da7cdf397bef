//! Entries: what the log's users put into a frame, and the bytes of their headers.
//!
//! The log does not look into payloads. It knows whose an entry is, of what kind, and for messages which
//! offsets of which lanes it holds: that is in the entry's header, so that an index can be rebuilt by scanning.

use bytes::Bytes;
use nexo_types::{Offset, Position, Priority, QueueId};

use nexo_types::varint;

/// What an entry's payload is. The payloads themselves belong to the log's users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// Something that happened to a queue.
    Record,
    /// Messages; the entry has spans.
    Messages,
    /// The state of a queue at this point of the log.
    Snapshot,
    /// Where to start recovering from. The log remembers where the latest is.
    Manifest,
}

impl EntryKind {
    const fn byte(self) -> u8 {
        match self {
            Self::Record => 1,
            Self::Messages => 2,
            Self::Snapshot => 3,
            Self::Manifest => 4,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Record),
            2 => Some(Self::Messages),
            3 => Some(Self::Snapshot),
            4 => Some(Self::Manifest),
            _ => None,
        }
    }
}

/// Which messages of one lane an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The lane.
    pub lane: Priority,
    /// The lowest offset.
    pub first: Offset,
    /// The highest offset.
    pub last: Offset,
    /// How many messages there are; offsets between that belong to other lanes are not counted.
    pub count: u32,
}

/// An entry to be appended.
#[derive(Clone, Copy, Debug)]
pub struct EntryRef<'a> {
    /// Whose it is.
    pub queue: QueueId,
    /// What it is.
    pub kind: EntryKind,
    /// The lanes it holds messages of; empty unless it is [`EntryKind::Messages`].
    pub spans: &'a [Span],
    /// Bytes that mean something to whoever appends them.
    pub payload: &'a [u8],
}

/// An entry read back. The payload shares the buffer that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose it is.
    pub queue: QueueId,
    /// What it is.
    pub kind: EntryKind,
    /// The lanes it holds messages of.
    pub spans: Vec<Span>,
    /// The bytes that were appended.
    pub payload: Bytes,
}

/// Entries that were appended together: all of them are in the log, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Where it starts.
    pub at: Position,
    /// Where it ends.
    pub end: Position,
    /// What was appended.
    pub entries: Vec<Entry>,
}

impl EntryRef<'_> {
    /// How many bytes [`EntryRef::encode`] takes.
    pub(crate) fn encoded_len(&self) -> usize {
        let mut len = varint::len(self.queue.0) + 1;
        if self.kind == EntryKind::Messages {
            len += varint::len(self.spans.len() as u64);
            for span in self.spans {
                len += 1
                    + varint::len(span.first.0)
                    + varint::len(span.last.0 - span.first.0)
                    + varint::len(u64::from(span.count));
            }
        }
        len + varint::len(self.payload.len() as u64) + self.payload.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.queue.0);
        out.push(self.kind.byte());
        if self.kind == EntryKind::Messages {
            varint::put(out, self.spans.len() as u64);
            for span in self.spans {
                out.push(span.lane.0);
                varint::put(out, span.first.0);
                varint::put(out, span.last.0 - span.first.0);
                varint::put(out, u64::from(span.count));
            }
        }
        varint::put(out, self.payload.len() as u64);
        out.extend_from_slice(self.payload);
    }

    pub(crate) fn assert_sound(&self) {
        debug_assert!(self.kind == EntryKind::Messages || self.spans.is_empty(), "only messages have spans");
        assert!(self.spans.iter().all(|s| s.first <= s.last), "a span must not end before it starts");
    }
}

/// The head of an entry as it lies in a frame.
pub(crate) struct EntryHead {
    pub(crate) queue: QueueId,
    pub(crate) kind: EntryKind,
    pub(crate) payload_len: usize,
}

/// Takes the entry at the head of `bytes`, giving each span to `span`; `None` if it is malformed.
pub(crate) fn take_head(bytes: &mut &[u8], mut span: impl FnMut(QueueId, Span)) -> Option<EntryHead> {
    let queue = QueueId(varint::take(bytes)?);
    let kind = EntryKind::from_byte(varint::take_byte(bytes)?)?;
    if kind == EntryKind::Messages {
        for _ in 0..varint::take(bytes)? {
            let lane = Priority(varint::take_byte(bytes)?);
            let first = varint::take(bytes)?;
            let last = first.checked_add(varint::take(bytes)?)?;
            let count = u32::try_from(varint::take(bytes)?).ok()?;
            span(queue, Span { lane, first: Offset(first), last: Offset(last), count });
        }
    }
    let payload_len = usize::try_from(varint::take(bytes)?).ok()?;
    if payload_len > bytes.len() {
        return None;
    }
    Some(EntryHead { queue, kind, payload_len })
}

/// The bytes of entries, one after the other, as they lie in a frame: for taking them to another node, which appends them to
/// its own log.
#[must_use]
pub fn encode_entries(entries: &[EntryRef<'_>]) -> Bytes {
    let mut out = Vec::with_capacity(encoded_len(entries));
    entries.iter().for_each(|entry| entry.encode(&mut out));
    out.into()
}

/// How many bytes [`encode_entries`] makes of these.
#[must_use]
pub fn encoded_len(entries: &[EntryRef<'_>]) -> usize {
    entries.iter().map(EntryRef::encoded_len).sum()
}

/// Takes apart what [`encode_entries`] made; `None` if the bytes are malformed. Payloads share them.
#[must_use]
pub fn decode_entries(bytes: &Bytes) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let mut spans = Vec::new();
        let head = take_head(&mut rest, |_, span| spans.push(span))?;
        let (payload, after) = rest.split_at(head.payload_len);
        rest = after;
        entries.push(Entry { queue: head.queue, kind: head.kind, spans, payload: bytes.slice_ref(payload) });
    }
    Some(entries)
}

/// Calls `queue` with the queue of each entry in what [`encode_entries`] made; `None` if the bytes are malformed.
#[must_use]
pub fn walk_queues(mut bytes: &[u8], mut queue: impl FnMut(QueueId)) -> Option<()> {
    while !bytes.is_empty() {
        let head = take_head(&mut bytes, |_, _| ())?;
        bytes = &bytes[head.payload_len..];
        queue(head.queue);
    }
    Some(())
}

/// Whether the bytes can be taken apart as entries. Each one costs some of the budget, and without any left
/// they cannot.
pub(crate) fn look_like_entries(mut bytes: &[u8], budget: &mut usize) -> bool {
    const COST: usize = 8;
    while !bytes.is_empty() {
        let mut spans = 0usize;
        let head = take_head(&mut bytes, |_, _| spans += 1);
        *budget = budget.saturating_sub(COST * (1 + spans));
        match head {
            Some(head) if *budget > 0 => bytes = &bytes[head.payload_len..],
            Some(_) | None => return false,
        }
    }
    true
}

/// Calls `span` for each span and `entry` for each entry without keeping any; `None` if they are malformed.
pub(crate) fn walk_entries(
    mut bytes: &[u8],
    mut span: impl FnMut(QueueId, Span),
    mut entry: impl FnMut(EntryKind),
) -> Option<()> {
    while !bytes.is_empty() {
        let head = take_head(&mut bytes, &mut span)?;
        bytes = &bytes[head.payload_len..];
        entry(head.kind);
    }
    Some(())
}
