//! Which nodes a cluster has: their ids, names and addresses.
//!
//! [`Nodes`] is a machine like the others, so every node knows all the others by what was agreed upon. Who votes is not its
//! matter: that is the membership of a Raft group, which a node gets after it is known here, and loses before it is forgotten.
//!
//! - `node.rs`: one node. `state.rs`: all of them, and what applying a record makes of them. `change.rs`: whether a change can
//!   be made.

mod change;
mod error;
mod machine;
mod node;
mod record;
mod snapshot;
mod state;

pub use change::NodeChange;
pub use error::NodeError;
pub use node::{ClusterNode, JoinId, NodeAddress};
pub use record::NodeRecord;
pub use state::Nodes;
