//! The broker as one of several replicas: its journal is a Raft group over the log of this node.
//!
//! One node leads. It decides, writes down and applies at once, as a broker by itself does; what it tells anybody waits until a
//! majority has synced it. The others *follow*: they write down what the leader sends. What is in their memory is an earlier state,
//! which nobody sees; users and nodes are kept current. A follower that is elected builds its memory from its own log, as a start
//! does, and serves (`rebuild.rs`). A leader that is deposed throws its memory away.
//!
//! - `head.rs`: what stands at the head of each frame of the group. `places.rs`: where the frame of each entry lies.
//! - `open.rs`: what is found in the log at a start. `state.rs`: the group, and what becomes of what it gives out;
//!   `state_lock.rs`: its lock.
//! - `alone.rs`: a node that goes on without the others. `damage.rs`: one whose disk is damaged. `slow_disk.rs`: a leader whose disk
//!   holds the others up.
//! - `driver.rs`: the thread that brings time, messages and syncs to it, and `waker.rs` wakes. `journal.rs`: the group as the
//!   broker's journal. `safe_mark.rs`: what is committed of it, for those who ask often.
//! - `waiters.rs`: those who wait for a commit. `checks.rs`: those who wait to know whether this node leads still.
//! - `handle.rs`: what others may ask of it. `lags.rs`: whether those who lack entries get any. `send_state.rs`, `receive_state.rs`: a whole state for a node that is too far behind;
//!   `state_stream.rs` has its bytes.
//!
//! A message is written once on each node: an entry of the group is a frame of the log with a head before what the broker
//! proposed. Where an entry lies is this node's own business, and so are checkpoints and segments.

mod alone;
mod checks;
mod damage;
mod driver;
mod handle;
mod head;
mod journal;
mod lags;
mod open;
mod places;
mod receive_state;
mod safe_mark;
mod send_state;
mod slow_disk;
mod state;
mod state_lock;
mod state_stream;
#[cfg(test)]
mod tests;
mod waiters;
mod waker;

use nexo_types::{NodeId, RaftGroupId, Term};

pub(crate) use damage::JournalOpenError;
pub use handle::{ChangeError, GroupStatus, MemberStatus, NodeStream, Replication, StreamOpener};
pub(crate) use head::{RAFT, head_of};
pub(crate) use journal::GroupJournal;
pub(crate) use state::Replica;

/// There is one group, and all that the broker writes down is in it.
pub(crate) const GROUP: RaftGroupId = RaftGroupId(0);

/// How a broker takes part in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// This node.
    pub node: NodeId,
    /// How it comes to be one.
    pub start: ClusterStart,
    /// So many bytes of the log are kept for nodes that were away: they need no whole state then.
    pub kept_log_bytes: u64,
}

/// How a node comes to be part of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterStart {
    /// It begins one, of which it is the only member. What is in its data directory is the cluster's from then on.
    New,
    /// It has nothing, and gets everything from the leader.
    Join,
    /// It is part of one already.
    Known,
    /// It was part of one, and goes on without the others, who are gone for good.
    Alone,
}

/// What a node is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It serves.
    Leading {
        /// In this term.
        term: Term,
    },
    /// Another one serves, or nobody does yet.
    Following {
        /// Who, if that is known.
        leader: Option<NodeId>,
    },
}

impl Role {
    /// Whether this node serves.
    #[must_use]
    pub const fn is_leading(self) -> bool {
        matches!(self, Self::Leading { .. })
    }
}
