//! The writer: one thread that takes what was appended, writes it, and syncs it when somebody waits.
//!
//! While it works, appends collect in the other buffer; so the busier the log is, the more appends share one
//! sync. With nothing to do it sleeps without a timeout.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nexo_types::{Position, SegmentId};
use parking_lot::MutexGuard;

use crate::error::is_shortage;
use crate::group::CommitGroup;
use crate::segment::Segment;
use crate::shared::{ClosePhase, LogInner, State};

/// Memory that a group's buffer keeps from one use to the next.
const BUFFER_KEEP_BYTES: usize = 8 * 1024 * 1024;
/// With this much written and not synced, the writer syncs though nobody waits. Whoever comes next then waits for
/// little: a disk that keeps up 350 MB/s takes twelve milliseconds for so much.
const UNSYNCED_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// What is synced in pieces of this size is written faster than anybody reads: the system need not keep it in memory. To find
/// new memory for every page takes longer than to write it: in a virtual machine a program that only writes and syncs got from
/// 290 to 1,090 MB/s. Smaller pieces stay: segments are used again, and their pages with them.
const UNCACHE_BYTES_MIN: u32 = 2 * 1024 * 1024;
/// When the disk had no room for a write, it is tried again after this.
const STALL_RETRY: Duration = Duration::from_millis(100);

/// What the writer is to do next.
struct Job {
    group: Option<Arc<CommitGroup>>,
    sync: bool,
    /// The log is closing and this is the last of it.
    last: bool,
}

/// Runs until the log is closed or fails.
pub(crate) fn run(shared: &LogInner) {
    // When the oldest written byte that is not synced was written.
    let mut unsynced_since: Option<Instant> = None;
    let mut spin = AdaptiveSpin::new();
    loop {
        let Some(job) = next_job(shared, unsynced_since, &mut spin) else { return };
        if let Some(group) = job.group {
            if let Err((action, error)) = write_group(shared, &group) {
                shared.fail(action, &error);
                return;
            }
            finish_write(shared, group);
            unsynced_since.get_or_insert_with(Instant::now);
        }
        let due = unsynced_since.zip(shared.options.background_sync);
        if job.sync || is_much_unsynced(shared) || due.is_some_and(|(since, every)| since.elapsed() >= every)
        {
            if let Err(error) = sync(shared) {
                shared.fail("sync", &error);
                return;
            }
            unsynced_since = None;
            spin.done();
        }
        if job.last {
            return;
        }
    }
}

/// Whether the next sync would take long; never if nothing is synced in the background.
fn is_much_unsynced(shared: &LogInner) -> bool {
    let (written, synced) = (shared.written.get(), shared.synced.get());
    // A segment is synced before anything is written to the next.
    let from = if synced.segment == written.segment { synced.byte } else { 0 };
    shared.options.background_sync.is_some() && written.byte.saturating_sub(from) >= UNSYNCED_BYTES_MAX
}

/// Sleeps until there is something to do; `None` if the log has failed.
fn next_job(shared: &LogInner, unsynced_since: Option<Instant>, spin: &mut AdaptiveSpin) -> Option<Job> {
    let mut state = shared.state.lock();
    let mut may_watch = spin.is_worth_it();
    loop {
        if state.failed.is_some() {
            return None;
        }
        let last = state.phase != ClosePhase::Open;
        let unsynced = !state.pending.is_empty() || shared.written.get() > shared.synced.get();
        let sync = last || (unsynced && state.sync_wanted > shared.synced.get());
        let write_at = if state.write_wanted || sync { None } else { state.lazy_deadline };
        let sync_at = unsynced_since.zip(shared.options.background_sync).map(|(since, every)| since + every);
        let write_now = state.write_wanted || write_at.is_some_and(is_past);
        if last || sync || write_now {
            if sync {
                spin.called();
            }
            return Some(Job { group: take_group(shared, &mut state), sync, last });
        }
        if sync_at.is_some_and(is_past) {
            return Some(Job { group: None, sync: true, last });
        }
        if std::mem::take(&mut may_watch) {
            let before = shared.calls.load(Ordering::Acquire);
            MutexGuard::unlocked(&mut state, || {
                spin.watch(|| shared.calls.load(Ordering::Acquire) != before)
            });
            continue;
        }
        match write_at.into_iter().chain(sync_at).min() {
            Some(wake_at) => {
                shared.writer_wake.wait_until(&mut state, wake_at);
            }
            None => shared.writer_wake.wait(&mut state),
        }
    }
}

/// Whether the writer stays awake for a moment after a sync. Somebody who waits for one message at a time comes back
/// within microseconds, and to be woken takes as long again; but staying awake takes a core.
#[derive(Debug)]
struct AdaptiveSpin {
    /// On a machine with one core, nobody could call while the writer looks out for it.
    has_company: bool,
    /// When the last sync ended.
    done_at: Option<Instant>,
    /// How long it took until the next call, of late.
    usual: Option<Duration>,
}

/// Longer than this, sleep costs nothing that matters.
const SPIN_MAX: Duration = Duration::from_micros(200);

impl AdaptiveSpin {
    fn new() -> Self {
        let has_company = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        Self { has_company, done_at: None, usual: None }
    }

    fn done(&mut self) {
        self.done_at = Some(Instant::now());
    }

    /// Notes that somebody waits for a sync.
    fn called(&mut self) {
        if let Some(done_at) = self.done_at.take() {
            let pause = done_at.elapsed().min(SPIN_MAX * 10);
            self.usual = Some(self.usual.map_or(pause, |usual| (usual * 7 + pause) / 8));
        }
    }

    fn is_worth_it(&self) -> bool {
        self.has_company && self.done_at.is_some() && self.usual.is_some_and(|usual| usual < SPIN_MAX)
    }

    /// Looks out for a call, for a moment.
    fn watch(&self, called: impl Fn() -> bool) {
        let until = Instant::now() + SPIN_MAX;
        while !called() && Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}

fn is_past(moment: Instant) -> bool {
    moment.saturating_duration_since(Instant::now()) == Duration::ZERO
}

/// Swaps the pending buffer for an empty one.
fn take_group(shared: &LogInner, state: &mut MutexGuard<'_, State>) -> Option<Arc<CommitGroup>> {
    state.write_wanted = false;
    state.lazy_deadline = None;
    if state.pending.is_empty() {
        return None;
    }
    let empty = state.idle.take().unwrap_or_default();
    let mut group = std::mem::replace(&mut state.pending, empty);
    group.fill_in_markers(shared.synced.get());
    let group = Arc::new(group);
    state.flying = Some(group.clone());
    shared.room.notify_all();
    Some(group)
}

fn write_group(shared: &LogInner, group: &CommitGroup) -> Result<(), (&'static str, io::Error)> {
    for piece in group.pieces() {
        let segment = piece.segment;
        for (at, bytes) in piece.parts() {
            write(shared, segment, bytes, at).map_err(|error| ("write", error))?;
        }
        if let Some(last_manifest) = piece.ends {
            // Nothing is written to a segment before all earlier ones are synced: so a good frame in one proves
            // that the log before it is complete.
            let started = Instant::now();
            segment.file.sync_data().map_err(|error| ("sync", error))?;
            shared.metrics.synced(started.elapsed());
            uncache(segment, shared.synced.get(), piece.end());
            let mut woken = Vec::new();
            {
                let mut state = shared.state.lock();
                shared.synced.raise(piece.end());
                state.to_seal.push_back((segment.clone(), last_manifest));
                // They need not wait for what comes next, which may be large.
                state.sync_waiters.take_until(piece.end(), &mut woken);
            }
            shared.keeper_wake.notify_one();
            for waiter in woken {
                waiter.wake(Ok(()));
            }
            shared.tell_synced();
        }
    }
    Ok(())
}

/// Writes, and when there is no room tries until there is. The room of a segment was reserved, but not every file
/// system keeps that promise. A write that was refused has promised nothing, so to write again is safe.
fn write(shared: &LogInner, segment: &Segment, bytes: &[u8], at: u32) -> io::Result<()> {
    let mut written = segment.file.write_at(bytes, u64::from(at));
    while let Err(error) = &written
        && is_shortage(error)
        && stall(shared, error)
    {
        written = segment.file.write_at(bytes, u64::from(at));
        if written.is_ok() {
            shared.state.lock().stalled = None;
            tracing::info!("the disk has room again");
        }
    }
    written
}

/// Waits for a moment, and says whether to write again: not if the log is closing.
fn stall(shared: &LogInner, error: &io::Error) -> bool {
    let mut state = shared.state.lock();
    if state.stalled.is_none() {
        tracing::warn!(%error, "the disk is full; what was appended cannot be written now");
        let reason = format!("nothing can be written in '{}': {error}", shared.disk.name());
        state.stalled = Some(reason.into());
        // Those who wait for room are refused instead.
        shared.room.notify_all();
    }
    let until = Instant::now() + STALL_RETRY;
    while state.phase == ClosePhase::Open && state.failed.is_none() && Instant::now() < until {
        shared.writer_wake.wait_until(&mut state, until);
    }
    state.phase == ClosePhase::Open && state.failed.is_none()
}

/// Tells everybody that the group is written, and keeps its memory.
fn finish_write(shared: &LogInner, group: Arc<CommitGroup>) {
    let before = shared.written.get().segment;
    let Some(last) = group.pieces().last() else { return };
    let end = last.end();
    let rotated_to: Vec<SegmentId> =
        group.pieces().map(|piece| piece.segment.id()).filter(|id| *id > before).collect();
    shared.metrics.group_written(group.frames, group.len() as u64);
    let mut woken = Vec::new();
    let mut large = Vec::new();
    {
        let mut state = shared.state.lock();
        shared.written.raise(end);
        state.flying = None;
        state.write_waiters.take_until(end, &mut woken);
        state.sync_waiters.take_until(shared.synced.get(), &mut woken);
        if let Ok(mut group) = Arc::try_unwrap(group) {
            large = group.clear(BUFFER_KEEP_BYTES);
            state.idle = Some(group);
        }
    }
    drop(large);
    for waiter in woken {
        waiter.wake(Ok(()));
    }
    if let Some(hook) = &*shared.rotate_hook.read() {
        rotated_to.into_iter().for_each(hook);
    }
}

fn sync(shared: &LogInner) -> io::Result<()> {
    let written = shared.written.get();
    if written <= shared.synced.get() {
        return Ok(());
    }
    let segment = shared.segments.read().get(&written.segment).cloned();
    let Some(segment) = segment else { return Ok(()) };
    let started = Instant::now();
    segment.file.sync_data()?;
    shared.metrics.synced(started.elapsed());
    uncache(&segment, shared.synced.get(), written);
    let mut woken = Vec::new();
    {
        let mut state = shared.state.lock();
        shared.synced.raise(written);
        state.sync_waiters.take_until(written, &mut woken);
    }
    for waiter in woken {
        waiter.wake(Ok(()));
    }
    shared.tell_synced();
    Ok(())
}

/// Has the system forget what was just synced, if that was much.
fn uncache(segment: &Segment, before: Position, synced: Position) {
    let from = if before.segment == synced.segment { before.byte } else { 0 };
    if synced.byte.saturating_sub(from) >= UNCACHE_BYTES_MIN {
        segment.file.uncache(u64::from(from), u64::from(synced.byte));
    }
}
