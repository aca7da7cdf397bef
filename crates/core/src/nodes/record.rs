//! What happens to the nodes of a cluster, as bytes.

use bytes::Bytes;
use nexo_types::{NodeId, NodeName, Timestamp};

use super::node::{ClusterNode, JoinId, NodeAddress};
use crate::wire::{Reader, WireError, Writer};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRecord {
    /// A node is there.
    Added(ClusterNode),
    /// A node is reached somewhere else.
    Changed {
        /// The node that has moved.
        id: NodeId,
        /// Where the others reach it from now on.
        address: NodeAddress,
    },
    /// A node is gone, and its id with it.
    Removed {
        /// The node that is gone.
        id: NodeId,
    },
}

/// The version in which records are written.
const VERSION: u8 = 1;

impl NodeRecord {
    /// The bytes to write down.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(96);
        match self {
            Self::Added(node) => {
                out.tag(VERSION, 0);
                node.encode(&mut out);
            }
            Self::Changed { id, address } => {
                out.tag(VERSION, 1);
                out.u64(id.0);
                out.text(address.as_str());
            }
            Self::Removed { id } => {
                out.tag(VERSION, 2);
                out.u64(id.0);
            }
        }
        out.into_bytes()
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        let (_, kind) = input.tag("a record of nodes", VERSION)?;
        let record = match kind {
            0 => Self::Added(ClusterNode::decode(&mut input)?),
            1 => Self::Changed { id: NodeId(input.u64()?), address: decode_address(&mut input)? },
            2 => Self::Removed { id: NodeId(input.u64()?) },
            value => return Err(WireError::Unknown { what: "kind of record of nodes", value }),
        };
        input.finish()?;
        Ok(record)
    }

    /// The time that it carries.
    pub(super) const fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Added(node) => Some(node.added_at),
            Self::Changed { .. } | Self::Removed { .. } => None,
        }
    }
}

impl ClusterNode {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.u64(self.id.0);
        out.text(self.name.as_str());
        out.text(self.address.as_str());
        out.raw(&self.join.0.to_le_bytes());
        out.u64(self.added_at.0);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            id: NodeId(input.u64()?),
            name: NodeName::new(input.text()?).map_err(|_| WireError::BadName)?,
            address: decode_address(input)?,
            join: decode_join(input)?,
            added_at: Timestamp(input.u64()?),
        })
    }
}

fn decode_address(input: &mut Reader<'_>) -> Result<NodeAddress, WireError> {
    NodeAddress::new(input.text()?).map_err(|_| WireError::BadName)
}

fn decode_join(input: &mut Reader<'_>) -> Result<JoinId, WireError> {
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        *byte = input.u8()?;
    }
    Ok(JoinId(u128::from_le_bytes(bytes)))
}
