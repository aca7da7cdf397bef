//! A node that goes on alone, because a majority of its cluster is gone for good. What it has is what counts from then on; what only the
//! others had is lost. Nobody may do so while one of the others could still come back and count as before: whoever decides that
//! gives the cluster another id, so that they are refused.

use nexo_cluster::store::GroupRecord;
use nexo_cluster::{Change, EntryId, HardState, Payload};
use nexo_log::{Claim, Log, Urgency};
use nexo_types::{LogIndex, NodeId, Term};

use super::head::head_entry;
use super::open::Found;

/// Writes down that this node is the only member, behind all that is in its log and as if a majority had agreed.
///
/// # Errors
/// If it cannot be written.
pub(super) fn write_alone(log: &Log, found: &Found, node: NodeId) -> Result<(), String> {
    let members = found.members_at(LogIndex(u64::MAX));
    let mut changes: Vec<Change> = Vec::new();
    if !members.voters.contains(&node) {
        changes.push(Change::AddVoter(node));
    }
    changes.extend(members.all().filter(|member| *member != node).map(Change::Remove));
    if changes.is_empty() {
        return Ok(());
    }
    let last = found.places.last();
    // A term of its own: what others may have written behind the same place is of an earlier one.
    let term = Term(found.hard_state.term.max(last.term).0 + 1);
    let mut index = last.index;
    for change in changes {
        index = LogIndex(index.0 + 1);
        append(log, &GroupRecord::Entry(EntryId::new(term, index), Payload::Change(change)))?;
    }
    append(log, &GroupRecord::HardState(HardState { term, vote: Some(node), commit: index }))?;
    tracing::warn!(%node, %term, "this node goes on alone: what only the other nodes had is lost");
    log.sync_blocking().map_err(|error| error.to_string())
}

fn append(log: &Log, record: &GroupRecord) -> Result<(), String> {
    let appended = log.append(&[head_entry(&record.encode())], Urgency::Synced, Claim::Reserved);
    appended.map(drop).map_err(|error| error.to_string())
}
