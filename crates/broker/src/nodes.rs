//! The nodes of the cluster that this broker is in: the rules are `nexo_core::nodes`'; `machine_cell.rs` gives them a lock and
//! the journal. They say who the nodes are. Who votes is the Raft group's matter, and who is connected is that of their ports.
//!
//! A broker by itself has none, and writes nothing of it into checkpoints: an earlier release can open its data.

use nexo_core::machine::Step;
use nexo_core::message::Durability;
use nexo_core::nodes::{ClusterNode, NodeChange, NodeError, NodeRecord, Nodes};
use nexo_log::{Claim, Urgency};
use nexo_types::QueueId;

use crate::broker::Broker;
use crate::error::{NodeChangeError, QueueError};
use crate::journal::Written;
use crate::machine_cell::{MachineCell, Replayed};
use crate::ordered_mutex::Rank;
use crate::shared::Shared;

/// Records of nodes are written under this id, which no queue has: ids of queues count up from one.
pub(crate) const NODES: QueueId = QueueId(u64::MAX - 5);

/// All nodes.
#[derive(Debug)]
pub(crate) struct NodesCell {
    cell: MachineCell<Nodes>,
}

impl NodesCell {
    /// What was in the log, with its latest snapshot.
    pub(crate) fn new(restored: Replayed<Nodes>) -> Self {
        Self { cell: MachineCell::new(NODES, Rank::Nodes, restored) }
    }

    /// Their state, for checkpoints.
    pub(crate) const fn cell(&self) -> &MachineCell<Nodes> {
        &self.cell
    }

    /// Has these nodes instead of those there were.
    pub(crate) fn replace(&self, restored: Replayed<Nodes>) {
        self.cell.replace(restored, |_, _| ());
    }

    /// Whether there was ever one.
    pub(crate) fn is_used(&self) -> bool {
        self.cell.look(|nodes, _| *nodes != Nodes::new())
    }
}

impl Shared {
    fn change_nodes(&self, change: &NodeChange) -> Result<(ClusterNode, Written), NodeChangeError> {
        self.refuse_if_stopping()?;
        let mut about = None;
        let decide = |nodes: &Nodes| -> Result<Vec<Step<NodeRecord>>, NodeError> {
            let (records, node) = nodes.decide_change(self.clock.now(), change)?;
            about = Some(node);
            Ok(records.into_iter().map(|record| Step { record, durability: Durability::Durable }).collect())
        };
        let cell = &self.nodes.cell;
        let changed = self.change_machine(cell, &[], decide, Urgency::Synced, Claim::Reserved, |_| ());
        let changed = changed.map_err(|error| self.refused(&error))?.map_err(NodeChangeError::Refused)?;
        let node = about.expect("what is not refused is about a node");
        tracing::info!(?change, node = %node.id, "nodes changed");
        Ok((node, changed.written))
    }
}

impl Broker {
    /// The nodes of the cluster, by their ids; none if this broker is by itself.
    #[must_use]
    pub fn nodes(&self) -> Nodes {
        self.shared.nodes.cell.look(|nodes, _| nodes.clone())
    }

    /// Adds, changes or removes a node, and returns when that is safe, with the node that it was about.
    ///
    /// # Errors
    /// If it cannot be made, or the log takes no more.
    pub async fn change_nodes(&self, change: &NodeChange) -> Result<ClusterNode, NodeChangeError> {
        let begun = loop {
            match self.shared.change_nodes(change) {
                Err(NodeChangeError::Queue(QueueError::Busy { .. })) => self.shared.until_room().await,
                begun => break begun,
            }
        };
        let (written, outcome) = match begun {
            Ok((node, written)) => (written, Ok(node)),
            // What it is refused for may not be safe yet.
            Err(refused @ NodeChangeError::Refused(_)) => {
                (self.shared.nodes.cell.last_change(), Err(refused))
            }
            Err(error) => return Err(error),
        };
        self.shared.wait_for(written).await?;
        outcome
    }
}
