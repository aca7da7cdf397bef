//! What is known of one copy of a message.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use super::books::SessionId;
use crate::clock::Micros;
use crate::queues::Place;
use crate::stamp::Stamp;

/// How often a message has been delivered, this time included, as far as the protocol tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    least: u32,
    most: u32,
}

impl Attempt {
    /// The broker says the number.
    pub(crate) const fn exact(number: u32) -> Self {
        Self { least: number, most: number }
    }

    /// The broker says only whether it was delivered before.
    pub(crate) const fn redelivered(redelivered: bool) -> Self {
        if redelivered { Self { least: 2, most: u32::MAX } } else { Self::exact(1) }
    }

    /// The broker says how often it was delivered in all, in queues before this one too.
    pub(crate) const fn in_all(number: u32) -> Self {
        Self { least: 1, most: number }
    }

    /// Whether it can be a later one than `before`.
    pub(crate) const fn can_follow(self, before: Self) -> bool {
        self.most > before.least
    }

    /// Whether it was never delivered before, as far as the broker remembers.
    pub(crate) const fn is_first(self) -> bool {
        self.most == 1
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.most {
            u32::MAX => write!(f, "attempt {} or later", self.least),
            most if most > self.least => write!(f, "attempt {most} in all"),
            most => write!(f, "attempt {most}"),
        }
    }
}

/// What the broker has promised about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// No answer yet.
    Pending,
    /// It is in its queue; said in this life.
    Confirmed { life: u32 },
    /// There will be no answer: it may be there or not.
    Uncertain,
}

/// Who has it, as far as clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Custody {
    Waiting,
    Held {
        session: SessionId,
        until: Option<Micros>,
    },
    /// Acknowledged, and whether the broker has written that down is not known: it may come too late for the lease.
    Acked {
        session: SessionId,
        until: Option<Micros>,
    },
}

/// A delivery that was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) life: u32,
    pub(super) at: Micros,
    pub(super) attempt: Attempt,
    pub(super) place: Place,
}

/// One copy.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) stamp: Stamp,
    pub(super) promise: Promise,
    pub(super) custody: Custody,
    /// Nobody may see it before this.
    pub(super) not_before: Micros,
    /// After a failure, its queue may not deliver it again before this.
    pub(super) back_at: Micros,
    /// Whether a consumer ever gave it up.
    pub(super) was_rejected: bool,
    /// The latest deliveries. Which of them no kill can take back may be known only later.
    pub(super) seen: VecDeque<Seen>,
    pub(super) deliveries: u32,
    /// What SQS was told about it and has not answered in time.
    pub(super) words: Words,
    events: Vec<(Micros, u32, Event)>,
}

/// Deletes and changes of visibility that SQS has not answered in time. In a standard queue the receipt of any delivery
/// counts: a word that comes late may be about a message that somebody else holds by then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Words {
    open: u32,
    life: u32,
    /// Whether the message was delivered again after such a word, in the same life.
    may_be_late: bool,
}

impl Words {
    pub(super) fn said(&mut self, life: u32) {
        self.open += 1;
        self.life = life;
    }

    pub(super) const fn answered(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// The message has come again. What was said in an earlier life is not heard any more.
    pub(super) fn came(&mut self, life: u32) {
        if life > self.life && !self.may_be_late {
            self.open = 0;
        }
        self.may_be_late |= self.open > 0;
    }

    /// Whether they were said in this life of the broker.
    pub(super) const fn are_of(&self, life: u32) -> bool {
        self.life == life
    }

    /// Whether somebody who was late may have deleted it, or given it back, while another had it.
    pub(super) const fn may_count(&self) -> bool {
        self.may_be_late && self.open > 0
    }
}

/// Something that happened to it, to be told in the end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Sent,
    Confirmed,
    Uncertain,
    Delivered { session: SessionId, attempt: Attempt, place: Place },
    AckSent { session: SessionId },
    Acked,
    AckFailed,
    Returned { session: SessionId },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent => f.write_str("sent"),
            Self::Confirmed => f.write_str("confirmed"),
            Self::Uncertain => f.write_str("never answered, or refused"),
            Self::Delivered { session, attempt, place } => {
                write!(f, "delivered by '{}' to {session} as {attempt}", place.name())
            }
            Self::AckSent { session } => write!(f, "acknowledged by {session}"),
            Self::Acked => f.write_str("the acknowledgement is durable"),
            Self::AckFailed => f.write_str("the acknowledgement does not count, or perhaps not"),
            Self::Returned { session } => write!(f, "given back by {session}"),
        }
    }
}

/// Events that are kept of one copy; of a message that comes again and again the middle is left out.
const EVENTS_MAX: usize = 40;
/// Deliveries that attempts are compared with.
const SEEN_MAX: usize = 8;

impl Record {
    pub(super) fn new(stamp: Stamp, not_before: Micros) -> Self {
        Self {
            stamp,
            promise: Promise::Pending,
            custody: Custody::Waiting,
            not_before,
            back_at: 0,
            was_rejected: false,
            seen: VecDeque::new(),
            deliveries: 0,
            words: Words::default(),
            events: Vec::with_capacity(4),
        }
    }

    pub(super) fn saw(&mut self, seen: Seen) {
        if self.seen.len() == SEEN_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back(seen);
        self.deliveries += 1;
    }

    pub(super) fn note(&mut self, at: Micros, life: u32, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.remove(EVENTS_MAX / 2);
        }
        self.events.push((at, life, event));
    }

    /// When it was sent.
    pub(super) fn sent_at(&self) -> Micros {
        self.events.first().map_or(0, |(at, ..)| *at)
    }

    /// All that happened, a line each.
    pub(super) fn history(&self) -> String {
        let mut text = format!("  {:?}", self.stamp);
        let start = self.events.first().map_or(0, |(at, ..)| *at);
        for (at, life, event) in &self.events {
            let seconds = at.saturating_sub(start) as f64 / 1e6;
            // Writing to a text cannot fail.
            let _ = write!(text, "\n  {at} (+{seconds:.3} s) life {life}: {event}");
        }
        text
    }
}
