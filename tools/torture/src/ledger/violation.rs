//! What must not happen.

use std::fmt;

/// A promise that was broken, with all that is known of the message.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) what: What,
    /// The message, or whatever else it is about, and the facts.
    pub(crate) fact: String,
    /// What had happened to it before.
    pub(crate) history: String,
}

/// Which promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum What {
    /// Confirmed, never acknowledged, and not there in the end.
    Lost,
    /// Delivered and never sent, or not to this queue.
    Invented,
    /// Delivered with another body or stamp than it was sent with.
    Altered,
    /// Delivered although its acknowledgement was durable.
    Resurrected,
    /// Delivered while somebody else held it or had acknowledged it.
    Doubled,
    /// An attempt that is not later than one before.
    AttemptReset,
    /// Delivered before its delay was over, or dead before its life was.
    Early,
    /// Not in the order in which it was sent.
    OutOfOrder,
    /// Given back, and not at its place in the queue.
    Misplaced,
    /// Behind one of lower priority.
    Priority,
    /// A dead letter that cannot have died as it says, or left its dead-letter queue again.
    DeadLetter,
    /// A message that no queue wanted was not given back before it was confirmed.
    NotReturned,
    /// A repetition that was not recognised.
    NotRecognised,
    /// Somebody who asked for a job has no answer, or is forgotten.
    Unanswered,
    /// A waiter has two answers, or a job two ends.
    AnsweredTwice,
    /// An answer that does not follow from what a worker said.
    WrongAnswer,
    /// Two workers have jobs of the same key at once.
    SharedKey,
    /// A worker has lost its job before its lease was over.
    LeaseBroken,
    /// A budget has paid more than it had.
    Overspent,
    /// The broker counts what the books do not.
    Figures,
    /// More was lost to damage than was hit.
    OverReported,
    /// The run did not do to the broker what it is there for.
    NotExercised,
    /// The broker did not do in time what it should.
    Stuck,
    /// The broker complained, or ended by itself.
    Broker,
}

impl What {
    /// Whether it may look like this to clients that another node leads than the one that the books think of.
    pub(super) const fn may_be_a_move(self) -> bool {
        matches!(
            self,
            Self::Doubled
                | Self::AttemptReset
                | Self::OutOfOrder
                | Self::Misplaced
                | Self::Priority
                | Self::DeadLetter
                | Self::NotRecognised
                | Self::SharedKey
                | Self::LeaseBroken
        )
    }

    /// Whether the loss of a message may look like this, at once or to those who wait for it.
    pub(super) const fn may_be_a_loss(self) -> bool {
        match self {
            Self::Lost | Self::OutOfOrder | Self::Misplaced | Self::Priority => true,
            Self::Invented
            | Self::Altered
            | Self::Resurrected
            | Self::Doubled
            | Self::AttemptReset
            | Self::Early
            | Self::DeadLetter
            | Self::NotReturned
            | Self::NotRecognised
            | Self::Unanswered
            | Self::AnsweredTwice
            | Self::WrongAnswer
            | Self::SharedKey
            | Self::LeaseBroken
            | Self::Overspent
            | Self::Figures
            | Self::OverReported
            | Self::NotExercised
            | Self::Stuck
            | Self::Broker => false,
        }
    }
}

impl Violation {
    pub(crate) fn new(what: What, fact: impl Into<String>) -> Self {
        Self { what, fact: fact.into(), history: String::new() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.what, self.fact)?;
        if self.history.is_empty() { Ok(()) } else { write!(f, "\n{}", self.history) }
    }
}
