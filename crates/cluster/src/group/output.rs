//! What a group gives out, and how it refuses.

use nexo_types::{LogIndex, NodeId, Term};
use thiserror::Error;

use crate::entry::{EntryId, GroupEntry, HardState, Snapshot};
use crate::membership::Membership;
use crate::message::Message;
use crate::tail::Fetch;

/// What a group wants to be done. Writes, messages and events each keep their order.
#[derive(Debug, Default)]
#[must_use = "what a group gives out is not given out again"]
pub struct Output {
    /// To be stored in this order, and told with [`Group::stored`](super::Group::stored) when synced.
    pub writes: Vec<Write>,
    /// To be sent, at once: what they promise is synced.
    pub messages: Vec<(NodeId, Message)>,
    /// What has happened.
    pub events: Vec<Event>,
    /// To be read, and told with [`Group::fetched`](super::Group::fetched).
    pub fetches: Vec<Fetch>,
}

impl Output {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
            && self.messages.is_empty()
            && self.events.is_empty()
            && self.fetches.is_empty()
    }
}

/// Numbers the writes of a group, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteNumber(pub u64);

/// Something to be stored: all of it or, after a crash, none. Of several writes those before are stored if a later one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// To tell that it is stored.
    pub number: WriteNumber,
    /// A state from the leader, which takes the place of the whole log.
    pub installed: Option<Snapshot>,
    /// A state that this node has made itself. The log stays.
    pub taken: Option<Snapshot>,
    /// Entries up to this one are not needed any more.
    pub purged: Option<EntryId>,
    /// They take the place of all entries from the first of them on.
    pub entries: Vec<GroupEntry>,
    /// In place of the one before.
    pub hard_state: Option<HardState>,
    /// Whether somebody waits for the sync. Otherwise it may be written whenever it suits, in order.
    pub is_urgent: bool,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An entry is committed, and synced here: it is to be applied. Entries come in order, each once since the group was opened.
    Committed {
        /// The entry.
        entry: GroupEntry,
        /// Whether this node proposed it, and has led without a break since.
        proposed_here: bool,
    },
    /// A state came from the leader in place of entries. The state machine is to be replaced by it.
    Restored(Snapshot),
    /// This node leads, and all entries of those before it were told as committed. It may propose.
    Leading {
        /// In this term.
        term: Term,
    },
    /// This node does not lead any more. What it proposed and was not told to be committed may be lost or not: nobody knows
    /// yet. It told [`Event::Leading`] before.
    Deposed {
        /// The term in which it led.
        term: Term,
    },
    /// The members have changed. The entry that says so was told before.
    MembersChanged(Membership),
    /// Whoever asked for this check of leadership may rely on what was committed when he asked, and on what was told since.
    LeadershipChecked {
        /// The number of the check.
        check: u64,
    },
    /// A follower needs a state in place of entries that are gone: one is to be offered with
    /// [`Group::offer_snapshot`](super::Group::offer_snapshot). A leader that waits for the commit of what it has made of its
    /// proposals must offer the last one that it saved: that commit may need this very follower.
    SnapshotWanted,
}

/// What became of a snapshot on its way to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// The follower has it.
    Arrived,
    /// It has not.
    Failed,
}

/// What a node is in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It follows, or waits for a leader.
    Follower,
    /// It has called an election.
    Candidate,
    /// It leads.
    Leader,
}

/// Why a group does not take a proposal. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// Another node leads, or nobody does.
    #[error("this node does not lead the group")]
    NotLeader {
        /// Who leads, if that is known.
        leader: Option<NodeId>,
    },
    /// It was elected, and does not know yet what those before it have committed.
    #[error("this node has just been elected to lead the group and is not ready yet")]
    NotReady,
    /// It is handing leadership over.
    #[error("this node is handing over the leadership of the group")]
    HandingOver,
    /// Too much waits to be committed.
    #[error("too much waits to be committed in the group")]
    Busy,
    /// A change of members is not complete.
    #[error("another change of the group's members is not complete yet")]
    ChangePending,
    /// No group could have such members, or the leader would lose itself.
    #[error("the group cannot have such members")]
    BadChange,
    /// It would vote before it has what the others have. It is to be a learner first.
    #[error("node {0} has not caught up with the group")]
    NotCaughtUp(NodeId),
    /// The receiver is no voter.
    #[error("node {0} is no voter of the group")]
    NotVoter(NodeId),
}

/// Why a message of a peer is not taken. Each is a sign that the peer or this node is not sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Rejected {
    /// It claims to come from this node.
    #[error("a message of this node came back to it")]
    OwnMessage,
    /// A leader says that this node has confirmed more than it has: its log lost what it promised to keep.
    #[error("the leader counts on entry {claimed}, and the last one here is {last}: entries were lost")]
    LostEntries {
        /// What the leader counts on.
        claimed: LogIndex,
        /// What is there.
        last: LogIndex,
    },
    /// A follower says that it has more than there is.
    #[error("node {from} confirms entry {claimed}, and the last one is {last}")]
    Unsent {
        /// Who says so.
        from: NodeId,
        /// What it confirms.
        claimed: LogIndex,
        /// What there is.
        last: LogIndex,
    },
    /// Entries whose terms go down, or above the leader's own.
    #[error("entries with terms that cannot be")]
    BadTerms,
}

/// Why a group cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// What is stored says that entries are committed which are not there. This node must not vote: it has promised to keep
    /// them. It may come back as a new node.
    #[error("entries up to {commit} were committed, and the last one stored is {last}: entries were lost")]
    LostEntries {
        /// Up to where entries were committed.
        commit: LogIndex,
        /// What is there.
        last: LogIndex,
    },
    /// What is stored does not fit together.
    #[error("the stored state of the group does not fit together: {0}")]
    Unsound(String),
}
