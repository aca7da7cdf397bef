//! The group of this node, and what becomes of what it gives out: writes go to the log, messages to other nodes, and whoever
//! waits for a proposal is told of its commit.
//!
//! Everything is under one lock, which nobody holds while he waits for the disk. Each input of the group is followed by
//! [`State::settle`] under the same hold, so that frames lie in the log in the order of their entries. Only a proposal appends
//! its frame itself: the broker needs to know at once where it lies.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use nexo_cluster::store::GroupRecord;
use nexo_cluster::{
    Body, EntryId, Event, Fetch, Group, HardState, Membership, Message, Payload, Role as GroupRole, Snapshot,
    Write, WriteNumber,
};
use nexo_log::{
    AppendError, Claim, Entry, EntryRef, Log, LogHealth, Patience, Urgency, decode_entries, walk_queues,
};
use nexo_types::{LogIndex, NodeId, Position, SegmentId, Term};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::Role;
use super::checks::Checks;
use super::handle::StreamOpener;
use super::head::{as_ref, head_entry};
use super::lags::Lags;
use super::open::read_entry;
use super::places::{Place, Places};
use super::receive_state::Staged;
use super::safe_mark::SafeMark;
use super::send_state::FailedSends;
use super::slow_disk::DiskWatch;
use super::state_lock::StateLock;
use super::waiters::{Teller, Waiters};
use super::waker::Waker;
use crate::followed::is_followed;
use crate::journal::{Discarded, LocalJournal, TicketError};
use crate::manifest::GroupMark;

/// Behind everything.
pub(super) const END: Position = Position { segment: SegmentId(u32::MAX), byte: u32::MAX };
/// What is kept for nodes that were away is no more than this many entries: where each lies takes memory.
const KEPT_ENTRIES_MAX: u64 = 500_000;
/// A leader whose log takes nothing hands over after so many ticks: 2 s.
pub(super) const UNWELL_TICKS_MAX: u32 = 40;

type SendEnvelope = Box<dyn Fn(NodeId, Vec<u8>) + Send + Sync>;
type Follow = Box<dyn Fn(LogIndex, &[Entry]) + Send + Sync>;

/// Whether these entries say something that a follower wants to know at once.
fn has_followed(data: &[u8]) -> bool {
    let mut found = false;
    // It was read before it was written down.
    let _ = walk_queues(data, |id| found |= is_followed(id));
    found
}

/// This node as a member of the group.
pub(crate) struct Replica {
    pub(super) node: NodeId,
    pub(super) log: Log,
    pub(super) local: LocalJournal,
    /// How many segments are kept for nodes that were away, besides the last.
    pub(super) kept_segments: u32,
    pub(super) discarded: Discarded,
    /// Held by whoever brings input to the group and sends what it says. Taken before the state's lock.
    pub(super) turn: Mutex<()>,
    pub(super) state: StateLock,
    /// Messages of other nodes that were not looked at.
    pub(super) inbox: Mutex<Inbox>,
    /// For the driver: there is something to do.
    pub(super) waker: Arc<Waker>,
    /// What is committed of what this node proposed.
    pub(super) safe: SafeMark,
    /// Whether what is synced here is committed: this node serves, and is the only voter.
    pub(super) is_alone: AtomicBool,
    pub(super) role: watch::Sender<Role>,
    /// What was found of damage that others can mend.
    pub(super) damage: watch::Sender<Option<String>>,
    /// Told that the broker's memory is to be thrown away, or to be built.
    pub(super) on_change: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Told that the log has no room for what others have proposed.
    pub(super) on_full: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Told what others have proposed and is committed.
    pub(super) on_followed: OnceLock<Follow>,
    pub(super) send: OnceLock<SendEnvelope>,
    pub(super) open_stream: OnceLock<(tokio::runtime::Handle, StreamOpener)>,
    /// Told which node needs a whole state.
    pub(super) on_send_state: OnceLock<Box<dyn Fn(NodeId) + Send + Sync>>,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("node", &self.node).finish_non_exhaustive()
    }
}

/// What has come of other nodes, in order.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) arrivals: Vec<(NodeId, Arrival)>,
    pub(super) bytes: usize,
}

/// What comes of another node.
#[derive(Debug)]
pub(super) enum Arrival {
    /// Messages.
    Envelope(Bytes),
    /// The connection over which they came has ended.
    End,
}

/// Whether the broker's memory is what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// It is the state of the group, with what was proposed here: this node serves.
    Serving(Term),
    /// This node leads, and the broker builds its memory.
    Promoted(Term),
    /// This node led, and the broker has not let go of its memory yet.
    Deposed,
    /// It is an earlier state, or nothing.
    Following,
}

/// A state that is to take the place of everything.
#[derive(Debug)]
pub(super) struct Installing {
    pub(super) number: WriteNumber,
    /// Nothing, as soon as it has done so in memory.
    pub(super) staged: Option<Staged>,
}

/// A write that is appended and not synced.
#[derive(Debug)]
struct Unsynced {
    number: WriteNumber,
    end: Position,
    /// The last entry in it, if there is any.
    last: Option<LogIndex>,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) group: Group,
    pub(super) places: Places,
    /// Members, and since which entry.
    pub(super) members: Vec<(LogIndex, Membership)>,
    pub(super) memory: Memory,
    /// The journal's own terms: it begins a new one whenever this node serves.
    pub(super) term: u32,
    /// Of each term that is over: where the first frame starts that nobody knows to be committed.
    pub(super) cuts: Vec<Position>,
    /// What was proposed here and is not committed: where each frame starts.
    pub(super) pending: VecDeque<(LogIndex, Position)>,
    /// Where the last frame ends that was proposed here.
    pub(super) proposed_end: Position,
    /// The last entry that was told as committed.
    last_told: LogIndex,
    pub(super) waiters: Waiters,
    pub(super) checks: Checks,
    /// Those of them who can be told, which the driver does without the lock.
    pub(super) told: Vec<Teller>,
    /// Writes that are appended and not synced.
    unsynced: VecDeque<Unsynced>,
    /// Writes for which the log had no room. While there are any nothing is proposed.
    unwritten: VecDeque<Write>,
    /// The promises, as the group knows them and as they are written.
    hard_state: HardState,
    written_state: HardState,
    /// To be sent.
    pub(super) outgoing: Vec<(NodeId, Message)>,
    pub(super) fetches: Vec<Fetch>,
    /// Committed entries of other leaders, which have not been told.
    pub(super) followed: Vec<(LogIndex, Bytes)>,
    pub(super) is_stopping: bool,
    pub(super) is_started: bool,
    /// Nothing is proposed now: a whole state is being looked at.
    pub(super) is_paused: bool,
    /// The log has failed, or the state is broken: this node keeps still.
    pub(super) has_failed: bool,
    /// Somebody has panicked while he had the lock.
    pub(super) is_broken: bool,
    pub(super) unwell_ticks: u32,
    /// How often leadership was to be handed over because of that.
    handovers: usize,
    pub(super) disk_watch: DiskWatch,
    pub(super) lags: Lags,
    /// Of which state the broker's memory is, while it follows: the last entry in it, and where the first frame lies that is not.
    pub(super) loaded: (LogIndex, Position),
    /// While a state is sent, entries behind it are kept.
    pub(super) pinned: Option<LogIndex>,
    /// To whom a state is being sent.
    pub(super) sending: Option<NodeId>,
    /// To whom one was sent last, or should have been: others have their turn first.
    pub(super) sent_last: Option<NodeId>,
    /// To whom one could not be sent.
    pub(super) failed_sends: FailedSends,
    /// For how many ticks this node has led without being able to commit anything.
    pub(super) waiting_ticks: u32,
    /// A state that has come and waits for the leader's word.
    pub(super) staged: Option<Staged>,
    /// One for which the word has come. No other takes its place.
    accepted: Option<Staged>,
    /// It was accepted by the group, and is to take the place of everything.
    pub(super) installing: Option<Installing>,
    /// States that came for nothing. To let go of them takes a while.
    pub(super) stale: Vec<Staged>,
    pub(super) changes: Vec<(EntryId, oneshot::Sender<Result<(), TicketError>>)>,
    pub(super) snapshot_wanted: bool,
    pub(super) elections: u64,
    pub(super) snapshots_sent: u64,
    pub(super) snapshots_received: u64,
    pub(super) snapshot_bytes_sent: u64,
    pub(super) snapshot_bytes_received: u64,
}

impl State {
    pub(super) fn new(group: Group, found: super::open::Found) -> Self {
        let hard_state = found.hard_state;
        let applied = group.applied();
        Self {
            group,
            places: found.places,
            members: found.members,
            memory: Memory::Following,
            term: 0,
            cuts: vec![Position::default()],
            pending: VecDeque::new(),
            proposed_end: Position::default(),
            last_told: applied,
            waiters: Waiters::default(),
            checks: Checks::default(),
            told: Vec::new(),
            unsynced: VecDeque::new(),
            unwritten: VecDeque::new(),
            hard_state,
            written_state: hard_state,
            outgoing: Vec::new(),
            fetches: Vec::new(),
            followed: Vec::new(),
            is_stopping: false,
            is_started: false,
            is_paused: false,
            has_failed: false,
            is_broken: false,
            unwell_ticks: 0,
            handovers: 0,
            disk_watch: DiskWatch::default(),
            lags: Lags::default(),
            loaded: (applied, Position::default()),
            pinned: None,
            sending: None,
            sent_last: None,
            failed_sends: FailedSends::default(),
            waiting_ticks: 0,
            staged: None,
            accepted: None,
            installing: None,
            stale: Vec::new(),
            changes: Vec::new(),
            snapshot_wanted: false,
            elections: 0,
            snapshots_sent: 0,
            snapshots_received: 0,
            snapshot_bytes_sent: 0,
            snapshot_bytes_received: 0,
        }
    }

    /// Up to where what this node proposed is committed.
    pub(super) fn safe_to(&self) -> Position {
        self.pending.front().map_or(END, |(_, at)| *at)
    }

    /// Up to where entries were known to be committed when that was last written down.
    pub(super) const fn written_commit(&self) -> LogIndex {
        self.written_state.commit
    }

    /// The leader gives its word for a state. Whether it is here.
    fn accept(&mut self, snapshot: &Snapshot) -> bool {
        if let Some(staged) = self.staged.take_if(|staged| staged.is_for(snapshot)) {
            self.stale.extend(self.accepted.replace(staged));
        }
        self.accepted.as_ref().is_some_and(|staged| staged.is_for(snapshot))
    }

    /// Whether this node has all that a state stands for, so that the group only answers.
    fn has(&self, snapshot: &Snapshot) -> bool {
        let EntryId { term, index } = snapshot.last;
        self.installing.is_none() && index <= self.group.commit() && self.group.term_of(index) == Some(term)
    }

    /// Lets go of states for which no word comes any more: their entries have come otherwise, or whoever sent them leads no more.
    fn forget_stale_states(&mut self) {
        let (applied, term) = (self.group.applied(), self.group.term());
        for kept in [&mut self.staged, &mut self.accepted] {
            self.stale.extend(kept.take_if(|staged| staged.is_stale(applied, term)));
        }
    }

    /// Somebody has panicked in the middle of something. The driver does the rest.
    pub(super) fn note_broken(&mut self) {
        self.cut_off();
        (self.is_broken, self.memory) = (true, Memory::Deposed);
    }

    /// What was proposed in this term and is not committed by now is never told as safe.
    fn cut_off(&mut self) {
        if matches!(self.memory, Memory::Serving(_)) {
            let cut = self.safe_to();
            self.cuts.push(cut);
        }
    }

    /// Whether this node keeps still until it is started again.
    pub(super) const fn takes_no_part(&self) -> bool {
        self.is_stopping || self.has_failed || self.is_broken
    }

    /// Whether this node leads, be it that its memory is still being built.
    pub(super) const fn leads(&self) -> bool {
        matches!(self.memory, Memory::Serving(_) | Memory::Promoted(_))
    }

    /// The last write that is not synced, if it brings entries: the last of these, where it ends, and since when it has waited.
    pub(super) fn last_unsynced(&self) -> Option<(LogIndex, Position, Instant)> {
        let write = self.unsynced.back()?;
        Some((write.last?, write.end, write.since))
    }

    /// Whether something waits for room in the log.
    pub(super) fn is_behind(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Whether there is something to do that may take a while, which is left to the driver.
    pub(super) fn has_work_left(&self) -> bool {
        self.snapshot_wanted
            || self.installing.is_some()
            || !(self.followed.is_empty() && self.fetches.is_empty() && self.unwritten.is_empty())
            || !self.stale.is_empty()
    }

    /// Whether there is no room for a proposal of this size.
    pub(super) fn is_busy(&self) -> bool {
        self.is_paused || self.is_behind()
    }

    /// Members as of an entry that is committed.
    pub(super) fn members_at(&self, index: LogIndex) -> Membership {
        let known = self.members.iter().rev().find(|(at, _)| *at <= index);
        known.map_or_else(|| self.group.members().clone(), |(_, members)| members.clone())
    }

    /// What a checkpoint has to say of the group, if it stands for all before this position.
    pub(super) fn mark(&self, replay_from: Position, discarded: Vec<Position>) -> GroupMark {
        let last = self.places.last_before(replay_from);
        // It must not promise what is not written down before it.
        let commit = self.hard_state.commit.min(self.places.last().index);
        let hard_state = HardState { commit, ..self.hard_state };
        GroupMark { last, members: self.members_at(last.index), hard_state, discarded }
    }
}

impl Replica {
    /// Does what the group has given out. To be called under the lock after each input. What is to be sent, and who is to be told,
    /// is left to the driver: whoever else calls this wakes it.
    pub(super) fn settle(&self, state: &mut State) {
        loop {
            let output = state.group.take_output();
            if output.is_empty() {
                break;
            }
            for write in output.writes {
                self.take_write(state, write);
            }
            for event in output.events {
                self.take_event(state, event);
            }
            self.tell_committed(state);
            state.outgoing.extend(output.messages);
            state.fetches.extend(output.fetches);
        }
        self.publish_role(state);
    }

    /// Whoever waits for what is committed by now can be told.
    fn tell_committed(&self, state: &mut State) {
        let safe_to = state.safe_to();
        if matches!(state.memory, Memory::Serving(_)) {
            self.safe.raise(safe_to.min(state.proposed_end));
        }
        state.told.extend(state.waiters.take_until(safe_to));
    }

    fn take_write(&self, state: &mut State, write: Write) {
        if let Some(snapshot) = &write.installed {
            let staged = state.accepted.take_if(|staged| staged.is_for(snapshot));
            assert!(staged.is_some(), "a word is taken only for a state that is here");
            state.installing = Some(Installing { number: write.number, staged });
            // The rest of it is written with the state, which takes the place of what waits.
            for waiting in state.unwritten.drain(..) {
                state.hard_state = waiting.hard_state.unwrap_or(state.hard_state);
            }
            if let Some(hard_state) = write.hard_state {
                state.hard_state = hard_state;
            }
            return;
        }
        state.unwritten.push_back(write);
        self.write_more(state);
    }

    /// Appends what waits to be written, as far as the log takes it.
    pub(super) fn write_more(&self, state: &mut State) {
        // Nothing goes behind a state that is not in its place yet.
        while state.installing.is_none() {
            let Some(write) = state.unwritten.pop_front() else { return };
            if !self.write_one(state, &write) {
                state.unwritten.push_front(write);
                return;
            }
        }
    }

    /// Appends a write. `false` if the log has no room for all of it.
    fn write_one(&self, state: &mut State, write: &Write) -> bool {
        if let Some(hard_state) = write.hard_state {
            state.hard_state = hard_state;
        }
        let promises = |of: &HardState| (of.term, of.vote);
        let is_promise = promises(&state.hard_state) != promises(&state.written_state);
        let mut end = Position::default();
        for entry in &write.entries {
            match self.write_entry(state, entry) {
                Ok(at) => end = end.max(at),
                Err(error) => {
                    tracing::debug!(%error, "an entry of the group waits for room in the log");
                    if matches!(error, AppendError::Full { .. })
                        && let Some(hook) = self.on_full.get()
                    {
                        hook();
                    }
                    return false;
                }
            }
        }
        if is_promise || (write.is_urgent && write.entries.is_empty()) {
            match self.write_hard_state(state) {
                Ok(at) => end = end.max(at),
                Err(_) => return false,
            }
        }
        if write.is_urgent {
            let last = write.entries.last().map(|entry| entry.id.index);
            state.unsynced.push_back(Unsynced { number: write.number, end, last, since: Instant::now() });
            self.log.want_synced(end);
        }
        true
    }

    fn write_entry(
        &self,
        state: &mut State,
        entry: &nexo_cluster::GroupEntry,
    ) -> Result<Position, nexo_log::AppendError> {
        if let Some(place) = state.places.get(entry.id.index).filter(|place| place.id == entry.id) {
            return Ok(place.end);
        }
        let head = match &entry.payload {
            Payload::Data(_) => GroupRecord::Entry(entry.id, Payload::Data(Bytes::new())),
            Payload::Stored => unreachable!("it was appended when it was proposed"),
            payload => GroupRecord::Entry(entry.id, payload.clone()),
        };
        let head = head.encode();
        let body: Vec<Entry> = match &entry.payload {
            // It was checked when it came.
            Payload::Data(data) => decode_entries(data).unwrap_or_default(),
            Payload::Blank | Payload::Stored | Payload::Change(_) => Vec::new(),
        };
        let entries: Vec<EntryRef<'_>> =
            std::iter::once(head_entry(&head)).chain(body.iter().map(as_ref)).collect();
        let appended =
            self.log.append_with(&entries, Urgency::Lazy, Claim::Reserved, Patience::RefuseLast)?;
        self.note_place(state, Place { id: entry.id, at: appended.at, end: appended.end });
        Ok(appended.end)
    }

    /// An entry lies there.
    pub(super) fn note_place(&self, state: &mut State, place: Place) {
        match state.places.push(place) {
            Some(replaced) => {
                if !replaced.is_empty() {
                    tracing::debug!(entries = replaced.len(), from = %place.id.index, "entries were never committed and are replaced");
                    self.discarded.add(replaced);
                }
            }
            None => {
                tracing::error!(index = %place.id.index, last = %state.places.last().index, "an entry does not follow the one before")
            }
        }
    }

    fn write_hard_state(&self, state: &mut State) -> Result<Position, nexo_log::AppendError> {
        // It must not promise what is not written down before it.
        state.hard_state.commit = state.hard_state.commit.min(state.places.last().index);
        let record = GroupRecord::HardState(state.hard_state).encode();
        let appended = self.log.append_with(
            &[head_entry(&record)],
            Urgency::Lazy,
            Claim::Reserved,
            Patience::RefuseLast,
        )?;
        state.written_state = state.hard_state;
        Ok(appended.end)
    }

    fn take_event(&self, state: &mut State, event: Event) {
        match event {
            Event::Committed { entry, proposed_here } => {
                state.last_told = entry.id.index;
                while state.pending.front().is_some_and(|(index, _)| *index <= entry.id.index) {
                    state.pending.pop_front();
                }
                for (id, teller) in state.changes.extract_if(.., |(id, _)| id.index <= entry.id.index) {
                    let outcome = if id == entry.id { Ok(()) } else { Err(TicketError::Lost) };
                    let _ = teller.send(outcome);
                }
                if let Payload::Data(data) = entry.payload
                    && !proposed_here
                    && has_followed(&data)
                {
                    state.followed.push((entry.id.index, data));
                }
            }
            Event::MembersChanged(members) => {
                // Entries are told in bunches, and this one may not be the last of its bunch.
                let index = state.last_told;
                tracing::info!(voters = ?members.voters, learners = ?members.learners, "the members of the cluster have changed");
                state.members.push((index, members));
            }
            Event::Leading { term } => {
                tracing::info!(%term, "this node leads");
                state.elections += 1;
                state.memory = Memory::Promoted(term);
                self.tell_change();
            }
            Event::Deposed { term } => {
                tracing::warn!(%term, uncommitted = state.pending.len(), "this node leads no more");
                self.end_term(state);
                state.memory = Memory::Deposed;
                state.disk_watch.note_handover();
                self.tell_change();
            }
            Event::Restored(_) => {}
            Event::LeadershipChecked { check } => {
                state.checks.answered(check);
                if state.checks.is_due() {
                    self.waker.wake();
                }
            }
            Event::SnapshotWanted => state.snapshot_wanted = true,
        }
    }

    /// Whoever waits for what was proposed here is told that it is not known.
    pub(super) fn end_term(&self, state: &mut State) {
        self.tell_committed(state);
        state.told.drain(..).for_each(|teller| drop(teller.send(Ok(()))));
        state.cut_off();
        state.pending.clear();
        state.waiters.take_all().for_each(|teller| drop(teller.send(Err(TicketError::Lost))));
        state.checks.fail();
        state.changes.clear();
        state.failed_sends.clear();
    }

    /// This node keeps still from now on, so that another is elected.
    pub(super) fn fail(&self, state: &mut State) {
        state.has_failed = true;
        self.end_term(state);
        state.memory = Memory::Deposed;
        self.publish_role(state);
        self.tell_change();
    }

    pub(super) fn tell_change(&self) {
        if let Some(hook) = self.on_change.get() {
            hook();
        }
    }

    fn publish_role(&self, state: &State) {
        let role = match state.memory {
            Memory::Serving(term) => Role::Leading { term },
            Memory::Promoted(_) => Role::Following { leader: None },
            Memory::Deposed | Memory::Following => {
                // Who hears nothing any more does not know.
                let leader = state.group.leader().filter(|_| !state.has_failed);
                Role::Following { leader: leader.filter(|leader| *leader != self.node) }
            }
        };
        let is_alone = role.is_leading() && state.group.is_alone();
        self.is_alone.store(is_alone, Ordering::Release);
        // Whoever waits then waits for the log itself.
        self.waker.set_ignores_syncs(is_alone);
        self.role.send_if_modified(|before| std::mem::replace(before, role) != role);
    }

    /// Messages have come.
    pub(super) fn take_messages(&self, state: &mut State) {
        let Inbox { arrivals, .. } = std::mem::take(&mut *self.inbox.lock());
        for (from, arrival) in arrivals {
            let envelope = match arrival {
                Arrival::Envelope(envelope) => envelope,
                Arrival::End => {
                    state.group.lost_contact(from);
                    self.settle(state);
                    continue;
                }
            };
            let messages = match nexo_cluster::wire::decode_envelope(&envelope) {
                Ok(messages) => messages,
                Err(error) => {
                    tracing::warn!(%from, %error, "a message of another node cannot be read");
                    continue;
                }
            };
            for (_, message) in messages {
                if !self.is_sound(state, &message) {
                    continue;
                }
                if let Err(error) = state.group.receive(from, message) {
                    tracing::warn!(%from, %error, "a message of another node is not taken");
                }
                self.settle(state);
            }
        }
    }

    /// Whether what a message brings can be written down here.
    fn is_sound(&self, state: &mut State, message: &Message) -> bool {
        match &message.body {
            Body::Append { entries, .. } => entries.iter().all(|entry| match &entry.payload {
                Payload::Data(data) => walk_queues(data, |_| ()).is_some(),
                Payload::Blank | Payload::Stored | Payload::Change(_) => true,
            }),
            // A node with a hole in its log has nothing to lead with.
            Body::TimeoutNow if self.is_damaged() => false,
            Body::TimeoutNow => {
                state.disk_watch.note_handover();
                true
            }
            // Without the state that it stands for it would take everything and give nothing. Whoever has it already says so
            // again: the leader may not have heard it.
            Body::Install(snapshot) => state.has(snapshot) || state.accept(snapshot),
            _ => true,
        }
    }

    /// Asks a majority whether this node leads, if somebody wants to know.
    pub(super) fn check_leadership(&self, state: &mut State) {
        if !state.checks.is_due() {
            return;
        }
        match state.group.check_leadership() {
            Ok(number) => state.checks.ask(number),
            Err(_) => state.checks.fail(),
        }
        self.settle(state);
    }

    /// Time passes.
    pub(super) fn tick(&self, state: &mut State) {
        if state.hard_state.commit < state.group.commit() {
            state.hard_state.commit = state.group.commit();
        }
        if state.hard_state != state.written_state && state.installing.is_none() && state.unwritten.is_empty()
        {
            // It may be behind, so nobody waits for it.
            let _ = self.write_hard_state(state);
        }
        self.write_more(state);
        state.forget_stale_states();
        state.group.tick();
        self.settle(state);
        let waits = state.group.role() == GroupRole::Leader && state.memory == Memory::Following;
        state.waiting_ticks = if waits { state.waiting_ticks + 1 } else { 0 };
        state.note_lags();
        self.look_for_damage(state);
        self.hand_over_if_unwell(state);
        self.hand_over_if_slow(state);
    }

    /// A leader that cannot write holds all others up, and one that cannot read has nothing to give.
    fn hand_over_if_unwell(&self, state: &mut State) {
        let is_unwell = self.log.health() != LogHealth::Ok || self.is_damaged();
        state.unwell_ticks = if is_unwell { state.unwell_ticks + 1 } else { 0 };
        if state.unwell_ticks < UNWELL_TICKS_MAX || !state.leads() {
            return;
        }
        state.unwell_ticks = 0;
        // The one that has most may be unwell itself.
        let successors = state.successors();
        let next = successors.get(state.handovers % successors.len().max(1)).copied();
        state.handovers += 1;
        if let Some(node) = next {
            tracing::warn!(to = %node, "this node's disk is full, damaged or has failed: leadership is handed over");
            let _ = state.group.hand_over(node);
            self.settle(state);
        }
    }

    /// What is synced may be told to the group.
    pub(super) fn note_synced(&self, state: &mut State) {
        let synced = self.log.synced_position();
        let mut last = None;
        while state.unsynced.front().is_some_and(|write| write.end <= synced) {
            last = state.unsynced.pop_front();
        }
        if let Some(Unsynced { number, .. }) = last {
            state.group.stored(number);
            self.settle(state);
        }
    }

    /// Where the entries lie that followers want which are slow.
    pub(super) fn take_fetches(&self, state: &mut State) -> Vec<(Fetch, Vec<Place>)> {
        let fetches = std::mem::take(&mut state.fetches);
        fetches.into_iter().map(|fetch| (fetch, state.places.of(fetch))).collect()
    }

    /// Reads these, without the lock, and has them sent.
    pub(super) fn read_fetches(&self, wanted: Vec<(Fetch, Vec<Place>)>) {
        for (fetch, places) in wanted {
            let mut entries = Vec::new();
            for place in places {
                match read_entry(&self.log, place) {
                    Ok(entry) => entries.push(entry),
                    Err(error) => {
                        tracing::error!(%error, index = %place.id.index, "an entry cannot be read");
                        break;
                    }
                }
            }
            let mut state = self.state.lock();
            state.group.fetched(fetch, entries);
            self.settle(&mut state);
            drop(state);
            self.waker.wake();
        }
    }

    /// The state before the first position is in a checkpoint. Entries before the second are not kept for others any more.
    /// Gives back before which position nothing is kept.
    pub(super) fn note_checkpoint(&self, replay_from: Position, given_up_before: Position) -> Position {
        let mut state = self.state.lock();
        if state.takes_no_part() {
            let first = state.places.first_at();
            return first.map_or(given_up_before, |first| given_up_before.min(first));
        }
        // What is in a checkpoint is committed, but that may not have been looked at yet.
        self.settle(&mut state);
        self.note_synced(&mut state);
        let last = state.places.last_before(replay_from);
        let given_up = state.places.last_before(given_up_before).index;
        let too_many = LogIndex(last.index.0.saturating_sub(KEPT_ENTRIES_MAX));
        let purge_to = given_up.max(too_many);
        let purge_to = state.pinned.map_or(purge_to, |pinned| purge_to.min(pinned));
        if last.index == LogIndex(0) || last.index > state.group.applied() {
            self.waker.wake();
            return state.places.first_at().map_or(given_up_before, |first| given_up_before.min(first));
        }
        let taken = Snapshot { last, members: state.members_at(last.index), data: Bytes::new() };
        state.group.compact(taken, purge_to);
        let purged = state.group.purged().index;
        state.places.purge(purged);
        let keep_from = state.members.iter().rposition(|(index, _)| *index <= purged).unwrap_or(0);
        state.members.drain(..keep_from);
        self.settle(&mut state);
        let given_up = state.places.first_at().map_or(given_up_before, |first| given_up_before.min(first));
        drop(state);
        self.waker.wake();
        given_up
    }
}

impl State {
    fn note_lags(&mut self) {
        if self.group.role() == GroupRole::Leader {
            self.lags.tick(self.group.last(), self.group.progress());
        } else {
            self.lags.clear();
        }
    }

    /// The other voters, by how much of the log they have.
    pub(super) fn successors(&self) -> Vec<NodeId> {
        let voters = &self.group.members().voters;
        let mut others: Vec<_> = self.group.progress().filter(|(node, _)| voters.contains(node)).collect();
        others.sort_by_key(|(_, index)| std::cmp::Reverse(*index));
        others.into_iter().map(|(node, _)| node).collect()
    }

    /// The other voter that has most of the log.
    pub(super) fn best_successor(&self) -> Option<NodeId> {
        self.successors().first().copied()
    }
}

impl crate::shared::Shared {
    /// Has the replica tell this broker what other nodes have proposed, and who needs its whole state.
    pub(crate) fn follow_leaders(self: &std::sync::Arc<Self>) {
        let Some(replica) = &self.replica else { return };
        let weak = std::sync::Arc::downgrade(self);
        let _ = replica.on_followed.set(Box::new(move |index, entries| {
            if let Some(shared) = weak.upgrade() {
                shared.follow_records(index, entries);
            }
        }));
        let _ = replica.on_full.set(self.maintenance.full_note());
        let (weak, of) = (std::sync::Arc::downgrade(self), std::sync::Arc::downgrade(replica));
        let _ = replica.on_send_state.set(Box::new(move |to| {
            if let (Some(shared), Some(replica)) = (weak.upgrade(), of.upgrade()) {
                shared.send_state(&replica, to);
            }
        }));
    }
}
