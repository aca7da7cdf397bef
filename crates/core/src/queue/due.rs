//! What time does: delays end, leases end, lives end. Nothing is swept; each has its deadline.
//!
//! What needs no record, because the moment is in the message, happens in [`Queue::advance_time`]. The rest is decided.

use std::borrow::Cow;
use std::cmp::Reverse;

use nexo_types::{Offset, Priority, Timestamp};

use super::Queue;
use super::compact::{CompactEntry, Delayed};
use super::entry::MessageEntry;
use super::push::into_picks;
use super::settle::{Death, ReturnCause};
use crate::config::{Fate, RateLimit};
use crate::message::DeathReason;
use crate::record::Record;

/// What time has brought, not yet applied.
#[derive(Debug, Default)]
pub struct DuePlan {
    /// To be written down if [`Self::durable`], and applied.
    pub records: Vec<Record>,
    /// Whether any of the messages must survive a restart.
    pub durable: bool,
    /// Those that are to be dead-lettered once the records are applied.
    pub deaths: Vec<Death>,
    /// Whether there is more to do at this moment.
    pub more: bool,
}

impl Queue {
    /// Time passes. Messages whose delays have ended take their places, deduplication ids whose windows have ended are
    /// forgotten, and ends of life are noted for [`Self::decide_due`], at most some multiple of `max`. Says whether messages
    /// have not all taken their places: nobody may be served before that, since one of them may be the most urgent.
    pub fn advance_time(&mut self, now: Timestamp, max: usize) -> bool {
        self.forget_dedup(now, max * 4);
        self.leased.tighten(now);
        // It is quick, so its bound is larger.
        let advance_max = max * 16;
        let advancing = self.advance(now, advance_max) == advance_max;
        // Then, since a life may end with the delay.
        self.note_expired(now, max);
        advancing
    }

    /// Decides what has become due by `now`, for at most `max` messages of each kind.
    #[must_use]
    pub fn decide_due(&self, now: Timestamp, max: usize) -> DuePlan {
        let mut ended = self.leased.due(now, max);
        ended.sort_unstable();
        let mut more = ended.len() == max;
        let returns = self.plan_return(now, ended, ReturnCause::LeaseEnd);
        let expired: Vec<_> = self.still_ready(&self.expired).take(max).collect();
        more |= expired.len() == max;
        let mut plan =
            DuePlan { records: returns.records, durable: returns.durable, deaths: returns.deaths, more };
        self.plan_end(now, expired, self.config.on_expiry, DeathReason::Expired, &mut plan);
        plan
    }

    /// Decides that messages whose life is nothing go, because nobody who waited took them.
    #[must_use]
    pub fn decide_ttl_zero(&self, now: Timestamp) -> DuePlan {
        let mut plan = DuePlan::default();
        let gone = self.still_ready(&self.ttl_zero).collect();
        self.plan_end(now, gone, self.config.on_expiry, DeathReason::Expired, &mut plan);
        plan
    }

    /// Ready messages are not delivered any more.
    pub(super) fn plan_end(
        &self,
        now: Timestamp,
        gone: Vec<(Priority, Offset)>,
        fate: Fate,
        reason: DeathReason,
        plan: &mut DuePlan,
    ) {
        if gone.is_empty() {
            return;
        }
        plan.durable |= gone.iter().any(|(lane, offset)| self.is_durable_ready(*lane, *offset));
        if fate == Fate::DeadLetter {
            plan.deaths.extend(gone.iter().map(|(_, offset)| Death { offset: *offset, reason }));
            plan.records.push(Record::Die { picks: into_picks(gone), reason, at: now });
        } else {
            plan.records.push(Record::Drop { picks: into_picks(gone), why: reason.into(), at: now });
        }
    }

    fn still_ready<'a>(
        &'a self,
        noted: &'a [(Priority, Offset)],
    ) -> impl Iterator<Item = (Priority, Offset)> + 'a {
        noted.iter().copied().filter(|(lane, offset)| self.is_ready_here(*lane, *offset))
    }

    /// When this queue next needs attention without being asked, if ever.
    #[must_use]
    pub fn next_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        // These may be too early: then nothing is found, and the next moment is the right one.
        let lease = self.leased.earliest();
        let delay = self.delayed.earliest();
        let expiry = self.expiries.peek().map(|Reverse((at, ..))| *at);
        // What is due already is asked for as a page, and comes up again when that is here.
        let paged = self.lanes.paged_expiry().filter(|at| *at > now);
        // If a delivery is allowed now and none was made, something else is in its way.
        let starved = |limit: &RateLimit| self.can_dispatch() && self.tokens.available(*limit, now) == 0;
        let tokens = self.config.rate_limit.filter(starved).map(|limit| self.tokens.next(limit, now));
        [lease, delay, expiry, paged, tokens, self.dedup.next_deadline()].into_iter().flatten().min()
    }

    /// Delays that have ended: the messages join the others in their place. No record is needed, because the
    /// moment is in the message.
    pub(super) fn advance(&mut self, now: Timestamp, max: usize) -> usize {
        let mut moved = 0;
        while moved < max && !self.delayed.is_empty() {
            let ended = self.delayed.take_due(now, max - moved);
            if ended.is_empty() {
                break;
            }
            moved += ended.len();
            for Delayed(entry) in ended {
                self.return_to_lane(entry.into_entry());
            }
        }
        moved
    }

    /// Notes whose life has ended by `now`, until `max` are noted. Forgets those that have moved on, so that their deadlines
    /// neither wake anybody nor pile up.
    fn note_expired(&mut self, now: Timestamp, max: usize) {
        if self.expiries.len() as u64 > 2 * (self.lanes.resident_len() + self.returned.len() as u64) + 64 {
            self.rebuild_expiries();
        }
        let (expired, ttl_zero) = (std::mem::take(&mut self.expired), std::mem::take(&mut self.ttl_zero));
        self.expired = self.retain_ready(expired);
        self.ttl_zero = self.retain_ready(ttl_zero);
        while let Some(Reverse((at, lane, offset))) = self.expiries.peek().copied() {
            let is_ready = self.is_ready_here(lane, offset);
            if is_ready && (at > now || self.expired.len() >= max) {
                break;
            }
            self.expiries.pop();
            if is_ready {
                self.expired.push((lane, offset));
            }
        }
        // A message that came back is in the heap once for each time it was ready.
        self.expired.sort_unstable();
        self.expired.dedup();
    }

    fn retain_ready(&self, mut noted: Vec<(Priority, Offset)>) -> Vec<(Priority, Offset)> {
        noted.retain(|(lane, offset)| self.is_ready_here(*lane, *offset));
        noted
    }

    pub(super) fn is_ready_here(&self, lane: Priority, offset: Offset) -> bool {
        self.returned.contains(lane, offset) || self.lanes.get(lane, offset).is_some()
    }

    fn is_durable_ready(&self, lane: Priority, offset: Offset) -> bool {
        self.returned.get(lane, offset).is_some_and(CompactEntry::is_durable)
            || self.lanes.get(lane, offset).is_some_and(MessageEntry::is_durable)
    }

    fn rebuild_expiries(&mut self) {
        self.expiries.clear();
        self.expired.clear();
        self.ttl_zero.clear();
        let returned = self.returned.iter().map(CompactEntry::entry);
        for entry in returned.chain(self.lanes.resident().map(Cow::Borrowed)) {
            if entry.has_ttl_zero() {
                self.ttl_zero.push((entry.priority, entry.offset));
            } else if entry.expires_at != Timestamp::MAX {
                self.expiries.push(Reverse((entry.expires_at, entry.priority, entry.offset)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::{ConsumerId, Millis, QueueId, QueueName};

    use super::*;
    use crate::config::QueueConfig;
    use crate::message::NewMessage;
    use crate::queue::{Admission, LeaseTerms, Terms};

    const NOW: Timestamp = Timestamp(1_000_000);

    fn with(messages: &[NewMessage]) -> Queue {
        let mut queue = Queue::new(QueueId(1), QueueName::new("q").unwrap(), QueueConfig::default(), NOW);
        for (_, batch) in queue.decide_push(NOW, messages, Admission::Checked).batches {
            queue.apply(&Record::Messages(batch)).unwrap();
        }
        queue
    }

    fn advance(queue: &mut Queue, now: Timestamp) {
        while queue.advance_time(now, 100) {}
    }

    #[test]
    fn ended_leases_come_up_again_if_nothing_could_be_written() {
        let mut queue = with(&vec![NewMessage::new("x"); 20]);
        let terms = Terms { lease: LeaseTerms::For(Millis(100)), ..Terms::default() };
        queue.add_consumer(ConsumerId(1), terms, 20, None).unwrap();
        let dispatch = queue.decide_dispatch(NOW, 100).unwrap();
        queue.commit_dispatch(&dispatch).unwrap();
        let later = NOW.plus(Millis(100));
        assert!(queue.decide_due(Timestamp(later.0 - 1), 100).records.is_empty());
        let first = queue.decide_due(later, 100).records;
        let second = queue.decide_due(later, 100).records;
        assert_eq!(first, second, "the same leases have ended");
        for record in &second {
            queue.apply(record).unwrap();
        }
        assert_eq!(queue.in_flight(), 0);
        assert_eq!(queue.next_deadline(later), None, "nothing is left to wake up for");
    }

    #[test]
    fn what_has_expired_comes_up_again_if_nothing_could_be_written() {
        let message = |ttl| NewMessage { ttl: Some(Millis(ttl)), ..NewMessage::new("x") };
        let delayed = NewMessage { delay: Millis(50), ..message(100) };
        let mut queue = with(&[message(100), message(5000), delayed, message(0)]);
        advance(&mut queue, NOW.plus(Millis(60)));
        let later = NOW.plus(Millis(100));
        advance(&mut queue, later);
        let first = queue.decide_due(later, 100).records;
        assert!(matches!(&first[..], [Record::Drop { picks, .. }] if picks[0].offsets.len() == 2));
        advance(&mut queue, later);
        assert_eq!(queue.decide_due(later, 100).records, first);
        let ttl_zero = queue.decide_ttl_zero(later).records;
        assert_eq!(ttl_zero.len(), 1);
        for record in first.iter().chain(&ttl_zero) {
            queue.apply(record).unwrap();
        }
        advance(&mut queue, later);
        assert!(
            queue.decide_due(later, 100).records.is_empty()
                && queue.decide_ttl_zero(later).records.is_empty()
        );
        assert_eq!(queue.next_deadline(later), Some(NOW.plus(Millis(5000))));
    }

    #[test]
    fn a_few_at_a_time_expire_until_none_is_left() {
        let mut queue = with(&vec![NewMessage { ttl: Some(Millis(100)), ..NewMessage::new("x") }; 5]);
        let later = NOW.plus(Millis(100));
        let mut rounds = 0;
        loop {
            queue.advance_time(later, 2);
            let plan = queue.decide_due(later, 2);
            for record in &plan.records {
                queue.apply(record).unwrap();
            }
            rounds += 1;
            if !plan.more {
                break;
            }
        }
        assert_eq!((rounds, queue.len()), (3, 0));
    }

    #[test]
    fn delayed_messages_keep_few_bytes_in_memory_and_none_when_it_is_short() {
        let count = 60_000;
        let delayed = NewMessage { delay: Millis(500), ..NewMessage::new("x") };
        let mut queue = with(&vec![delayed; count]);
        let packed = count as u64 * 64 + crate::queue::IN_USE_BYTES;
        assert!(queue.loose_warm > 0, "some bytes are kept");
        let bound = packed + crate::queue::LOOSE_CACHE_BYTES_MAX;
        assert!(queue.memory_bytes() < bound, "{} of {bound}", queue.memory_bytes());
        queue.page_out(u64::MAX);
        queue.check_invariants();
        assert!(queue.memory_bytes() < packed, "{} of {packed} when memory is short", queue.memory_bytes());
        let later = NOW.plus(Millis(500));
        advance(&mut queue, later);
        assert_eq!(queue.counts().0, count as u64, "all are ready at once");
        queue.check_invariants();
    }

    #[test]
    fn bytes_of_ready_messages_leave_memory_only_if_nobody_waits_for_them() {
        let delayed = NewMessage { delay: Millis(500), ..NewMessage::new("x") };
        let transient = NewMessage { durability: crate::message::Durability::Transient, ..delayed.clone() };
        let mut queue = with(&[delayed.clone(), delayed, transient]);
        advance(&mut queue, NOW.plus(Millis(500)));
        assert_eq!(queue.loose_warm, 2);
        queue.add_consumer(ConsumerId(1), Terms::default(), 1, None).unwrap();
        queue.page_out(u64::MAX);
        assert_eq!(queue.loose_warm, 2, "the consumer gets them next");
        queue.set_credit(ConsumerId(1), 0);
        queue.page_out(u64::MAX);
        assert_eq!(queue.loose_warm, 0);
        assert!(queue.loose_cached_bytes > 0, "the log does not have the transient one");
        queue.check_invariants();
    }

    #[test]
    fn dying_messages_keep_few_bytes_in_memory_and_none_when_it_is_short() {
        let config = QueueConfig { on_expiry: Fate::DeadLetter, ..QueueConfig::default() };
        let mut queue = Queue::new(QueueId(1), QueueName::new("q").unwrap(), config, NOW);
        let dies = NewMessage { ttl: Some(Millis(100)), ..NewMessage::new("x".repeat(1 << 20)) };
        let transient = NewMessage {
            durability: crate::message::Durability::Transient,
            ..NewMessage { ttl: Some(Millis(100)), ..NewMessage::new("x") }
        };
        let later = NOW.plus(Millis(100));
        let mut deaths = Vec::new();
        // One after the other: a lane keeps few large ones in memory.
        for message in std::iter::repeat_n(&dies, 12).chain([&transient]) {
            let plan = queue.decide_push(NOW, std::slice::from_ref(message), Admission::Checked);
            let batches = plan.batches.into_iter().map(|(_, batch)| Record::Messages(batch));
            for record in plan.reserve.into_iter().chain(batches) {
                queue.apply(&record).unwrap();
            }
            advance(&mut queue, later);
            let plan = queue.decide_due(later, 100);
            for record in &plan.records {
                queue.apply(record).unwrap();
            }
            deaths.extend(plan.deaths);
        }
        assert_eq!(deaths.len(), 13);
        queue.check_invariants();
        let packed = 13 * crate::queue::OTHER_LOOSE_BYTES + crate::queue::IN_USE_BYTES;
        let bound = packed + crate::queue::LOOSE_CACHE_BYTES_MAX + 1024;
        assert!(queue.loose_warm > 0, "some bytes are kept");
        assert!(queue.memory_bytes() < bound, "{} of {bound}", queue.memory_bytes());
        queue.page_out(u64::MAX);
        queue.check_invariants();
        assert_eq!(queue.loose_warm, 0);
        let kept = deaths.iter().filter(|death| queue.dying(death.offset).unwrap().payload.is_some());
        assert_eq!(kept.count(), 1, "the log does not have the transient one");
        assert!(queue.loose_cached_bytes > 0, "which is counted");
        for death in &deaths {
            let leave = queue.decide_dead_letter(later, death.offset, crate::record::Leave::DeadLettered);
            queue.apply(&leave.unwrap()).unwrap();
        }
        queue.check_invariants();
        assert_eq!((queue.len(), queue.loose_cached_bytes), (0, 0));
    }

    /// A replay that could not read that it died finds it ready, and must let it go all the same.
    #[test]
    fn a_dead_letter_leaves_as_a_ready_message_does() {
        let config = QueueConfig { on_expiry: Fate::DeadLetter, ..QueueConfig::default() };
        let new = || Queue::new(QueueId(1), QueueName::new("q").unwrap(), config.clone(), NOW);
        let (mut queue, mut replay) = (new(), new());
        let message = NewMessage { ttl: Some(Millis(100)), ..NewMessage::new("x") };
        for (_, batch) in queue.decide_push(NOW, &[message], Admission::Checked).batches {
            let record = Record::Messages(batch);
            queue.apply(&record).unwrap();
            replay.apply(&record).unwrap();
        }
        let later = NOW.plus(Millis(100));
        advance(&mut queue, later);
        let plan = queue.decide_due(later, 100);
        for record in &plan.records {
            queue.apply(record).unwrap();
        }
        assert_eq!((queue.deaths().len(), queue.len()), (1, 1));
        let why = crate::record::Leave::DeadLettered;
        let leave = queue.decide_dead_letter(later, plan.deaths[0].offset, why).unwrap();
        assert!(matches!(leave, Record::Drop { .. }), "{leave:?}");
        for queue in [&mut queue, &mut replay] {
            queue.apply(&leave).unwrap();
            queue.check_invariants();
            assert_eq!((queue.len(), queue.deaths().len()), (0, 0));
        }
    }

    #[test]
    fn room_for_messages_that_cannot_leave_memory_is_given_back() {
        let transient =
            NewMessage { durability: crate::message::Durability::Transient, ..NewMessage::new("x") };
        let mut queue = with(&[]);
        let short = NewMessage { ttl: Some(Millis(100)), ..transient.clone() };
        // Of each stretch some stay.
        let messages: Vec<_> =
            (0..256).map(|at| if at % 8 == 0 { transient.clone() } else { short.clone() }).collect();
        let plan = queue.decide_push(NOW, &messages, Admission::Checked);
        let batches = plan.batches.into_iter().map(|(_, batch)| Record::Messages(batch));
        for record in plan.reserve.into_iter().chain(batches) {
            queue.apply(&record).unwrap();
        }
        let later = NOW.plus(Millis(100));
        while queue.advance_time(later, 1000) {}
        for record in queue.decide_due(later, 1000).records {
            queue.apply(&record).unwrap();
        }
        assert_eq!(queue.len(), 32);
        let before = queue.memory_bytes();
        queue.page_out(u64::MAX);
        queue.check_invariants();
        let freed = before - queue.memory_bytes();
        let entries = 80 * size_of::<MessageEntry>();
        assert!(freed >= entries as u64, "{freed} bytes of {before} were freed");
        assert_eq!(queue.counts().0, 32, "the log does not have them");
    }

    #[test]
    fn room_of_an_empty_queue_is_counted_until_memory_is_short() {
        let mut queue = with(&[]);
        assert_eq!(queue.memory_bytes(), 0, "never used");
        let terms = Terms { lease: LeaseTerms::For(Millis(100)), ..Terms::default() };
        queue.add_consumer(ConsumerId(1), terms, 400, None).unwrap();
        for _ in 0..100 {
            let plan = queue.decide_push(NOW, &vec![NewMessage::new("x"); 4], Admission::Checked);
            for (_, batch) in plan.batches {
                queue.apply(&Record::Messages(batch)).unwrap();
            }
            let dispatch = queue.decide_dispatch(NOW, 1000).unwrap();
            queue.commit_dispatch(&dispatch).unwrap();
        }
        let receipts = queue.held_by(ConsumerId(1));
        for record in queue.decide_ack(NOW, &receipts).records {
            queue.apply(&record).unwrap();
        }
        assert!(queue.is_empty());
        assert!(queue.memory_bytes() > crate::queue::IN_USE_BYTES, "it keeps room for the next messages");
        queue.page_out(u64::MAX);
        assert_eq!(queue.memory_bytes(), 0);
    }

    #[test]
    fn delayed_messages_take_little_memory_before_and_after_their_delay() {
        let delayed = NewMessage { delay: Millis(500), ..NewMessage::new("x") };
        let queue = with(&vec![delayed; 5000]);
        // What a restart leaves has no bytes in memory.
        let mut queue = queue.restored();
        let bound = 5000 * 64 + crate::queue::IN_USE_BYTES;
        assert!(queue.memory_bytes() < bound, "{} for delayed messages", queue.memory_bytes());
        let later = NOW.plus(Millis(500));
        advance(&mut queue, later);
        assert_eq!(queue.counts().0, 5000, "all are ready at once");
        assert!(queue.memory_bytes() < bound, "{} for messages that are ready", queue.memory_bytes());
        queue.check_invariants();
    }
}
