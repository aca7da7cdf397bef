//! Who is waiting for messages, and whose turn it is.
//!
//! Nothing here is written down: consumers end with their connection.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use nexo_types::{ConsumerId, Millis, Timestamp};

use crate::record::Phase;

/// On which terms a consumer takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long it may hold one.
    pub lease: LeaseTerms,
    /// How it says that it is done.
    pub settle: SettleMode,
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
        Self { lease: LeaseTerms::Queue, settle: SettleMode::Manual }
    }
}

#[derive(Debug)]
struct Consumer {
    terms: Terms,
    credit: u32,
    /// Whether it stands in the row.
    in_turn: bool,
}

/// All consumers of one queue.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    all: HashMap<ConsumerId, Consumer, FixedState>,
    /// Those with credit, the one that has waited longest first. May name consumers that have left.
    turn: VecDeque<ConsumerId>,
    with_credit: usize,
}

impl Consumers {
    pub(crate) fn add(&mut self, id: ConsumerId, terms: Terms, credit: u32) {
        let fresh = self.all.insert(id, Consumer { terms, credit: 0, in_turn: false }).is_none();
        debug_assert!(fresh, "consumer ids are used once");
        self.add_credit(id, credit);
    }

    pub(crate) fn add_credit(&mut self, id: ConsumerId, credit: u32) {
        let Some(consumer) = self.all.get_mut(&id) else { return };
        if consumer.credit == 0 && credit > 0 {
            self.with_credit += 1;
        }
        consumer.credit = consumer.credit.saturating_add(credit);
        if consumer.credit > 0 && !consumer.in_turn {
            consumer.in_turn = true;
            self.turn.push_back(id);
        }
    }

    /// Takes back credit that has not been used, for example when a client asks for fewer messages.
    pub(crate) fn set_credit(&mut self, id: ConsumerId, credit: u32) {
        if let Some(consumer) = self.all.get_mut(&id)
            && consumer.credit > 0
        {
            consumer.credit = 0;
            self.with_credit -= 1;
        }
        self.add_credit(id, credit);
    }

    pub(crate) fn remove(&mut self, id: ConsumerId) {
        if let Some(consumer) = self.all.remove(&id) {
            self.with_credit -= usize::from(consumer.credit > 0);
        }
        // Its place in the row is passed over when it comes up; a row of leavers is cleared at once.
        if self.turn.len() > 64 && self.turn.len() > self.all.len() * 2 {
            let all = &self.all;
            self.turn.retain(|id| all.contains_key(id));
        }
    }

    /// Whose turn it is: the consumer with credit that has waited longest. It is given `1` message, and goes
    /// to the end of the row if it may have more.
    pub(crate) fn next(&mut self) -> Option<(ConsumerId, Terms)> {
        while let Some(id) = self.turn.pop_front() {
            let Some(consumer) = self.all.get_mut(&id) else { continue };
            if consumer.credit == 0 {
                consumer.in_turn = false;
                continue;
            }
            consumer.credit -= 1;
            if consumer.credit > 0 {
                self.turn.push_back(id);
            } else {
                consumer.in_turn = false;
                self.with_credit -= 1;
            }
            return Some((id, consumer.terms));
        }
        None
    }

    pub(crate) const fn anyone_waiting(&self) -> bool {
        self.with_credit > 0
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

impl Terms {
    /// When a lease given now ends, and what it waits for.
    pub(crate) fn grant(
        self,
        now: Timestamp,
        visibility: Millis,
        receipt_timeout: Option<Millis>,
    ) -> (Option<Timestamp>, Phase) {
        if self.settle == SettleMode::Automatic {
            return (None, Phase::Taken);
        }
        match (self.lease, receipt_timeout) {
            (LeaseTerms::Session, _) => (None, Phase::Done),
            (LeaseTerms::Queue | LeaseTerms::For(_), Some(timeout)) => {
                (Some(now.plus(timeout)), Phase::Receipt)
            }
            (LeaseTerms::Queue, None) => (Some(now.plus(visibility)), Phase::Done),
            (LeaseTerms::For(span), None) => (Some(now.plus(span)), Phase::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_with_credit_are_served_in_turn() {
        let mut consumers = Consumers::default();
        for (id, credit) in [(1, 2), (2, 0), (3, 3)] {
            consumers.add(ConsumerId(id), Terms::default(), credit);
        }
        let order: Vec<u64> = std::iter::from_fn(|| consumers.next()).map(|(id, _)| id.0).collect();
        assert_eq!(order, [1, 3, 1, 3, 3]);
        assert!(!consumers.anyone_waiting());
        consumers.add_credit(ConsumerId(2), 1);
        assert_eq!(consumers.next().map(|(id, _)| id), Some(ConsumerId(2)));
    }

    #[test]
    fn a_consumer_that_left_is_passed_over() {
        let mut consumers = Consumers::default();
        consumers.add(ConsumerId(1), Terms::default(), 5);
        consumers.add(ConsumerId(2), Terms::default(), 1);
        consumers.remove(ConsumerId(1));
        assert!(consumers.anyone_waiting());
        assert_eq!(consumers.next().map(|(id, _)| id), Some(ConsumerId(2)));
        assert_eq!(consumers.next(), None);
        assert!(!consumers.anyone_waiting());
    }

    #[test]
    fn credit_can_be_taken_back() {
        let mut consumers = Consumers::default();
        consumers.add(ConsumerId(1), Terms::default(), 5);
        consumers.set_credit(ConsumerId(1), 0);
        assert!(!consumers.anyone_waiting());
        assert_eq!(consumers.next(), None);
        consumers.set_credit(ConsumerId(1), 1);
        assert_eq!(consumers.next().map(|(id, _)| id), Some(ConsumerId(1)));
        assert_eq!(consumers.next(), None);
    }
}
