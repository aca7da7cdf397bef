//! Numbers that name things. Each is its own type, so that an offset cannot be passed for a consumer.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A queue for as long as it exists. A queue that is deleted and created again gets another id, so a late
    /// record or receipt for the old one cannot touch the new one.
    QueueId(u64)
}

id! {
    /// The place of a message in its queue: counts up from 0 by one for each message pushed, and is never used
    /// again. It is also the message's id for clients.
    Offset(u64)
}

id! {
    /// One consumer of one queue, for as long as the process runs.
    ConsumerId(u64)
}

id! {
    /// How urgent a message is: 255 goes before 0.
    Priority(u8)
}

id! {
    /// A job queue for as long as it exists. One that is deleted and created again gets another id.
    JobQueueId(u32)
}

id! {
    /// A budget for as long as it exists.
    BudgetId(u32)
}

id! {
    /// A job, on the whole node: the id of its queue, and how many jobs that queue had before.
    JobId(u64)
}

id! {
    /// A node of a cluster, for as long as the cluster exists. A node that was wiped comes back under another id: the one
    /// before may have promised what this one does not know.
    NodeId(u64)
}

id! {
    /// A Raft group of a cluster.
    RaftGroupId(u32)
}

id! {
    /// A term of a Raft group: it has one leader at most. The first is 1.
    Term(u64)
}

id! {
    /// The place of an entry in the log of a Raft group. The first is 1; 0 is the place before it.
    LogIndex(u64)
}

impl LogIndex {
    /// The place after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl JobId {
    /// How many bits count the jobs of one queue: a thousand billions.
    const SEQUENCE_BITS: u32 = 40;
    /// The first number that is too large for the id of a job queue.
    pub const QUEUES_END: u32 = 1 << (u64::BITS - Self::SEQUENCE_BITS);

    /// The job that a queue made as its `sequence`th.
    #[must_use]
    pub const fn new(queue: JobQueueId, sequence: u64) -> Self {
        debug_assert!(queue.0 < Self::QUEUES_END && sequence >> Self::SEQUENCE_BITS == 0);
        Self((queue.0 as u64) << Self::SEQUENCE_BITS | sequence)
    }

    /// The queue it is in.
    #[must_use]
    pub const fn queue(self) -> JobQueueId {
        JobQueueId((self.0 >> Self::SEQUENCE_BITS) as u32)
    }

    /// How many jobs its queue had before it.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.0 & ((1 << Self::SEQUENCE_BITS) - 1)
    }
}

impl Offset {
    /// The offset after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
