//! On which terms a consumer takes messages, and why a queue may refuse it.

use nexo_types::{Millis, Timestamp};

use super::groups::GroupTake;
use crate::record::LeasePhase;

/// On which terms a consumer takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long it may hold one.
    pub lease: LeaseTerms,
    /// How it says that it is done.
    pub settle: SettleMode,
    /// Consumers of higher priority are served first, as long as they have credit.
    pub priority: i32,
    /// How much of a group it may hold at a time.
    pub groups: GroupTake,
    /// Whether others may consume beside it.
    pub access: Access,
    /// How many messages of the queue may be with consumers, for this one to be given any.
    pub in_flight: Option<InFlightLimit>,
}

/// How many messages of a queue may be with its consumers. Whoever takes messages within such a limit gets none beyond it;
/// others are not bound by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimit {
    /// So many.
    pub max: usize,
    /// What happens if there are as many when the consumer comes.
    pub when_reached: LimitReached,
}

/// What happens to a consumer that comes when its limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// It waits until there are fewer.
    Wait,
    /// It is refused.
    Refuse,
}

/// Whether a consumer shares its queue with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It does.
    Shared,
    /// It wants to be alone: it is refused where others consume, and others are refused while it is there.
    Exclusive,
    /// It takes what is there and leaves. An exclusive consumer does not mind it, as RabbitMQ's does not mind a
    /// `basic.get`.
    Pull,
}

/// Why a queue does not take a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerRefusal {
    /// It or another wants the queue for itself.
    InExclusiveUse,
    /// As many messages are with consumers as may be.
    TooManyInFlight {
        /// How many may be.
        max: usize,
    },
}

/// How long a consumer may hold a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseTerms {
    /// As long as the queue says.
    Queue,
    /// This long.
    For(Millis),
    /// Until its connection ends.
    Session,
}

/// How a consumer says that it is done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleMode {
    /// It acknowledges each.
    Manual,
    /// Handing it out settles it.
    Automatic,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease: LeaseTerms::Queue,
            settle: SettleMode::Manual,
            priority: 0,
            groups: GroupTake::Head,
            access: Access::Shared,
            in_flight: None,
        }
    }
}

impl Terms {
    /// How many messages it may be given, when so many are in flight.
    pub(crate) fn more_in_flight(&self, in_flight: usize) -> u32 {
        let Some(limit) = self.in_flight else { return u32::MAX };
        u32::try_from(limit.max.saturating_sub(in_flight)).unwrap_or(u32::MAX)
    }

    /// Whether a consumer may come, when so many are in flight.
    pub(crate) fn check_in_flight(&self, in_flight: usize) -> Result<(), ConsumerRefusal> {
        match self.in_flight {
            Some(InFlightLimit { max, when_reached: LimitReached::Refuse }) if in_flight >= max => {
                Err(ConsumerRefusal::TooManyInFlight { max })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// When a lease given now ends, and what it waits for.
    pub(crate) fn grant(
        self,
        now: Timestamp,
        visibility: Millis,
        receipt_timeout: Option<Millis>,
    ) -> (Option<Timestamp>, LeasePhase) {
        if self.settle == SettleMode::Automatic {
            return (None, LeasePhase::Taken);
        }
        match (self.lease, receipt_timeout) {
            (LeaseTerms::Session, _) => (None, LeasePhase::Done),
            (LeaseTerms::Queue | LeaseTerms::For(_), Some(timeout)) => {
                (Some(now.plus(timeout)), LeasePhase::Receipt)
            }
            (LeaseTerms::Queue, None) => (Some(now.plus(visibility)), LeasePhase::Done),
            (LeaseTerms::For(span), None) => (Some(now.plus(span)), LeasePhase::Done),
        }
    }
}
