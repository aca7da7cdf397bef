//! The segment manager: one thread that does what must not hold up the writer: it prepares the next segment ahead of
//! need and seals full ones.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nexo_types::{Position, SegmentId};
use tracing::warn;

use crate::error::is_shortage;
use crate::oversize::Oversize;
use crate::segment::{EndFrame, Segment};
use crate::shared::{ClosePhase, LogInner};
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

impl Retry {
    fn is_due(&self) -> bool {
        self.at.is_none_or(|at| at <= Instant::now())
    }

    fn put_off(&mut self) {
        self.wait = (self.wait * 2).clamp(RETRY_MIN, RETRY_MAX);
        self.at = Some(Instant::now() + self.wait);
    }
}

/// What could not be done for want of space or descriptors.
#[derive(Default)]
struct Retries {
    prepare: Retry,
    seal: Retry,
}

/// Runs until the log is closed or fails.
pub(crate) fn run(shared: &LogInner) {
    let mut retries = Retries::default();
    while let Some(task) = next_task(shared, &retries) {
        match task {
            Task::Prepare(id) => prepare(shared, id, &mut retries.prepare),
            Task::Place(oversize, id) => shared.place(oversize, id),
            Task::Seal(segment, last_manifest) => seal(shared, segment, last_manifest, &mut retries.seal),
        }
    }
}

fn next_task(shared: &LogInner, retries: &Retries) -> Option<Task> {
    let mut state = shared.state.lock();
    loop {
        if state.failed.is_some() {
            return None;
        }
        let wants_segment = state.phase == ClosePhase::Open && state.prepared.is_none();
        let may_try = state.full.is_none() || retries.prepare.is_due() || state.space_freed;
        if wants_segment && may_try && state.unsealed <= UNSEALED_MAX {
            state.space_freed = false;
            return Some(Task::Prepare(state.next_id));
        }
        // Others can go on without the segment manager while it makes a large file, or are refused anyway.
        let is_free = state.prepared.is_some() || state.full.is_some();
        if is_free
            && state.unsealed <= UNSEALED_MAX
            && let Some(oversize) = state.oversize.take()
        {
            return Some(Task::Place(oversize, state.next_id));
        }
        let may_seal = retries.seal.is_due() || state.phase == ClosePhase::Flushed;
        if may_seal && let Some((segment, last_manifest)) = state.to_seal.pop_front() {
            return Some(Task::Seal(segment, last_manifest));
        }
        if state.phase == ClosePhase::Flushed {
            return None;
        }
        let prepare_at = retries.prepare.at.filter(|_| wants_segment && state.unsealed <= UNSEALED_MAX);
        let seal_at = retries.seal.at.filter(|_| !state.to_seal.is_empty());
        match prepare_at.into_iter().chain(seal_at).min() {
            Some(at) => {
                shared.keeper_wake.wait_until(&mut state, at);
            }
            None => shared.keeper_wake.wait(&mut state),
        }
    }
}

fn prepare(shared: &LogInner, id: SegmentId, retry: &mut Retry) {
    match shared.spares.prepare(id) {
        Ok(segment) => {
            let segment = Arc::new(segment);
            shared.segments.write().insert(id, segment.clone());
            let mut state = shared.state.lock();
            state.give(segment);
            shared.room.notify_all();
            *retry = Retry::default();
        }
        Err(error) if is_shortage(&error) => {
            retry.put_off();
            note_shortage(shared, &error);
        }
        Err(error) => shared.fail("prepare a segment", &error),
    }
}

/// Seals a full segment. Everything in it is safe already, so if there is no room for the footer now it can wait.
fn seal(shared: &LogInner, segment: Arc<Segment>, last_manifest: Option<Position>, retry: &mut Retry) {
    match segment.seal(last_manifest, EndFrame::Written) {
        Ok(()) => {
            add(&shared.metrics.seals, 1);
            let mut state = shared.state.lock();
            state.unsealed -= 1;
            if state.prepared.is_some() {
                state.note_room();
            }
            *retry = Retry::default();
        }
        Err(error) if is_shortage(&error) => {
            retry.put_off();
            let is_open = {
                let mut state = shared.state.lock();
                let is_open = state.phase != ClosePhase::Flushed;
                if is_open {
                    state.to_seal.push_front((segment, last_manifest));
                }
                is_open
            };
            // The last look: the next opening reads the segment whole.
            if is_open {
                note_shortage(shared, &error);
            }
        }
        Err(error) => shared.fail("seal a segment", &error),
    }
}

/// From now on appends are refused when the active segment is full.
fn note_shortage(shared: &LogInner, error: &io::Error) {
    let bytes = shared.options.segment_bytes;
    let disk = shared.disk.name();
    let reason: Arc<str> =
        format!("no room for another segment of {bytes} bytes in '{disk}': {error}").into();
    let before = shared.state.lock().full.replace(reason.clone());
    if before.is_none() {
        warn!(%reason, "the disk is full; messages are refused when the last segment is");
    }
    shared.room.notify_all();
}
