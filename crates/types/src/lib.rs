//! The words that every other crate uses: ids, names, time, places on disk and limits.
//!
//! Nothing here does anything; each type exists so that it cannot be mistaken for another. A string from a
//! client becomes a [`QueueName`] at the edge or an error that says why not, and is trusted from then on.

mod bytes;
mod id;
pub mod limits;
mod name;
mod place;
mod protocol;
mod time;
pub mod varint;
mod vhost;

pub use bytes::same_bytes;
pub use id::{
    BudgetId, ConsumerId, JobId, JobQueueId, LogIndex, NodeId, Offset, Priority, QueueId, RaftGroupId, Term,
};
pub use name::{
    BudgetName, DedupId, ExchangeName, GroupId, InFull, JobQueueName, NameError, NodeName, QueueName, Tag,
    UserName, check as check_name,
};
pub use place::{Position, SegmentId};
pub use protocol::{Protocol, QueueKind};
pub use time::{Millis, Timestamp};
pub use vhost::VhostName;
