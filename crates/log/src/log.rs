//! The handle that everybody uses.

use std::ops::{ControlFlow, RangeInclusive};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use nexo_types::{Offset, Position, Priority, QueueId, SegmentId};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::append::Appended;
use crate::damage::KnownDamage;
use crate::disk::{Disk, PooledDisk};
use crate::entry::{EntryRef, Frame};
use crate::error::{AppendError, Damage, LogError, OpenError, ReadError, is_shortage};
use crate::index::FrameRef;
use crate::index::cache::FooterCache;
use crate::inventory::Leaves;
use crate::options::{Claim, LogOptions, Patience, Urgency};
use crate::recovery::{self, Opened, Recovered};
use crate::segment::EndFrame;
use crate::shared::{ClosePhase, LogInner, State};
use crate::stats::{LogHealth, LogStats, Metrics, add};
use crate::wait::{Mark, Reached};
use crate::{layout, segment_manager, writer};

/// What is kept of footers that were read.
const FOOTER_CACHE_BYTES: usize = 32 * 1024 * 1024;

/// Sealed segments whose files stay open after they were read. A backlog is read from one segment after the other, so
/// a few for each queue that is being read are enough.
pub const SEALED_FILES_OPEN_MAX: usize = 64;
/// The most files that a log has open at once: the sealed ones above, and with some to spare the lock, three
/// directories, the active segment, the prepared one, those being sealed and those being made or read.
pub const OPEN_FILES_MAX: usize = SEALED_FILES_OPEN_MAX + 32;

/// The thread that writes and syncs what was appended.
pub(crate) const WRITER_THREAD: &str = "nexo-log-writer";

/// A log on a disk. A clone is the same log; it is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Log {
    handle: Arc<Handle>,
}

/// How much of a segment is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUsage {
    /// The segment's id.
    pub id: SegmentId,
    /// Whether it is sealed: complete, with its index on disk.
    pub sealed: bool,
    /// Where its frames end.
    pub bytes: u64,
    /// What [`Log::account`] added up to.
    pub live_bytes: u64,
    /// The length of its file.
    pub file_bytes: u64,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<LogInner>,
    threads: Mutex<Option<Threads>>,
}

#[derive(Debug)]
struct Threads {
    writer: JoinHandle<()>,
    segment_manager: JoinHandle<()>,
}

impl Log {
    /// Opens the log on `disk`, setting up an empty disk, and brings back what is there. A directory of an older format
    /// stays one until [`Log::raise_format`].
    ///
    /// # Errors
    /// When the disk is not a Nexo data directory or in use, and when it fails.
    pub fn open(disk: Arc<dyn Disk>, options: LogOptions) -> Result<(Self, Recovered), OpenError> {
        options.check()?;
        let disk: Arc<dyn Disk> = Arc::new(PooledDisk::new(disk, SEALED_FILES_OPEN_MAX));
        let lock = layout::claim(&disk)?;
        let Opened { segments, active, spares, recovered } = recovery::recover(&disk, &options)?;
        let start = active.position(active.frames_end());
        let last_manifest = recovered.last_manifest.as_ref().map(|(at, _)| *at);
        let metrics = Metrics::default();
        add(&metrics.damage, recovered.damage.len() as u64);
        let next_id = SegmentId(active.id().0 + 1);
        let shared = Arc::new(LogInner {
            disk,
            options,
            state: Mutex::new(State::new(active, next_id, last_manifest)),
            writer_wake: Condvar::new(),
            calls: AtomicU64::new(0),
            keeper_wake: Condvar::new(),
            room: Condvar::new(),
            synced: Mark::new(start),
            written: Mark::new(start),
            segments: RwLock::new(segments),
            spares,
            footers: Mutex::new(FooterCache::new(FOOTER_CACHE_BYTES)),
            metrics,
            known_damage: KnownDamage::new(&recovered.damage),
            rotate_hook: RwLock::new(None),
            sync_hook: OnceLock::new(),
            oversize_turn: Mutex::new(()),
            lock: Mutex::new(Some(lock)),
        });
        let threads = Threads {
            writer: spawn(WRITER_THREAD, &shared, writer::run)?,
            segment_manager: spawn("nexo-segments", &shared, segment_manager::run)?,
        };
        let handle = Handle { shared, threads: Mutex::new(Some(threads)) };
        Ok((Self { handle: Arc::new(handle) }, recovered))
    }

    /// Marks the directory as one of the present format, if it is older: the release that wrote it refuses it from then
    /// on. To be called when all that was in it is back, and before anything is appended that the older release cannot
    /// read. What opening itself writes it can.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn raise_format(&self) -> Result<(), OpenError> {
        layout::raise(&*self.shared().disk)
    }

    /// Appends one frame: all of `entries` or, after a crash, none. The position is final at once; whether the
    /// frame is safe is told by [`Log::synced`].
    ///
    /// Does no IO. It waits, on this thread, only when 64 MiB are waiting to be written, when the active segment
    /// is full and the next one is not ready yet, or, for a frame that is larger than a segment, until there is
    /// a file for it.
    ///
    /// # Errors
    /// Nothing was appended then.
    ///
    /// # Panics
    /// When a span ends before it starts.
    pub fn append(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
    ) -> Result<Appended, AppendError> {
        self.append_with(entries, urgency, claim, Patience::Wait)
    }

    /// As [`Log::append`], with a word on whether it may wait for the disk. A frame that does not fit into a segment
    /// ([`Log::is_oversize`]) always waits until it has one of its own.
    ///
    /// # Errors
    /// Nothing was appended then.
    pub fn append_with(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Appended, AppendError> {
        self.shared().append(entries, urgency, claim, patience)
    }

    /// Whether a frame with this much in it may not fit into a segment.
    #[must_use]
    pub fn is_oversize(&self, bytes: usize) -> bool {
        // What is around the payloads is far less than half of that.
        bytes > self.shared().options.segment_bytes as usize / 2
    }

    /// Whether an append that may not wait would not be told now that the log is busy.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared().state.lock().has_room()
    }

    /// Returns when [`Log::has_room`]. Others may be quicker to use it.
    pub fn wait_for_room(&self) {
        let mut state = self.shared().state.lock();
        while !state.has_room() {
            self.shared().room.wait(&mut state);
        }
    }

    /// Resolves once everything before `end` is synced, or when that cannot be promised any more. Asks for a
    /// sync if nobody has. A position beyond the last frame stands for that frame's end.
    pub fn synced(&self, end: Position) -> Reached {
        let shared = self.shared();
        if end <= shared.synced.get() {
            return Reached::ready(Ok(()));
        }
        let mut state = shared.state.lock();
        let end = end.min(state.appended_end);
        if end <= shared.synced.get() {
            return Reached::ready(Ok(()));
        }
        if let Some(error) = refusal(&state) {
            return Reached::ready(Err(error));
        }
        state.sync_wanted = state.sync_wanted.max(end);
        shared.writer_wake.notify_one();
        state.sync_waiters.add(end)
    }

    /// As [`Log::synced`], for being handed to the operating system: it survives this process, not the machine.
    pub fn written(&self, end: Position) -> Reached {
        let shared = self.shared();
        if end <= shared.written.get() {
            return Reached::ready(Ok(()));
        }
        let mut state = shared.state.lock();
        let end = end.min(state.appended_end);
        if end <= shared.written.get() {
            return Reached::ready(Ok(()));
        }
        if let Some(error) = refusal(&state) {
            return Reached::ready(Err(error));
        }
        state.write_wanted = true;
        shared.writer_wake.notify_one();
        state.write_waiters.add(end)
    }

    /// Waits on this thread until everything appended so far is synced.
    ///
    /// # Errors
    /// When that cannot be promised any more.
    pub fn sync_blocking(&self) -> Result<(), LogError> {
        self.synced(self.next_position()).wait_blocking()
    }

    /// Where the next frame will go, or a little before it.
    #[must_use]
    pub fn next_position(&self) -> Position {
        self.shared().state.lock().next_position()
    }

    /// Everything before this is synced.
    #[must_use]
    pub fn synced_position(&self) -> Position {
        self.shared().synced.get()
    }

    /// Reads the frame that starts at `at`, wherever it has got to.
    ///
    /// # Errors
    /// When there is no good frame there.
    pub fn read_frame(&self, at: Position) -> Result<Frame, ReadError> {
        self.shared().read_frame(at)
    }

    /// Reads the frames that start at these bytes of a segment, which must rise; frames that are near each
    /// other are read together. One answer for each, in order.
    #[must_use]
    pub fn read_frames(&self, segment: SegmentId, starts: &[u32]) -> Vec<Result<Frame, ReadError>> {
        let mut frames = Vec::with_capacity(starts.len());
        match self.shared().segment(segment) {
            Ok(segment) => self.shared().read_frames(&segment, starts, &mut frames),
            Err(error) => frames.extend(starts.iter().map(|_| Err(error.clone()))),
        }
        frames
    }

    /// The frames of a segment that hold messages of a lane within an offset range, in order of position, at
    /// most `max`.
    ///
    /// # Errors
    /// When the index cannot be read, or the segment is gone.
    pub fn frames_of(
        &self,
        segment: SegmentId,
        queue: QueueId,
        lane: Priority,
        offsets: RangeInclusive<Offset>,
        max: usize,
    ) -> Result<Vec<FrameRef>, ReadError> {
        self.shared().frames_of(segment, (queue, lane), &offsets, max)
    }

    /// Visits every frame from `from` on that was appended before this call, in order, until `visit` breaks.
    /// Answers with the damage it met and passed over; a copy of the damaged bytes is in `damaged/`.
    ///
    /// # Errors
    /// When the disk fails, or a segment is retired meanwhile.
    pub fn replay(
        &self,
        from: Position,
        visit: &mut dyn FnMut(Frame) -> ControlFlow<()>,
    ) -> Result<Vec<Damage>, ReadError> {
        self.shared().replay(from, visit)
    }

    /// Adds to the live bytes of a segment. The log only keeps the sum; whoever owns the messages decides.
    pub fn account(&self, segment: SegmentId, delta_bytes: i64) {
        if let Some(segment) = self.shared().segments.read().get(&segment) {
            segment.account(delta_bytes);
        }
    }

    /// How many bytes are appended and not written, and where they end.
    #[must_use]
    pub fn unwritten(&self) -> (usize, Position) {
        let state = self.shared().state.lock();
        let flying = state.flying.as_ref().map_or(0, |group| group.len());
        (state.pending.len() + flying, state.appended_end)
    }

    /// Bytes of all frames appended since the log was opened.
    #[must_use]
    pub fn appended_bytes(&self) -> u64 {
        self.shared().metrics.frame_bytes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Every segment that holds frames, oldest first. The last is the active one.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentUsage> {
        let active = self.shared().state.lock().active.id();
        let segments = self.shared().segments.read();
        let usage = segments.range(..=active).map(|(id, segment)| SegmentUsage {
            id: *id,
            sealed: segment.is_sealed(),
            bytes: u64::from(segment.frames_end()),
            live_bytes: segment.live_bytes(),
            file_bytes: u64::from(segment.file_bytes()),
        });
        usage.collect()
    }

    /// Gives up a sealed segment and everything in it. Its file is kept for reuse or removed; that is durable
    /// when this returns, so it takes as long as a sync.
    ///
    /// # Errors
    /// When there is no such segment, it is not sealed, or the disk fails, and then the log has failed.
    pub fn retire(&self, segment: SegmentId) -> Result<(), LogError> {
        let shared = self.shared();
        let retired = {
            let mut segments = shared.segments.write();
            let found = segments.get(&segment).ok_or(LogError::NoSegment { segment })?;
            if let Some(error) = refusal(&shared.state.lock()) {
                return Err(error);
            }
            if !found.is_sealed() {
                return Err(LogError::NotSealed { segment });
            }
            found.set_retired();
            segments.remove(&segment).ok_or(LogError::NoSegment { segment })?
        };
        shared.footers.lock().forget(segment);
        if let Err(error) = shared.spares.give(segment, retired.file_bytes(), Leaves::Retired) {
            shared.fail("retire a segment", &error);
            return Err(LogError::Failed { reason: error.to_string().into() });
        }
        add(&shared.metrics.retired, 1);
        shared.state.lock().space_freed = true;
        shared.keeper_wake.notify_one();
        Ok(())
    }

    /// Has `hook` called whenever a new segment has become the active one. It runs on the writer's thread: it
    /// must be quick, must not call the log, and must not own a `Log`, which then would never close.
    pub fn on_rotate(&self, hook: Box<dyn Fn(SegmentId) + Send + Sync>) {
        *self.shared().rotate_hook.write() = Some(hook);
    }

    /// Has `hook` called whenever more is synced, and when the log fails. Set once. As for [`Log::on_rotate`], it must be
    /// quick, must not call the log, and must not own a `Log`.
    pub fn on_synced(&self, hook: Box<dyn Fn() + Send + Sync>) {
        let _ = self.shared().sync_hook.set(hook);
    }

    /// Asks for a sync of everything before `end`, without waiting for it.
    pub fn want_synced(&self, end: Position) {
        let shared = self.shared();
        if end <= shared.synced.get() {
            return;
        }
        let mut state = shared.state.lock();
        let end = end.min(state.appended_end);
        if end > state.sync_wanted {
            state.sync_wanted = end;
            shared.calls.fetch_add(1, Ordering::Release);
            shared.writer_wake.notify_one();
        }
    }

    /// Figures for whoever watches.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let shared = self.shared();
        let mut stats = shared.metrics.read(shared.health());
        let segments = self.segments();
        stats.damage_first = shared.known_damage.first();
        stats.segments = segments.len();
        stats.sealed_segments = segments.iter().filter(|segment| segment.sealed).count();
        stats.spare_segments = shared.spares.count();
        let files: u64 = shared.segments.read().values().map(|segment| u64::from(segment.file_bytes())).sum();
        stats.disk_bytes = files + stats.spare_segments as u64 * u64::from(shared.options.segment_bytes);
        stats
    }

    /// The manifest before the one at `at`: where its frame starts, and its payload. For when that one is of no use.
    #[must_use]
    pub fn manifest_before(&self, at: Position) -> Option<(Position, bytes::Bytes)> {
        self.shared().manifest_before(at)
    }

    /// Takes note of a part of the log that is not there and should be, as of damage.
    pub fn note_missing(&self, at: Position, fact: String) {
        self.shared().add_damage(&Damage { at, end: at.byte, fact, copy: None, lost: None });
    }

    /// How many damaged places have been found, and the first of them in words, if any.
    #[must_use]
    pub fn damage(&self) -> Option<(u64, String)> {
        let first = self.shared().known_damage.first()?;
        Some((self.shared().metrics.damage.load(Ordering::Relaxed), first))
    }

    /// Whether the log can take and keep what is appended.
    #[must_use]
    pub fn health(&self) -> LogHealth {
        self.shared().health()
    }

    /// Writes and syncs everything, seals the active segment and stops the threads. Appends are refused from
    /// now on; reading still works. Blocks; calling it again does nothing.
    pub fn close(&self) {
        self.handle.close();
    }

    fn shared(&self) -> &LogInner {
        &self.handle.shared
    }
}

impl Handle {
    fn close(&self) {
        let mut threads = self.threads.lock();
        let Some(Threads { writer, segment_manager }) = threads.take() else { return };
        let shared = &*self.shared;
        self.enter(ClosePhase::Closing);
        // A thread that panicked has failed the log already.
        let _ = writer.join();
        self.enter(ClosePhase::Flushed);
        let _ = segment_manager.join();
        if let Err(error) = self.finish() {
            shared.fail("close", &error);
        }
        shared.lock.lock().take();
    }

    fn enter(&self, phase: ClosePhase) {
        {
            let mut state = self.shared.state.lock();
            state.phase = phase;
            state.oversize = None;
        }
        self.shared.writer_wake.notify_all();
        self.shared.keeper_wake.notify_all();
        self.shared.room.notify_all();
    }

    /// Leaves nothing to scan: the next opening finds sealed segments only.
    fn finish(&self) -> std::io::Result<()> {
        let shared = &*self.shared;
        let (active, prepared, last_manifest) = {
            let mut state = shared.state.lock();
            if state.failed.is_some() {
                return Ok(());
            }
            (state.active.clone(), state.prepared.take(), state.last_manifest)
        };
        if active.has_entries()
            && let Err(error) = active.seal(last_manifest, EndFrame::Missing)
        {
            if !is_shortage(&error) {
                return Err(error);
            }
            tracing::warn!(%error, "the last segment cannot be sealed; the next opening reads it whole");
        }
        let unused = Some(active).filter(|active| !active.has_entries());
        for segment in unused.into_iter().chain(prepared) {
            segment.set_retired();
            shared.segments.write().remove(&segment.id());
            shared.spares.give(segment.id(), segment.file_bytes(), Leaves::Unused)?;
        }
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

fn refusal(state: &State) -> Option<LogError> {
    match &state.failed {
        Some(reason) => Some(LogError::Failed { reason: reason.clone() }),
        None if state.phase == ClosePhase::Flushed => Some(LogError::Closed),
        None => None,
    }
}

fn spawn(name: &str, shared: &Arc<LogInner>, run: fn(&LogInner)) -> Result<JoinHandle<()>, OpenError> {
    let (own, own_name) = (shared.clone(), name.to_owned());
    let body = move || {
        // A bug must not leave those who wait hanging: they are told, as after a failed write.
        if panic::catch_unwind(AssertUnwindSafe(|| run(&own))).is_err() {
            own.fail("go on", &format_args!("thread '{own_name}' has panicked"));
        }
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map_err(layout::io_error(&*shared.disk, format!("start thread {name}")))
}
