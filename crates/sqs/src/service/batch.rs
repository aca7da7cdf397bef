//! What all batches have in common: between one and ten entries, each with an id of its own, each with its own fate.

use std::collections::BTreeSet;

use crate::fault::{Fault, FaultCode};
use crate::limits::{BATCH_MAX, ENTRY_ID_MAX};
use crate::response::{BatchReply, FailedEntry};
use crate::text::Text;

/// Checks the entries of a batch, and gives back the id of each.
pub(super) fn check_ids<'a, T>(
    entries: &'a [T],
    entry: &str,
    id_of: impl Fn(&'a T) -> Option<&'a Text<'a>>,
) -> Result<Vec<String>, Fault> {
    if entries.is_empty() {
        let message = format!("There should be at least one {entry} in the request.");
        return Err(Fault::new(FaultCode::EmptyBatchRequest, message));
    }
    if entries.len() > BATCH_MAX {
        let count = entries.len();
        let message =
            format!("Maximum number of entries per request are {BATCH_MAX}. You have sent {count}.");
        return Err(Fault::new(FaultCode::TooManyEntriesInBatchRequest, message));
    }
    let mut seen = BTreeSet::new();
    let mut ids = Vec::with_capacity(entries.len());
    for one in entries {
        let id = id_of(one).ok_or_else(|| Fault::missing("Id"))?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if id.is_empty() || id.len() > ENTRY_ID_MAX || !id.bytes().all(allowed) {
            return Err(Fault::new(
                FaultCode::InvalidBatchEntryId,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at \
                 most 80 letters long.",
            ));
        }
        if !seen.insert(&**id) {
            return Err(Fault::new(FaultCode::BatchEntryIdsNotDistinct, format!("Id {id} repeated.")));
        }
        ids.push(id.to_string());
    }
    Ok(ids)
}

/// Sorts the entries of a batch by how they did.
pub(super) fn sort<T, R>(
    ids: Vec<String>,
    outcomes: impl IntoIterator<Item = Result<R, Fault>>,
    done: impl Fn(String, R) -> T,
) -> BatchReply<T> {
    let mut batch = BatchReply { successful: Vec::with_capacity(ids.len()), failed: Vec::new() };
    for (id, outcome) in ids.into_iter().zip(outcomes) {
        match outcome {
            Ok(result) => batch.successful.push(done(id, result)),
            Err(fault) => batch.failed.push(FailedEntry::new(id, &fault)),
        }
    }
    batch
}
