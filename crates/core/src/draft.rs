//! Messages on their way in: borrowed from wherever they came ([`Draft`]), and packed for one queue ([`PackedBatch`]).
//!
//! A packed batch holds messages in their stored form already, made by whoever took them from a socket. All that is left
//! to do under the queue's lock is to give them offsets, and its bytes are the ones that the log writes and that
//! consumers are sent.

use bytes::Bytes;
use nexo_types::{DedupId, GroupId, Millis, Offset, Priority, Timestamp, varint};

use crate::batch::{BATCH_BYTES_MAX, HEAD_BYTES_MAX, MessageBatch, code};
use crate::body_buffer::BodyBuffer;
use crate::message::{
    Durability, HAS_DEDUP, HAS_DELAY, HAS_GROUP, HAS_LIFETIME, HAS_ORIGIN, HAS_PROPERTIES, NewMessage,
    Origin, PriorityCap, Properties, PropertyFormat, StoredMessage, TRANSIENT,
};
use crate::wire::{WireError, Writer};

/// A message whose bytes are somewhere else. [`NewMessage`] says what the fields mean.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "the fields are those of `NewMessage`")]
pub struct Draft<'a> {
    pub body: &'a [u8],
    pub format: PropertyFormat,
    pub address: &'a [u8],
    pub properties: &'a [u8],
    pub priority: Priority,
    pub priority_cap: PriorityCap,
    pub delay: Millis,
    pub ttl: Option<Millis>,
    pub dedup: Option<&'a DedupId>,
    pub group: Option<&'a GroupId>,
    pub durability: Durability,
    pub origin: Option<&'a Origin>,
}

impl Draft<'_> {
    /// How many bytes [`Self::encode`] writes.
    pub(crate) fn encoded_len(&self, lifetime: Option<Millis>) -> usize {
        let prefixed = |len: usize| varint::len(len as u64) + len;
        let mut len = 2 + self.body.len();
        if self.delay > Millis::ZERO {
            len += varint::len(self.delay.0);
        }
        len += lifetime.map_or(0, |l| varint::len(l.0));
        len += self.dedup.map_or(0, |d| prefixed(d.as_str().len()));
        len += self.group.map_or(0, |g| prefixed(g.as_str().len()));
        if let Some(origin) = self.origin {
            let mut out = Writer::default();
            origin.encode(&mut out);
            len += out.len();
        }
        if self.has_properties() {
            len += 1 + prefixed(self.address.len() + self.properties.len());
        }
        len
    }

    /// Writes the stored form; `lifetime` is the shorter of the message's and the queue's.
    pub(crate) fn encode(&self, lifetime: Option<Millis>, out: &mut Writer) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        out.u8(flag(self.durability == Durability::Transient, TRANSIENT)
            | flag(self.delay > Millis::ZERO, HAS_DELAY)
            | flag(lifetime.is_some(), HAS_LIFETIME)
            | flag(self.dedup.is_some(), HAS_DEDUP)
            | flag(self.group.is_some(), HAS_GROUP)
            | flag(self.origin.is_some(), HAS_ORIGIN)
            | flag(self.has_properties(), HAS_PROPERTIES));
        out.u8(self.priority.0);
        if self.delay > Millis::ZERO {
            out.u64(self.delay.0);
        }
        if let Some(lifetime) = lifetime {
            out.u64(lifetime.0);
        }
        if let Some(dedup) = self.dedup {
            out.text(dedup.as_str());
        }
        if let Some(group) = self.group {
            out.text(group.as_str());
        }
        if let Some(origin) = self.origin {
            origin.encode(out);
        }
        if self.has_properties() {
            out.u8(self.format.code());
            out.u64((self.address.len() + self.properties.len()) as u64);
            out.raw(self.address);
            out.raw(self.properties);
        }
        out.raw(self.body);
    }

    /// The same with bytes of its own, which clones share.
    #[must_use]
    pub fn to_message(&self) -> NewMessage {
        NewMessage {
            properties: Properties { format: self.format, bytes: Bytes::copy_from_slice(self.properties) },
            address: Bytes::copy_from_slice(self.address),
            priority: self.priority,
            priority_cap: self.priority_cap,
            delay: self.delay,
            ttl: self.ttl,
            dedup: self.dedup.cloned(),
            group: self.group.cloned(),
            durability: self.durability,
            origin: self.origin.cloned(),
            ..NewMessage::new(Bytes::copy_from_slice(self.body))
        }
    }

    const fn has_properties(&self) -> bool {
        !self.address.is_empty() || !self.properties.is_empty()
    }
}

/// Messages for one queue, alike in durability and in how high their priorities may be, in their stored form.
#[derive(Debug)]
pub struct PackedBatch {
    /// From `start` on room for the head of a batch, then each message behind its length.
    out: Writer,
    start: usize,
    /// Where each message begins, and its length.
    places: Vec<(u32, u32)>,
    durability: Durability,
    has_dedup: bool,
    priorities: Priorities,
}

/// The priorities of messages that go to a queue together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Priorities {
    cap: PriorityCap,
    highest: Priority,
}

impl Priorities {
    fn of(message: &Draft<'_>) -> Self {
        Self { cap: message.priority_cap, highest: message.priority }
    }

    /// Whether one of them is above what their queue allows.
    pub(crate) fn exceed(self, max: Priority) -> bool {
        self.highest > max && self.cap == PriorityCap::Queue
    }
}

impl PackedBatch {
    /// An empty packed batch that expects `count` messages of `bytes` bytes in all.
    #[must_use]
    pub fn new(durability: Durability, bytes: usize, count: usize) -> Self {
        let mut out = Writer::with_capacity(HEAD_BYTES_MAX + bytes.min(BATCH_BYTES_MAX));
        out.raw(&[0; HEAD_BYTES_MAX]);
        let places = Vec::with_capacity(count);
        Self { out, start: 0, places, durability, has_dedup: false, priorities: Priorities::default() }
    }

    /// A packed batch of one message whose body was received in its place; that of `message` does not count. Nothing joins it.
    ///
    /// # Errors
    /// If there is no room for what stands before the body: the body, as it was.
    pub fn of_received(message: &Draft<'_>, mut body: BodyBuffer) -> Result<Self, BodyBuffer> {
        let message = Draft { body: &[], ..*message };
        let head_bytes = message.encoded_len(message.ttl);
        let len = head_bytes + body.len();
        let before = HEAD_BYTES_MAX + varint::len(len as u64) + head_bytes;
        let (bytes, head_room) = body.parts_mut();
        let Some(start) = head_room.checked_sub(before).filter(|_| !bytes.is_empty()) else {
            return Err(body);
        };
        let mut head = Writer::with_capacity(before);
        head.raw(&[0; HEAD_BYTES_MAX]);
        head.u64(len as u64);
        message.encode(message.ttl, &mut head);
        bytes[start..head_room].copy_from_slice(head.as_slice());
        Ok(Self {
            out: Writer::over(std::mem::take(bytes)),
            start,
            places: vec![((head_room - head_bytes) as u32, len as u32)],
            durability: message.durability,
            has_dedup: message.dedup.is_some(),
            priorities: Priorities::of(&message),
        })
    }

    /// Whether the message may join. An empty packed batch takes any of its durability.
    #[must_use]
    pub fn has_room(&self, message: &Draft<'_>) -> bool {
        let len = message.address.len() + message.properties.len() + message.body.len();
        let fits = self.is_empty() || (!self.is_of_received() && self.out.len() + len <= BATCH_BYTES_MAX);
        let is_alike = self.is_empty() || self.priorities.cap == message.priority_cap;
        self.durability == message.durability && is_alike && fits
    }

    /// Adds a message for which there is room.
    pub fn push(&mut self, message: &Draft<'_>) {
        debug_assert!(
            self.has_room(message),
            "the messages of a packed batch are alike, and no more than a batch"
        );
        let highest = self.priorities.highest.max(message.priority);
        self.priorities = Priorities { cap: message.priority_cap, highest };
        let len = message.encoded_len(message.ttl);
        self.out.reserve(varint::BYTES_MAX + len);
        self.out.u64(len as u64);
        self.places.push((self.out.len() as u32, len as u32));
        message.encode(message.ttl, &mut self.out);
        self.has_dedup |= message.dedup.is_some();
    }

    /// How many messages it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How long its messages are in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.out.len() - self.start - HEAD_BYTES_MAX
    }

    /// Whether it is [of one received body](Self::of_received).
    #[must_use]
    pub const fn is_of_received(&self) -> bool {
        self.start > 0
    }

    /// Whether its messages survive a restart.
    #[must_use]
    pub const fn durability(&self) -> Durability {
        self.durability
    }

    pub(crate) const fn has_dedup(&self) -> bool {
        self.has_dedup
    }

    pub(crate) const fn priorities(&self) -> Priorities {
        self.priorities
    }

    /// Lowers priorities that are above what their queue allows.
    pub(crate) fn cap_priorities(&mut self, max: Priority) {
        if !self.priorities.exceed(max) {
            return;
        }
        let bytes = self.out.as_mut_slice();
        for (start, len) in &self.places {
            StoredMessage::cap_priority(&mut bytes[*start as usize..(start + len) as usize], max);
        }
        self.priorities.highest = max;
    }

    /// The messages one by one, for a queue that must look at each.
    ///
    /// # Errors
    /// Never, as they were packed here.
    pub fn messages(&self) -> Result<Vec<NewMessage>, WireError> {
        let bytes = Bytes::copy_from_slice(self.out.as_slice());
        let message = |&(start, len): &(u32, u32)| {
            let stored = bytes.slice(start as usize..(start + len) as usize);
            let message = StoredMessage::parse(&stored)?.into_new();
            Ok(NewMessage { priority_cap: self.priorities.cap, ..message })
        };
        self.places.iter().map(message).collect()
    }

    /// Takes the messages out as what batches of several queues share: the bytes, and where each message begins and how
    /// long it is.
    pub(crate) fn into_store(self) -> (Vec<u8>, usize, Vec<(u32, u32)>) {
        let mut bytes = self.out.into_vec();
        if bytes.capacity() / 2 > bytes.len() {
            bytes.shrink_to_fit();
        }
        let unused = self.start + HEAD_BYTES_MAX - 1;
        bytes[unused] = code::STORE;
        let mut places = self.places;
        for (start, _) in &mut places {
            *start -= unused as u32;
        }
        (bytes, unused, places)
    }

    /// Takes the messages out as a batch that begins at `first`.
    #[must_use]
    pub fn seal(self, first: Offset, at: Timestamp) -> MessageBatch {
        let mut bytes = self.out.into_vec();
        // One message may wait for long, and must not keep room for a thousand.
        if bytes.capacity() / 2 > bytes.len() {
            bytes.shrink_to_fit();
        }
        MessageBatch::seal(bytes, self.start, &self.places, first, at)
    }

    /// Makes a packed batch of a batch that nobody took.
    #[must_use]
    pub fn reopen(batch: &MessageBatch, durability: Durability) -> Self {
        let mut packed = Self::new(durability, batch.stored_len(), batch.items().len());
        for item in batch.items() {
            packed.push_stored(&batch.payload(item));
        }
        packed
    }

    /// A packed batch of messages in their stored form, with these priorities. They become messages of its durability.
    pub(crate) fn of_stored<'a>(
        durability: Durability,
        bytes: usize,
        messages: impl ExactSizeIterator<Item = &'a [u8]>,
        priorities: Priorities,
    ) -> Self {
        let mut packed = Self::new(durability, bytes, messages.len());
        for stored in messages {
            packed.push_stored(stored);
        }
        Self { priorities, ..packed }
    }

    fn push_stored(&mut self, stored: &[u8]) {
        self.has_dedup |= stored[0] & HAS_DEDUP != 0;
        self.out.reserve(varint::BYTES_MAX + stored.len());
        self.out.u64(stored.len() as u64);
        self.places.push((self.out.len() as u32, stored.len() as u32));
        let transient = if self.durability == Durability::Transient { TRANSIENT } else { 0 };
        self.out.u8(stored[0] & !TRANSIENT | transient);
        self.out.raw(&stored[1..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts() -> Vec<NewMessage> {
        let dedup = Some(DedupId::new("once").unwrap());
        vec![
            NewMessage::new("first"),
            NewMessage { priority: Priority(7), ttl: Some(Millis(9)), ..NewMessage::new("second") },
            NewMessage { dedup, delay: Millis(3), ..NewMessage::new(vec![1; 300]) },
        ]
    }

    fn packed(messages: &[NewMessage]) -> PackedBatch {
        let mut packed = PackedBatch::new(Durability::Durable, 0, 0);
        for message in messages {
            assert!(packed.has_room(&message.as_draft()));
            packed.push(&message.as_draft());
        }
        packed
    }

    #[test]
    fn a_sealed_bundle_is_the_batch_that_its_messages_make() {
        for (first, at) in [(0, 0), (5, 1_700_000_000_000), (u64::MAX >> 1, u64::MAX >> 1)] {
            let (first, at) = (Offset(first), Timestamp(at));
            let sealed = packed(&drafts()).seal(first, at);
            assert_eq!(MessageBatch::decode(sealed.bytes().clone()).unwrap(), sealed);
            assert_eq!(sealed.items().len(), 3);
            for (index, (item, message)) in sealed.items().iter().zip(drafts()).enumerate() {
                assert_eq!((item.offset, item.enqueued_at), (Offset(first.0 + index as u64), at));
                let stored = StoredMessage::parse(&sealed.payload(item)).unwrap();
                assert_eq!(stored.into_new(), message);
            }
        }
    }

    #[test]
    fn a_bundle_gives_its_messages_back() {
        assert_eq!(packed(&drafts()).messages().unwrap(), drafts());
        let batch = packed(&drafts()).seal(Offset(1), Timestamp(2));
        let again = PackedBatch::reopen(&batch, Durability::Durable);
        assert!(again.has_dedup());
        assert_eq!(again.messages().unwrap(), drafts());
        assert_eq!(again.seal(Offset(1), Timestamp(2)), batch);
    }

    #[test]
    fn a_body_that_was_received_in_place_makes_the_same_batch() {
        let body: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
        let dedup = Some(DedupId::new("once").unwrap());
        let described = NewMessage {
            properties: Properties { format: PropertyFormat::Amqp, bytes: vec![5; 300].into() },
            address: vec![6; 20].into(),
            ..NewMessage::new(body.clone())
        };
        let messages = [
            NewMessage::new(body.clone()),
            described.clone(),
            NewMessage { dedup, ttl: Some(Millis(9)), delay: Millis(u64::MAX), ..described },
        ];
        for message in messages {
            let draft = message.as_draft();
            let mut received = BodyBuffer::new(body.len(), draft.address.len() + draft.properties.len());
            received.extend(&body);
            let place = received.as_slice().as_ptr();
            let in_place = PackedBatch::of_received(&draft, received).unwrap();
            let copied = packed(std::slice::from_ref(&message));
            assert_eq!((in_place.bytes(), in_place.has_dedup()), (copied.bytes(), copied.has_dedup()));
            assert!(in_place.messages().unwrap() == copied.messages().unwrap());
            assert!(!in_place.has_room(&NewMessage::new("x").as_draft()));
            let (first, at) = (Offset(5), Timestamp(1_700_000_000_000));
            let sealed = in_place.seal(first, at);
            assert!(sealed == copied.seal(first, at));
            let stored = sealed.payload(&sealed.items()[0]);
            assert_eq!(stored[stored.len() - body.len()..].as_ptr(), place, "the body was not moved");
        }
    }

    #[test]
    fn a_received_body_without_room_for_its_head_is_given_back() {
        let mut received = BodyBuffer::new(100_000, 0);
        received.extend(&[7; 100_000]);
        let message = NewMessage { address: vec![6; 5000].into(), ..NewMessage::new("") };
        let back = PackedBatch::of_received(&message.as_draft(), received).unwrap_err();
        assert!(back.as_slice() == [7; 100_000]);
        assert!(
            PackedBatch::of_received(&NewMessage::new("").as_draft(), BodyBuffer::copy_of(b"small")).is_err()
        );
    }

    #[test]
    fn a_bundle_expects_no_more_than_a_batch_and_keeps_no_more_than_it_needs() {
        let mut packed = PackedBatch::new(Durability::Durable, 1 << 30, 0);
        assert!(packed.out.capacity() <= BATCH_BYTES_MAX + 2 * HEAD_BYTES_MAX);
        packed.push(&NewMessage::new("alone").as_draft());
        let bytes = Vec::from(packed.seal(Offset(1), Timestamp(2)).bytes().clone());
        assert!(bytes.capacity() < 1024, "{} bytes are kept for one message", bytes.capacity());
    }

    #[test]
    fn a_bundle_is_of_one_durability_and_of_limited_size() {
        let mut packed = packed(&drafts());
        let transient = NewMessage { durability: Durability::Transient, ..NewMessage::new("x") };
        assert!(!packed.has_room(&transient.as_draft()));
        let large = NewMessage::new(vec![0; BATCH_BYTES_MAX]);
        assert!(!packed.has_room(&large.as_draft()));
        let described = NewMessage { address: vec![0; BATCH_BYTES_MAX].into(), ..NewMessage::new("x") };
        assert!(!packed.has_room(&described.as_draft()), "properties take room as well");
        packed = PackedBatch::new(Durability::Durable, 0, 0);
        assert!(packed.has_room(&large.as_draft()), "any message fits into a packed batch of its own");
    }
}
