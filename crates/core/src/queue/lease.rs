//! What a queue remembers of a message that is with a consumer.

use std::num::NonZeroU64;

use nexo_types::{ConsumerId, Millis, Offset, Timestamp};

use super::deadline_map::Scheduled;
use super::entry::MessageEntry;
use crate::message::DeathReason;
use crate::record::LeasePhase;

/// A message that is with a consumer.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) entry: MessageEntry,
    until: Optional,
    /// Not durable.
    consumer: Optional,
    /// Not durable.
    span: Optional,
    /// When it was handed out.
    pub(super) granted_at: Timestamp,
    pub(super) phase: LeasePhase,
    /// Its attempts are used up, and it is about to be moved.
    pub(super) dying: Option<DeathReason>,
}

impl Lease {
    pub(super) fn new(
        entry: MessageEntry,
        until: Option<Timestamp>,
        phase: LeasePhase,
        granted_at: Timestamp,
    ) -> Self {
        let until = Optional::new(until.map(|until| until.0));
        Self { entry, until, phase, granted_at, consumer: Optional(None), span: Optional(None), dying: None }
    }

    /// When it comes back by itself.
    pub(super) fn until(&self) -> Option<Timestamp> {
        self.until.get().map(Timestamp)
    }

    /// It stays with its consumer until then, who has received it.
    pub(super) fn extend(&mut self, until: Timestamp) {
        self.until = Optional::new(Some(until.0));
        self.phase = LeasePhase::Done;
    }

    /// Who has it.
    pub(super) fn consumer(&self) -> Option<ConsumerId> {
        self.consumer.get().map(ConsumerId)
    }

    /// Says who has it, and for how long it was asked for.
    pub(super) fn hand_to(&mut self, consumer: ConsumerId, span: Option<Millis>) {
        self.consumer = Optional::new(Some(consumer.0));
        self.span = Optional::new(span.map(|span| span.0));
    }

    /// For how long the consumer asked; only needed between *delivered* and *received*.
    pub(super) fn span(&self) -> Option<Millis> {
        self.span.get().map(Millis)
    }
}

impl Scheduled for Lease {
    fn offset(&self) -> Offset {
        self.entry.offset
    }

    /// One that is about to be moved does not come back.
    fn deadline(&self) -> Timestamp {
        if self.dying.is_some() { Timestamp::MAX } else { self.until().unwrap_or(Timestamp::MAX) }
    }
}

/// A number that may be missing, in eight bytes: one more than it is. As in snapshots, the largest of all becomes the one
/// before it.
#[derive(Clone, Copy, Debug)]
struct Optional(Option<NonZeroU64>);

impl Optional {
    fn new(value: Option<u64>) -> Self {
        Self(value.and_then(|value| NonZeroU64::new(value.saturating_add(1))))
    }

    fn get(self) -> Option<u64> {
        self.0.map(|value| value.get() - 1)
    }
}
