//! One node of the cluster: its groups, their state machines and its disk.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use nexo_cluster::store::{Cut, GroupStore, Mark, MemoryStore, StoreError, first_write};
use nexo_cluster::{
    Event, Group, GroupEntry, GroupOptions, Membership, Node, NodeOutput, OpenError, Role, Write, WriteNumber,
};
use nexo_types::{LogIndex, NodeId, RaftGroupId, Term, Timestamp};

use crate::ledger::{Ledger, Violation};
use crate::replica::{Effect, Replica};
use crate::sabotage::Sabotage;

/// See the file.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: NodeId,
    /// Counts its starts. What was meant for another life is not for this one.
    pub(crate) life: u32,
    pub(crate) is_up: bool,
    /// It has found its log damaged: it may not vote any more, so it never starts again.
    pub(crate) is_lost: bool,
    /// It met damage while it was up, and can do nothing without what is damaged.
    pub(crate) must_stop: bool,
    /// It does nothing before this moment, in microseconds.
    pub(crate) paused_until: u64,
    /// How far its clock is off, in milliseconds.
    pub(crate) clock_off: i64,
    pub(crate) node: Node,
    pub(crate) store: MemoryStore,
    pub(crate) replicas: BTreeMap<RaftGroupId, Replica>,
    /// What the disk had no room for.
    unwritten: VecDeque<(RaftGroupId, Write)>,
    waiting: VecDeque<(RaftGroupId, WriteNumber, Mark)>,
    pub(crate) is_syncing: bool,
    seed: u64,
    members: Membership,
    sabotage: Option<Sabotage>,
}

/// Entries that are kept for followers that are a little behind, when a snapshot is taken.
const SLACK: u64 = 8;

/// Why a node does not start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// Its log lacks what was synced. It has to come back as another node.
    Damaged(StoreError),
    /// What it has makes no sense.
    Open(OpenError),
}

/// What a node wants of the world.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    pub(crate) envelopes: Vec<(NodeId, Bytes)>,
    pub(crate) effects: Vec<(RaftGroupId, Effect)>,
}

impl Server {
    /// A node that is one of the first members, or none.
    pub(crate) fn new(
        id: NodeId,
        groups: &[RaftGroupId],
        members: &Membership,
        seed: u64,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let mut server = Self {
            id,
            life: 0,
            is_up: false,
            is_lost: false,
            must_stop: false,
            paused_until: 0,
            clock_off: 0,
            node: Node::default(),
            store: MemoryStore::default(),
            replicas: groups
                .iter()
                .map(|group| {
                    let replica = Replica::open(id, *group, &MemoryStore::default(), None);
                    (*group, replica.expect("an empty store can be read"))
                })
                .collect(),
            unwritten: VecDeque::new(),
            waiting: VecDeque::new(),
            is_syncing: false,
            seed,
            members: members.clone(),
            sabotage,
        };
        server.format();
        server
    }

    fn format(&mut self) {
        self.store = MemoryStore::default();
        if self.members.contains(self.id) {
            for group in self.replicas.keys() {
                self.store.append(*group, &first_write(self.members.clone())).expect("there is room");
            }
            self.store.sync();
        }
    }

    /// Starts with what is on its disk.
    pub(crate) fn start(&mut self, wipe: bool) -> Result<(), StartError> {
        self.life += 1;
        if wipe {
            self.format();
        }
        if self.sabotage == Some(Sabotage::TrustDisk) {
            self.store.ignore_checksums();
        }
        if self.store.is_harmed() {
            self.store.reopen();
        }
        if self.sabotage == Some(Sabotage::IgnoreDamage) {
            self.store.ignore_damage();
        }
        self.node = Node::default();
        for (group, replica) in &mut self.replicas {
            let mut recovered = self.store.recover(*group).map_err(StartError::Damaged)?;
            match self.sabotage {
                Some(Sabotage::ForgetVote) => recovered.hard_state.vote = None,
                Some(Sabotage::ForgetTerm) => {
                    recovered.hard_state.vote = None;
                    recovered.hard_state.term =
                        recovered.entries.last().map_or(recovered.snapshot.term, |entry| entry.id.term);
                }
                Some(Sabotage::LoseSynced) => {
                    let commit = recovered.hard_state.commit;
                    if recovered.entries.last().is_some_and(|entry| entry.id.index > commit) {
                        recovered.entries.pop();
                    }
                }
                _ => {}
            }
            let rank = ((self.id.0 + u64::from(group.0)) % 3) as usize;
            let options = GroupOptions { id: *group, node: self.id, rank, seed: self.seed };
            self.node.add(*group, Group::open(options, recovered).map_err(StartError::Open)?);
            let opened = Replica::open(self.id, *group, &self.store, self.sabotage);
            *replica = opened.map_err(StartError::Damaged)?;
        }
        self.is_up = true;
        Ok(())
    }

    /// The power goes. Gives back who will not hear of his push any more.
    pub(crate) fn crash(&mut self, cut: Cut) -> Vec<(RaftGroupId, Effect)> {
        self.is_up = false;
        self.must_stop = false;
        self.is_syncing = false;
        self.unwritten.clear();
        self.waiting.clear();
        self.store.set_room(None);
        self.store.cut(cut);
        let of_all = self
            .replicas
            .iter_mut()
            .flat_map(|(group, replica)| replica.give_up().into_iter().map(|effect| (*group, effect)));
        of_all.collect()
    }

    /// What its clock says.
    pub(crate) fn clock(&self, now_us: u64) -> Timestamp {
        let millis = 1_000_000 + (now_us / 1_000).cast_signed() + self.clock_off;
        Timestamp(millis.max(0).cast_unsigned())
    }

    /// The group and its state machines.
    pub(crate) fn part(&mut self, group: RaftGroupId) -> (&mut Group, &mut Replica) {
        let parts = self.node.group_mut(group).zip(self.replicas.get_mut(&group));
        parts.expect("every node has every group")
    }

    /// A disk that had no room has some again.
    pub(crate) fn make_room(&mut self) {
        self.store.set_room(None);
    }

    /// Does what the groups want, but for what takes time.
    pub(crate) fn pump(&mut self, ledger: &mut Ledger) -> Wants {
        let mut wants = Wants::default();
        // What the disk had no room for.
        self.write(ledger);
        while self.node.has_output() {
            let NodeOutput { writes, envelopes, events, fetches } = self.node.take_output();
            // Before what they go with is written: whoever is deposed reads what was committed before.
            for (group, event) in events {
                self.handle(group, event, ledger, &mut wants);
            }
            self.unwritten.extend(writes);
            self.write(ledger);
            for (group, fetch) in fetches {
                let entries = self.read(group, fetch.from..fetch.to, fetch.bytes_max);
                self.part(group).0.fetched(fetch, entries);
            }
            wants.envelopes.extend(envelopes.into_iter().map(|(to, bytes)| (to, bytes.into())));
        }
        for (id, group) in self.node.groups() {
            if group.role() == Role::Leader {
                ledger.leads(id, group.term(), self.id);
            }
        }
        wants
    }

    fn handle(&mut self, id: RaftGroupId, event: Event, ledger: &mut Ledger, wants: &mut Wants) {
        let group = self.node.group_mut(id).expect("it told of this");
        let replica = self.replicas.get_mut(&id).expect("every group has state machines");
        let effects = match event {
            Event::Committed { entry, proposed_here } => {
                ledger.committed(id, self.id, &entry);
                let effects = replica.committed(entry.id, &entry.payload, proposed_here);
                replica.checkpoint_if_committed(group, SLACK);
                effects
            }
            Event::Restored(snapshot) => {
                ledger.tally.restored += 1;
                replica.restore(&snapshot);
                Vec::new()
            }
            Event::Leading { term } => {
                ledger.tally.elected += 1;
                replica.lead(term);
                Vec::new()
            }
            Event::Deposed { .. } => {
                ledger.tally.deposed += 1;
                replica.depose(&self.store).unwrap_or_else(|_| {
                    self.must_stop = true;
                    Vec::new()
                })
            }
            Event::MembersChanged(members) => {
                ledger.tally.members += 1;
                replica.set_members(members);
                Vec::new()
            }
            Event::LeadershipChecked { .. } => Vec::new(),
            Event::SnapshotWanted => {
                // A new one may wait for a commit that needs whoever wants it.
                match self.store.snapshot(id) {
                    Ok(saved) => saved.into_iter().for_each(|saved| group.offer_snapshot(saved)),
                    Err(_) => self.must_stop = true,
                }
                replica.checkpoint(group, SLACK);
                Vec::new()
            }
        };
        wants.effects.extend(effects.into_iter().map(|effect| (id, effect)));
    }

    /// Entries from the disk, as far as they can be read.
    fn read(&self, group: RaftGroupId, range: Range<LogIndex>, bytes_max: usize) -> Vec<GroupEntry> {
        let all = self.store.read(group, range.clone(), bytes_max);
        all.or_else(|_| self.store.read(group, range.start..range.start.next(), bytes_max))
            .unwrap_or_default()
    }

    fn write(&mut self, ledger: &mut Ledger) {
        while let Some((group, write)) = self.unwritten.pop_front() {
            let mut stored = write.clone();
            if self.sabotage == Some(Sabotage::IgnoreTruncation) {
                let end = self.end_of(group);
                stored.entries.retain(|entry| entry.id.index >= end);
            }
            let Ok(mark) = self.store.append(group, &stored) else {
                self.unwritten.push_front((group, write));
                return;
            };
            for entry in &write.entries {
                ledger.stored(group, self.id, entry);
            }
            self.waiting.push_back((group, write.number, mark));
            if self.sabotage == Some(Sabotage::SendBeforeSync) {
                self.part(group).0.stored(write.number);
            }
        }
    }

    fn end_of(&self, group: RaftGroupId) -> LogIndex {
        let recovered = self.store.recover(group).unwrap_or_default();
        recovered.entries.last().map_or(recovered.snapshot.index, |entry| entry.id.index).next()
    }

    /// The mark to be synced next, if somebody waits for a sync and none is under way.
    pub(crate) fn wants_sync(&mut self) -> Option<Mark> {
        (!self.is_syncing && !self.waiting.is_empty()).then(|| {
            self.is_syncing = true;
            self.store.end()
        })
    }

    /// A sync is complete.
    pub(crate) fn synced(&mut self, mark: Mark) {
        self.is_syncing = false;
        self.store.sync_to(mark);
        while self.waiting.front().is_some_and(|(_, _, at)| *at <= mark) {
            let Some((group, number, _)) = self.waiting.pop_front() else { break };
            self.part(group).0.stored(number);
        }
    }

    /// An envelope has come.
    pub(crate) fn receive(&mut self, from: NodeId, envelope: &Bytes, ledger: &mut Ledger) {
        let rejected = self.node.receive(from, envelope).expect("nobody changes bytes on their way");
        for (group, reason) in rejected {
            let told =
                format!("node {} rejects a message of node {from} in group {group}: {reason}", self.id);
            ledger.violations.push(Violation::Unsound(told));
        }
    }

    /// The groups that it leads, and is ready to.
    pub(crate) fn leads(&self) -> impl Iterator<Item = (RaftGroupId, Term)> {
        let up = self.replicas.iter().filter(|_| self.is_up);
        up.filter_map(|(group, replica)| replica.leading().map(|term| (*group, term)))
    }
}
