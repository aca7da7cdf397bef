//! Messages that go to several queues: stored once, in memory and in the log.
//!
//! The log frame of such a push holds the messages in an entry of their own, which belongs to no queue, and a batch for each
//! queue that names this entry. Each queue that keeps them counts their stored bytes, which is too much in sum. That is on
//! purpose: where a message is copied forward it is copied for each queue, and that is done only where little is alive. So
//! what is shared is never multiplied by much.
//!
//! In memory all queues keep slices of the same bytes. They are counted here, once, until the last of them is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nexo_types::{Offset, Timestamp};

use crate::batch::MessageBatch;
use crate::draft::{PackedBatch, Priorities};
use crate::message::Durability;

/// The memory of all messages that queues share.
#[derive(Debug, Default)]
pub struct SharedMemory {
    bytes: AtomicU64,
}

impl SharedMemory {
    /// How much it is now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Bytes that are counted until they are let go.
struct Counted {
    bytes: Vec<u8>,
    memory: Arc<SharedMemory>,
}

impl Counted {
    fn new(bytes: Vec<u8>, memory: &Arc<SharedMemory>) -> Self {
        memory.bytes.fetch_add(bytes.capacity() as u64, Ordering::Relaxed);
        Self { bytes, memory: Arc::clone(memory) }
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.memory.bytes.fetch_sub(self.bytes.capacity() as u64, Ordering::Relaxed);
    }
}

/// Messages for several queues, alike in durability, in their stored form.
#[derive(Clone, Debug)]
pub struct SharedMessages {
    store: Bytes,
    /// Where each message begins, and its length.
    places: Arc<[(u32, u32)]>,
    durability: Durability,
    has_dedup: bool,
    priorities: Priorities,
}

impl SharedMessages {
    /// Takes the messages of a packed batch; `memory` counts them.
    #[must_use]
    pub fn new(packed: PackedBatch, memory: &Arc<SharedMemory>) -> Self {
        let (durability, has_dedup, priorities) =
            (packed.durability(), packed.has_dedup(), packed.priorities());
        let (bytes, start, places) = packed.into_store();
        let store = Bytes::from_owner(Counted::new(bytes, memory)).slice(start..);
        Self { store, places: places.into(), durability, has_dedup, priorities }
    }

    /// The same messages as the log keeps them although they are transient: when memory is short.
    #[must_use]
    pub fn into_durable(self, memory: &Arc<SharedMemory>) -> Self {
        match self.durability {
            Durability::Durable => self,
            Durability::Transient => Self::new(self.packed_of(Durability::Durable), memory),
        }
    }

    /// A copy of the messages for a queue that must look at each.
    #[must_use]
    pub fn to_packed(&self) -> PackedBatch {
        self.packed_of(self.durability)
    }

    /// The batch of a queue in which they begin at `first`. It is for a frame whose entry at `place` is [`Self::store`].
    #[must_use]
    pub fn batch(&self, place: u64, first: Offset, at: Timestamp) -> MessageBatch {
        MessageBatch::shared(self.store.clone(), &self.places, place, first, at)
    }

    /// The payload of the entry that holds them.
    #[must_use]
    pub const fn store(&self) -> &Bytes {
        &self.store
    }

    /// The stored form of each message.
    pub fn stored(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.places.iter().map(|&(start, len)| &self.store[start as usize..(start + len) as usize])
    }

    /// How many messages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How long they are in all.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.store.len()
    }

    /// Whether they survive a restart.
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

    fn packed_of(&self, durability: Durability) -> PackedBatch {
        PackedBatch::of_stored(durability, self.store.len(), self.stored(), self.priorities)
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::{DedupId, Millis, Priority};

    use super::*;
    use crate::body_buffer::BodyBuffer;
    use crate::message::NewMessage;
    use crate::wire::WireError;

    fn messages() -> Vec<NewMessage> {
        let dedup = Some(DedupId::new("once").unwrap());
        vec![
            NewMessage::new("first"),
            NewMessage { priority: Priority(7), ttl: Some(Millis(9)), ..NewMessage::new("second") },
            NewMessage { dedup, delay: Millis(3), ..NewMessage::new(vec![1; 300]) },
        ]
    }

    fn packed(durability: Durability) -> PackedBatch {
        let mut packed = PackedBatch::new(durability, 0, 0);
        for message in messages() {
            packed.push(&NewMessage { durability, ..message }.as_draft());
        }
        packed
    }

    #[test]
    fn a_batch_that_shares_reads_back_through_its_frame() {
        let memory = Arc::default();
        let shared = SharedMessages::new(packed(Durability::Durable), &memory);
        let alone = packed(Durability::Durable).seal(Offset(40), Timestamp(99));
        let batch = shared.batch(5, Offset(40), Timestamp(99));
        assert!(batch.bytes().len() < 20, "{} bytes for a queue", batch.bytes().len());
        let entry = |place| (place == 5).then(|| shared.store().clone());
        let read = MessageBatch::decode_in(batch.bytes().clone(), entry).unwrap();
        for batch in [&batch, &read] {
            assert_eq!((batch.kind(), batch.spans()), (alone.kind(), alone.spans()));
            assert_eq!(batch.items().len(), 3);
            for (item, own) in batch.items().iter().zip(alone.items()) {
                assert_eq!((item.offset, item.enqueued_at), (own.offset, own.enqueued_at));
                assert_eq!(batch.payload(item), alone.payload(own));
                assert_eq!(batch.priority(item), alone.priority(own));
            }
        }
        assert!(batch.is_counted_once() && !read.is_counted_once());
    }

    #[test]
    fn a_reference_to_what_is_not_there_is_refused() {
        let shared = SharedMessages::new(packed(Durability::Durable), &Arc::default());
        let batch = shared.batch(2, Offset(1), Timestamp(1));
        let decode = |entry: Option<Bytes>| MessageBatch::decode_in(batch.bytes().clone(), |_| entry);
        assert_eq!(decode(None), Err(WireError::NoSuchEntry { place: 2 }));
        let alone = packed(Durability::Durable).seal(Offset(1), Timestamp(1));
        assert!(decode(Some(alone.bytes().clone())).is_err(), "the batch of another queue is not shared");
        assert!(decode(Some(batch.bytes().clone())).is_err(), "a reference leads to no other");
        let store = shared.store();
        for cut in [0, 1, store.len() - 1] {
            let is_empty_store = cut == 1;
            assert_eq!(decode(Some(store.slice(..cut))).is_ok(), is_empty_store, "cut at {cut}");
        }
        for cut in 0..batch.bytes().len() {
            let cut = batch.bytes().slice(..cut);
            assert!(MessageBatch::decode_in(cut, |_| Some(store.clone())).is_err());
        }
        let last = SharedMessages::batch(&shared, 0, Offset(u64::MAX - 3), Timestamp(1));
        assert!(MessageBatch::decode_in(last.bytes().clone(), |_| Some(store.clone())).is_ok());
    }

    #[test]
    fn shared_memory_is_counted_once_and_until_the_last_has_let_go() {
        let memory = Arc::default();
        let shared = SharedMessages::new(packed(Durability::Transient), &memory);
        let counted = memory.bytes();
        assert!(counted >= shared.bytes() as u64);
        let one = shared.batch(0, Offset(1), Timestamp(1));
        let other = shared.batch(0, Offset(9), Timestamp(1));
        assert_eq!(memory.bytes(), counted);
        let kept = other.payload(&other.items()[0]);
        drop((shared, one, other));
        assert_eq!(memory.bytes(), counted);
        drop(kept);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn a_copy_for_one_queue_is_what_was_packed() {
        let memory = Arc::default();
        for durability in [Durability::Durable, Durability::Transient] {
            let shared = SharedMessages::new(packed(durability), &memory);
            let copy = shared.to_packed();
            assert_eq!((copy.durability(), copy.has_dedup()), (durability, true));
            assert_eq!(copy.messages().unwrap(), packed(durability).messages().unwrap());
            let durable = shared.into_durable(&memory);
            assert_eq!(durable.durability(), Durability::Durable);
            let written = durable.to_packed().messages().unwrap();
            assert_eq!(written, packed(Durability::Durable).messages().unwrap());
        }
    }

    #[test]
    fn a_body_that_was_received_in_place_is_shared_where_it_is() {
        let body = vec![3; 100_000];
        let mut received = BodyBuffer::new(body.len(), 0);
        received.extend(&body);
        let place = received.as_slice().as_ptr();
        let packed = PackedBatch::of_received(&NewMessage::new("").as_draft(), received).unwrap();
        let shared = SharedMessages::new(packed, &Arc::default());
        let stored = shared.stored().next().unwrap();
        assert_eq!(stored[stored.len() - body.len()..].as_ptr(), place, "the body was not moved");
    }
}
