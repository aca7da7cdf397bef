//! Frames larger than a segment: each gets a segment of its own, of the size it needs.
//!
//! Such a frame is encoded by the thread that appends it, without a lock, and handed to the segment manager. The segment manager
//! makes the file and then, in one step, ends the active segment and puts the frame into the new one, which is
//! full with that. So nobody else ever sees a segment that waits for its frame, and what others append goes on
//! until that step.
//!
//! Segments are written in the order of their numbers, and one without frames in between would look like the
//! end of the log. The segment that is prepared for later therefore gets a number behind the new one first.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};

use bytes::Bytes;
use nexo_types::SegmentId;

use crate::append::Appended;
use crate::disk::DiskFile;
use crate::entry::{EntryKind, EntryRef};
use crate::error::{AppendError, is_shortage};
use crate::frame::{self, END_BYTES, MARKER_BYTES};
use crate::group::CommitGroup;
use crate::header::{HEADER_BYTES, Header, TRAILER_BYTES};
use crate::index::SegmentIndex;
use crate::inventory::Leaves;
use crate::options::{Patience, Urgency};
use crate::segment::Segment;
use crate::shared::LogInner;
use crate::spares::random_salt;

/// Where the frame starts: a commit marker comes first.
const FRAME_AT: u32 = HEADER_BYTES + MARKER_BYTES as u32;

/// A frame on its way to the segment manager.
#[derive(Debug)]
pub(crate) struct Oversize {
    /// Goes into the checksum, so it is chosen before there is a file.
    salt: u32,
    frame: Bytes,
    index: SegmentIndex,
    has_manifest: bool,
    urgency: Urgency,
    /// Dropped without an answer when the log fails or is closed.
    answer: SyncSender<Result<Appended, AppendError>>,
}

impl Oversize {
    fn new(
        entries: &[EntryRef<'_>],
        frame_bytes: usize,
        urgency: Urgency,
        answer: SyncSender<Result<Appended, AppendError>>,
    ) -> Self {
        let salt = random_salt();
        let mut frame = Vec::with_capacity(frame_bytes);
        frame::put_entries(&mut frame, salt, FRAME_AT, entries);
        let mut index = SegmentIndex::default();
        for entry in entries {
            for span in entry.spans {
                index.add(FRAME_AT, entry.queue, *span);
            }
        }
        let has_manifest = entries.iter().any(|entry| entry.kind == EntryKind::Manifest);
        Self { salt, frame: frame.into(), index, has_manifest, urgency, answer }
    }

    fn frame_end(&self) -> u32 {
        FRAME_AT + self.frame.len() as u32
    }

    /// The file's length: nothing else fits behind the frame but what every segment ends with.
    pub(crate) fn file_bytes(&self) -> u32 {
        self.frame_end() + (MARKER_BYTES + END_BYTES + self.index.footer_bytes_max()) as u32 + TRAILER_BYTES
    }

    /// Tells whoever waits.
    pub(crate) fn refuse(self, error: AppendError) {
        // It waits until it is told.
        let _ = self.answer.send(Err(error));
    }
}

impl LogInner {
    /// Appends a frame that does not fit into a segment, however empty. It may use no reserve: on a full disk
    /// what is left of the active segment is needed for what frees space.
    pub(crate) fn append_oversize(
        &self,
        entries: &[EntryRef<'_>],
        frame_bytes: usize,
        urgency: Urgency,
    ) -> Result<Appended, AppendError> {
        let _turn = self.oversize_turn.lock();
        self.wait_for_buffer(&mut self.state.lock(), Patience::Wait, CommitGroup::len)?;
        let (answer, answered) = mpsc::sync_channel(1);
        let oversize = Oversize::new(entries, frame_bytes, urgency, answer);
        {
            let mut state = self.state.lock();
            if let Some(refusal) = state.append_refusal() {
                return Err(refusal);
            }
            state.oversize = Some(oversize);
            self.keeper_wake.notify_one();
        }
        // Without an answer the log has failed or was closed.
        answered
            .recv()
            .unwrap_or_else(|_| Err(self.state.lock().append_refusal().unwrap_or(AppendError::Closed)))
    }

    /// Makes a segment for the frame, numbered `id`, and one to go on in, and puts the frame into the log. On a
    /// full disk the frame is refused, and the log goes on as before.
    pub(crate) fn place(&self, oversize: Oversize, id: SegmentId) {
        let header = Header { id, salt: oversize.salt, file_bytes: oversize.file_bytes() };
        match self.make_room(&header, oversize.file_bytes()) {
            Ok((file, next)) => self.put_oversize(oversize, header, file, next),
            Err(error) if is_shortage(&error) => {
                let (bytes, disk) = (oversize.file_bytes(), self.disk.name());
                let reason = format!(
                    "no room for a segment of {bytes} bytes for one large frame in '{disk}': {error}"
                );
                oversize.refuse(AppendError::Full { reason: reason.into() });
            }
            Err(error) => self.fail("prepare a segment", &error),
        }
    }

    fn make_room(&self, header: &Header, file_bytes: u32) -> io::Result<(Arc<dyn DiskFile>, Segment)> {
        let file = self.spares.create_oversize(header, file_bytes)?;
        match self.prepare_behind(header.id) {
            Ok(next) => Ok((file, next)),
            Err(error) => {
                self.spares.give(header.id, file_bytes, Leaves::Unused)?;
                Err(error)
            }
        }
    }

    /// The segment that comes after `id`: the one that was prepared, if it has not been taken meanwhile.
    fn prepare_behind(&self, id: SegmentId) -> io::Result<Segment> {
        let next = SegmentId(id.0 + 1);
        let prepared = self.state.lock().prepared.take();
        match prepared {
            Some(unused) => {
                self.forget_unused(&unused);
                self.spares.renumber(unused.id(), next)
            }
            None => self.spares.prepare(next),
        }
    }

    fn put_oversize(&self, oversize: Oversize, header: Header, file: Arc<dyn DiskFile>, next: Segment) {
        let (file_bytes, frame_end) = (oversize.file_bytes(), oversize.frame_end());
        let Oversize { frame, index, has_manifest, urgency, answer, .. } = oversize;
        let segment = Arc::new(Segment::with_frames(header, file, file_bytes, frame_end, index));
        let next = Arc::new(next);
        self.segments.write().extend([segment.clone(), next.clone()].map(|segment| (segment.id(), segment)));
        let mut state = self.state.lock();
        if state.append_refusal().is_some() {
            // Closed meanwhile, and closing puts away what was prepared. After a failure nothing matters.
            state.prepared = Some(next);
            drop(state);
            self.forget_unused(&segment);
            if let Err(error) = self.spares.give(segment.id(), file_bytes, Leaves::Unused) {
                self.fail("remove an unused segment", &error);
            }
            return;
        }
        self.rotate(&mut state, segment.clone());
        state.pending.start_large_piece(&segment, HEADER_BYTES, frame);
        state.appended_end = state.next_position();
        let appended = Appended { at: segment.position(FRAME_AT), end: state.appended_end };
        if has_manifest {
            state.last_manifest = Some(appended.at);
        }
        state.give(next);
        self.rouse_writer(&mut state, urgency, appended.end);
        self.room.notify_all();
        drop(state);
        // It waits until it is told.
        let _ = answer.send(Ok(appended));
    }

    fn forget_unused(&self, segment: &Segment) {
        segment.set_retired();
        self.segments.write().remove(&segment.id());
    }
}
