//! Whether a change of nodes can be made, and which record it comes to.

use nexo_types::{NodeId, NodeName, Timestamp, limits};

use super::error::NodeError;
use super::node::{ClusterNode, JoinId, NodeAddress};
use super::record::NodeRecord;
use super::state::Nodes;

/// What is wanted of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// A node joins. The one that is there with the same name and data is that node.
    Add {
        /// What people call it. No other node may have it.
        name: NodeName,
        /// Host and port of its cluster port.
        address: NodeAddress,
        /// Which data directory it is.
        join: JoinId,
    },
    /// A node has lost its data, or a part of it, and comes back as another one with the same name. What the one before had
    /// promised counts no more.
    Replace {
        /// That of the node that has lost its data.
        name: NodeName,
        /// Its id until now: whoever asks twice is not replaced twice.
        id: NodeId,
        /// Host and port of its cluster port.
        address: NodeAddress,
        /// Which data directory it is from now on.
        join: JoinId,
    },
    /// A node is reached somewhere else.
    SetAddress {
        /// One that is there.
        name: NodeName,
        /// Where the others reach it from now on.
        address: NodeAddress,
    },
    /// A node leaves, for good.
    Remove {
        /// One that is there.
        name: NodeName,
    },
}

impl Nodes {
    /// What a change comes to: records, or none if everything is so already; and the node as it is then, or was.
    ///
    /// # Errors
    /// Says why it cannot be made.
    pub fn decide_change(
        &self,
        now: Timestamp,
        change: &NodeChange,
    ) -> Result<(Vec<NodeRecord>, ClusterNode), NodeError> {
        match change {
            NodeChange::Add { name, address, join } => self.decide_add(now, name, address, *join),
            NodeChange::Replace { name, id, address, join } => {
                let node = self.named(name)?;
                if node.id != *id {
                    // It is there already, and did not hear so; or it is somebody else.
                    return self.decide_add(now, name, address, *join);
                }
                let removed = NodeRecord::Removed { id: *id };
                let mut rest = self.clone();
                rest.apply_record(&removed);
                let (added, node) = rest.decide_add(now, name, address, *join)?;
                Ok((std::iter::once(removed).chain(added).collect(), node))
            }
            NodeChange::SetAddress { name, address } => {
                let node = self.named(name)?;
                self.refuse_taken(name, address)?;
                Ok(node.moved(address))
            }
            NodeChange::Remove { name } => {
                let node = self.named(name)?.clone();
                Ok((vec![NodeRecord::Removed { id: node.id }], node))
            }
        }
    }

    fn decide_add(
        &self,
        now: Timestamp,
        name: &NodeName,
        address: &NodeAddress,
        join: JoinId,
    ) -> Result<(Vec<NodeRecord>, ClusterNode), NodeError> {
        self.refuse_taken(name, address)?;
        if let Some(known) = self.by_name(name.as_str()) {
            // It asked before and did not hear the answer. It may be somewhere else by now.
            return if known.join == join {
                Ok(known.moved(address))
            } else {
                Err(NodeError::NameTaken { name: name.clone() })
            };
        }
        let max = limits::RAFT_MEMBERS_MAX;
        if self.len() >= max {
            return Err(NodeError::TooMany { max });
        }
        let node = ClusterNode {
            id: self.next_id(),
            name: name.clone(),
            address: address.clone(),
            join,
            added_at: now,
        };
        Ok((vec![NodeRecord::Added(node.clone())], node))
    }

    fn named(&self, name: &NodeName) -> Result<&ClusterNode, NodeError> {
        self.by_name(name.as_str()).ok_or_else(|| NodeError::NoSuchNode { name: name.clone() })
    }

    /// Two nodes with one address would be taken for each other.
    fn refuse_taken(&self, name: &NodeName, address: &NodeAddress) -> Result<(), NodeError> {
        match self.iter().find(|node| node.address == *address && node.name != *name) {
            Some(other) => {
                Err(NodeError::AddressTaken { name: other.name.clone(), address: address.clone() })
            }
            None => Ok(()),
        }
    }
}

impl ClusterNode {
    /// The node at an address, and the record of that if it is another than before.
    fn moved(&self, address: &NodeAddress) -> (Vec<NodeRecord>, Self) {
        let record = NodeRecord::Changed { id: self.id, address: address.clone() };
        let records = (self.address != *address).then_some(record).into_iter().collect();
        (records, Self { address: address.clone(), ..self.clone() })
    }
}
