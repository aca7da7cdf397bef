//! All groups of a node. What they send to one peer at a time is one envelope, so that idle groups cost little: their
//! heartbeats fall on the same ticks and travel together.

use std::collections::BTreeMap;

use bytes::Bytes;
use nexo_types::{NodeId, RaftGroupId};

use crate::group::{Event, Group, Rejected, Write};
use crate::message::Message;
use crate::tail::Fetch;
use crate::wire::{WireError, decode_envelope, encode_envelope};

/// All groups of a node.
#[derive(Debug, Default)]
pub struct Node {
    groups: BTreeMap<RaftGroupId, Group>,
    ticks: u64,
}

/// What a node wants to be done. Of each group everything keeps its order.
#[derive(Debug, Default)]
#[must_use = "what a node gives out is not given out again"]
pub struct NodeOutput {
    /// To be stored in this order.
    pub writes: Vec<(RaftGroupId, Write)>,
    /// To be sent, an envelope for each peer.
    pub envelopes: Vec<(NodeId, Vec<u8>)>,
    /// What has happened.
    pub events: Vec<(RaftGroupId, Event)>,
    /// To be read.
    pub fetches: Vec<(RaftGroupId, Fetch)>,
}

impl Node {
    /// A node with a group more.
    pub fn add(&mut self, id: RaftGroupId, mut group: Group) {
        group.count_from(self.ticks);
        self.groups.insert(id, group);
    }

    /// One of its groups.
    #[must_use]
    pub fn group(&self, id: RaftGroupId) -> Option<&Group> {
        self.groups.get(&id)
    }

    /// One of its groups, to give it something.
    pub fn group_mut(&mut self, id: RaftGroupId) -> Option<&mut Group> {
        self.groups.get_mut(&id)
    }

    /// All of its groups.
    pub fn groups(&self) -> impl Iterator<Item = (RaftGroupId, &Group)> {
        self.groups.iter().map(|(id, group)| (*id, group))
    }

    /// Time passes for all groups.
    pub fn tick(&mut self) {
        self.ticks += 1;
        self.groups.values_mut().for_each(Group::tick);
    }

    /// An envelope has come. Messages for groups that this node does not have are left: it may be that it has none of
    /// them any more, or not yet.
    ///
    /// # Errors
    /// If it is no envelope. Then nothing of it was taken.
    pub fn receive(
        &mut self,
        from: NodeId,
        envelope: &Bytes,
    ) -> Result<Vec<(RaftGroupId, Rejected)>, WireError> {
        let mut rejected = Vec::new();
        for (id, message) in decode_envelope(envelope)? {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            if let Err(reason) = group.receive(from, message) {
                rejected.push((id, reason));
            }
        }
        Ok(rejected)
    }

    /// The connection over which messages of another node came has ended: see [`Group::lost_contact`].
    pub fn lost_contact(&mut self, node: NodeId) {
        self.groups.values_mut().for_each(|group| group.lost_contact(node));
    }

    /// Whether any group has something to be done.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.groups.values().any(Group::has_output)
    }

    /// Takes what has come of all inputs, of all groups.
    pub fn take_output(&mut self) -> NodeOutput {
        let mut out = NodeOutput::default();
        let mut messages: BTreeMap<NodeId, Vec<(RaftGroupId, Message)>> = BTreeMap::new();
        for (id, group) in self.groups.iter_mut().filter(|(_, group)| group.has_output()) {
            let of_group = group.take_output();
            out.writes.extend(of_group.writes.into_iter().map(|write| (*id, write)));
            out.events.extend(of_group.events.into_iter().map(|event| (*id, event)));
            out.fetches.extend(of_group.fetches.into_iter().map(|fetch| (*id, fetch)));
            for (to, message) in of_group.messages {
                messages.entry(to).or_default().push((*id, message));
            }
        }
        let envelopes = messages.into_iter().map(|(to, messages)| {
            (to, encode_envelope(messages.iter().map(|(group, message)| (*group, message))))
        });
        out.envelopes.extend(envelopes);
        out
    }
}
