//! Nodes in one thread, whose messages arrive at once and whose disks sync when they are told to.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use nexo_cluster::store::{Cut, GroupStore, Mark, MemoryStore, first_write};
use nexo_cluster::{
    Event, Fetch, Group, GroupOptions, Membership, Node, NodeOutput, Payload, Role, Write, WriteNumber,
};
use nexo_types::{LogIndex, NodeId, RaftGroupId, Term};

/// One node with its disk.
pub(crate) struct Member {
    pub(crate) id: NodeId,
    pub(crate) node: Node,
    pub(crate) store: MemoryStore,
    /// Whether its disk syncs by itself.
    pub(crate) syncs: bool,
    pub(crate) waiting: VecDeque<(RaftGroupId, WriteNumber, Mark)>,
    pub(crate) events: Vec<(RaftGroupId, Event)>,
    pub(crate) seed: u64,
    pub(crate) ranks: fn(NodeId, RaftGroupId) -> usize,
    /// What stands for bytes that its node alone has written down, when they are read.
    pub(crate) reads_as: Option<Bytes>,
}

pub(crate) fn by_turns(node: NodeId, group: RaftGroupId) -> usize {
    ((node.0 + 2 - u64::from(group.0) % 3) % 3) as usize
}

impl Member {
    pub(crate) fn new(id: u64, groups: u32, members: &Membership) -> Self {
        let mut store = MemoryStore::default();
        for group in 0..groups {
            store.append(RaftGroupId(group), &first_write(members.clone())).unwrap();
        }
        store.sync();
        Self::over(id, groups, store)
    }

    /// A node that knows nothing yet.
    pub(crate) fn empty(id: u64, groups: u32) -> Self {
        Self::over(id, groups, MemoryStore::default())
    }

    fn over(id: u64, groups: u32, store: MemoryStore) -> Self {
        let mut member = Self {
            id: NodeId(id),
            node: Node::default(),
            store,
            syncs: true,
            waiting: VecDeque::new(),
            events: Vec::new(),
            seed: 7,
            ranks: by_turns,
            reads_as: None,
        };
        member.open(groups);
        member
    }

    fn open(&mut self, groups: u32) {
        self.node = Node::default();
        for group in (0..groups).map(RaftGroupId) {
            let recovered = self.store.recover(group).unwrap();
            let rank = (self.ranks)(self.id, group);
            let options = GroupOptions { id: group, node: self.id, rank, seed: self.seed };
            self.node.add(group, Group::open(options, recovered).unwrap());
        }
    }

    pub(crate) fn restart(&mut self, cut: Cut) {
        let groups = self.node.groups().count() as u32;
        self.store.cut(cut);
        self.waiting.clear();
        self.open(groups);
    }

    pub(crate) fn group(&mut self) -> &mut Group {
        self.node.group_mut(GROUP).unwrap()
    }

    /// Does what the node wants but sending.
    fn act(&mut self) -> Vec<(NodeId, Bytes)> {
        let mut out = Vec::new();
        loop {
            let NodeOutput { writes, envelopes, events, fetches } = self.node.take_output();
            let is_idle =
                writes.is_empty() && envelopes.is_empty() && events.is_empty() && fetches.is_empty();
            self.events.extend(events);
            out.extend(envelopes.into_iter().map(|(to, envelope)| (to, envelope.into())));
            writes.iter().for_each(|(group, write)| self.write(*group, write));
            for (group, fetch) in fetches {
                self.fetch(group, fetch);
            }
            if self.syncs {
                self.sync();
            }
            if is_idle {
                return out;
            }
        }
    }

    fn write(&mut self, group: RaftGroupId, write: &Write) {
        let mark = self.store.append(group, write).unwrap();
        self.waiting.push_back((group, write.number, mark));
    }

    fn fetch(&mut self, group: RaftGroupId, fetch: Fetch) {
        let mut entries = self.store.read(group, fetch.from..fetch.to, fetch.bytes_max).unwrap_or_default();
        for entry in &mut entries {
            if let (Payload::Data(data), Some(bytes)) = (&mut entry.payload, &self.reads_as)
                && data.is_empty()
            {
                *data = bytes.clone();
            }
        }
        self.node.group_mut(group).unwrap().fetched(fetch, entries);
    }

    pub(crate) fn sync(&mut self) {
        self.store.sync();
        for (group, number, mark) in self.waiting.drain(..) {
            assert!(mark <= self.store.synced());
            self.node.group_mut(group).unwrap().stored(number);
        }
    }

    /// The data of all entries that were told as committed.
    pub(crate) fn committed(&self) -> Vec<Bytes> {
        let entries = self.events.iter().filter_map(|(_, event)| match event {
            Event::Committed { entry, .. } => Some(entry),
            _ => None,
        });
        let data = entries.filter_map(|entry| match &entry.payload {
            Payload::Data(data) => Some(data.clone()),
            Payload::Blank | Payload::Stored | Payload::Change(_) => None,
        });
        data.collect()
    }
}

pub(crate) const GROUP: RaftGroupId = RaftGroupId(0);

/// Some nodes and the network between them.
pub(crate) struct Cluster {
    pub(crate) members: BTreeMap<NodeId, Member>,
    /// Nobody hears of these nodes.
    pub(crate) cut_off: BTreeSet<NodeId>,
    pub(crate) envelopes: u64,
    pub(crate) bytes: u64,
}

impl Cluster {
    pub(crate) fn new(nodes: u64, groups: u32) -> Self {
        let membership = Membership::of((1..=nodes).map(NodeId));
        let members = (1..=nodes).map(|id| (NodeId(id), Member::new(id, groups, &membership))).collect();
        Self { members, cut_off: BTreeSet::new(), envelopes: 0, bytes: 0 }
    }

    pub(crate) fn member(&mut self, id: u64) -> &mut Member {
        self.members.get_mut(&NodeId(id)).unwrap()
    }

    pub(crate) fn group(&mut self, id: u64) -> &mut Group {
        self.member(id).group()
    }

    /// Delivers messages until there are none.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut sent = Vec::new();
            for member in self.members.values_mut() {
                let from = member.id;
                sent.extend(member.act().into_iter().map(|(to, envelope)| (from, to, envelope)));
            }
            if sent.is_empty() {
                return;
            }
            for (from, to, envelope) in sent {
                self.envelopes += 1;
                self.bytes += envelope.len() as u64;
                if self.cut_off.contains(&from) || self.cut_off.contains(&to) {
                    continue;
                }
                if let Some(member) = self.members.get_mut(&to) {
                    assert_eq!(member.node.receive(from, &envelope), Ok(vec![]));
                }
            }
        }
    }

    pub(crate) fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.members.values_mut().for_each(|member| member.node.tick());
            self.settle();
        }
    }

    /// The one node that leads and is ready in the highest term.
    pub(crate) fn leader(&self) -> Option<u64> {
        let leads = |member: &&Member| {
            let group = member.node.group(GROUP).unwrap();
            group.role() == Role::Leader && group.is_ready()
        };
        let term = |member: &&Member| member.node.group(GROUP).unwrap().term();
        self.members.values().filter(leads).max_by_key(term).map(|member| member.id.0)
    }

    /// Brings time until there is a leader among those who are not cut off.
    pub(crate) fn elect(&mut self) -> u64 {
        for _ in 0..200 {
            if let Some(leader) = self.leader().filter(|id| !self.cut_off.contains(&NodeId(*id))) {
                return leader;
            }
            self.ticks(1);
        }
        panic!("nobody was elected");
    }

    pub(crate) fn propose(&mut self, at: u64, data: &'static str) -> (Term, LogIndex) {
        let id = self.group(at).propose(Bytes::from_static(data.as_bytes())).unwrap();
        (id.term, id.index)
    }
}
