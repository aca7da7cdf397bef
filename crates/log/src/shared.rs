//! What the log's handles and threads share, and the one lock on the way of every append.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nexo_types::{Position, SegmentId};
use parking_lot::{Condvar, Mutex, RwLock};
use tracing::{error, info};

use crate::append::PENDING_BYTES_MAX;
use crate::damage::KnownDamage;
use crate::disk::{Disk, DiskLock};
use crate::error::{AppendError, LogError};
use crate::group::CommitGroup;
use crate::index::cache::FooterCache;
use crate::options::LogOptions;
use crate::oversize::Oversize;
use crate::segment::Segment;
use crate::spares::Spares;
use crate::stats::{LogHealth, Metrics};
use crate::wait::{Mark, Waiters};

/// Called with the segment that has become the active one.
pub(crate) type RotateHook = Box<dyn Fn(SegmentId) + Send + Sync>;
/// Called when more is synced.
pub(crate) type SyncHook = Box<dyn Fn() + Send + Sync>;

pub(crate) struct LogInner {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: LogOptions,
    pub(crate) state: Mutex<State>,
    /// The writer sleeps on this.
    pub(crate) writer_wake: Condvar,
    /// How often somebody who waits has called the writer, for one that has not gone to sleep yet.
    pub(crate) calls: AtomicU64,
    /// The segment manager sleeps on this.
    pub(crate) keeper_wake: Condvar,
    /// Appends that must wait for room in the buffer or for a segment sleep on this.
    pub(crate) room: Condvar,
    /// Everything before this is synced.
    pub(crate) synced: Mark,
    /// Everything before this is written.
    pub(crate) written: Mark,
    pub(crate) segments: RwLock<BTreeMap<SegmentId, Arc<Segment>>>,
    pub(crate) spares: Spares,
    pub(crate) footers: Mutex<FooterCache>,
    pub(crate) metrics: Metrics,
    pub(crate) known_damage: KnownDamage,
    pub(crate) rotate_hook: RwLock<Option<RotateHook>>,
    pub(crate) sync_hook: OnceLock<SyncHook>,
    /// Held by whoever appends an oversize frame: one at a time, to bound memory.
    pub(crate) oversize_turn: Mutex<()>,
    /// Held until the log is closed.
    pub(crate) lock: Mutex<Option<Box<dyn DiskLock>>>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// What appends go into.
    pub(crate) pending: CommitGroup,
    /// What the writer is writing.
    pub(crate) flying: Option<Arc<CommitGroup>>,
    /// An empty group whose memory is to be used again.
    pub(crate) idle: Option<CommitGroup>,
    pub(crate) active: Arc<Segment>,
    /// Where the next frame goes in the active segment.
    pub(crate) next_byte: u32,
    /// Where the last frame ends.
    pub(crate) appended_end: Position,
    /// The segment to go on with when the active one is full.
    pub(crate) prepared: Option<Arc<Segment>>,
    pub(crate) next_id: SegmentId,
    /// A frame for which the segment manager is to make a segment.
    pub(crate) oversize: Option<Oversize>,
    /// Full segments, with the latest manifest up to their end.
    pub(crate) to_seal: VecDeque<(Arc<Segment>, Option<Position>)>,
    /// How many segments are full but not sealed: those in `to_seal` and those not written to their end yet.
    pub(crate) unsealed: usize,
    pub(crate) last_manifest: Option<Position>,
    /// Somebody waits for the pending group to be written.
    pub(crate) write_wanted: bool,
    /// When the pending group is to be written although nobody waits.
    pub(crate) lazy_deadline: Option<Instant>,
    /// Somebody waits for a sync up to here.
    pub(crate) sync_wanted: Position,
    pub(crate) sync_waiters: Waiters,
    pub(crate) write_waiters: Waiters,
    /// Why there is no prepared segment, if the disk is full.
    pub(crate) full: Option<Arc<str>>,
    /// Why the writer cannot write what was appended, if the disk has no room for it. It tries again by itself.
    pub(crate) stalled: Option<Arc<str>>,
    /// Space was freed: the segment manager need not wait to try again.
    pub(crate) space_freed: bool,
    pub(crate) failed: Option<Arc<str>>,
    pub(crate) phase: ClosePhase,
}

/// How far closing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClosePhase {
    Open,
    /// The writer writes out what is pending and ends; no appends.
    Closing,
    /// The writer has ended; the segment manager seals what is left and ends.
    Flushed,
}

impl State {
    pub(crate) fn new(active: Arc<Segment>, next_id: SegmentId, last_manifest: Option<Position>) -> Self {
        Self {
            pending: CommitGroup::default(),
            flying: None,
            idle: None,
            next_byte: active.frames_end(),
            appended_end: active.position(active.frames_end()),
            active,
            prepared: None,
            next_id,
            oversize: None,
            to_seal: VecDeque::new(),
            unsealed: 0,
            last_manifest,
            write_wanted: false,
            lazy_deadline: None,
            sync_wanted: Position::default(),
            sync_waiters: Waiters::default(),
            write_waiters: Waiters::default(),
            full: None,
            stalled: None,
            space_freed: false,
            failed: None,
            phase: ClosePhase::Open,
        }
    }

    /// Whether little enough waits to be written and the next segment is there, or appends are refused for another reason.
    pub(crate) fn has_room(&self) -> bool {
        let is_behind = self.pending.bytes.len() >= PENDING_BYTES_MAX || self.prepared.is_none();
        !is_behind || self.append_refusal().is_some() || self.stalled.is_some() || self.full.is_some()
    }

    /// Takes a segment to go on with when the active one is full.
    pub(crate) fn give(&mut self, segment: Arc<Segment>) {
        self.next_id = SegmentId(segment.id().0 + 1);
        self.prepared = Some(segment);
        self.note_room();
    }

    /// There is room for what was refused before.
    pub(crate) fn note_room(&mut self) {
        if self.full.take().is_some() {
            info!("the disk has room again");
        }
    }

    /// Why nothing can be appended any more, if so.
    pub(crate) fn append_refusal(&self) -> Option<AppendError> {
        match &self.failed {
            Some(reason) => Some(AppendError::Failed { reason: reason.clone() }),
            None if self.phase != ClosePhase::Open => Some(AppendError::Closed),
            None => None,
        }
    }

    pub(crate) fn next_position(&self) -> Position {
        self.active.position(self.next_byte)
    }
}

impl LogInner {
    /// Takes note of a failed write or sync: from now on nothing is promised, and everybody who waits is told.
    pub(crate) fn fail(&self, action: &str, cause: &dyn fmt::Display) {
        let mut woken = Vec::new();
        let reason: Arc<str> = {
            let mut state = self.state.lock();
            let reason =
                state.failed.get_or_insert_with(|| format!("cannot {action}: {cause}").into()).clone();
            state.oversize = None;
            state.sync_waiters.take_all(&mut woken);
            state.write_waiters.take_all(&mut woken);
            self.room.notify_all();
            self.writer_wake.notify_all();
            self.keeper_wake.notify_all();
            reason
        };
        error!(%reason, "the log has failed and takes no more writes");
        for waiter in woken {
            waiter.wake(Err(LogError::Failed { reason: reason.clone() }));
        }
        self.tell_synced();
    }

    /// Tells that more is synced than before, or that nothing will be.
    pub(crate) fn tell_synced(&self) {
        if let Some(hook) = self.sync_hook.get() {
            hook();
        }
    }

    pub(crate) fn health(&self) -> LogHealth {
        let state = self.state.lock();
        match (&state.failed, state.stalled.as_ref().or(state.full.as_ref())) {
            (Some(reason), _) => LogHealth::Failed { reason: reason.clone() },
            (None, Some(reason)) => LogHealth::Full { reason: reason.clone() },
            (None, None) => LogHealth::Ok,
        }
    }
}

impl fmt::Debug for LogInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("disk", &self.disk).field("synced", &self.synced).finish_non_exhaustive()
    }
}
