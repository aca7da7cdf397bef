//! The ledger itself: every event of every client comes here, and is judged here.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

use super::cause::Cause;
use super::damage::Damage;
use super::groups::Groups;
use super::order::Order;
use super::outage::{Shut, Silence, Sure};
use super::record::{Attempt, Custody, Event, Promise, Record, Seen};
use super::totals::Totals;
use super::violation::{Violation, What};
use crate::clock::Micros;
use crate::queues::{Family, Place};
use crate::stamp::{Copy, Durability, Stamp};
use crate::way::Way;

/// The broker's clock and ours round differently.
pub(crate) const SLACK: Micros = 3_000;
/// No lease of the ordered queue is shorter.
const LEASE_LEAST: Micros = 2_400_000;
/// Violations of each kind that are told in full; the rest is counted.
const TOLD_MAX: u64 = 10;
/// Copies that are done and still told of, in case one comes back.
const REMEMBERED: usize = 50_000;

/// A connection, or a stream of one, that holds messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId {
    way: Way,
    number: u64,
}

impl SessionId {
    /// Which of so many doors it goes through.
    pub(crate) const fn door(self, doors: usize) -> usize {
        (self.number % doors as u64) as usize
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} session {}", self.way, self.number)
    }
}

/// What a client was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) session: SessionId,
    pub(crate) stamp: Stamp,
    pub(crate) place: Place,
    pub(crate) attempt: Attempt,
    /// When the lease ends; `None` if it lasts as long as the connection.
    pub(crate) until: Option<Micros>,
    /// Of a dead letter, why it died, if it says so.
    pub(crate) cause: Option<Cause>,
    pub(crate) at: Micros,
}

/// What a client does with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reception {
    /// Work on it.
    Work(Copy),
    /// Its lease, its connection or the broker's life is over: nothing that is said about it would count.
    Late,
}

/// The books.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(super) records: HashMap<Copy, Record>,
    done: VecDeque<(Copy, Record)>,
    next_seq: HashMap<u16, u64>,
    pub(super) life: u32,
    /// For each life, the latest moment before which all is durable.
    horizons: BTreeMap<u32, Micros>,
    sessions: HashMap<SessionId, u32>,
    /// Doors behind which nobody can say who serves: sessions that begin there meanwhile are never judged.
    shut: Shut,
    /// How long nothing was confirmed.
    pub(super) silence: Silence,
    next_session: u64,
    order: Order,
    pub(super) groups: Groups,
    pub(super) damage: Damage,
    pub(super) violations: Vec<Violation>,
    pub(super) counts: BTreeMap<What, u64>,
    pub(super) sure: Sure,
    pub(super) totals: Totals,
}

impl Ledger {
    /// The broker is about to be ended, or has just ended by itself.
    pub(crate) fn end_life(&mut self) {
        self.life += 1;
    }

    /// The life before this one ended as it should: all it wrote is durable.
    pub(crate) fn ended_cleanly(&mut self) {
        if let Some(before) = self.life.checked_sub(1) {
            self.horizons.insert(before, Micros::MAX);
        }
    }

    /// A connection that will hold messages.
    pub(crate) fn open_session(&mut self, way: Way) -> SessionId {
        self.next_session += 1;
        let id = SessionId { way, number: self.next_session };
        if !self.shut.has(id) {
            self.sessions.insert(id, self.life);
        }
        id
    }

    /// These doors, of so many, lead nowhere, or nobody knows where, from now on: all sessions behind them are over.
    pub(crate) fn shut(&mut self, doors: impl IntoIterator<Item = usize>, of: usize) {
        self.shut.add(doors, of);
        let shut = &self.shut;
        self.sessions.retain(|session, _| !shut.has(*session));
    }

    /// All doors lead to the broker again.
    pub(crate) fn open_doors(&mut self) {
        self.shut = Shut::default();
    }

    /// Its client is about to end it, or has just seen it end.
    pub(crate) fn close_session(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Whether what comes over it is judged.
    pub(crate) fn is_current(&self, session: SessionId) -> bool {
        self.sessions.get(&session) == Some(&self.life)
    }

    /// The next number of a publisher.
    pub(crate) fn next_seq(&mut self, publisher: u16) -> u64 {
        let next = self.next_seq.entry(publisher).or_insert(1);
        *next += 1;
        *next - 1
    }

    /// A message is about to be sent.
    pub(crate) fn sent(&mut self, stamp: &Stamp, not_before: Micros, at: Micros) {
        for copy in stamp.copies() {
            let mut record = Record::new(*stamp, not_before);
            record.note(at, self.life, Event::Sent);
            self.records.insert(copy, record);
            self.totals.published += 1;
        }
    }

    /// The broker said that a message is in all its queues; it had been sent at `sent_at`, over this session.
    pub(crate) fn confirmed(&mut self, stamp: &Stamp, session: SessionId, sent_at: Micros, at: Micros) {
        let life = self.sessions.get(&session).copied().unwrap_or(self.life);
        self.silence.broken(at);
        for copy in stamp.copies() {
            self.totals.confirmed += 1;
            self.totals.of(session.way).confirmed += 1;
            let Some(record) = self.records.get_mut(&copy) else { continue };
            record.promise = Promise::Confirmed { life };
            record.note(at, self.life, Event::Confirmed);
            if copy.family == Family::ORDERED && record.deliveries == 0 {
                self.order.confirmed(stamp);
            }
            if copy.family == Family::GROUPS {
                self.groups.confirmed(stamp);
            }
        }
        if stamp.durability == Durability::Durable {
            self.reached(session, sent_at);
        }
    }

    /// What was sent at this moment over this session is durable.
    pub(crate) fn reached(&mut self, session: SessionId, sent_at: Micros) {
        if let Some(life) = self.sessions.get(&session) {
            let horizon = self.horizons.entry(*life).or_insert(0);
            *horizon = (*horizon).max(sent_at);
        }
    }

    /// The broker will never say what became of a message.
    pub(crate) fn uncertain(&mut self, stamp: &Stamp, at: Micros) {
        for copy in stamp.copies() {
            self.totals.uncertain += 1;
            let Some(record) = self.records.get_mut(&copy) else { continue };
            record.promise = Promise::Uncertain;
            record.note(at, self.life, Event::Uncertain);
        }
    }

    /// The broker said no. It may have taken some copies, so they are uncertain.
    pub(crate) fn refused(&mut self, stamp: &Stamp, at: Micros) {
        let copies = stamp.copies().count() as u64;
        self.uncertain(stamp, at);
        self.totals.uncertain -= copies;
        self.totals.refused += copies;
    }

    /// A message was taken back before it counted, and must never be seen.
    pub(crate) fn withdrawn(&mut self, stamp: &Stamp) {
        for copy in stamp.copies() {
            self.totals.withdrawn += 1;
            self.forget(copy);
        }
    }

    /// A message has come.
    pub(crate) fn delivered(&mut self, delivery: &Delivery) -> Reception {
        let Delivery { session, stamp, place, attempt, until, at, .. } = *delivery;
        // A lease that ended before its message was read: somebody else may have it by now, or be done with it.
        let is_expired = until.is_some_and(|until| at + SLACK >= until);
        if !self.is_current(session) || is_expired {
            return Reception::Late;
        }
        let copy = stamp.copy_in(place.family());
        self.totals.delivered += 1;
        self.totals.of(session.way).delivered += 1;
        self.totals.dead += u64::from(place.is_dead());
        let known = stamp.seq < self.next_seq.get(&stamp.publisher).copied().unwrap_or(0);
        if !known || !stamp.targets.contains(place.family()) {
            self.tell(What::Invented, format!("{copy} came from '{}'", place.name()), copy);
            return Reception::Work(copy);
        }
        let Some(record) = self.records.get(&copy) else {
            if self.was_taken_away(copy) {
                return Reception::Late;
            }
            let fact = format!("{copy} came from '{}' as {attempt} and was done", place.name());
            self.tell(What::Resurrected, fact, copy);
            return Reception::Work(copy);
        };
        let faults = self.judge(record, delivery);
        for (what, fact) in faults {
            self.tell(what, format!("{copy}: {fact}"), copy);
        }
        self.judge_order(delivery);
        self.judge_group(delivery);
        let life = self.life;
        if let Some(record) = self.records.get_mut(&copy) {
            record.words.came(life);
            record.saw(Seen { life, at, attempt, place });
            record.custody = Custody::Held { session, until };
            self.totals.redelivered += u64::from(record.deliveries > 1);
            record.note(at, life, Event::Delivered { session, attempt, place });
        }
        Reception::Work(copy)
    }

    fn judge(&self, record: &Record, delivery: &Delivery) -> Vec<(What, String)> {
        let Delivery { stamp, place, attempt, at, .. } = *delivery;
        let mut faults = Vec::new();
        if record.stamp != stamp {
            faults.push((What::Altered, format!("its stamp is {stamp:?}")));
        }
        // If it failed for good it is a dead letter at once.
        let back_at = if place.is_dead() { 0 } else { record.back_at };
        let not_before = record.not_before.max(back_at);
        if at + SLACK < not_before {
            faults.push((What::Early, format!("{} us early", not_before - at)));
        }
        match record.custody {
            Custody::Held { .. } | Custody::Acked { .. } if record.words.may_count() => {}
            Custody::Held { session, until }
                if self.is_current(session) && until.is_none_or(|until| at + SLACK < until) =>
            {
                faults.push((What::Doubled, format!("delivered while {session} holds it")));
            }
            Custody::Acked { session, until }
                if self.is_current(session) && until.is_none_or(|until| at + SLACK < until) =>
            {
                faults.push((What::Doubled, format!("delivered after {session} had acknowledged it")));
            }
            Custody::Held { .. } | Custody::Acked { .. } | Custody::Waiting => {}
        }
        // The latest that the broker must remember says most.
        if let Some(before) = record.seen.iter().rev().find(|seen| self.is_binding(seen)) {
            // An answer that was read late may tell of a delivery that a late word had ended before.
            if before.place == place && !attempt.can_follow(before.attempt) && !record.words.may_count() {
                faults.push((What::AttemptReset, format!("{attempt} after {}", before.attempt)));
            }
            if before.place.is_dead() && !place.is_dead() && !record.words.may_count() {
                let fact = format!(
                    "it was a dead letter and is back, with {} as {attempt} until {:?}",
                    delivery.session, delivery.until
                );
                faults.push((What::DeadLetter, fact));
            }
        }
        if let Some(cause) = delivery.cause
            && !cause.can_be(place.family(), record.was_rejected)
        {
            faults.push((What::DeadLetter, format!("it cannot have died of this: {cause:?}")));
        }
        faults
    }

    fn judge_order(&mut self, delivery: &Delivery) {
        let Delivery { stamp, place, attempt, .. } = *delivery;
        let copy = stamp.copy_in(place.family());
        let unseen = self.records.get(&copy).is_some_and(|record| record.deliveries == 0);
        if place != Place::ORDERED || !unseen {
            return;
        }
        if !attempt.is_first() {
            // It was handed out before and has come back to its place; others may have passed it.
            self.order.forget(&stamp);
            return;
        }
        let (overtaken_by, passed) = self.order.first_seen(&stamp);
        if let Some(other) = overtaken_by {
            let fact = format!("{copy} came after message {other}, sent later");
            self.tell_of_two(What::OutOfOrder, fact, copy, Copy { seq: other, ..copy });
        }
        for seq in passed {
            let missing = Copy { seq, ..copy };
            let vanished = self.records.get(&missing).is_none_or(|record| self.may_vanish(record));
            // A consumer that did not read for so long lost it again before it was seen: it comes later, to its place.
            let lease = delivery.until.map(|_| LEASE_LEAST);
            let lost_its_lease = self
                .records
                .get(&missing)
                .is_some_and(|record| lease.is_some_and(|lease| record.sent_at() + lease <= delivery.at));
            if !vanished && !lost_its_lease {
                let fact = format!("{missing} was confirmed and did not come before message {}", stamp.seq);
                self.tell_of_two(What::OutOfOrder, fact, missing, copy);
            }
        }
    }

    /// An acknowledgement is about to be sent.
    pub(crate) fn ack_sent(&mut self, copy: Copy, session: SessionId, at: Micros) {
        let life = self.life;
        if let Some(record) = self.records.get_mut(&copy) {
            let until = match record.custody {
                Custody::Held { until, .. } => until,
                Custody::Waiting | Custody::Acked { .. } => None,
            };
            record.custody = Custody::Acked { session, until };
            if is_heard_late(copy, session) {
                record.words.said(life);
            }
            record.note(at, life, Event::AckSent { session });
        }
    }

    /// An acknowledgement is durable: the message must never come again.
    pub(crate) fn acked(&mut self, copy: Copy, at: Micros) {
        let life = self.life;
        self.totals.acked += 1;
        if let Some(record) = self.records.get_mut(&copy) {
            record.note(at, life, Event::Acked);
            if let Custody::Acked { session, .. } = record.custody {
                self.totals.of(session.way).acked += 1;
            }
            if copy.family == Family::GROUPS {
                let stamp = record.stamp;
                self.settle_group(&stamp, at);
            }
        }
        self.forget(copy);
    }

    /// Whether an acknowledgement counted will never be known.
    pub(crate) fn ack_unsure(&mut self) {
        self.totals.unsure_acks += 1;
    }

    /// The broker said that an acknowledgement does not count: the message was no longer held.
    pub(crate) fn ack_failed(&mut self, copy: Copy, session: SessionId, at: Micros) {
        let life = self.life;
        if let Some(record) = self.records.get_mut(&copy)
            && matches!(record.custody, Custody::Acked { session: by, .. } if by == session)
        {
            record.custody = Custody::Waiting;
            record.note(at, life, Event::AckFailed);
        }
    }

    /// The broker cannot say whether an acknowledgement counts.
    pub(crate) fn ack_unknown(&mut self, copy: Copy, at: Micros) {
        let life = self.life;
        self.totals.unsure_acks += 1;
        if let Some(record) = self.records.get_mut(&copy)
            && let Custody::Acked { session, .. } = record.custody
        {
            // As if the connection had ended right after it was sent.
            let session = SessionId { number: 0, ..session };
            record.custody = Custody::Acked { session, until: None };
            record.note(at, life, Event::AckFailed);
        }
    }

    /// A message is about to be given back. Says how often it had been delivered by then.
    pub(crate) fn returned(&mut self, copy: Copy, session: SessionId, at: Micros) -> u32 {
        let life = self.life;
        let Some(record) = self.records.get_mut(&copy) else { return 0 };
        record.custody = Custody::Waiting;
        if is_heard_late(copy, session) {
            record.words.said(life);
        }
        record.note(at, life, Event::Returned { session });
        record.deliveries
    }

    /// A message is about to be given up: it becomes a dead letter.
    pub(crate) fn rejected(&mut self, copy: Copy, session: SessionId, at: Micros) {
        self.returned(copy, session, at);
        if let Some(record) = self.records.get_mut(&copy) {
            record.was_rejected = true;
        }
    }

    /// The broker said that a message which had been delivered so often waits until this moment.
    pub(crate) fn return_confirmed(&mut self, copy: Copy, deliveries: u32, back_at: Micros) {
        if let Some(record) = self.records.get_mut(&copy)
            && record.deliveries == deliveries
        {
            record.back_at = back_at;
        }
    }

    /// SQS has answered what was said about a message while its lease held.
    pub(crate) fn answered_in_time(&mut self, copy: Copy) {
        if let Some(record) = self.records.get_mut(&copy) {
            record.words.answered();
        }
    }

    /// Whether somebody who was late may have deleted a message that another holds.
    pub(crate) fn may_be_gone(&self, copy: Copy) -> bool {
        self.records.get(&copy).is_some_and(|record| record.words.may_count())
    }

    /// Whether a message that is done may have been taken from one who had not read of its delivery yet.
    fn was_taken_away(&self, copy: Copy) -> bool {
        let done = self.done.iter().rev().find(|(done, _)| *done == copy);
        done.is_some_and(|(_, record)| record.words.may_count() && record.words.are_of(self.life))
    }

    /// Notes a repetition that was recognised.
    pub(crate) fn repeated(&mut self) {
        self.totals.repeated += 1;
    }

    /// Notes a message that was given back because no queue wanted it.
    pub(crate) fn not_routed(&mut self) {
        self.totals.returned += 1;
    }

    /// Everything that could come has come, and nothing is left in any queue after a clean stop: what is not lost is
    /// done, and must never come again. Since the last time the broker has reported so many messages as damaged.
    pub(crate) fn close_books(&mut self, reported_damaged: u64) {
        let copies: Vec<Copy> = self.records.keys().copied().collect();
        for copy in copies {
            let Some(record) = self.records.get(&copy) else { continue };
            match (record.promise, record.custody) {
                (Promise::Pending | Promise::Uncertain, _) => {}
                // It may well have counted.
                (_, Custody::Acked { session, .. }) if !self.is_current(session) => {}
                _ if self.may_vanish(record) => self.totals.vanished += 1,
                (_, Custody::Waiting | Custody::Held { .. } | Custody::Acked { .. }) => {
                    self.tell(What::Lost, format!("{copy} was confirmed and is gone"), copy);
                }
            }
            self.forget(copy);
        }
        self.judge_suspects(reported_damaged);
        self.order = Order::default();
        self.groups = Groups::default();
        // No life before this one is asked about any more.
        self.horizons.clear();
    }

    /// Whether a copy of a message is in a queue for certain, as far as clients know.
    pub(crate) fn waits(&self, stamp: &Stamp) -> bool {
        stamp.durability == Durability::Durable
            && stamp.copies().any(|copy| {
                self.records.get(&copy).is_some_and(|record| {
                    matches!(record.promise, Promise::Confirmed { .. }) && record.custody == Custody::Waiting
                })
            })
    }

    /// Reports something that is not about one message alone.
    pub(crate) fn report(&mut self, violation: Violation) {
        let count = self.counts.entry(violation.what).or_default();
        *count += 1;
        if *count <= TOLD_MAX {
            self.violations.push(violation);
        }
    }

    /// Reports something about one message.
    pub(crate) fn tell(&mut self, what: What, fact: String, copy: Copy) {
        let history = self.history(copy);
        self.tell_with(Violation { what, fact, history }, copy);
    }

    /// The same, if another one has to do with it.
    fn tell_of_two(&mut self, what: What, fact: String, copy: Copy, other: Copy) {
        let history = format!("{}\n{}", self.history(copy), self.history(other));
        self.tell_with(Violation { what, fact, history }, copy);
    }

    /// What is known of a message.
    fn history(&self, copy: Copy) -> String {
        let record = self
            .records
            .get(&copy)
            .or_else(|| Some(&self.done.iter().rev().find(|(done, _)| *done == copy)?.1));
        record.map(Record::history).unwrap_or_default()
    }

    fn tell_with(&mut self, violation: Violation, copy: Copy) {
        let what = violation.what;
        if what.may_be_a_loss() && self.damage.is_open() {
            self.damage.suspect(copy, violation);
        } else {
            self.report(violation);
        }
    }

    /// Copies that are confirmed and wait, or are held.
    pub(crate) fn outstanding(&self) -> usize {
        self.records.len()
    }

    /// Copies that the broker has confirmed and that must still come.
    pub(crate) fn owed(&self) -> usize {
        let owed = |record: &&Record| {
            matches!(record.promise, Promise::Confirmed { .. })
                && !matches!(record.custody, Custody::Acked { .. })
                && !self.may_vanish(record)
        };
        self.records.values().filter(owed).count()
    }

    /// Copies whose publisher still waits for an answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.records.values().filter(|record| record.promise == Promise::Pending).count()
    }

    pub(crate) const fn totals(&self) -> &Totals {
        &self.totals
    }

    pub(crate) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// How often each promise was broken.
    pub(crate) const fn counts(&self) -> &BTreeMap<What, u64> {
        &self.counts
    }

    /// A transient message that was confirmed in an earlier life, or one that somebody who was late may have deleted.
    fn may_vanish(&self, record: &Record) -> bool {
        let is_transient = record.stamp.durability == Durability::Transient
            && matches!(record.promise, Promise::Confirmed { life } if life < self.life);
        is_transient || record.words.may_count()
    }

    /// Whether the broker must remember this delivery.
    fn is_binding(&self, seen: &Seen) -> bool {
        seen.life == self.life || self.horizons.get(&seen.life).is_some_and(|horizon| *horizon > seen.at)
    }

    pub(super) fn forget(&mut self, copy: Copy) {
        let Some(record) = self.records.remove(&copy) else { return };
        if copy.family == Family::ORDERED {
            self.order.forget(&record.stamp);
        }
        if copy.family == Family::GROUPS {
            self.groups.forget(&record.stamp);
        }
        if self.done.len() == REMEMBERED {
            self.done.pop_front();
        }
        self.done.push_back((copy, record));
    }
}

/// Whether what this session says about a message counts also when somebody else has it.
fn is_heard_late(copy: Copy, session: SessionId) -> bool {
    session.way == Way::Sqs && copy.family != Family::GROUPS
}
