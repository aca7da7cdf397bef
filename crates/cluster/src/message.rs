//! What the members of a group tell each other. Who sends and who receives is not in it: the connection knows.

use nexo_types::{LogIndex, Term};

use crate::entry::{EntryId, GroupEntry, Snapshot};

/// A message of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender's term; for a pre-vote the term it would like to have. Never 0.
    pub term: Term,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A leader's entries, which follow each other and the entry `after`.
    Append {
        /// The entry before the first. Who does not have it refuses.
        after: EntryId,
        /// Up to where entries are committed.
        commit: LogIndex,
        /// Entries, maybe none.
        entries: Vec<GroupEntry>,
    },
    /// A follower has all entries up to this one, synced.
    Appended {
        /// The last of them.
        last: LogIndex,
        /// Up to where it knows them to be committed.
        commit: LogIndex,
    },
    /// A follower lacks the entry after which others were to come.
    AppendRefused {
        /// The place at which it should be.
        at: LogIndex,
        /// The last entry with which it may go on.
        hint: EntryId,
        /// Up to where it knows entries to be committed.
        commit: LogIndex,
    },
    /// A candidate asks for a vote.
    Vote {
        /// Whether it counts.
        ballot: Ballot,
        /// The candidate's last entry.
        last: EntryId,
        /// The last that it knows to be committed.
        commit: EntryId,
    },
    /// The answer.
    Voted {
        /// Whether it counts.
        ballot: Ballot,
        /// Whether it got the vote.
        granted: bool,
        /// On a refusal, the last entry known to be committed.
        commit: EntryId,
    },
    /// A leader is there.
    Heartbeat {
        /// What is committed, and the follower has.
        commit: LogIndex,
        /// A check of leadership that this is part of.
        check: Option<u64>,
    },
    /// A follower has heard it.
    HeartbeatHeard {
        /// Up to where it knows entries to be committed.
        commit: LogIndex,
        /// As in the heartbeat.
        check: Option<u64>,
    },
    /// A state in place of entries that the leader has no more.
    Install(Snapshot),
    /// A leader hands over: the receiver shall call an election now.
    TimeoutNow,
}

/// Whether a vote counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ballot {
    /// Nobody's term changes; it only tells whether an election would be won.
    Pre,
    /// It counts.
    Real,
    /// It counts, and the leader wants it: nobody refuses because that one was heard of lately.
    Transfer,
}
