//! A snapshot of a queue by itself, for another node: all of it, at one moment.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nexo_types::QueueId;

use super::changes::ChunkId;
use super::{Queue, SnapshotError};

/// The durable state of a queue, without the stored forms of its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// Settings, figures, and messages that wait in order.
    pub head: Bytes,
    /// All other messages and deduplication ids, by offset.
    pub chunks: Vec<Bytes>,
}

impl Queue {
    /// All of the durable state. It takes time for every message that does not wait in order.
    #[must_use]
    pub fn whole_snapshot(&self) -> QueueSnapshot {
        let encoded = self.all_chunks().into_iter().map(|chunk| self.encode_chunk(chunk, &BTreeMap::new()).0);
        QueueSnapshot {
            head: self.encode_head(),
            chunks: encoded.filter(|bytes| !bytes.is_empty()).collect(),
        }
    }

    fn all_chunks(&self) -> BTreeSet<ChunkId> {
        let loose = self.loose().map(|entry| entry.offset);
        loose.chain(self.dedup.iter().map(|(_, _, offset)| offset)).map(ChunkId::of).collect()
    }

    /// A queue in the state of a snapshot that was taken elsewhere, with an id of its own here. No chunk of it has been written
    /// here.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn restore_as(id: QueueId, snapshot: &QueueSnapshot) -> Result<Self, SnapshotError> {
        let mut queue = Self::restore(&snapshot.head, snapshot.chunks.iter().map(|chunk| &chunk[..]))?;
        queue.id = id;
        queue.all_chunks().into_iter().for_each(|chunk| queue.touch(chunk.offsets().0));
        Ok(queue)
    }

    /// What a whole snapshot of this queue gives back.
    #[cfg(test)]
    pub(super) fn restored(&self) -> Self {
        Self::restore_as(self.id, &self.whole_snapshot()).unwrap()
    }
}
