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

impl Offset {
    /// The offset after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
