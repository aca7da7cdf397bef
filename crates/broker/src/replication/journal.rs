//! The group as the journal of the broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nexo_cluster::store::GroupRecord;
use nexo_cluster::{Group, GroupOptions, Membership, OpenError, Payload, Refused, Snapshot};
use nexo_log::{
    AppendError, Claim, EntryRef, Log, LogHealth, Patience, Urgency, encode_entries, encoded_len,
};
use nexo_types::{LogIndex, Position, SegmentId};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::alone::write_alone;
use super::damage::JournalOpenError;
use super::head::head_entry;
use super::open::{first_entry, scan};
use super::places::Place;
use super::safe_mark::SafeMark;
use super::state::{Memory, Replica, State};
use super::state_lock::StateLock;
use super::{ClusterOptions, ClusterStart, GROUP, Role};
use crate::journal::{
    Discarded, Journal, LocalJournal, ProposeError, Proposed, Standing, TicketError, Waiting, Written,
};
use crate::manifest::{GroupMark, Manifest};

/// The term of what is not proposed, and cannot be lost.
const LOCAL: u32 = u32::MAX - 1;

/// With this much proposed and not looked at, the driver is woken though nobody waits.
const QUEUED_BYTES_MAX: usize = 512 * 1024;

/// So much is sent by whoever proposes it. More is left to the driver.
pub(super) const ADVANCE_BYTES_MAX: usize = 16 * 1024;

/// A clone is the same journal.
#[derive(Clone, Debug)]
pub(crate) struct GroupJournal(pub(crate) Arc<Replica>);

impl GroupJournal {
    /// The group as it is in the log.
    ///
    /// # Errors
    /// If what is there makes no sense, or is not what the node was told.
    pub(crate) fn open(
        log: Log,
        manifest: &Manifest,
        options: ClusterOptions,
        segment_bytes: u32,
    ) -> Result<Self, JournalOpenError> {
        let mut found = scan(&log, manifest)?;
        match (options.start, found.is_known) {
            (ClusterStart::New, true) | (ClusterStart::Known, true) | (ClusterStart::Join, _) => {}
            (ClusterStart::New, false) => {
                // An earlier release does not know what comes now.
                log.raise_format().map_err(|error| JournalOpenError::from(error.to_string()))?;
                write_first(&log, Membership::of([options.node]))?;
                found = scan(&log, manifest)?;
            }
            (ClusterStart::Alone, true) => {
                write_alone(&log, &found, options.node)?;
                found = scan(&log, manifest)?;
            }
            (ClusterStart::Known | ClusterStart::Alone, false) => {
                let reason = "the node is known to be part of a cluster, and its log has nothing of it";
                return Err(JournalOpenError::Damaged(reason.into()));
            }
        }
        let voters = found.members_at(LogIndex(u64::MAX)).voters;
        if let Some(damage) = found.damage.first()
            && options.start != ClusterStart::Alone
            && voters.iter().any(|voter| *voter != options.node)
        {
            return Err(JournalOpenError::Damaged(damage.to_string()));
        }
        let recovered = found.recovered(&log)?;
        found.hard_state = recovered.hard_state;
        let seed = u64::from(std::process::id()) << 32 | u64::from(recovered.snapshot.index.0 as u32);
        let group = GroupOptions { id: GROUP, node: options.node, rank: 0, seed };
        let group = Group::open(group, recovered).map_err(|error| match error {
            OpenError::LostEntries { .. } => JournalOpenError::Damaged(error.to_string()),
            error => JournalOpenError::Unreadable(error.to_string()),
        })?;
        let discarded = Discarded::default();
        discarded.add(std::mem::take(&mut found.discarded));
        Ok(Self(Arc::new(Replica {
            node: options.node,
            local: LocalJournal::new(log.clone()),
            log,
            kept_segments: u32::try_from(options.kept_log_bytes / u64::from(segment_bytes.max(1)))
                .unwrap_or(u32::MAX),
            discarded,
            turn: Mutex::default(),
            state: StateLock::new(State::new(group, found)),
            inbox: Mutex::default(),
            waker: Arc::default(),
            safe: SafeMark::default(),
            is_alone: AtomicBool::new(false),
            role: watch::Sender::new(Role::Following { leader: None }),
            damage: watch::Sender::new(None),
            on_change: std::sync::OnceLock::new(),
            on_full: std::sync::OnceLock::new(),
            on_followed: std::sync::OnceLock::new(),
            send: std::sync::OnceLock::new(),
            open_stream: std::sync::OnceLock::new(),
            on_send_state: std::sync::OnceLock::new(),
        })))
    }

    /// Whether it is known without the lock that this is committed.
    fn is_known_safe(&self, written: Written) -> bool {
        let replica = &*self.0;
        // Who is alone when this was asked was so when it was proposed, or has committed it since.
        let is_synced =
            || written.end() <= replica.log.synced_position() && written.term() == replica.safe.term();
        (replica.is_alone.load(Ordering::Acquire) && is_synced())
            || replica.safe.is_reached(written.end(), written.term())
    }

    fn outcome(state: &State, written: Written) -> Option<Result<(), TicketError>> {
        match state.cuts.get(written.term() as usize) {
            Some(cut) => Some(if written.end() <= *cut { Ok(()) } else { Err(TicketError::Lost) }),
            None => (written.end() <= state.safe_to()).then_some(Ok(())),
        }
    }
}

/// What the node had before is the first state of the cluster.
fn write_first(log: &Log, members: Membership) -> Result<(), String> {
    let last = first_entry();
    let snapshot = Snapshot { last, members, data: bytes::Bytes::new() };
    let record = GroupRecord::Installed(snapshot).encode();
    log.append(&[head_entry(&record)], Urgency::Synced, Claim::Reserved)
        .map_err(|error| error.to_string())?;
    log.sync_blocking().map_err(|error| error.to_string())
}

impl From<Refused> for ProposeError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Busy | Refused::HandingOver => Self::Busy,
            _ => Self::Lost,
        }
    }
}

impl Journal for GroupJournal {
    fn propose(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Proposed, ProposeError> {
        let replica = &*self.0;
        let data_len = encoded_len(entries);
        // What others are to get is copied before the lock is taken. Whether there are others is looked at again.
        let mut data = (!replica.is_alone.load(Ordering::Acquire)).then(|| encode_entries(entries));
        loop {
            let mut state = replica.state.lock();
            if !matches!(state.memory, Memory::Serving(_)) {
                return Err(ProposeError::Lost);
            }
            let taken = match state.group.next_proposal(data_len) {
                _ if state.is_busy() => Err(ProposeError::Busy),
                Err(refused) => Err(refused.into()),
                Ok(id) => {
                    let head = GroupRecord::Entry(id, Payload::Data(bytes::Bytes::new())).encode();
                    let framed: Vec<EntryRef<'_>> =
                        std::iter::once(head_entry(&head)).chain(entries.iter().copied()).collect();
                    // Nobody waits for the disk with the lock.
                    let hurry = match patience {
                        Patience::Wait => Patience::Refuse,
                        other => other,
                    };
                    match replica.log.append_with(&framed, urgency, claim, hurry) {
                        Ok(appended) => Ok((id, appended)),
                        Err(AppendError::Busy) => Err(ProposeError::Busy),
                        Err(error) => Err(error.into()),
                    }
                }
            };
            let (id, appended) = match taken {
                Ok(taken) => taken,
                Err(ProposeError::Busy) if patience == Patience::Wait => {
                    drop(state);
                    self.wait_for_room();
                    continue;
                }
                Err(error) => return Err(error),
            };
            replica.note_place(&mut state, Place { id, at: appended.at, end: appended.end });
            let proposed = if state.group.is_only_member() {
                state.group.propose_stored(data_len)
            } else {
                state.group.propose(data.take().unwrap_or_else(|| encode_entries(entries)))
            };
            assert_eq!(proposed, Ok(id), "what was asked for under the same lock holds");
            state.pending.push_back((id.index, appended.at));
            state.proposed_end = appended.end;
            let written = Written::new(appended.end, state.term, urgency);
            // Who is alone need not hurry: what is synced is committed.
            let is_urgent = urgency != Urgency::Lazy && !replica.is_alone.load(Ordering::Acquire);
            let is_much = state.group.queued_bytes() >= QUEUED_BYTES_MAX;
            // What comes while others wait is sent with what comes meanwhile.
            let is_first = state.pending.len() == 1 && data_len <= ADVANCE_BYTES_MAX;
            drop(state);
            if is_urgent && is_first {
                replica.advance();
            } else if is_urgent || is_much {
                replica.waker.wake();
            }
            return Ok(Proposed { at: appended.at, written });
        }
    }

    fn write_local(
        &self,
        entries: &[EntryRef<'_>],
        urgency: Urgency,
        claim: Claim,
        patience: Patience,
    ) -> Result<Proposed, ProposeError> {
        let Proposed { at, written } = self.0.local.propose(entries, urgency, claim, patience)?;
        Ok(Proposed { at, written: Written::new(written.end(), LOCAL, urgency) })
    }

    fn wait(&self, written: Written) -> Waiting {
        if written.is_nothing() {
            return Waiting::NOTHING;
        }
        if written.term() == LOCAL {
            return self.0.local.wait(written);
        }
        if self.is_known_safe(written) {
            return Waiting::known(Ok(()));
        }
        if self.0.is_alone.load(Ordering::Acquire) && written.term() == self.0.safe.term() {
            // Nobody else is asked, and whoever joins later is counted for what comes later.
            return self.0.local.wait(Written::new(written.end(), LOCAL, Urgency::Synced));
        }
        let mut state = self.0.state.lock();
        match Self::outcome(&state, written) {
            Some(outcome) => Waiting::known(outcome),
            None => {
                let receiver = state.waiters.add(written.end());
                // It may have been proposed as something that nobody waits for.
                let is_queued = state.group.queued_bytes() > 0;
                drop(state);
                if is_queued {
                    self.0.waker.wake();
                }
                Waiting::told(receiver)
            }
        }
    }

    fn is_safe(&self, written: Written) -> bool {
        if written.is_nothing() {
            return true;
        }
        if written.term() == LOCAL {
            return self.0.local.is_safe(written);
        }
        self.is_known_safe(written) || Self::outcome(&self.0.state.lock(), written) == Some(Ok(()))
    }

    fn frame_at(&self, at: Position) -> Written {
        Written::frame_at(at, self.0.safe.term())
    }

    fn so_far(&self, urgency: Urgency) -> Written {
        if self.0.is_alone.load(Ordering::Acquire) {
            // Nobody else can lead, so the term stays.
            return Written::new(self.0.log.unwritten().1, self.0.safe.term(), urgency);
        }
        let state = self.0.state.lock();
        Written::new(self.0.log.unwritten().1, state.term, urgency)
    }

    fn unwritten_bytes(&self) -> usize {
        self.0.local.unwritten_bytes()
    }

    fn has_room(&self) -> bool {
        let state = self.0.state.lock();
        let is_busy = state.is_busy() || matches!(state.group.next_proposal(1), Err(Refused::Busy));
        drop(state);
        !is_busy && self.0.local.has_room()
    }

    fn wait_for_room(&self) {
        loop {
            self.0.local.wait_for_room();
            let state = self.0.state.lock();
            let is_serving = matches!(state.memory, Memory::Serving(_));
            let is_busy = state.is_busy()
                || matches!(state.group.next_proposal(1), Err(Refused::Busy | Refused::HandingOver));
            drop(state);
            // Who is not served is told so when he tries.
            if !is_busy || !is_serving {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn health(&self) -> LogHealth {
        self.0.local.health()
    }

    fn releases_early(&self) -> bool {
        // Nobody else can lead, so nothing is lost but with the process, as from a log. What is proposed until another voter
        // comes is committed before that one counts.
        self.0.is_alone.load(Ordering::Acquire)
    }

    fn discarded(&self) -> &Discarded {
        &self.0.discarded
    }

    fn on_loss(&self, hook: Box<dyn Fn() + Send + Sync>) {
        let _ = self.0.on_change.set(hook);
    }

    fn standing(&self) -> Standing {
        let state = self.0.state.lock();
        match state.memory {
            Memory::Following if state.installing.is_some() => Standing::Installing,
            Memory::Serving(_) => Standing::Serving,
            Memory::Promoted(_) => Standing::Lost,
            Memory::Deposed => Standing::Deposed,
            Memory::Following => Standing::Following,
        }
    }

    fn serving_term(&self) -> Option<u32> {
        let state = self.0.state.lock();
        matches!(state.memory, Memory::Serving(_)).then_some(state.term)
    }

    fn confirm_standing(&self, since: Written) -> Waiting {
        let mut state = self.0.state.lock();
        if !matches!(state.memory, Memory::Serving(_)) || since.term() != state.term {
            return Waiting::known(Err(TicketError::Lost));
        }
        let receiver = state.checks.add();
        drop(state);
        self.0.waker.wake();
        Waiting::told(receiver)
    }

    fn stood_down(&self) {
        let mut state = self.0.state.lock();
        if state.memory == Memory::Deposed {
            state.memory = Memory::Following;
        }
        if !state.takes_no_part() {
            self.0.settle(&mut state);
        }
        self.0.waker.wake();
    }

    fn resume(&self) -> bool {
        let mut state = self.0.state.lock();
        let Memory::Promoted(term) = state.memory else { return false };
        if state.takes_no_part() {
            return false;
        }
        // What was built is the state that it had when it was elected, and nothing was proposed since.
        if state.loaded.0 != state.group.applied() {
            return false;
        }
        state.memory = Memory::Serving(term);
        state.term = state.cuts.len() as u32;
        self.0.safe.begin(state.term);
        self.0.settle(&mut state);
        self.0.waker.wake();
        true
    }

    fn begin_load(&self) -> Option<LogIndex> {
        let mut state = self.0.state.lock();
        let applied = state.group.applied();
        let next = state.places.get(applied.next()).map(|place| place.at);
        let end = next.unwrap_or_else(|| self.0.log.next_position());
        state.loaded = (applied, end);
        Some(applied)
    }

    fn state_end(&self) -> Option<Position> {
        let state = self.0.state.lock();
        match state.memory {
            Memory::Serving(_) => None,
            Memory::Promoted(_) | Memory::Deposed | Memory::Following => Some(state.loaded.1),
        }
    }

    fn mark(&self, replay_from: Position) -> Result<Option<GroupMark>, ProposeError> {
        let discarded = self.0.discarded.all();
        if self.0.is_alone.load(Ordering::Acquire) {
            // Nobody has waited for what lies before, and on a busy node something is always on its way. It is given out first, so
            // that it does not count as one write with what comes meanwhile.
            self.0.settle(&mut self.0.state.lock());
            self.0.log.sync_blocking().map_err(|_| ProposeError::Busy)?;
        }
        let mut state = self.0.state.lock();
        if matches!(state.memory, Memory::Serving(_)) {
            // What is committed may not have been looked at yet.
            self.0.settle(&mut state);
            self.0.note_synced(&mut state);
            self.0.waker.wake();
            // A change of members is nothing that anybody has waited for.
            if state.places.last_before(replay_from).index > state.group.applied() {
                return Err(ProposeError::Busy);
            }
        }
        Ok(Some(state.mark(replay_from, discarded)))
    }

    fn keeps_from(&self) -> Option<SegmentId> {
        let SegmentId(last) = self.0.log.next_position().segment;
        let is_alone = self.0.state.lock().group.members().all().count() < 2;
        (!is_alone).then(|| SegmentId(last.saturating_sub(self.0.kept_segments)))
    }

    fn checkpointed(&self, replay_from: Position, given_up_before: Position) -> Position {
        self.0.note_checkpoint(replay_from, given_up_before)
    }

    fn stop(&self) {
        self.0.stop();
    }
}
