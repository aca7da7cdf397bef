//! The ways into the broker.

use std::fmt;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Way {
    Amqp,
    Native,
    Sqs,
}

impl Way {
    /// All there are, as they are told.
    pub(crate) const ALL: [Self; 3] = [Self::Amqp, Self::Native, Self::Sqs];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amqp => "AMQP",
            Self::Native => "native",
            Self::Sqs => "SQS",
        })
    }
}
