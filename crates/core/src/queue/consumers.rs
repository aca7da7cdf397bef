//! Who is waiting for messages, and whose turn it is.
//!
//! Nothing here is written down: consumers end with their connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use nexo_types::ConsumerId;

use super::allowance::Allowance;
use super::terms::{Access, ConsumerRefusal, SettleMode, Terms};
use crate::rare::Empty;

/// A number of messages that several consumers, perhaps of several queues, may hold together. One that does not
/// acknowledge holds none: it takes no room here, but gets nothing while there is no room, as on RabbitMQ.
#[derive(Debug, Default)]
pub struct SharedCredit(AtomicI64);

impl SharedCredit {
    /// Room for this many.
    #[must_use]
    pub fn new(credit: u32) -> Self {
        Self(AtomicI64::new(credit.into()))
    }

    /// Makes room for more. Whoever calls this then gives the consumers a credit of 0 each, so that they look again.
    pub fn add(&self, credit: u32) {
        self.0.fetch_add(credit.into(), Ordering::Relaxed);
    }

    /// Takes room away, also what is in use: as much must come back before there is room again.
    pub fn remove(&self, credit: u32) {
        self.0.fetch_sub(credit.into(), Ordering::Relaxed);
    }

    fn take_one(&self) -> bool {
        let one_less = |left: i64| (left > 0).then_some(left - 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= 0
    }
}

/// Who is next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextTurn {
    pub(crate) consumer: ConsumerId,
    pub(crate) terms: Terms,
    /// How many messages it may have.
    pub(crate) count: u32,
    /// How many bytes it may have besides, in more than one message: the turn ends with the message that uses them up.
    pub(crate) room: u64,
}

#[derive(Debug)]
struct Consumer {
    terms: Terms,
    credit: u32,
    shared: Option<Arc<SharedCredit>>,
    /// Bytes that it may hold; `None` for any number.
    allowance: Option<Arc<Allowance>>,
    /// Whether it stands in a row.
    in_turn: bool,
}

/// Messages in a row for one consumer, if many wait and others are waiting for them too.
const TURN_MAX: u32 = 64;

/// All consumers of one queue.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    all: HashMap<ConsumerId, Consumer, FixedState>,
    /// For each priority, highest first, those with credit, the one that has waited longest first. May name consumers
    /// that have left.
    turns: Vec<(i32, VecDeque<ConsumerId>)>,
    with_credit: usize,
    single_active: bool,
    /// Who gets everything, if only one may.
    active: Option<ConsumerId>,
    /// Who alone may consume.
    exclusive: Option<ConsumerId>,
    /// Those that take what is there and leave.
    pulls: usize,
}

impl Empty for Consumers {
    const EMPTY: &'static Self = &Self {
        all: HashMap::with_hasher(FixedState::with_seed(0)),
        turns: Vec::new(),
        with_credit: 0,
        single_active: false,
        active: None,
        exclusive: None,
        pulls: 0,
    };
}

impl Consumers {
    /// Whether a consumer may join. One that takes the place of another, which leaves right after, does not mind that one.
    pub(crate) fn check_access(
        &self,
        access: Access,
        replaced: Option<ConsumerId>,
    ) -> Result<(), ConsumerRefusal> {
        let replaced = replaced.filter(|id| self.all.contains_key(id));
        let others = (self.all.len() - self.pulls).saturating_sub(usize::from(replaced.is_some()));
        let may_join = match access {
            Access::Pull => true,
            Access::Shared => self.exclusive.is_none() || self.exclusive == replaced,
            // RabbitMQ refuses it as well where only one of several is active.
            Access::Exclusive => others == 0 && !self.single_active,
        };
        may_join.then_some(()).ok_or(ConsumerRefusal::InExclusiveUse)
    }

    pub(crate) fn add(
        &mut self,
        id: ConsumerId,
        terms: Terms,
        credit: u32,
        shared: Option<Arc<SharedCredit>>,
    ) {
        match terms.access {
            Access::Shared => {}
            Access::Exclusive => self.exclusive = Some(id),
            Access::Pull => self.pulls += 1,
        }
        let consumer = Consumer { terms, credit: 0, shared, allowance: None, in_turn: false };
        let fresh = self.all.insert(id, consumer).is_none();
        debug_assert!(fresh, "consumer ids are used once");
        self.choose_active();
        self.add_credit(id, credit);
    }

    pub(crate) fn set_allowance(&mut self, id: ConsumerId, allowance: Arc<Allowance>) {
        if let Some(consumer) = self.all.get_mut(&id) {
            consumer.allowance = Some(allowance);
        }
    }

    pub(crate) fn add_credit(&mut self, id: ConsumerId, credit: u32) {
        let Some(consumer) = self.all.get_mut(&id) else { return };
        if consumer.credit == 0 && credit > 0 {
            self.with_credit += 1;
        }
        consumer.credit = consumer.credit.saturating_add(credit);
        if consumer.credit > 0 && !consumer.in_turn && !consumer.is_starved() {
            consumer.in_turn = true;
            let priority = consumer.terms.priority;
            self.turn(priority).push_back(id);
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

    /// Has a consumer that does not acknowledge wait while a limit that others share is used up.
    pub(crate) fn heed(&mut self, id: ConsumerId, shared: Arc<SharedCredit>) {
        if let Some(consumer) = self.all.get_mut(&id) {
            debug_assert_eq!(
                consumer.terms.settle,
                SettleMode::Automatic,
                "what others hold is counted already"
            );
            consumer.shared = Some(shared);
        }
    }

    pub(crate) fn remove(&mut self, id: ConsumerId) {
        if let Some(consumer) = self.all.remove(&id) {
            self.with_credit -= usize::from(consumer.credit > 0);
            self.pulls -= usize::from(consumer.terms.access == Access::Pull);
        }
        if self.active == Some(id) {
            self.active = None;
        }
        if self.exclusive == Some(id) {
            self.exclusive = None;
        }
        self.choose_active();
        // Its place in the row is passed over when it comes up; a row of leavers is cleared at once.
        let all = &self.all;
        for (_, turn) in &mut self.turns {
            if turn.len() > 64 && turn.len() > all.len() * 2 {
                turn.retain(|id| all.contains_key(id));
            }
        }
        if self.all.is_empty() {
            self.turns.clear();
        }
    }

    /// Whether only one consumer may get messages.
    pub(crate) fn set_single_active(&mut self, single_active: bool) {
        self.single_active = single_active;
        self.choose_active();
    }

    /// The one that came first stays until it leaves; then the one that came next.
    fn choose_active(&mut self) {
        if self.single_active && self.active.is_none() {
            self.active = self.all.keys().min().copied();
        }
    }

    /// Who alone gets messages, if that is how the queue is set.
    pub(crate) fn active(&self) -> Option<ConsumerId> {
        self.active.filter(|_| self.single_active)
    }

    /// Whose turn it is, and how many messages it may have now, at most `max`: one, unless nobody else waits, or so
    /// many messages are `waiting` that everybody gets as much in longer turns. The first of them has `bytes`, which are
    /// noted; [`Self::end_turn`] notes those of the others. So many messages are `in_flight`.
    pub(crate) fn next_turn(
        &mut self,
        max: u32,
        bytes: u32,
        waiting: u64,
        in_flight: usize,
    ) -> Option<NextTurn> {
        let alone = match self.turns.as_slice() {
            [(_, turn)] if turn.len() == 1 && !self.single_active => turn.front().copied(),
            _ => None,
        };
        if let Some(consumer) = alone.and_then(|id| self.all.get_mut(&id))
            && let Some(id) = alone
            && (consumer.shared.is_none() || consumer.terms.settle == SettleMode::Automatic)
            && consumer.credit > 1
        {
            // One credit is left for the ordinary way, which knows when a consumer leaves its row.
            let room = if consumer.lacks_shared() { 0 } else { consumer.room() };
            let more_max = consumer.terms.more_in_flight(in_flight);
            if room > 0 && more_max > 0 {
                let count = max.min(consumer.credit - 1).min(more_max).max(1);
                consumer.credit -= count;
                consumer.note_handed(bytes.into());
                let room = room.saturating_sub(bytes.into());
                return Some(NextTurn { consumer: id, terms: consumer.terms, count, room });
            }
        }
        let (consumer, terms) = self.next_for(bytes, in_flight)?;
        let mut turn = NextTurn { consumer, terms, count: 1, room: 0 };
        let others = self.with_credit.max(1) as u64;
        let long = if waiting >= others * u64::from(TURN_MAX) * 2 { TURN_MAX.min(max) } else { 1 };
        if let Some(consumer) = self.all.get_mut(&consumer)
            && consumer.shared.is_none()
            && consumer.credit > 1
            && long > 1
        {
            // One credit is left, as above.
            let more = (long - 1).min(consumer.credit - 1).min(terms.more_in_flight(in_flight) - 1);
            consumer.credit -= more;
            turn.count += more;
            turn.room = consumer.room();
        }
        Some(turn)
    }

    /// Ends a turn: `bytes` were handed out in it beyond its first message, and what it did not use goes back.
    pub(crate) fn end_turn(&mut self, turn: NextTurn, bytes: u64) {
        if bytes > 0
            && let Some(consumer) = self.all.get(&turn.consumer)
        {
            consumer.note_handed(bytes);
        }
        if turn.count > 0 {
            self.give_back(turn.consumer, turn.count);
        }
    }

    /// Takes back bytes that were noted and not handed out.
    pub(crate) fn give_back_bytes(&self, id: ConsumerId, bytes: u64) {
        if let Some(allowance) = self.all.get(&id).and_then(|consumer| consumer.allowance.as_ref()) {
            // Whoever gives back credit as well has the consumer looked at again.
            let _ = allowance.passed_on(bytes);
        }
    }

    /// Whose turn it is: of those with credit the one of highest priority that has waited longest. It is given one
    /// message, of this size, and goes to the end of its row if it may have more.
    fn next_for(&mut self, bytes: u32, in_flight: usize) -> Option<(ConsumerId, Terms)> {
        let only = self.active();
        for (_, turn) in &mut self.turns {
            let mut passed = 0;
            while passed < turn.len()
                && let Some(id) = turn.pop_front()
            {
                let Some(consumer) = self.all.get_mut(&id) else { continue };
                let is_bound = consumer.terms.more_in_flight(in_flight) == 0;
                if is_bound || only.is_some_and(|only| only != id) {
                    turn.push_back(id);
                    passed += 1;
                    continue;
                }
                if consumer.credit == 0 || consumer.room() == 0 || !consumer.take_shared() {
                    consumer.in_turn = false;
                    continue;
                }
                consumer.note_handed(bytes.into());
                consumer.credit -= 1;
                if consumer.credit > 0 {
                    turn.push_back(id);
                } else {
                    consumer.in_turn = false;
                    self.with_credit -= 1;
                }
                return Some((id, consumer.terms));
            }
        }
        None
    }

    /// Gives one more message to the consumer that has just been given one, whoever else waits, if it has credit and room.
    /// The message has `bytes`, which are noted.
    pub(crate) fn take_one_more(&mut self, id: ConsumerId, bytes: u32, in_flight: usize) -> bool {
        let Some(consumer) = self.all.get_mut(&id).filter(|consumer| consumer.credit > 0) else {
            return false;
        };
        if consumer.terms.more_in_flight(in_flight) == 0 || consumer.room() == 0 || !consumer.take_shared() {
            return false;
        }
        consumer.note_handed(bytes.into());
        consumer.credit -= 1;
        if consumer.credit == 0 {
            consumer.in_turn = false;
            self.with_credit -= 1;
            let priority = consumer.terms.priority;
            let turn = self.turn(priority);
            // It went to the end of its row when it was given the first.
            if let Some(at) = turn.iter().rposition(|other| *other == id) {
                turn.remove(at);
            }
        }
        true
    }

    /// Gives back what [`Self::next_turn`] took, to a consumer and to those it shares a limit with.
    pub(crate) fn give_back(&mut self, id: ConsumerId, count: u32) {
        if let Some(consumer) = self.all.get(&id)
            && let Some(shared) = &consumer.shared
            && consumer.terms.settle == SettleMode::Manual
        {
            shared.add(count);
        }
        self.add_credit(id, count);
    }

    pub(crate) fn anyone_waiting(&self) -> bool {
        match self.active() {
            Some(id) => self.all.get(&id).is_some_and(|consumer| consumer.credit > 0),
            None => self.with_credit > 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    fn turn(&mut self, priority: i32) -> &mut VecDeque<ConsumerId> {
        let at = match self.turns.binary_search_by(|(held, _)| priority.cmp(held)) {
            Ok(at) => at,
            Err(at) => {
                self.turns.insert(at, (priority, VecDeque::new()));
                at
            }
        };
        &mut self.turns[at].1
    }
}

impl Consumer {
    fn is_starved(&self) -> bool {
        self.lacks_shared() || self.room() == 0
    }

    fn lacks_shared(&self) -> bool {
        self.shared.as_deref().is_some_and(SharedCredit::is_empty)
    }

    /// Bytes that it may be handed now.
    fn room(&self) -> u64 {
        self.allowance.as_ref().map_or(u64::MAX, |allowance| allowance.room())
    }

    fn note_handed(&self, bytes: u64) {
        if let Some(allowance) = &self.allowance {
            allowance.take(bytes);
        }
    }

    /// Takes room for one message where it must; `false` if there is none.
    fn take_shared(&self) -> bool {
        match (&self.shared, self.terms.settle) {
            (None, _) => true,
            (Some(shared), SettleMode::Manual) => shared.take_one(),
            (Some(shared), SettleMode::Automatic) => !shared.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests;
