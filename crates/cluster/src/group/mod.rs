//! One Raft group as one of its members sees it.
//!
//! Inputs are methods; what comes of them collects until [`Group::take_output`]. The rule of syncs is kept in here: a message
//! that promises something (a vote, entries that are there) is given out when [`Group::stored`] has told that what it
//! promises is synced, and not before. So no caller can send it too early.

mod output;
mod ready;
mod screen;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use nexo_types::limits::{
    RAFT_APPEND_BYTES_MAX, RAFT_APPENDS_IN_FLIGHT_MAX, RAFT_UNCOMMITTED_BYTES_MAX,
    RAFT_UNCOMMITTED_ENTRIES_MAX,
};
use nexo_types::{LogIndex, NodeId, RaftGroupId, Term};
use raft::eraftpb::{Entry as RaftEntry, Message as RaftMessage, MessageType};
use raft::{Config, ProgressState, RawNode, SnapshotStatus, StateRole};

pub use output::{Event, OpenError, Output, Refused, Rejected, Role, SnapshotOutcome, Write, WriteNumber};

use crate::entry::{EntryId, Payload, Snapshot};
use crate::membership::{Change, Membership};
use crate::message::{Body, Message};
use crate::store::Recovered;
use crate::tail::{Fetch, Tail};
use crate::timing::{
    ELECTION_TICKS_END, ELECTION_TICKS_MIN, HEARTBEAT_TICKS, SNAPSHOT_TICKS_MAX, contact_ticks,
    election_ticks,
};
use crate::translate::{
    change_in, check_context, entry_in, hard_state_in, members_in, message_in, proposal_in,
};

/// How a group is set up on a node.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// The group.
    pub id: RaftGroupId,
    /// This node.
    pub node: NodeId,
    /// This node's place in the line of those who should lead: 0 calls elections first.
    pub rank: usize,
    /// Of this the times of elections follow, so that nodes differ and a simulation repeats.
    pub seed: u64,
}

/// A group: see the file.
pub struct Group {
    options: GroupOptions,
    raw: RawNode<Tail>,
    members: Membership,
    /// Elections of this node in a term that came to nothing.
    attempts: (Term, u64),
    /// The term in which this node leads and is ready to.
    leading: Option<Term>,
    /// What this node proposed in that term and is not committed, in order.
    proposed: VecDeque<LogIndex>,
    /// What was proposed since the last other input: the library gets it all at once, and sends it in one message.
    queued: Vec<RaftEntry>,
    queued_bytes: usize,
    checks: u64,
    /// Writes that promise something, were given out and are not synced.
    unsynced: VecDeque<Unsynced>,
    writes: u64,
    /// Up to this write, terms and votes are not synced: until then nothing goes out at all.
    fence: WriteNumber,
    synced: WriteNumber,
    /// A state from the leader that is being written: where it ends.
    installing: Option<(WriteNumber, LogIndex)>,
    ticks: u64,
    /// The term in which this node's heartbeats fall on the ticks on which those of all groups do.
    in_phase: Option<Term>,
    /// Snapshots on their way, with the ticks since.
    snapshots: BTreeMap<NodeId, u32>,
    output: Output,
}

/// What waits for a write.
#[derive(Debug)]
struct Unsynced {
    number: WriteNumber,
    /// The library's number for it, if it came from there.
    ready: Option<u64>,
    messages: Vec<(NodeId, Message)>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("options", &self.options)
            .field("role", &self.role())
            .field("term", &self.term())
            .field("commit", &self.commit())
            .field("last", &self.last())
            .finish_non_exhaustive()
    }
}

impl Group {
    /// Opens a group with what is stored of it. The state machine is to be in the state of the snapshot that is stored: the
    /// entries after it are told as they get committed.
    ///
    /// # Errors
    /// If what is stored cannot be a group's state.
    pub fn open(options: GroupOptions, recovered: Recovered) -> Result<Self, OpenError> {
        let Recovered { mut hard_state, snapshot, members, purged, terms, entries } = recovered;
        let last = entries.last().map_or(snapshot.index, |entry| entry.id.index);
        if hard_state.commit > last {
            return Err(OpenError::LostEntries { commit: hard_state.commit, last });
        }
        hard_state.commit = hard_state.commit.max(snapshot.index);
        let applied = snapshot.index;
        let initial = (hard_state_in(&hard_state), members_in(&members));
        let mut tail = Tail::new(initial, purged, applied);
        terms.into_iter().for_each(|id| tail.push_term(id));
        let entries: Vec<_> = entries.into_iter().map(entry_in).collect();
        tail.append(&entries);
        let config = Config {
            id: options.node.0,
            election_tick: ELECTION_TICKS_MIN,
            min_election_tick: ELECTION_TICKS_MIN,
            max_election_tick: ELECTION_TICKS_END,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: applied.0,
            max_size_per_msg: RAFT_APPEND_BYTES_MAX as u64,
            max_inflight_msgs: RAFT_APPENDS_IN_FLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            max_uncommitted_size: RAFT_UNCOMMITTED_BYTES_MAX as u64,
            // Followers are told what is committed with the next entries, or with the next heartbeat.
            skip_bcast_commit: true,
            ..Config::default()
        };
        let silent = slog::Logger::root(slog::Discard, slog::o!());
        let raw =
            RawNode::new(&config, tail, &silent).map_err(|error| OpenError::Unsound(error.to_string()))?;
        let mut group = Self {
            options,
            raw,
            members,
            attempts: (hard_state.term, 0),
            leading: None,
            proposed: VecDeque::new(),
            queued: Vec::new(),
            queued_bytes: 0,
            checks: 0,
            unsynced: VecDeque::new(),
            writes: 0,
            fence: WriteNumber(0),
            synced: WriteNumber(0),
            installing: None,
            ticks: 0,
            in_phase: None,
            snapshots: BTreeMap::new(),
            output: Output::default(),
        };
        group.settle();
        Ok(group)
    }

    /// Time passes: one tick.
    pub fn tick(&mut self) {
        self.collect();
        let overdue: Vec<NodeId> = self.overdue_snapshots();
        for node in overdue {
            self.snapshot_sent(node, SnapshotOutcome::Failed);
        }
        // A node whose disk does not keep up should not lead. Besides, the library counts on a single voter having synced all
        // when it calls an election.
        if self.role() != Role::Leader && !self.unsynced.is_empty() {
            return;
        }
        if self.is_out_of_phase() {
            return;
        }
        self.hand_over_if_demoted();
        let before = self.raw.raft.state;
        if self.raw.tick() && before != StateRole::Leader {
            let term = Term(self.raw.raft.term);
            let failed = if self.attempts.0 == term { self.attempts.1 + 1 } else { 0 };
            self.attempts = (term, failed);
        }
        self.settle();
    }

    /// A leader that is no voter any more hands over. It was elected before that change was committed, which one before it had
    /// proposed. It could lead on, but not change members: nobody could be replaced.
    fn hand_over_if_demoted(&mut self) {
        let leads = self.role() == Role::Leader && self.raw.raft.lead_transferee.is_none();
        if !leads || self.members.voters.contains(&self.options.node) {
            return;
        }
        let mut voters: Vec<_> = self.progress().filter(|(id, _)| self.members.voters.contains(id)).collect();
        voters.sort_unstable_by_key(|(_, matched)| std::cmp::Reverse(*matched));
        // Whoever has most may be down: then another is tried after an election's time.
        let turn = self.ticks as usize / ELECTION_TICKS_END;
        if let Some((to, _)) = turn.checked_rem(voters.len()).and_then(|turn| voters.get(turn)) {
            self.raw.transfer_leader(to.0);
        }
    }

    /// A new leader waits for a tick, if its heartbeats would fall between those of others.
    fn is_out_of_phase(&mut self) -> bool {
        self.ticks += 1;
        if self.role() != Role::Leader || self.in_phase == Some(self.term()) {
            return false;
        }
        self.in_phase = Some(self.term());
        self.ticks.is_multiple_of(HEARTBEAT_TICKS as u64)
    }

    /// So many ticks have been counted by those with whom this group's heartbeats shall travel.
    pub(crate) const fn count_from(&mut self, ticks: u64) {
        self.ticks = ticks;
    }

    fn overdue_snapshots(&mut self) -> Vec<NodeId> {
        let progress = self.raw.raft.prs();
        let is_under_way = |node: &NodeId| {
            progress.get(node.0).is_some_and(|progress| progress.state == ProgressState::Snapshot)
        };
        let leads = self.raw.raft.state == StateRole::Leader;
        self.snapshots.retain(|node, _| leads && is_under_way(node));
        self.snapshots.values_mut().for_each(|ticks| *ticks += 1);
        let overdue = self.snapshots.iter().filter(|(_, ticks)| **ticks > SNAPSHOT_TICKS_MAX);
        overdue.map(|(node, _)| *node).collect()
    }

    /// A message has come from a member.
    ///
    /// # Errors
    /// If no sound member sends it; it is not taken then.
    pub fn receive(&mut self, from: NodeId, message: Message) -> Result<(), Rejected> {
        self.flush();
        self.screen(from, &message)?;
        if self.installing.is_some() && message.body == Body::TimeoutNow {
            // It has no log to be elected with.
            return Ok(());
        }
        // The library refuses what it has no use for; the sender need not know.
        let _ = self.raw.step(message_in(from, self.options.node, message));
        self.settle();
        Ok(())
    }

    /// The name that the next proposal gets, if it is taken.
    ///
    /// # Errors
    /// If it would not be.
    pub fn next_proposal(&self, bytes: usize) -> Result<EntryId, Refused> {
        if self.role() != Role::Leader {
            return Err(Refused::NotLeader { leader: self.leader() });
        }
        let Some(term) = self.leading else { return Err(Refused::NotReady) };
        // One that was removed leads until it has handed over, and the library takes nothing from it.
        let is_member = self.raw.raft.prs().get(self.options.node.0).is_some();
        if self.raw.raft.lead_transferee.is_some() || !is_member {
            return Err(Refused::HandingOver);
        }
        let waiting = self.raw.raft.uncommitted_size() + self.queued_bytes;
        if waiting > 0 && waiting + bytes > RAFT_UNCOMMITTED_BYTES_MAX {
            return Err(Refused::Busy);
        }
        if self.proposed.len() >= RAFT_UNCOMMITTED_ENTRIES_MAX {
            return Err(Refused::Busy);
        }
        Ok(EntryId::new(term, self.last().next()))
    }

    /// Proposes what state machines have decided. It gets this name at once; whether it is committed is told by events.
    ///
    /// # Errors
    /// If it was not taken.
    ///
    /// # Panics
    /// If there is no data.
    pub fn propose(&mut self, data: Bytes) -> Result<EntryId, Refused> {
        assert!(!data.is_empty(), "a proposal says something");
        let bytes = data.len();
        let id = self.next_proposal(bytes)?;
        self.queue(id, Payload::Data(data), bytes);
        Ok(id)
    }

    /// Proposes what the caller has written down and can read again: so many bytes. To be asked of the only member alone
    /// ([`Self::is_only_member`]); should another come that needs them they are fetched.
    ///
    /// # Errors
    /// If it was not taken.
    ///
    /// # Panics
    /// If there are other members, or may be soon.
    pub fn propose_stored(&mut self, bytes: usize) -> Result<EntryId, Refused> {
        assert!(self.is_only_member(), "others would have to be told");
        let id = self.next_proposal(bytes)?;
        self.queue(id, Payload::Stored, bytes);
        Ok(id)
    }

    fn queue(&mut self, id: EntryId, payload: Payload, bytes: usize) {
        if self.queued_bytes + bytes > RAFT_APPEND_BYTES_MAX {
            self.flush();
        }
        self.queued_bytes += bytes;
        self.queued.push(proposal_in(payload));
        self.proposed.push_back(id.index);
    }

    /// Gives the library what was proposed. It takes all of it: whether it would was asked for each, and no other input has
    /// come since.
    fn flush(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        self.queued_bytes = 0;
        let entries = std::mem::take(&mut self.queued);
        let last = self.raw.raft.raft_log.last_index() + entries.len() as u64;
        let stepped = self.step_proposals(entries);
        assert!(
            stepped.is_ok() && self.raw.raft.raft_log.last_index() == last,
            "the library takes what was promised"
        );
    }

    fn step_proposals(&mut self, entries: Vec<RaftEntry>) -> raft::Result<()> {
        let mut message = RaftMessage::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.options.node.0;
        message.set_entries(entries.into());
        self.raw.step(message)
    }

    /// Bytes that were proposed and not given out yet, neither to be stored nor to be sent.
    #[must_use]
    pub const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Proposes another membership. Only one such change is under way at a time.
    ///
    /// # Errors
    /// If it was not taken.
    pub fn change_members(&mut self, change: Change) -> Result<EntryId, Refused> {
        self.flush();
        let id = self.next_proposal(0)?;
        if self.raw.raft.has_pending_conf() {
            return Err(Refused::ChangePending);
        }
        let after = self.members.after(change);
        // A leader that is not a voter any more would lead on without counting itself.
        if after == self.members || !after.is_sound() || !after.voters.contains(&self.options.node) {
            return Err(Refused::BadChange);
        }
        if let Change::AddVoter(node) = change
            && !self.has_caught_up(node)
        {
            return Err(Refused::NotCaughtUp(node));
        }
        if self.step_proposals(vec![proposal_in(Payload::Change(change))]).is_err() {
            return Err(Refused::Busy);
        }
        debug_assert_eq!(self.last(), id.index, "a proposal is one entry");
        self.proposed.push_back(id.index);
        Ok(id)
    }

    /// Whether what is synced here is committed: there is no other voter, and there will be none before what was proposed so
    /// far is committed.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.leading.is_some()
            && self.members.voters.iter().eq([&self.options.node])
            && !self.raw.raft.has_pending_conf()
    }

    /// Whether there is nobody else to whom entries go, and will be nobody before what was proposed so far is committed.
    #[must_use]
    pub fn is_only_member(&self) -> bool {
        self.is_alone() && self.members.learners.is_empty()
    }

    /// Whether a learner has a state and gets entries. A voter without could be needed for a majority before it has any.
    fn has_caught_up(&self, node: NodeId) -> bool {
        let progress = self.raw.raft.prs().get(node.0);
        progress.is_some_and(|progress| {
            progress.state != ProgressState::Snapshot && progress.matched >= self.purged().index.0
        })
    }

    /// Hands leadership over. Until that has come about, or to nothing after an election's time, proposals are refused.
    ///
    /// # Errors
    /// If this node does not lead, or the other is no voter.
    pub fn hand_over(&mut self, to: NodeId) -> Result<(), Refused> {
        if self.role() != Role::Leader {
            return Err(Refused::NotLeader { leader: self.leader() });
        }
        if !self.members.voters.contains(&to) || to == self.options.node {
            return Err(Refused::NotVoter(to));
        }
        self.flush();
        self.raw.transfer_leader(to.0);
        self.settle();
        Ok(())
    }

    /// Asks a majority whether this node leads still, without relying on any clock. The answer is an event.
    ///
    /// # Errors
    /// If it does not lead, as far as it knows. If it is deposed meanwhile there is no answer but that.
    pub fn check_leadership(&mut self) -> Result<u64, Refused> {
        if self.role() != Role::Leader {
            return Err(Refused::NotLeader { leader: self.leader() });
        }
        if self.leading.is_none() {
            return Err(Refused::NotReady);
        }
        self.flush();
        self.checks += 1;
        self.raw.read_index(check_context(self.checks));
        self.settle();
        Ok(self.checks)
    }

    /// Calls an election now, for instance because this node is the only one.
    pub fn campaign(&mut self) {
        self.collect();
        if self.unsynced.is_empty() {
            // Who leads already, or may not, is let be.
            let _ = self.raw.campaign();
            self.settle();
        }
    }

    /// A write and all before it are synced.
    pub fn stored(&mut self, number: WriteNumber) {
        self.flush();
        while self.unsynced.front().is_some_and(|write| write.number <= number) {
            let Some(write) = self.unsynced.pop_front() else { break };
            self.synced = write.number;
            if let Some(ready) = write.ready {
                self.raw.on_persist_ready(ready);
            }
            self.output.messages.extend(write.messages);
        }
        if let Some((_, index)) = self.installing.take_if(|(write, _)| *write <= self.synced) {
            self.raw.advance_apply_to(index.0);
        }
        self.settle();
    }

    /// The state machine's state was saved as of an entry that was told as committed: it stands for all entries before.
    /// Entries up to `purge_to`, which is not behind that, are not needed any more, but for followers that are slow.
    pub fn compact(&mut self, taken: Snapshot, purge_to: LogIndex) {
        self.collect();
        if self.installing.is_some() {
            // A state from the leader is being written, and is as good.
            return;
        }
        assert!(
            taken.last.index.0 <= self.raw.raft.raft_log.applied,
            "only what is committed is in a snapshot"
        );
        let purged = self.raw.store().purged();
        let purge_to = purge_to.min(taken.last.index);
        let term = self.raw.store().term_of(purge_to);
        let purge = term.map(|term| EntryId::new(term, purge_to)).filter(|id| id.index > purged.index);
        if let Some(purge) = purge {
            self.raw.mut_store().purge(purge);
        }
        self.give_write(
            Write { taken: Some(taken), purged: purge, is_urgent: false, ..empty_write() },
            None,
            vec![],
        );
    }

    /// A state that may be sent to followers which need one.
    pub fn offer_snapshot(&mut self, snapshot: Snapshot) {
        self.raw.mut_store().offer(snapshot);
    }

    /// No snapshot is offered any more: whoever needs one is waited for with [`Event::SnapshotWanted`].
    pub fn withdraw_snapshot(&mut self) {
        self.raw.mut_store().withdraw();
    }

    /// What became of a snapshot that was given out to be sent. If nothing is told, it counts as failed after three seconds.
    pub fn snapshot_sent(&mut self, to: NodeId, outcome: SnapshotOutcome) {
        self.flush();
        self.snapshots.remove(&to);
        self.raw.report_snapshot(
            to.0,
            match outcome {
                SnapshotOutcome::Arrived => SnapshotStatus::Finish,
                SnapshotOutcome::Failed => SnapshotStatus::Failure,
            },
        );
        self.settle();
    }

    /// Messages to a member were lost: the connection to it broke.
    pub fn unreachable(&mut self, node: NodeId) {
        self.flush();
        self.raw.report_unreachable(node.0);
        self.settle();
    }

    /// The connection over which a member's messages came has ended, as it does at once when a process is gone. If that was the
    /// leader it is not waited for as one that is only silent: this node gives it up, and calls an election when it is its turn.
    /// If the leader is alive after all, the next that it says is enough to follow it again, and those who hear it
    /// vote for nobody.
    pub fn lost_contact(&mut self, node: NodeId) {
        self.flush();
        if self.role() == Role::Follower && self.leader() == Some(node) && self.installing.is_none() {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, raft::INVALID_ID);
            self.settle();
            let mut others = self.members.voters.iter().filter(|voter| **voter != node);
            let turn = others.position(|voter| *voter == self.options.node);
            if let Some(wait) = turn.and_then(|turn| contact_ticks(self.options.rank, turn)) {
                self.raw.raft.election_elapsed = self.election_ticks().saturating_sub(wait);
            }
        }
        self.settle();
    }

    /// Entries that were asked for, from the first on, as many as there were room for. None if they are gone.
    pub fn fetched(&mut self, fetch: Fetch, entries: Vec<crate::entry::GroupEntry>) {
        self.flush();
        let entries = entries.into_iter().map(entry_in).collect();
        let contexts = self.raw.mut_store().fetched(fetch, entries);
        for context in contexts {
            self.raw.on_entries_fetched(context);
        }
        self.raw.mut_store().forget_fetched();
        self.settle();
    }

    /// Whether [`Self::take_output`] would give anything.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.queued.is_empty()
            || self.raw.has_ready()
            || !self.output.is_empty()
            || self.raw.store().wants_something()
    }

    /// Takes what has come of all inputs.
    pub fn take_output(&mut self) -> Output {
        self.collect();
        self.output.fetches = self.raw.store().take_fetches();
        if self.raw.store().take_snapshot_wanted() {
            self.output.events.push(Event::SnapshotWanted);
        }
        std::mem::take(&mut self.output)
    }

    /// What this node is.
    #[must_use]
    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Leader => Role::Leader,
        }
    }

    /// Whether this node leads and may propose.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.leading.is_some()
    }

    /// The latest term that this node knows.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// Who leads, as far as this node knows.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        let leader = self.raw.raft.leader_id;
        (leader != 0).then_some(NodeId(leader))
    }

    /// Up to where entries are committed, as far as this node knows.
    #[must_use]
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.committed)
    }

    /// The last entry, synced or not.
    #[must_use]
    pub fn last(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.last_index() + self.queued.len() as u64)
    }

    /// The term of an entry, if it is there.
    #[must_use]
    pub fn term_of(&self, index: LogIndex) -> Option<Term> {
        if index.0 > self.raw.raft.raft_log.last_index() && index <= self.last() {
            return self.leading;
        }
        self.raw.raft.raft_log.term(index.0).ok().filter(|term| *term != 0).map(Term)
    }

    /// The last entry that is gone.
    #[must_use]
    pub fn purged(&self) -> EntryId {
        self.raw.store().purged()
    }

    /// The members, as of what was told as committed.
    #[must_use]
    pub const fn members(&self) -> &Membership {
        &self.members
    }

    /// As a leader: up to where each other member is known to have entries.
    pub fn progress(&self) -> impl Iterator<Item = (NodeId, LogIndex)> {
        let node = self.options.node.0;
        let others = self.raw.raft.prs().iter().filter(move |(id, _)| **id != node);
        let mut all: Vec<_> =
            others.map(|(id, progress)| (NodeId(*id), LogIndex(progress.matched))).collect();
        all.sort_unstable();
        all.into_iter()
    }

    /// Another place in the line of those who should lead.
    pub fn set_rank(&mut self, rank: usize) {
        self.options.rank = rank;
        self.settle();
    }

    /// After every input: the library may have thrown its own dice for the next election.
    fn settle(&mut self) {
        let ticks = self.election_ticks();
        self.raw.raft.set_randomized_election_timeout(ticks);
    }

    /// How long this node waits for a leader now.
    fn election_ticks(&self) -> usize {
        let term = Term(self.raw.raft.term);
        let attempt = if self.attempts.0 == term { self.attempts.1 } else { 0 };
        let GroupOptions { id, node, rank, seed } = self.options;
        election_ticks(node, id, rank, seed, term, attempt)
    }

    fn apply_change(&mut self, change: Change) {
        self.members = self.members.after(change);
        // It was found to be sound when it was proposed, by the same members.
        let applied = self.raw.apply_conf_change(&change_in(change));
        debug_assert!(applied.is_ok(), "{applied:?}");
        self.output.events.push(Event::MembersChanged(self.members.clone()));
    }
}

/// A write of nothing.
const fn empty_write() -> Write {
    Write {
        number: WriteNumber(0),
        installed: None,
        taken: None,
        purged: None,
        entries: Vec::new(),
        hard_state: None,
        is_urgent: false,
    }
}
