//! All nodes of a cluster, and what applying a record makes of them.

use std::collections::BTreeMap;

use nexo_types::NodeId;

use super::node::ClusterNode;
use super::record::NodeRecord;

/// All nodes, by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    nodes: BTreeMap<NodeId, ClusterNode>,
    /// The id of the next node. It never falls: an id that was given is not given again.
    next: NodeId,
}

impl Default for Nodes {
    fn default() -> Self {
        Self::new()
    }
}

impl Nodes {
    /// None. The first node will be 1.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_next_id(NodeId(1))
    }

    pub(super) const fn with_next_id(next: NodeId) -> Self {
        Self { nodes: BTreeMap::new(), next }
    }

    /// All of them, by their ids.
    pub fn iter(&self) -> impl Iterator<Item = &ClusterNode> {
        self.nodes.values()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether this is no cluster.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node with this id.
    #[must_use]
    pub fn by_id(&self, id: NodeId) -> Option<&ClusterNode> {
        self.nodes.get(&id)
    }

    /// The node of this name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&ClusterNode> {
        self.iter().find(|node| node.name.as_str() == name)
    }

    pub(super) const fn next_id(&self) -> NodeId {
        self.next
    }

    pub(super) fn apply_record(&mut self, record: &NodeRecord) {
        match record {
            NodeRecord::Added(node) => {
                self.next = self.next.max(NodeId(node.id.0.saturating_add(1)));
                self.nodes.insert(node.id, node.clone());
            }
            NodeRecord::Changed { id, address } => {
                if let Some(node) = self.nodes.get_mut(id) {
                    node.address = address.clone();
                }
            }
            NodeRecord::Removed { id } => drop(self.nodes.remove(id)),
        }
    }
}
