//! What a queue remembers of one message that is in memory.

use bytes::Bytes;
use nexo_types::{DedupId, GroupId, Offset, Priority, Timestamp};

use crate::batch::{BatchItem, MessageBatch};
use crate::message::{Durability, Head};
use crate::wire::WireError;

/// What a message is taken to cost besides its body. A constant, so that the bytes of bodies, which limits are about,
/// follow from a sum and a count; and above nothing, so that an empty message counts as well.
pub(crate) const MESSAGE_OVERHEAD_BYTES: u32 = 32;
/// What a message is taken to cost in memory besides its stored form while it is on its way to a consumer.
const HANDED_OVERHEAD_BYTES: u32 = 96;

/// One message. Its bytes may be in memory or only in the log; everything the rules need is here.
#[derive(Clone, Debug)]
pub struct MessageEntry {
    /// Its place in the queue.
    pub offset: Offset,
    /// When it was pushed.
    pub enqueued_at: Timestamp,
    /// From when on it may be delivered.
    pub ready_at: Timestamp,
    /// When its time to live ends; [`Timestamp::MAX`] for never.
    pub expires_at: Timestamp,
    /// What it is taken to cost on disk: its body and [`MESSAGE_OVERHEAD_BYTES`].
    pub stored_bytes: u32,
    /// How often it has been delivered.
    pub attempts: u32,
    /// How urgent it is.
    pub priority: Priority,
    /// Whether it survives a restart.
    pub durability: Durability,
    /// The group that it names, if it does: see [`Self::group`] and [`Self::tenant`].
    pub(super) named_group: Option<GroupId>,
    /// Whether it only counts for that group, and has no place in it. Not durable.
    pub(super) is_tenant: bool,
    /// Its stored form, if it is in memory. A transient message always has it.
    pub payload: Option<Bytes>,
    /// What the stored form in memory counts for.
    pub(crate) payload_memory: PayloadMemory,
}

/// Who counts the memory of a stored form, and for how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadMemory {
    /// It is shared with other queues and counted once for all of them.
    Once,
    /// Its queue, with this much besides its length.
    ByQueue { overhead_bytes: u8 },
}

impl PayloadMemory {
    /// A stored form with a buffer of its own: the count of those who share it, the head of the batch, and what the allocator
    /// adds.
    pub(crate) const ALONE: Self = Self::ByQueue { overhead_bytes: 64 };

    /// One of so many that share a buffer.
    fn among(messages: usize) -> Self {
        Self::ByQueue { overhead_bytes: (64 / messages.max(1)) as u8 }
    }
}

/// What a message with a stored form of this size counts for with a consumer.
pub(super) fn handed_bytes(payload_bytes: usize) -> u32 {
    u32::try_from(payload_bytes).unwrap_or(u32::MAX).saturating_add(HANDED_OVERHEAD_BYTES)
}

impl MessageEntry {
    /// A message of `batch`.
    ///
    /// # Errors
    /// If the stored form cannot be read.
    pub fn from_batch(batch: &MessageBatch, item: &BatchItem) -> Result<Self, WireError> {
        Self::with_dedup(batch, item).map(|(entry, _)| entry)
    }

    /// The same, and the message's deduplication id, which only a push needs.
    pub(super) fn with_dedup(
        batch: &MessageBatch,
        item: &BatchItem,
    ) -> Result<(Self, Option<DedupId>), WireError> {
        let payload = batch.payload(item);
        let head = Head::parse(&payload)?;
        let dedup = head.dedup.map(DedupId::new).transpose().map_err(|_| WireError::BadName)?;
        let entry = Self {
            offset: item.offset,
            enqueued_at: item.enqueued_at,
            ready_at: item.enqueued_at.plus(head.delay),
            expires_at: head.lifetime.map_or(Timestamp::MAX, |lifetime| item.enqueued_at.plus(lifetime)),
            stored_bytes: head.body_bytes.saturating_add(MESSAGE_OVERHEAD_BYTES),
            attempts: 0,
            priority: head.priority,
            durability: head.durability,
            named_group: head.group.map(GroupId::new).transpose().map_err(|_| WireError::BadName)?,
            is_tenant: false,
            payload: Some(payload),
            payload_memory: if batch.is_counted_once() {
                PayloadMemory::Once
            } else {
                PayloadMemory::among(batch.items().len())
            },
        };
        Ok((entry, dedup))
    }

    /// Stands for a message whose bytes the log could not give back, until it is dropped.
    #[must_use]
    pub const fn lost(offset: Offset, priority: Priority) -> Self {
        Self {
            offset,
            enqueued_at: Timestamp(0),
            ready_at: Timestamp(0),
            expires_at: Timestamp::MAX,
            stored_bytes: 0,
            attempts: 0,
            priority,
            durability: Durability::Durable,
            named_group: None,
            is_tenant: false,
            payload: None,
            payload_memory: PayloadMemory::ALONE,
        }
    }

    /// The group in which it has its place.
    #[must_use]
    pub const fn group(&self) -> Option<&GroupId> {
        if self.is_tenant { None } else { self.named_group.as_ref() }
    }

    /// The group that it counts for, where groups share the queue fairly.
    pub(super) const fn tenant(&self) -> Option<&GroupId> {
        if self.is_tenant { self.named_group.as_ref() } else { None }
    }

    /// The length of its stored form in memory, if this queue counts it.
    pub(crate) fn cached_bytes(&self) -> u64 {
        match (&self.payload, self.payload_memory) {
            (Some(payload), PayloadMemory::ByQueue { .. }) => payload.len() as u64,
            (Some(_), PayloadMemory::Once) | (None, _) => 0,
        }
    }

    /// What that takes in memory besides.
    pub(crate) fn cached_overhead_bytes(&self) -> u64 {
        match (&self.payload, self.payload_memory) {
            (Some(_), PayloadMemory::ByQueue { overhead_bytes }) => overhead_bytes.into(),
            (Some(_), PayloadMemory::Once) | (None, _) => 0,
        }
    }

    /// Gives its stored form a buffer of its own, so that it does not keep others in memory.
    pub fn copy_payload(&mut self) {
        if let Some(payload) = &mut self.payload {
            *payload = Bytes::copy_from_slice(payload);
            self.payload_memory = PayloadMemory::ALONE;
        }
    }

    /// Whether its bytes are counted here although the log has them.
    pub(crate) fn is_warm(&self) -> bool {
        self.is_durable() && self.cached_bytes() > 0
    }

    /// Whether its time to live is zero and nobody has had it: whoever waits when it is pushed may have it. One that
    /// comes back has expired.
    pub(crate) fn has_ttl_zero(&self) -> bool {
        self.expires_at == self.enqueued_at && self.attempts == 0
    }

    /// Whether a consumer may have it now.
    pub(crate) fn is_alive(&self, now: Timestamp) -> bool {
        (self.expires_at > now || self.has_ttl_zero()) && self.ready_at <= now
    }

    /// What it counts for with the consumer that it is handed to.
    pub(crate) fn handed_bytes(&self) -> u32 {
        handed_bytes(self.payload.as_ref().map_or(self.stored_bytes as usize, Bytes::len))
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durability == Durability::Durable
    }

    /// Forgets the bytes if the log has them.
    pub(crate) fn cool(&mut self) {
        if self.is_durable() {
            self.payload = None;
        }
    }

    /// Hands the bytes out, keeping them only where the log does not have them.
    pub(crate) fn hand_out_payload(&mut self) -> Option<Bytes> {
        match self.durability {
            Durability::Durable => self.payload.take(),
            Durability::Transient => self.payload.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchBuilder, BatchKind};
    use crate::message::NewMessage;

    #[test]
    fn messages_that_came_together_share_what_their_buffer_takes() {
        let first = |count: u64| {
            let mut builder = BatchBuilder::new(BatchKind::Pushed, Offset(0), Timestamp(0), 0);
            (0..count)
                .for_each(|offset| builder.push(Offset(offset), &NewMessage::new("x").as_draft(), None));
            let batch = builder.finish();
            MessageEntry::from_batch(&batch, &batch.items()[0]).unwrap()
        };
        assert_eq!(first(1).cached_overhead_bytes(), 64);
        assert_eq!(first(4).cached_overhead_bytes(), 16);
        let mut one = first(1000);
        assert_eq!(one.cached_overhead_bytes(), 0);
        one.copy_payload();
        assert_eq!(one.cached_overhead_bytes(), 64, "it has a buffer of its own now");
        one.cool();
        assert_eq!((one.cached_bytes(), one.cached_overhead_bytes()), (0, 0));
    }
}
