//! What stands at the head of a frame that belongs to the group: which entry it is, or what the node has promised.
//!
//! It is a record under an id that no queue has. Frames without one are this node's own.

use nexo_cluster::store::GroupRecord;
use nexo_log::{Entry, EntryKind, EntryRef, Frame};
use nexo_types::QueueId;

/// The records of the group are written under this id.
pub(crate) const RAFT: QueueId = QueueId(u64::MAX - 16);

/// A record of the group as the log takes it.
pub(super) const fn head_entry(bytes: &[u8]) -> EntryRef<'_> {
    EntryRef { queue: RAFT, kind: EntryKind::Record, spans: &[], payload: bytes }
}

/// The record of the group at the head of a frame, if there is one.
///
/// # Errors
/// If this build cannot read it.
pub(crate) fn head_of(frame: &Frame) -> Result<Option<GroupRecord>, String> {
    let Some(first) = frame.entries.first().filter(|entry| entry.queue == RAFT) else { return Ok(None) };
    GroupRecord::decode(&first.payload).map(Some).map_err(|error| error.to_string())
}

/// What was proposed, without the head.
pub(super) fn body_of(frame: &Frame) -> Vec<EntryRef<'_>> {
    frame.entries.iter().skip(1).map(as_ref).collect()
}

/// An entry that was read, to be appended again.
pub(super) fn as_ref(entry: &Entry) -> EntryRef<'_> {
    EntryRef { queue: entry.queue, kind: entry.kind, spans: &entry.spans, payload: &entry.payload }
}
