//! Why a change of nodes is refused.

use nexo_types::NodeName;
use thiserror::Error;

use super::node::NodeAddress;

/// Why a change of nodes is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// The name is another node's.
    #[error(
        "there is a node '{name}' already, with other data; if that node is gone for good, remove it first, otherwise take \
         another name"
    )]
    NameTaken {
        /// One that a node with other data has.
        name: NodeName,
    },
    /// The address is another node's.
    #[error("node '{name}' has the address {address} already; each node needs one of its own")]
    AddressTaken {
        /// The node that has it.
        name: NodeName,
        /// As it was asked for.
        address: NodeAddress,
    },
    /// There is none of that name.
    #[error("there is no node '{name}' in this cluster")]
    NoSuchNode {
        /// As it was asked for.
        name: NodeName,
    },
    /// Others cannot reach a node there.
    #[error("'{text}' is not the address of a node; it must be HOST:PORT, as others reach it")]
    BadAddress {
        /// What was given.
        text: String,
    },
    /// A limit was met.
    #[error("a cluster has at most {max} nodes")]
    TooMany {
        /// Nodes of one cluster.
        max: usize,
    },
}
