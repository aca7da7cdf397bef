//! The nodes of a cluster as a [`Machine`].

use std::convert::Infallible;

use bytes::Bytes;
use nexo_types::Timestamp;

use super::change::NodeChange;
use super::error::NodeError;
use super::node::ClusterNode;
use super::record::NodeRecord;
use super::state::Nodes;
use crate::machine::{Decision, Machine};
use crate::message::Durability;
use crate::queue::{ChunkId, ChunkSlice};
use crate::wire::WireError;

impl Machine for Nodes {
    type Command = NodeChange;
    /// The node that it is about.
    type Answer = Result<ClusterNode, NodeError>;
    type Record = NodeRecord;
    type Applied = ();
    type Missing = Infallible;
    type Outline = Self;

    fn decide(&self, now: Timestamp, command: &NodeChange) -> Decision<NodeRecord, Self::Answer> {
        match self.decide_change(now, command) {
            Ok((records, node)) => Decision::of(records, true, Ok(node)),
            Err(refusal) => Decision::of([], true, Err(refusal)),
        }
    }

    fn apply(&mut self, record: &NodeRecord, _: Durability) -> Result<(), Infallible> {
        self.apply_record(record);
        Ok(())
    }

    fn encode(record: &NodeRecord) -> Bytes {
        record.encode()
    }

    fn decode(bytes: &[u8]) -> Result<NodeRecord, WireError> {
        NodeRecord::decode(bytes)
    }

    fn begin_snapshot(&mut self, _: impl Iterator<Item = ChunkId>, _: &[ChunkId]) -> Bytes {
        self.snapshot()
    }

    /// All of it is in the head.
    fn next_chunks(&mut self, _: usize, _: usize) -> Option<ChunkSlice> {
        Some(ChunkSlice::default())
    }

    fn time_of(record: &NodeRecord) -> Option<Timestamp> {
        record.time()
    }

    fn restore<'a>(head: &[u8], _: impl Iterator<Item = &'a [u8]>) -> Result<Self, WireError> {
        Self::from_snapshot(head)
    }

    fn outline(&self, _: Timestamp) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests;
