//! Entries of a group's log, and what stands for those that are gone.

use bytes::Bytes;
use nexo_types::{LogIndex, NodeId, Term};

use crate::membership::{Change, Membership};

/// Names an entry. Two logs that have an entry of the same name are the same up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// The term of the leader that made it.
    pub term: Term,
    /// Its place in the log.
    pub index: LogIndex,
}

impl EntryId {
    /// An entry's name.
    #[must_use]
    pub const fn new(term: Term, index: LogIndex) -> Self {
        Self { term, index }
    }
}

/// An entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupEntry {
    /// Its name.
    pub id: EntryId,
    /// What it says.
    pub payload: Payload,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: the first entry of a new leader, whose commit tells that all before it are committed.
    Blank,
    /// What state machines have decided. Never empty.
    Data(Bytes),
    /// The same, of which only the disk of this node has the bytes: it proposed them as the only member. Never leaves the node.
    Stored,
    /// A change of the group's members. It counts from its commit on.
    Change(Change),
}

impl Payload {
    /// How many bytes it brings along.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            Self::Blank | Self::Stored | Self::Change(_) => 0,
        }
    }

    /// Whether it brings no data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a node must not forget of its promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term it has heard of.
    pub term: Term,
    /// Whom it has voted for in that term.
    pub vote: Option<NodeId>,
    /// Up to where it knew entries to be committed. This may be behind.
    pub commit: LogIndex,
}

/// Stands for all entries up to one: the state that they lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The last entry that is in it.
    pub last: EntryId,
    /// The members as of that entry.
    pub members: Membership,
    /// The state, or what says where to get it. Its meaning is the state machine's.
    pub data: Bytes,
}
