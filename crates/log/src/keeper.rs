//! The keeper: one thread that does what must not hold up the writer: it prepares the next segment ahead of
//! need and seals full ones.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nexo_types::{Position, SegmentId};
use tracing::warn;

use crate::oversize::Oversize;
use crate::segment::{EndFrame, Segment};
use crate::shared::{Phase, Shared};
use crate::stats::add;

/// First wait before looking for space again; doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest wait before looking for space again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// With more full segments than this still to be written and sealed, that goes before preparing. Otherwise
/// appends that always wait for the next segment would leave no time for it, and indexes would pile up in memory.
const UNSEALED_MAX: usize = 2;

enum Task {
    Prepare(SegmentId),
    Place(Oversize, SegmentId),
    Seal(Arc<Segment>, Option<Position>),
}

/// When to look for space again.
#[derive(Default)]
struct Retry {
    at: Option<Instant>,
    wait: Duration,
}

/// Runs until the log is closed or fails.
pub(crate) fn run(shared: &Shared) {
    let mut retry = Retry::default();
    while let Some(task) = next_task(shared, &retry) {
        match task {
            Task::Prepare(id) => prepare(shared, id, &mut retry),
            Task::Place(oversize, id) => shared.place(oversize, id),
            Task::Seal(segment, last_manifest) => match segment.seal(last_manifest, EndFrame::Written) {
                Ok(()) => {
                    add(&shared.metrics.seals, 1);
                    shared.state.lock().unsealed -= 1;
                }
                Err(error) => shared.fail("seal a segment", &error),
            },
        }
    }
}

fn next_task(shared: &Shared, retry: &Retry) -> Option<Task> {
    let mut state = shared.state.lock();
    loop {
        if state.failed.is_some() {
            return None;
        }
        let wants_segment = state.phase == Phase::Open && state.prepared.is_none();
        let is_due = retry.at.is_none_or(|at| at <= Instant::now());
        let may_try = state.full.is_none() || is_due || state.space_freed;
        if wants_segment && may_try && state.unsealed <= UNSEALED_MAX {
            state.space_freed = false;
            return Some(Task::Prepare(state.next_id));
        }
        // Others can go on without the keeper while it makes a large file, or are refused anyway.
        let is_free = state.prepared.is_some() || state.full.is_some();
        if is_free
            && state.unsealed <= UNSEALED_MAX
            && let Some(oversize) = state.oversize.take()
        {
            return Some(Task::Place(oversize, state.next_id));
        }
        if let Some((segment, last_manifest)) = state.to_seal.pop_front() {
            return Some(Task::Seal(segment, last_manifest));
        }
        if state.phase == Phase::Flushed {
            return None;
        }
        match retry.at.filter(|_| wants_segment) {
            Some(at) => {
                shared.keeper_wake.wait_until(&mut state, at);
            }
            None => shared.keeper_wake.wait(&mut state),
        }
    }
}

fn prepare(shared: &Shared, id: SegmentId, retry: &mut Retry) {
    match shared.spares.prepare(id) {
        Ok(segment) => {
            let segment = Arc::new(segment);
            shared.segments.write().insert(id, segment.clone());
            let mut state = shared.state.lock();
            state.give(segment);
            shared.room.notify_all();
            *retry = Retry::default();
        }
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            let bytes = shared.options.segment_bytes;
            let reason = format!("no room for another segment of {bytes} bytes in '{}'", shared.disk.name());
            warn!(reason, "the disk is full; messages are refused when the last segment is");
            retry.wait = (retry.wait * 2).clamp(RETRY_MIN, RETRY_MAX);
            retry.at = Some(Instant::now() + retry.wait);
            shared.state.lock().full = Some(reason.into());
            shared.room.notify_all();
        }
        Err(error) => shared.fail("prepare a segment", &error),
    }
}
