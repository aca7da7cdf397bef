//! The message batches of a log frame. A batch may lie in another entry of its frame (`nexo_core::shared_messages`), so
//! whoever wants one asks here and not the entry alone.

use bytes::Bytes;
use nexo_core::WireError;
use nexo_core::batch::MessageBatch;
use nexo_log::{Entry, EntryKind, Frame};
use nexo_types::QueueId;

use crate::exchanges::TOPOLOGY;
use crate::replication::RAFT;

/// The queue of entries that only hold messages for batches of the same frame: none.
pub(crate) const STORE: QueueId = TOPOLOGY;

/// Reads the batch of one entry of the frame.
///
/// # Errors
/// If it is none.
pub(crate) fn batch_of(frame: &Frame, entry: &Entry) -> Result<MessageBatch, WireError> {
    MessageBatch::decode_in(entry.payload.clone(), |place| store_at(frame, place))
}

/// The batches of one queue, as far as they can be read.
pub(crate) fn batches_of(frame: &Frame, queue: QueueId) -> impl Iterator<Item = MessageBatch> + '_ {
    let entries = frame.entries.iter();
    entries.filter(move |entry| entry.queue == queue && entry.kind == EntryKind::Messages).filter_map(
        |entry| {
            let batch = batch_of(frame, entry);
            batch
                .inspect_err(
                    |error| tracing::error!(at = %frame.at, %error, "a batch of messages cannot be read"),
                )
                .ok()
        },
    )
}

/// Places count among the entries that were proposed together. In a cluster the group's own record stands before them.
fn store_at(frame: &Frame, place: u64) -> Option<Bytes> {
    let head = frame.entries.first().is_some_and(|first| first.queue == RAFT);
    let entry = frame.entries.get(usize::from(head) + usize::try_from(place).ok()?)?;
    (entry.queue == STORE && entry.kind == EntryKind::Messages).then(|| entry.payload.clone())
}
