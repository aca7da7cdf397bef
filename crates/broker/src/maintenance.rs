//! Keeps the house: checkpoints, so that recovery reads little; retires segments that nothing lives in, and
//! copies the last living out of nearly empty ones (`placement/copy_forward.rs`); takes messages out of memory when there are too many.
//!
//! A thread of its own that sleeps until there is a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nexo_log::{Claim, EntryKind, EntryRef, Patience, SegmentUsage, Urgency};
use nexo_types::{Position, QueueId, SegmentId};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::journal::{ProposeError, Proposed, Standing};
use crate::manifest::{Demand, Manifest};
use crate::page_out_pace::PageOutPace;
use crate::queue_cell::QueueCell;
use crate::shared::Shared;
use crate::workers::Work;

const NAME: &str = "nexo-maintain";
/// A checkpoint is due when this many segments' worth of messages have been let go …
const FREED_SEGMENTS: u64 = 4;
/// … or when a segment has been filled, and one part in this many of a segment was written by others than maintenance.
/// But in both cases no less than the last checkpoint wrote: so checkpoints never write more than those they serve.
const WRITTEN_PART: u64 = 2;
/// Segments copied at one checkpoint, so that copying never takes the disk from the living.
const COPIES_MAX: usize = 4;
/// What could not be done is tried again after this.
const RETRY: Duration = Duration::from_millis(500);
/// What the journal asks for is tried again after this, and then less and less often.
const FOLLOW_RETRY_MIN: Duration = Duration::from_millis(5);
/// A node that follows loads its state to free room on a full disk no more often than this.
const FULL_LOAD_EVERY: Duration = Duration::from_secs(5);

/// The thread and its reasons to wake.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
    last_checkpoint: Mutex<Option<Checkpoint>>,
    /// Where the latest manifest lies.
    last_manifest: Mutex<Option<Position>>,
    /// Held by whoever loads what is in memory, or throws it away, and as long as it must stay what it is. Taken before the next.
    loading: Mutex<()>,
    /// Held while a checkpoint is written.
    checkpointing: Mutex<()>,
    /// When a node that follows last looked for room on a full disk.
    last_full_load: Mutex<Option<Instant>>,
    /// While anybody reads messages that may have left their queue, no segment is given up.
    readers: AtomicUsize,
}

/// What a checkpoint needs of the log, and what was empty when it began.
#[derive(Clone, Debug)]
struct Checkpoint {
    replay_from: Position,
    /// Segments that hold its snapshots.
    needed: BTreeSet<SegmentId>,
    /// Segments in which nothing was alive before it began: none of its snapshots names a message there.
    empty: BTreeSet<SegmentId>,
}

#[derive(Debug, Default)]
struct Signal {
    reasons: Mutex<Reasons>,
    wake: Condvar,
    /// Let go since the last checkpoint that this asked for; counted on every acknowledgement, so without a lock.
    freed_bytes: AtomicU64,
    /// What maintenance itself has appended to the log.
    own_bytes: AtomicU64,
    /// What maintenance wrote for the last checkpoint, and for those that followed at once to free what it could not.
    cost_bytes: AtomicU64,
    /// What others had written when it began.
    written_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Reasons {
    /// The log has a new segment: a checkpoint may be due.
    rotated: bool,
    checkpoint: bool,
    pressure: bool,
    stuck: BTreeMap<QueueId, Weak<QueueCell>>,
    full: bool,
    /// The journal has lost what was proposed: the queues must be rebuilt.
    lost: bool,
    /// What is in memory must be loaded anew, though nobody is served.
    reload: bool,
    stopping: bool,
}

impl Reasons {
    /// Whether there is any but memory.
    fn any_other(&self) -> bool {
        let at_once = self.stopping || self.lost || self.reload;
        at_once || self.rotated || self.checkpoint || self.full || !self.stuck.is_empty()
    }

    /// Takes the reasons; memory only if it is worth looking at again.
    fn take(&mut self, may_page_out: bool) -> Self {
        let left = Self { pressure: self.pressure && !may_page_out, ..Self::default() };
        let taken = std::mem::replace(self, left);
        Self { pressure: taken.pressure && may_page_out, ..taken }
    }
}

impl Maintenance {
    /// With the manifest that was found at the start.
    pub(crate) fn new(last_manifest: Option<Position>) -> Self {
        Self { last_manifest: Mutex::new(last_manifest), ..Self::default() }
    }

    /// From now on what is in memory is neither loaded nor thrown away by others.
    pub(crate) fn begin_loading(&self) -> MutexGuard<'_, ()> {
        self.loading.lock()
    }

    /// From now on no checkpoint is written by others.
    pub(crate) fn begin_checkpoint(&self) -> MutexGuard<'_, ()> {
        self.checkpointing.lock()
    }

    #[cfg(test)]
    pub(crate) fn try_begin_checkpoint(&self) -> Option<MutexGuard<'_, ()>> {
        self.checkpointing.try_lock()
    }

    /// From now on no segment is given up, until [`Self::end_reading`].
    pub(crate) fn begin_reading(&self) {
        self.readers.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether segments are kept for somebody who reads them, or writes them with no queue's lock.
    fn is_read(&self) -> bool {
        self.readers.load(Ordering::Acquire) > 0
    }

    pub(crate) fn end_reading(&self) {
        self.readers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Where the latest manifest lies.
    pub(crate) fn last_manifest(&self) -> Option<Position> {
        *self.last_manifest.lock()
    }

    pub(crate) fn start(&self, shared: &Arc<Shared>) -> std::io::Result<()> {
        let signal = Arc::clone(&self.signal);
        shared.log.on_rotate(Box::new(move |_| {
            signal.reasons.lock().rotated = true;
            signal.wake.notify_one();
        }));
        let signal = Arc::clone(&self.signal);
        shared.journal.on_loss(Box::new(move || {
            signal.reasons.lock().lost = true;
            signal.wake.notify_one();
        }));
        let weak = Arc::downgrade(shared);
        let signal = Arc::clone(&self.signal);
        let thread = shared.threads.spawn(NAME, move || signal.run(&weak))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Messages have been let go: the disk may have something to give back.
    pub(crate) fn note_freed(&self, bytes: u64, segment_bytes: u64) {
        let freed = self.signal.freed_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if freed > (FREED_SEGMENTS * segment_bytes).max(self.signal.cost_bytes.load(Ordering::Relaxed)) {
            self.signal.freed_bytes.store(0, Ordering::Relaxed);
            self.signal.reasons.lock().checkpoint = true;
            self.signal.wake.notify_one();
        }
    }

    /// Maintenance has appended this. Gives back how many bytes that are.
    pub(crate) fn note_own(&self, written: &Proposed) -> u64 {
        let bytes = written.bytes();
        self.signal.own_bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    /// Checkpoints begin; `appended` is all that the log has ever taken. Gives back what to tell [`Self::note_end`].
    fn note_begin(&self, appended: u64) -> (u64, u64) {
        let own = self.signal.own_bytes.load(Ordering::Relaxed);
        (own, appended.saturating_sub(own))
    }

    /// They are written.
    fn note_end(&self, (own, written): (u64, u64)) {
        let cost = self.signal.own_bytes.load(Ordering::Relaxed) - own;
        self.signal.cost_bytes.store(cost, Ordering::Relaxed);
        self.signal.written_bytes.store(written, Ordering::Relaxed);
    }

    /// Messages take too much memory.
    pub(crate) fn note_pressure(&self) {
        let mut reasons = self.signal.reasons.lock();
        if !reasons.pressure {
            reasons.pressure = true;
            self.signal.wake.notify_one();
        }
    }

    /// Dead letters of this queue could not be moved, its messages not be read, or its policies not be applied.
    pub(crate) fn note_stuck(&self, cell: &Arc<QueueCell>) {
        let mut reasons = self.signal.reasons.lock();
        reasons.stuck.entry(cell.id).or_insert_with(|| Arc::downgrade(cell));
        self.signal.wake.notify_one();
    }

    /// This node led, and what is in memory has parts that were never committed: what is committed is to be loaded.
    pub(crate) fn note_deposed(&self) {
        self.signal.reasons.lock().reload = true;
        self.signal.wake.notify_one();
    }

    /// The log refused something for want of space.
    pub(crate) fn note_full(&self) {
        self.signal.note_full();
    }

    /// Tells the same, for whoever must not own the broker.
    pub(crate) fn full_note(&self) -> Box<dyn Fn() + Send + Sync> {
        let signal = Arc::clone(&self.signal);
        Box::new(move || signal.note_full())
    }

    pub(crate) fn stop(&self) {
        self.signal.reasons.lock().stopping = true;
        self.signal.wake.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the maintenance thread panicked");
        }
    }
}

impl Signal {
    fn note_full(&self) {
        let mut reasons = self.reasons.lock();
        if !reasons.full {
            reasons.full = true;
            self.wake.notify_one();
        }
    }

    /// Whether others have written enough since the last checkpoint.
    fn is_due(&self, shared: &Shared) -> bool {
        let written = shared.log.appended_bytes().saturating_sub(self.own_bytes.load(Ordering::Relaxed));
        let since = written.saturating_sub(self.written_bytes.load(Ordering::Relaxed));
        let enough = u64::from(shared.options.segment_bytes) / WRITTEN_PART;
        since >= enough.max(self.cost_bytes.load(Ordering::Relaxed))
    }

    fn run(&self, shared: &Weak<Shared>) {
        let mut page_out_from = Instant::now();
        let mut pace = PageOutPace::default();
        let mut pause = FOLLOW_RETRY_MIN;
        loop {
            let reasons = {
                let mut reasons = self.reasons.lock();
                loop {
                    let may_page_out = Instant::now() >= page_out_from;
                    if reasons.any_other() || (reasons.pressure && may_page_out) {
                        break;
                    }
                    // Too much memory that nobody adds to would stay if this were forgotten.
                    if reasons.pressure {
                        self.wake.wait_until(&mut reasons, page_out_from);
                    } else {
                        self.wake.wait(&mut reasons);
                    }
                }
                if reasons.stopping {
                    return;
                }
                reasons.take(Instant::now() >= page_out_from)
            };
            let Some(shared) = shared.upgrade() else { return };
            #[cfg(test)]
            shared.threads.panic_if_asked(NAME);
            // Before anything else: what is in memory never was.
            if reasons.lost {
                let loading = shared.maintenance.begin_loading();
                let is_done = shared.follow_journal();
                drop(loading);
                if is_done {
                    pause = FOLLOW_RETRY_MIN;
                } else {
                    self.reasons.lock().lost = true;
                    // Whoever was elected should serve soon; whoever has no room will not have any at once.
                    thread::sleep(pause);
                    pause = (pause * 2).min(RETRY);
                }
            }
            let reloaded = !reasons.reload || shared.reload_followed();
            if reasons.pressure && shared.under_pressure() {
                let began = Instant::now();
                let before = shared.message_memory_bytes();
                let max = shared.message_bytes_max();
                if pace.is_time(Instant::now(), before, max) {
                    shared.page_out_all();
                    pace.note(Instant::now(), before, shared.message_memory_bytes(), max);
                } else {
                    self.reasons.lock().pressure = true;
                }
                page_out_from = Instant::now() + PageOutPace::pause_after(began.elapsed());
            }
            let due = reasons.checkpoint || (reasons.rotated && self.is_due(&shared));
            let kept = !(due || reasons.full) || shared.keep_house();
            let mut again =
                !reloaded || !kept || (reasons.full && shared.journal.health() != nexo_log::LogHealth::Ok);
            again |= !reasons.stuck.is_empty();
            if again {
                // Whatever is in the way will not be gone at once.
                let mut waiting = self.reasons.lock();
                let until = Instant::now() + RETRY;
                while !waiting.stopping
                    && !waiting.lost
                    && !self.wake.wait_until(&mut waiting, until).timed_out()
                {}
            }
            for cell in reasons.stuck.values().filter_map(Weak::upgrade) {
                if shared.unreadable.is_postponed(cell.id) {
                    shared.maintenance.note_stuck(&cell);
                } else {
                    shared.unreadable.resume(cell.id);
                    shared.try_again(&cell);
                }
            }
            let mut next = self.reasons.lock();
            next.full |= reasons.full && shared.journal.health() != nexo_log::LogHealth::Ok;
            next.checkpoint |= !kept;
            next.reload |= !reloaded;
            drop(next);
        }
    }
}

impl Shared {
    /// Takes messages out of memory, the queues with most of them first, until two thirds of what is allowed are used. Of
    /// queues with about as much, those that were made one after the other: what they hold lies side by side, and whole pages
    /// of memory come free.
    fn page_out_all(self: &Arc<Self>) {
        let enough = self.message_bytes_max() / 3 * 2;
        let measured = |cell: Arc<QueueCell>| {
            let bytes = cell.state.lock().memory_bytes;
            (bytes, cell)
        };
        let mut cells: Vec<(u64, Arc<QueueCell>)> = self.catalog.all().into_iter().map(measured).collect();
        cells.sort_unstable_by_key(|(bytes, cell)| (std::cmp::Reverse(bytes.checked_ilog2()), cell.id));
        for (_, cell) in cells {
            let too_much = self.message_memory_bytes().saturating_sub(enough);
            if too_much == 0 {
                return;
            }
            let _ = self.with(&cell, |state, _| state.queue.page_out(too_much));
        }
    }

    /// Does again what a queue could not do before.
    fn try_again(self: &Arc<Self>, cell: &Arc<QueueCell>) {
        if let Err(error) = self.settle_again(cell) {
            tracing::debug!(queue = %cell.name.in_full(), %error, "messages cannot be settled yet");
        }
        self.apply_policies_to(cell);
        let stuck = self.with(cell, |state, _| {
            state.paging = false;
            state.pending_deaths.0 = state.queue.deaths().into();
        });
        if stuck.is_ok() {
            let (shared, cell) = (Arc::clone(self), Arc::clone(cell));
            self.workers.spawn(Work::Move, move || shared.dead_letter_slice(&cell));
        }
    }

    /// Writes a checkpoint and frees what can be freed. `false` if it has to be done again.
    fn keep_house(self: &Arc<Self>) -> bool {
        let full = self.journal.health() != nexo_log::LogHealth::Ok;
        if full && (self.maintenance.is_read() || !self.may_find_room()) {
            // There is nothing to free, and what is left of the disk is for acknowledgements.
            return true;
        }
        let begin = self.maintenance.note_begin(self.log.appended_bytes());
        let _loading = self.maintenance.begin_loading();
        match self.journal.standing() {
            Standing::Serving => {}
            Standing::Following if self.load_followed() => {}
            // What is in memory is about to be thrown away, or is gone already.
            Standing::Following | Standing::Installing | Standing::Lost | Standing::Deposed => return false,
        }
        if let Err(error) = self.checkpoint_and_free(full) {
            tracing::warn!(%error, "no checkpoint could be written; trying again later");
            return false;
        }
        self.maintenance.note_end(begin);
        true
    }

    /// Loads what this node follows, if it does still. `false` if it has to be tried again.
    fn reload_followed(self: &Arc<Self>) -> bool {
        let _loading = self.maintenance.begin_loading();
        match self.journal.standing() {
            Standing::Following => self.load_followed(),
            // What is in memory is that of the journal, or will be soon.
            Standing::Serving | Standing::Installing | Standing::Lost | Standing::Deposed => true,
        }
    }

    /// Whether a checkpoint may free something of a full disk.
    fn may_find_room(&self) -> bool {
        if self.journal.standing() == Standing::Following {
            // What is alive is known only when the state is loaded.
            let mut last = self.maintenance.last_full_load.lock();
            let is_time = last.is_none_or(|last| last.elapsed() >= FULL_LOAD_EVERY);
            if is_time {
                *last = Some(Instant::now());
            }
            return is_time;
        }
        let is_free = |segment: &SegmentUsage| segment.sealed && segment.live_bytes == 0;
        self.log.segments().iter().any(is_free)
    }

    fn checkpoint_and_free(self: &Arc<Self>, full: bool) -> Result<(), ProposeError> {
        self.checkpoint()?;
        if full || self.journal.standing() == Standing::Following {
            // Whoever follows copies nothing: what lies behind the state that he has would have to be told apart.
            return Ok(());
        }
        if self.copy_sparse_segments() {
            // What was copied can be retired as soon as a checkpoint knows of it.
            self.checkpoint()?;
        }
        // What was empty before the last checkpoint is given up by the one after it.
        if self.can_free_more() { self.checkpoint() } else { Ok(()) }
    }

    /// Writes a checkpoint, whether one is due or not. `false` if it could not be written.
    #[cfg(test)]
    pub(crate) fn checkpoint_now(self: &Arc<Self>) -> bool {
        let _loading = self.maintenance.begin_loading();
        let is_loaded = self.journal.standing() != Standing::Following || self.load_followed();
        is_loaded && self.checkpoint().is_ok()
    }

    /// Writes snapshots of all queues that have changed, and a manifest; then retires what nothing needs.
    pub(crate) fn checkpoint(self: &Arc<Self>) -> Result<(), ProposeError> {
        let _one_at_a_time = self.maintenance.begin_checkpoint();
        self.checkpoint_with(None)
    }

    /// The same, with a queue that nobody knows yet. To be called with the lock for checkpoints.
    pub(crate) fn checkpoint_with(
        self: &Arc<Self>,
        more: Option<&Arc<QueueCell>>,
    ) -> Result<(), ProposeError> {
        let served = self.journal.serving_term();
        let is_committed = match (served, self.journal.standing()) {
            (Some(_), _) => false,
            // What is in memory is a state that was committed, and stays as it is: only this node's own work changes it.
            (None, Standing::Following | Standing::Installing) => true,
            (None, Standing::Serving | Standing::Lost | Standing::Deposed) => return Err(ProposeError::Lost),
        };
        let before = self.all_that_can_be_lost();
        let segments = self.log.segments();
        // Looked at before any snapshot is taken: what is empty now is in none of them, and stays empty.
        let empty: BTreeSet<SegmentId> =
            segments.iter().filter(|s| s.sealed && s.live_bytes == 0).map(|s| s.id).collect();
        let sparse: BTreeSet<SegmentId> = self.sparse_segments().iter().map(|s| s.id).collect();
        let (replay_from, mut cells) = {
            let _changing = self.catalog.change();
            (self.state_position(), self.catalog.all())
        };
        let mut manifest = Manifest { replay_from, time: self.clock.now(), ..Manifest::default() };
        // An old snapshot in a segment that is nearly empty would keep it.
        let twice = self.journal.health() == nexo_log::LogHealth::Ok;
        let demand = Demand { given_up: &sparse, twice };
        self.snapshot_machines(&mut manifest, demand)?;
        cells.extend(more.cloned());
        cells.sort_unstable_by_key(|cell| cell.id);
        for cell in cells {
            if let Some(snapshot) = self.snapshot_queue(&cell, demand)? {
                manifest.queues.push((cell.id, snapshot));
            }
        }
        manifest.next_queue = self.catalog.next_queue();
        // What is in the snapshots must be safe before they count.
        let rests_on = before.and(self.all_that_can_be_lost());
        if !is_committed && let Err(error) = self.journal.wait(rests_on).wait_blocking() {
            tracing::debug!(%error, "a checkpoint is given up: what is in it was lost");
            return Err(ProposeError::Lost);
        }
        // Where the state ends is said otherwise once another node serves, and the snapshots may be of before and after that.
        if served.is_some() && self.journal.serving_term() != served {
            tracing::debug!("a checkpoint is given up: this node leads no more");
            return Err(ProposeError::Lost);
        }
        manifest.group = self.journal.mark(replay_from)?;
        let payload = manifest.encode();
        let entry = EntryRef { queue: QueueId(0), kind: EntryKind::Manifest, spans: &[], payload: &payload };
        let appended =
            self.journal.write_local(&[entry], Urgency::Synced, Claim::Checkpoint, Patience::Wait)?;
        self.maintenance.note_own(&appended);
        if let Err(error) = self.journal.wait(appended.written).wait_blocking() {
            tracing::error!(%error, "a checkpoint was not synced");
            return Err(ProposeError::Unavailable { reason: error.to_string() });
        }
        *self.maintenance.last_manifest.lock() = Some(appended.at);
        let this = Checkpoint { replay_from, needed: manifest.segments(), empty };
        // What the checkpoint before this one needs is kept, in case this one cannot be read. On a full disk there is no
        // room for that.
        let before = self.maintenance.last_checkpoint.lock().replace(this.clone());
        let is_full = self.journal.health() != nexo_log::LogHealth::Ok;
        let before = if is_full { Some(this.clone()) } else { before };
        let kept = self.kept_for_others();
        let given_up = before.as_ref().map_or(Position::default(), |before| match kept {
            Some(segment) => before.replay_from.min(Position { segment, byte: 0 }),
            None => before.replay_from,
        });
        // Asked first: while somebody reads, entries are kept that lie in what could be given up.
        let is_read = self.maintenance.is_read();
        let given_up = self.journal.checkpointed(replay_from, given_up);
        let Some(before) = before else { return Ok(()) };
        if is_read {
            return Ok(());
        }
        // Looked at again: an append that was under way when this began may not have been counted then. By now it has
        // been, because its queue's lock was taken for the snapshot.
        let still_empty: BTreeSet<SegmentId> =
            self.log.segments().iter().filter(|s| s.live_bytes == 0).map(|s| s.id).collect();
        for segment in before.empty {
            let is_needed = before.needed.contains(&segment) || this.needed.contains(&segment);
            if segment < given_up.segment && still_empty.contains(&segment) && !is_needed {
                match self.log.retire(segment) {
                    Ok(()) => {
                        self.journal.discarded().forget(segment);
                        tracing::debug!(%segment, "segment retired");
                    }
                    Err(error) => tracing::warn!(%segment, %error, "a segment cannot be retired"),
                }
            }
        }
        Ok(())
    }

    /// Records before this are in memory, and none behind.
    pub(crate) fn state_position(&self) -> Position {
        self.journal.state_end().unwrap_or_else(|| self.log.next_position())
    }

    /// The first segment that is kept for other nodes. On a disk that runs full there is no room for that.
    fn kept_for_others(&self) -> Option<SegmentId> {
        let is_short =
            self.journal.health() != nexo_log::LogHealth::Ok || self.room.shortage(&self.clock).is_some();
        if is_short { None } else { self.journal.keeps_from() }
    }

    /// Whether segments can be given up by the next checkpoint that this one had to keep.
    fn can_free_more(&self) -> bool {
        let last = self.maintenance.last_checkpoint.lock();
        let Some(last) = last.as_ref().filter(|_| !self.maintenance.is_read()) else { return false };
        let kept = self.kept_for_others();
        let segments = self.log.segments();
        segments.iter().filter(|segment| kept.is_none_or(|kept| segment.id < kept)).any(|segment| {
            segment.live_bytes == 0 && last.empty.contains(&segment.id) && !last.needed.contains(&segment.id)
        })
    }

    /// Copies what is alive in nearly empty segments to the end of the log. Says whether anything was copied.
    fn copy_sparse_segments(self: &Arc<Self>) -> bool {
        let before = self.all_that_can_be_lost();
        let mut sparse = self.sparse_segments();
        sparse.retain(|segment| segment.live_bytes > 0);
        sparse.sort_unstable_by_key(|segment| segment.live_bytes);
        sparse.truncate(COPIES_MAX);
        // A copy of what is lost later would be found by a replay.
        if self.journal.wait(before.and(self.all_that_can_be_lost())).wait_blocking().is_err() {
            return false;
        }
        for segment in &sparse {
            for cell in self.catalog.all() {
                if let Err(error) = self.copy_forward(&cell, segment.id) {
                    tracing::warn!(segment = %segment.id, %error, "a segment cannot be copied forward now");
                    return false;
                }
            }
        }
        !sparse.is_empty()
    }
}
