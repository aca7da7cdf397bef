//! All nodes as bytes, so that recovery need not read the log from its beginning.

use bytes::Bytes;
use nexo_types::NodeId;

use super::node::ClusterNode;
use super::record::NodeRecord;
use super::state::Nodes;
use crate::wire::{Reader, WireError, Writer};

/// The version in which a snapshot is written.
const VERSION: u64 = 1;

impl Nodes {
    /// The state as bytes.
    #[must_use]
    pub fn snapshot(&self) -> Bytes {
        let mut out = Writer::with_capacity(64 + self.len() * 96);
        out.version(VERSION);
        out.u64(self.next_id().0);
        out.u64(self.len() as u64);
        self.iter().for_each(|node| node.encode(&mut out));
        out.into_bytes()
    }

    /// The state of a snapshot.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        input.version("the snapshot of nodes", VERSION)?;
        let mut nodes = Self::with_next_id(NodeId(input.u64()?));
        for _ in 0..input.u64()? {
            nodes.apply_record(&NodeRecord::Added(ClusterNode::decode(&mut input)?));
        }
        input.finish()?;
        Ok(nodes)
    }
}
