//! Where a node keeps what its groups must not forget.
//!
//! All groups of a node write into one log, so that one sync serves all of them. [`MemoryStore`] is such a log in memory,
//! which can lose and tear what is not synced, and of which bytes can be harmed. What is written are records (`record`),
//! and a `directory` finds them again.

mod directory;
mod memory;
mod record;

use std::ops::Range;

use nexo_types::{LogIndex, RaftGroupId};
use thiserror::Error;

pub use memory::{Cut, Harm, MemoryStore};
pub use record::GroupRecord;

use crate::entry::{EntryId, GroupEntry, HardState, Snapshot};
use crate::group::Write;
use crate::membership::Membership;

/// Up to where a store is written or synced. Only its order has a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

/// What is stored of a group when it is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The promises.
    pub hard_state: HardState,
    /// The last entry in the snapshot that is stored.
    pub snapshot: EntryId,
    /// The members as of that entry. Nobody, for a node that is to get its first state from a leader.
    pub members: Membership,
    /// The last entry that is gone; not behind the snapshot.
    pub purged: EntryId,
    /// The entries between these two, by name.
    pub terms: Vec<EntryId>,
    /// The entries behind the snapshot.
    pub entries: Vec<GroupEntry>,
}

/// The durable log of a node's groups.
pub trait GroupStore {
    /// Appends a write, in the order in which groups give them out. It is safe when [`GroupStore::synced`] has come to the mark
    /// that is given back.
    ///
    /// # Errors
    /// If there is no room, or the disk has failed. Nothing was appended then, and it may be tried again.
    fn append(&mut self, group: RaftGroupId, write: &Write) -> Result<Mark, StoreError>;

    /// Up to where everything is synced.
    fn synced(&self) -> Mark;

    /// Entries of a group, as many as fit into the bytes, but one at least.
    ///
    /// # Errors
    /// If the first is not there, or cannot be read.
    fn read(
        &self,
        group: RaftGroupId,
        range: Range<LogIndex>,
        bytes_max: usize,
    ) -> Result<Vec<GroupEntry>, StoreError>;

    /// The snapshot of a group, if there is one with data.
    ///
    /// # Errors
    /// If it cannot be read.
    fn snapshot(&self, group: RaftGroupId) -> Result<Option<Snapshot>, StoreError>;

    /// All groups of which something is stored.
    fn groups(&self) -> Vec<RaftGroupId>;

    /// What is stored of a group.
    ///
    /// # Errors
    /// If it cannot be read.
    fn recover(&self, group: RaftGroupId) -> Result<Recovered, StoreError>;
}

/// Why a store does not do what it is asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// There is no room at the moment.
    #[error("the log has no room: {0}")]
    Full(String),
    /// The disk failed.
    #[error("the log failed: {0}")]
    Failed(String),
    /// The entry is gone or never was there.
    #[error("entry {index} of group {group} is not stored")]
    NoEntry {
        /// Of which group.
        group: RaftGroupId,
        /// The index that was asked for.
        index: LogIndex,
    },
    /// What is stored is not what was written.
    #[error("the log of group {group} is damaged: {fact}")]
    Damaged {
        /// Of which group.
        group: RaftGroupId,
        /// What is wrong with it, in words.
        fact: String,
    },
}

/// The first state of a group: its members, and nothing else. A node that joins later has not even that, so it gets a
/// snapshot first, and with it the members.
#[must_use]
pub fn first_write(members: Membership) -> Write {
    let first = EntryId::new(nexo_types::Term(1), LogIndex(1));
    let data = bytes::Bytes::new();
    Write {
        number: crate::group::WriteNumber(0),
        installed: Some(Snapshot { last: first, members, data }),
        taken: None,
        purged: None,
        entries: Vec::new(),
        hard_state: Some(HardState { term: first.term, vote: None, commit: first.index }),
        is_urgent: true,
    }
}
