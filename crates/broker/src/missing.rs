//! Whether the log is there from where a checkpoint says that it counts.
//!
//! A segment is given up when a later checkpoint needs it no more. So if one was given up behind the place from where on
//! an earlier checkpoint needs the log, there was a later checkpoint, which cannot be read, and the log cannot tell what
//! happened in between: a queue may have been created there. Numbers that are missing mean nothing by themselves, because
//! many are never used; the list of segments tells which ones were.

use nexo_log::{Log, Recovered};
use nexo_types::{Position, SegmentId};

/// Places that a message names one by one.
const NAMED_MAX: usize = 10;

/// What is missing of the log behind a position, in words; `None` if it is complete, as far as segments were not lost to
/// damage.
pub(crate) fn given_up_since(log: &Log, recovered: &Recovered, from: Position) -> Option<String> {
    match recovered.retired_to {
        Some(to) if to.0 > 0 && from.segment <= to => {
            Some(format!("segments up to {to}, which it needs, were given up for a later one"))
        }
        Some(_) => None,
        // Without that list, numbers must do, and only where a later checkpoint is known to be lost.
        None if recovered.lost_manifests.is_empty() => None,
        None => first_number_missing(log, from).map(|id| {
            format!("segment {id}, which it may need, is not there, and the list of segments cannot be read")
        }),
    }
}

/// As [`given_up_since`], where a checkpoint is known to be of no use: without the list, any number that is missing counts.
pub(crate) fn is_complete_since(log: &Log, recovered: &Recovered, from: Position) -> bool {
    match recovered.retired_to {
        Some(_) => given_up_since(log, recovered, from).is_none(),
        None => first_number_missing(log, from).is_none(),
    }
}

/// Why a start is refused, if the log does not tell all that came after its latest checkpoint.
pub(crate) fn refusal(recovered: &Recovered, missing: &str) -> String {
    let checkpoint = match &recovered.last_manifest {
        Some((at, _)) => format!("the latest checkpoint that can be read is that at {at}"),
        None => "no checkpoint can be read".to_owned(),
    };
    let segments = recovered.lost_segments.iter().chain(&recovered.lost_before);
    let segments = segments.map(|id| format!("segments/{id}.seg"));
    let manifests = recovered.lost_manifests.iter().map(|at| format!("the checkpoint at {at}"));
    let lost: Vec<String> = segments.chain(manifests).take(NAMED_MAX).collect();
    let lost = if lost.is_empty() { String::new() } else { format!(" (lost: {})", lost.join(", ")) };
    format!(
        "{checkpoint}{lost}, and {missing}, so queues and messages may be unknown; \
         start with accept-loss to go on with what the log still tells"
    )
}

/// Segments that were lost before this start and whose records are needed: they are missed again.
pub(crate) fn lost_before(recovered: &Recovered, from: Position) -> impl Iterator<Item = SegmentId> {
    recovered.lost_before.iter().copied().filter(move |id| from.segment <= *id)
}

fn first_number_missing(log: &Log, from: Position) -> Option<SegmentId> {
    let segments = log.segments().into_iter().map(|segment| segment.id).filter(|id| from.segment <= *id);
    let missing = (from.segment.0.max(1)..).zip(segments).find(|(expected, id)| *expected != id.0);
    missing.map(|(expected, _)| SegmentId(expected))
}
