//! Raft groups: what the nodes of a cluster agree on.
//!
//! A [`Group`] is one log that several nodes agree on, as one node sees it. It does no IO, reads no clock, throws no dice and has
//! no thread: it is told of ticks, of messages from peers, of proposals and of what has been synced, and says what to store, what
//! to send and what is committed. So a whole cluster runs in one thread, from a seed (`tools/sim`). A [`Node`] is all groups of
//! a node; what they send at a time to one peer travels together.
//!
//! - `entry`, `membership` and `message` are the words; `wire` is their bytes between nodes.
//! - `group` drives the library, `raft`, through `tail` (the end of the log that is in memory) and `translate`. No type of the
//!   library is seen outside.
//! - `store` is where a node keeps what its groups must not forget: in memory for tests, with power cuts, or in `nexo-log`.
//! - `timing` has the figures.
//!
//! Nothing here knows what an entry's data means.

mod entry;
mod group;
mod membership;
mod message;
mod node;
pub mod store;
mod tail;
mod timing;
mod translate;
pub mod wire;

pub use entry::{EntryId, GroupEntry, HardState, Payload, Snapshot};
pub use group::{
    Event, Group, GroupOptions, OpenError, Output, Refused, Rejected, Role, SnapshotOutcome, Write,
    WriteNumber,
};
pub use membership::{Change, Membership};
pub use message::{Ballot, Body, Message};
pub use node::{Node, NodeOutput};
pub use tail::Fetch;
pub use timing::TICK;
