//! Taking frames in: the hot path. One short lock, one copy into the pending buffer, no IO.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nexo_types::Position;
use parking_lot::MutexGuard;

use crate::entry::{EntryKind, EntryRef};
use crate::error::AppendError;
use crate::frame::{self, END_BYTES, MARKER_BYTES};
use crate::group::CommitGroup;
use crate::header::{HEADER_BYTES, TRAILER_BYTES};
use crate::index::SPAN_BYTES_MAX;
use crate::options::{Claim, FRAME_BYTES_MAX, Patience, SEGMENT_BYTES_MAX, Urgency};
use crate::segment::Segment;
use crate::shared::{LogInner, State};
use crate::stats::add;

/// With this much waiting to be written, appends wait too. It bounds memory when the disk is slower than those
/// who append, and is far more than one group needs.
pub(crate) const PENDING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What appends that are refused last may add to that. They are leases, settlements and returns: a few bytes for each
/// message.
const PENDING_BYTES_EXTRA: usize = 16 * 1024 * 1024;

/// Where a frame was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Where the frame starts.
    pub at: Position,
    /// Where it ends: what to wait for.
    pub end: Position,
}

/// What a frame needs of its segment.
struct Need {
    frame: usize,
    /// The most that it adds to the footer.
    footer: usize,
}

impl Need {
    fn of(entries: &[EntryRef<'_>]) -> Self {
        let spans: usize = entries.iter().map(|entry| entry.spans.len()).sum();
        Self { frame: frame::entries_frame_len(entries), footer: spans * SPAN_BYTES_MAX }
    }

    /// What has to be free behind the frame: a marker and an end frame, in case the segment ends with the next
    /// group, the footer and the trailer.
    fn tail(&self, footer_so_far: usize) -> usize {
        MARKER_BYTES + END_BYTES + footer_so_far + self.footer + TRAILER_BYTES as usize
    }

    /// The largest frame that an empty segment takes.
    fn frame_max(&self, segment_bytes: u32) -> usize {
        let around = HEADER_BYTES as usize + MARKER_BYTES + self.tail(0);
        (segment_bytes as usize).saturating_sub(around).min(FRAME_BYTES_MAX)
    }
}

impl LogInner {
    pub(crate) fn append(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Appended, AppendError> {
        entries.iter().for_each(EntryRef::assert_sound);
        let need = Need::of(entries);
        let appended = if need.frame <= need.frame_max(self.options.segment_bytes) {
            let mut state = self.state.lock();
            self.wait_for_room(&mut state, &need, claim, patience)?;
            let appended = self.put(&mut state, entries);
            self.rouse_writer(&mut state, urgency, appended.end);
            appended
        } else {
            let max = need.frame_max(SEGMENT_BYTES_MAX);
            if need.frame > max {
                return Err(AppendError::TooLarge { bytes: need.frame, max });
            }
            self.append_oversize(entries, need.frame, urgency)?
        };
        add(&self.metrics.frames, 1);
        add(&self.metrics.frame_bytes, need.frame as u64);
        Ok(appended)
    }

    /// Returns once the active segment has room for the frame.
    fn wait_for_room(
        &self,
        state: &mut MutexGuard<'_, State>,
        need: &Need,
        claim: Claim,
        patience: Patience,
    ) -> Result<(), AppendError> {
        loop {
            // Not counting a large frame, which was let in by itself: nobody else need wait for it.
            self.wait_for_buffer(state, patience, |pending| pending.bytes.len())?;
            if let Some(reason) = state.stalled.as_ref().filter(|_| claim == Claim::Normal) {
                return Err(AppendError::Full { reason: reason.clone() });
            }
            let free = free_after(state, need);
            let keep = if state.prepared.is_none() { self.options.keep_bytes(claim) as usize } else { 0 };
            if free.is_some_and(|free| free >= keep) {
                return Ok(());
            }
            if let Some(next) = state.prepared.take() {
                self.rotate(state, next);
            } else if let Some(reason) = &state.full {
                return Err(AppendError::Full { reason: reason.clone() });
            } else if patience != Patience::Wait {
                return Err(AppendError::Busy);
            } else {
                // The segment manager is at it and will find either a segment or that the disk is full.
                self.room.wait(state);
            }
        }
    }

    /// Returns once little enough is waiting to be written, by the measure given.
    pub(crate) fn wait_for_buffer(
        &self,
        state: &mut MutexGuard<'_, State>,
        patience: Patience,
        bytes: impl Fn(&CommitGroup) -> usize,
    ) -> Result<(), AppendError> {
        loop {
            if let Some(refusal) = state.append_refusal() {
                return Err(refusal);
            }
            let max = match patience {
                Patience::Wait | Patience::Refuse => PENDING_BYTES_MAX,
                Patience::RefuseLast => PENDING_BYTES_MAX + PENDING_BYTES_EXTRA,
            };
            if bytes(&state.pending) < max {
                return Ok(());
            }
            if let Some(reason) = &state.stalled {
                return Err(AppendError::Full { reason: reason.clone() });
            }
            state.write_wanted = true;
            self.writer_wake.notify_one();
            if patience != Patience::Wait {
                return Err(AppendError::Busy);
            }
            self.room.wait(state);
        }
    }

    fn put(&self, state: &mut State, entries: &[EntryRef<'_>]) -> Appended {
        let segment = state.active.clone();
        if state.pending.needs_piece(&segment) {
            state.pending.start_piece(&segment, state.next_byte);
            state.next_byte += MARKER_BYTES as u32;
        }
        let byte = state.next_byte;
        let before = state.pending.bytes.len();
        frame::put_entries(&mut state.pending.bytes, segment.header.salt, byte, entries);
        state.next_byte += (state.pending.bytes.len() - before) as u32;
        state.pending.frames += 1;
        let at = segment.position(byte);
        if entries.iter().any(|entry| entry.kind == EntryKind::Manifest) {
            state.last_manifest = Some(at);
        }
        if entries.iter().any(|entry| !entry.spans.is_empty()) {
            segment.with_growing(|index| {
                for entry in entries {
                    for span in entry.spans {
                        index.add(byte, entry.queue, *span);
                    }
                }
            });
        }
        segment.set_has_entries();
        segment.set_frames_end(state.next_byte);
        state.appended_end = state.next_position();
        Appended { at, end: state.appended_end }
    }

    /// Ends the active segment and goes on in `next`.
    pub(crate) fn rotate(&self, state: &mut State, next: Arc<Segment>) {
        let old = state.active.clone();
        if state.pending.needs_piece(&old) {
            state.pending.start_piece(&old, state.next_byte);
            state.next_byte += MARKER_BYTES as u32;
        }
        frame::put_end(&mut state.pending.bytes, old.header.salt, state.next_byte);
        old.set_frames_end(state.next_byte);
        let last_manifest = state.last_manifest;
        state.pending.end_segment(last_manifest);
        state.next_byte = next.frames_end();
        state.active = next;
        state.unsealed += 1;
        // The old segment can be sealed once this is written, whether or not a frame follows.
        state.write_wanted = true;
        self.writer_wake.notify_one();
        self.keeper_wake.notify_one();
    }

    pub(crate) fn rouse_writer(&self, state: &mut State, urgency: Urgency, end: Position) {
        match urgency {
            Urgency::Lazy => {
                if state.write_wanted || state.lazy_deadline.is_some() {
                    return;
                }
                state.lazy_deadline = Some(Instant::now() + self.options.lazy_write_delay);
            }
            Urgency::Written | Urgency::Synced => {
                if urgency == Urgency::Synced {
                    state.sync_wanted = end;
                }
                if std::mem::replace(&mut state.write_wanted, true) {
                    return;
                }
                self.calls.fetch_add(1, Ordering::Release);
            }
        }
        self.writer_wake.notify_one();
    }
}

/// What would be left of the active segment behind the frame, or `None` if the frame does not fit.
fn free_after(state: &State, need: &Need) -> Option<usize> {
    let segment = &state.active;
    let marker = if state.pending.needs_piece(segment) { MARKER_BYTES } else { 0 };
    let footer_so_far = segment.with_growing(|index| index.footer_bytes_max());
    let used = state.next_byte as usize + marker + need.frame + need.tail(footer_so_far);
    (segment.file_bytes() as usize).checked_sub(used)
}
