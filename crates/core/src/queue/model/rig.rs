//! The engine with the least of a broker around it, and the model beside it: every step is done to both, and they
//! must agree.

mod deliveries;
mod restarts;
mod settling;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{ConsumerId, Millis, Offset, QueueId, Timestamp};

use super::naive::{Model, Naive, Where};
use super::{Draft, Op, body, name, terms_of};
use crate::batch::MessageBatch;
use crate::config::Overflow;
use crate::draft::PackedBatch;
use crate::message::{Durability, NewMessage, StoredMessage};
use crate::queue::*;
use crate::record::{LeasePhase, Leave, Record};
use crate::shared_messages::SharedMessages;

/// The engine with the least of a broker around it.
pub(super) struct Rig {
    queue: Queue,
    model: Model,
    now: Timestamp,
    /// Everything that would be in the log.
    log: Vec<Record>,
    /// The batch of each message.
    store: BTreeMap<Offset, MessageBatch>,
    held: Vec<(Offset, u32)>,
    /// Handed to a consumer without acknowledgements, and not in memory.
    read: Vec<(Offset, u32)>,
    /// Consumers that have left: their ids are not used again.
    left: Vec<u64>,
    /// A page that was read and not yet given to the queue.
    late: Option<(PageRequest, Vec<MessageEntry>)>,
    /// The latest chunk of each number that is on disk.
    chunks: BTreeMap<ChunkId, Bytes>,
    /// A snapshot that is being taken.
    taking: Option<Taking>,
    saved: Option<Saved>,
}

/// What a look tells of a message that nobody can get now.
type SeenAside = (Offset, u32, Option<Timestamp>);

fn by_offset(seen: impl Iterator<Item = SeenAside>) -> Vec<SeenAside> {
    let mut seen: Vec<_> = seen.collect();
    seen.sort_unstable_by_key(|(offset, ..)| *offset);
    seen
}

/// A snapshot that has been begun.
struct Taking {
    head: Bytes,
    /// How many records there were when it was begun.
    records: usize,
    chunks: Vec<(ChunkId, Bytes)>,
}

/// A snapshot on disk.
#[derive(Clone)]
struct Saved {
    head: Bytes,
    chunks: BTreeMap<ChunkId, Bytes>,
    records: usize,
}

impl Rig {
    pub(super) fn new(config: QueueConfig) -> Self {
        let now = Timestamp(1_000_000);
        let create = Record::Create { name: name(), config: config.clone(), at: now };
        Self {
            queue: Queue::new(QueueId(1), name(), config, now),
            model: Model::default(),
            now,
            log: vec![create],
            store: BTreeMap::new(),
            held: Vec::new(),
            read: Vec::new(),
            left: Vec::new(),
            late: None,
            chunks: BTreeMap::new(),
            taking: None,
            saved: None,
        }
    }

    fn append(&mut self, record: &Record) {
        // What is replayed has been through bytes.
        let record = match record {
            Record::Messages(batch) => {
                let store = |_| Some(batch.stored().clone());
                Record::Messages(MessageBatch::decode_in(batch.bytes().clone(), store).unwrap())
            }
            other => Record::decode(&other.encode()).unwrap(),
        };
        self.log.push(record);
    }

    fn run(&mut self, record: &Record, durable: bool) -> Applied {
        if durable {
            self.append(record);
        }
        self.queue.apply(record).expect("decisions name only what is in memory")
    }

    fn push(&mut self, drafts: &[Draft]) {
        // A body names the offset that the message should get, so that a mix-up shows.
        let mut messages: Vec<NewMessage> = drafts.iter().map(Draft::message).collect();
        self.number(&mut messages);
        let plan = self.queue.decide_push(self.now, &messages, Admission::Checked);
        let config = self.queue.config().clone();
        for (message, outcome) in messages.iter().zip(&plan.outcomes) {
            let lifetime = [message.ttl, config.ttl].into_iter().flatten().min();
            let size = message.body.len() as u64;
            let known = message.dedup.as_ref().and_then(|id| {
                self.model.dedup.iter().rev().find(|(seen, until, _)| seen == id && *until > self.now)
            });
            let waiting = self.model.messages.iter().filter(|m| m.place == Where::Waiting);
            let bytes: u64 = waiting.clone().map(|m| m.size).sum();
            let count = waiting.count() as u64;
            let full = config.overflow == Overflow::Reject
                && (config.max_messages.is_some_and(|max| count >= max)
                    || config.max_bytes.is_some_and(|max| bytes + size > max));
            if let Some((_, _, first)) = known {
                assert_eq!(*outcome, PushOutcome::Duplicate(*first));
                continue;
            }
            if full {
                assert!(matches!(outcome, PushOutcome::Refused { .. }), "the queue is full: {outcome:?}");
                continue;
            }
            let offset = Offset(self.model.next);
            assert_eq!(*outcome, PushOutcome::Accepted(offset));
            self.model.next += 1;
            if let Some(id) = &message.dedup {
                self.model.dedup.push((id.clone(), self.now.plus(config.dedup_window), offset));
            }
            self.model.messages.push(Naive {
                offset,
                priority: message.priority,
                group: message.group.clone(),
                ready_at: self.now.plus(message.delay),
                expires_at: lifetime.map_or(Timestamp::MAX, |l| self.now.plus(l)),
                attempts: 0,
                size,
                place: Where::Waiting,
                dying: None,
            });
        }
        self.check_packed(&messages, &plan);
        if let Some(reserve) = &plan.reserve {
            self.run(reserve, true);
        }
        for (durability, mut batch) in plan.batches {
            let durable = durability == Durability::Durable;
            // Some of them go to other queues as well.
            if self.log.len().is_multiple_of(3) {
                let packed = PackedBatch::reopen(&batch, durability);
                let shared = SharedMessages::new(packed, &Arc::default());
                batch = shared.batch(0, batch.items()[0].offset, self.now);
            }
            self.run(&Record::Messages(batch.clone()), durable);
            if durable {
                for item in batch.items() {
                    self.store.insert(item.offset, batch.clone());
                }
            }
        }
        self.settle_overflow();
        self.dispatch();
    }

    /// Messages that come packed make the same batches, where they may go as they are.
    fn check_packed(&self, messages: &[NewMessage], plan: &PushPlan) {
        let mut packed: Vec<PackedBatch> = Vec::new();
        for message in messages {
            let draft = message.as_draft();
            if packed.last().is_none_or(|packed| !packed.has_room(&draft)) {
                packed.push(PackedBatch::new(draft.durability, 0, 0));
            }
            packed.last_mut().unwrap().push(&draft);
        }
        if packed.iter().any(|packed| self.queue.decide_packed(packed).is_none()) {
            return;
        }
        assert!(plan.outcomes.iter().all(|outcome| matches!(outcome, PushOutcome::Accepted(_))));
        let mut first = Offset(self.model.next - messages.len() as u64);
        for (packed, (durability, batch)) in packed.into_iter().zip(&plan.batches) {
            assert_eq!(packed.durability(), *durability);
            let next = Offset(first.0 + packed.len() as u64);
            assert_eq!(packed.seal(first, self.now), *batch);
            first = next;
        }
        assert_eq!(first, Offset(self.model.next), "all messages are packed");
    }

    fn number(&self, messages: &mut [NewMessage]) {
        // All bodies have the same length, so numbering them does not change which are taken.
        let outcomes = self.queue.decide_push(self.now, messages, Admission::Checked).outcomes;
        for (message, outcome) in messages.iter_mut().zip(outcomes) {
            if let PushOutcome::Accepted(offset) = outcome {
                message.body = body(offset.0).into();
            }
        }
    }

    fn settle_overflow(&mut self) {
        loop {
            let plan = self.queue.decide_overflow(self.now);
            let mut gone: Vec<Offset> = Vec::new();
            for record in &plan.records {
                let (Record::Drop { picks, .. } | Record::Die { picks, .. }) = record else {
                    panic!("too much does not bring {record:?}")
                };
                gone.extend(picks.iter().flat_map(|pick| pick.offsets.iter()));
                self.run(record, plan.durable);
            }
            if gone.is_empty() {
                match self.queue.overflow_page() {
                    Some(page) => self.page_in(&page),
                    None => return,
                }
                continue;
            }
            let mut expected: Vec<Offset> = Vec::new();
            let mut ready: Vec<&Naive> = self.model.ready(self.now);
            ready.sort_by_key(|m| (m.priority, m.offset));
            expected.extend(ready.iter().take(gone.len()).map(|m| m.offset));
            expected.sort_unstable();
            gone.sort_unstable();
            assert_eq!(gone, expected, "a full queue drops the oldest of its lowest priority");
            if plan.deaths.is_empty() {
                gone.into_iter().for_each(|offset| drop(self.model.remove(offset)));
            }
            plan.deaths.iter().for_each(|death| self.model.die(death));
        }
    }

    /// Dead letters are moved elsewhere; here they just leave.
    fn dead_letter(&mut self, max: usize) {
        for death in self.queue.deaths().into_iter().take(max) {
            let dying = self.queue.dying(death.offset).expect("a death is about to be moved");
            assert_eq!(dying.reason, death.reason);
            let record = self.queue.decide_dead_letter(self.now, death.offset, Leave::DeadLettered).unwrap();
            self.run(&record, dying.durability == Durability::Durable);
            self.model.remove(death.offset);
        }
        self.wait(0);
    }

    fn entries(&self, page: &PageRequest) -> Vec<MessageEntry> {
        let read = |offset: Offset| {
            let batch = &self.store[&offset];
            MessageEntry::from_batch(batch, batch.find(offset).unwrap()).unwrap()
        };
        // A reader may answer with fewer than were asked for.
        page.offsets.iter().take(1 + self.log.len() % 3).map(read).collect()
    }

    fn page_in(&mut self, page: &PageRequest) {
        let entries = self.entries(page);
        assert!(self.queue.page_in(page, entries, self.now));
    }

    fn late_page(&mut self) {
        match self.late.take() {
            // Whether it is still wanted, the queue knows.
            Some((page, entries)) => {
                self.queue.page_in(&page, entries, self.now);
                self.due();
                self.dispatch();
            }
            None => self.late = self.queue.head_page().map(|page| (page.clone(), self.entries(&page))),
        }
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now.plus(Millis(ms));
        self.due();
        let overdue = self
            .model
            .leased()
            .into_iter()
            .filter(|m| m.dying.is_none())
            .any(|m| matches!(m.place, Where::Leased { until: Some(until), .. } if until <= self.now));
        assert!(!overdue, "a lease ends at its deadline");
        if let Some(deadline) = self.queue.next_deadline(self.now) {
            let waits_for_tokens = self.queue.config().rate_limit.is_some();
            assert!(
                deadline > self.now || waits_for_tokens,
                "what is due has been done: {deadline} at {}",
                self.now
            );
        }
        self.dispatch();
    }

    fn due(&mut self) {
        loop {
            let advancing = self.queue.advance_time(self.now, 3);
            let plan = self.queue.decide_due(self.now, 3);
            // What could not be written down is found again.
            let again = self.queue.decide_due(self.now, 3);
            assert_eq!((&plan.records, &plan.deaths), (&again.records, &again.deaths));
            let idle = plan.records.is_empty() && !advancing;
            for record in &plan.records {
                self.check_due(record);
                self.run(record, plan.durable);
            }
            for death in &plan.deaths {
                let now = self.now;
                let max = self.queue.config().max_attempts;
                let message = self.model.get(death.offset).unwrap();
                match death.reason {
                    DeathReason::Expired => {
                        assert!(message.expires_at <= now && message.place == Where::Waiting)
                    }
                    DeathReason::MaxAttempts => {
                        assert!(Some(message.attempts) >= max);
                        let ended =
                            matches!(message.place, Where::Leased { until: Some(until), .. } if until <= now);
                        assert!(ended, "only an ended lease kills by waiting");
                    }
                    other => panic!("time does not kill by {other:?}"),
                }
            }
            plan.deaths.iter().for_each(|death| self.model.die(death));
            if !plan.more && idle {
                match self.queue.expired_page(self.now) {
                    Some(page) => self.page_in(&page),
                    None => break,
                }
            }
        }
    }

    fn check_due(&mut self, record: &Record) {
        match record {
            Record::Return { offsets, ready_at, .. } => {
                for offset in offsets.iter() {
                    let now = self.now;
                    let message = self.model.get(offset).expect("what comes back was there");
                    let ended =
                        matches!(message.place, Where::Leased { until: Some(until), .. } if until <= now);
                    assert!(ended, "a lease ended before its time");
                    assert_eq!(*ready_at, now);
                    message.place = Where::Waiting;
                    message.ready_at = now;
                }
            }
            Record::Drop { picks, why: Leave::Expired, .. } => {
                for offset in picks.iter().flat_map(|pick| pick.offsets.iter()) {
                    let message = self.model.remove(offset);
                    assert!(message.expires_at <= self.now && message.place == Where::Waiting);
                }
            }
            // A lease that was not written down before it ended, and what is among the deaths.
            Record::Lease { .. } | Record::Die { .. } => {}
            other => panic!("time does not bring {other:?}"),
        }
    }

    fn purge(&mut self) {
        self.write_leases();
        let record = Record::Purge { before: self.queue.next_offset(), at: self.now };
        let before = self.model.messages.len();
        self.model.messages.retain(|m| m.place != Where::Waiting);
        let removed = self.run(&record, true).removed.expect("a purge gives back what it removed");
        assert_eq!(removed.count, (before - self.model.messages.len()) as u64);
    }

    /// Somebody looks at all that is ready, a part at a time.
    fn look_through(&mut self, part: usize) {
        let now = self.now;
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let (mut peeked, page) = self.queue.peek_after(after, part);
            if let Some(page) = page {
                assert!(peeked.len() + page.offsets.iter().count() <= part);
                peeked.extend(self.entries(&page).iter().map(Peeked::from));
            }
            let last = peeked.last().map(|last| (last.priority, last.offset));
            seen.extend(peeked.iter().map(|one| one.offset));
            match last {
                Some(last) => after = Some(last),
                None => break,
            }
        }
        let alive =
            |m: &Offset| self.model.messages.iter().any(|one| one.offset == *m && one.expires_at > now);
        seen.retain(alive);
        let ready = self.model.ready(now);
        let expected: Vec<Offset> = ready.iter().filter(|m| m.expires_at > now).map(|m| m.offset).collect();
        assert_eq!(seen, expected, "a look in parts of {part} shows what is ready, in order");
        self.look_aside(part);
    }

    /// Looks at what nobody can get now.
    fn look_aside(&self, part: usize) {
        let in_parts = |look: &dyn Fn(Option<Offset>) -> Vec<Peeked>| {
            let mut seen: Vec<SeenAside> = Vec::new();
            loop {
                let next = look(seen.last().map(|(offset, ..)| *offset));
                assert!(next.len() <= part);
                if next.is_empty() {
                    return seen;
                }
                seen.extend(next.iter().map(|one| (one.offset, one.attempts, one.until)));
            }
        };
        let messages = || self.model.messages.iter();
        let leased = messages().filter_map(|m| match m.place {
            Where::Leased { until, .. } => Some((m.offset, m.attempts, until)),
            Where::Waiting | Where::Aside => None,
        });
        let seen = in_parts(&|after| self.queue.leased_after(after, part));
        assert_eq!(seen, by_offset(leased), "a look in parts of {part} shows what is leased");
        let delayed =
            messages().filter(|m| m.place == Where::Waiting && m.ready_at.min(m.expires_at) > self.now);
        let delayed = by_offset(delayed.map(|m| (m.offset, m.attempts, Some(m.ready_at))));
        let seen = in_parts(&|after| self.queue.delayed_after(after, part));
        // Those that wait behind another of their group are not told apart in the model.
        let is_grouped = |offset: Offset| messages().any(|m| m.offset == offset && m.group.is_some());
        let seen_or_grouped = |one: &SeenAside| seen.contains(one) || is_grouped(one.0);
        assert!(delayed.iter().all(seen_or_grouped), "a look in parts of {part} shows what is delayed");
        assert!(seen.iter().all(|one| delayed.contains(one)), "and nothing else: {seen:?}, not {delayed:?}");
    }

    fn clear(&mut self) {
        let record = Record::Clear { before: self.queue.next_offset(), at: self.now };
        let removed = self.run(&record, true).removed.expect("it gives back what it removed");
        assert_eq!(removed.count, self.model.messages.len() as u64);
        assert!(self.queue.is_empty());
        self.model.messages.clear();
        self.model.dedup.clear();
        self.dispatch();
    }

    /// The broker takes messages aside and gives them back as if nothing had happened.
    fn take(&mut self, max: usize) {
        self.look_through(max.max(1));
        // What has expired is looked at, but not taken: it must not stand for others that are not in memory.
        self.due();
        while self.queue.peek_after(None, max).1.is_some() {
            let page = self.queue.head_page().expect("a peek that ends at a page wants it");
            self.page_in(&page);
            self.due();
        }
        let Some(record) = self.queue.decide_take(self.now, max, |_| true) else { return };
        let handed = self.run(&record, true).handed;
        let now = self.now;
        let mut expected: Vec<Offset> =
            self.model.ready(now).iter().filter(|m| m.expires_at > now).map(|m| m.offset).collect();
        expected.truncate(max);
        assert_eq!(handed.iter().map(|h| h.offset).collect::<Vec<_>>(), expected);
        let receipts: Vec<_> = handed.iter().map(|h| (h.offset, h.attempts)).collect();
        let (answers, plan) = self.queue.decide_return(self.now, &receipts, ReturnCause::Undelivered);
        assert!(answers.iter().all(Result::is_ok));
        for record in &plan.records {
            self.run(record, true);
        }
        for offset in expected {
            self.model.get(offset).unwrap().ready_at = now;
        }
    }

    fn has_transient(&self) -> bool {
        self.queue.reserved > Offset(0)
    }

    pub(super) fn step(&mut self, op: &Op) {
        match op {
            Op::Push(drafts) => self.push(drafts),
            Op::Subscribe { consumer, credit, terms } => {
                if !self.model.consumers.contains_key(consumer) && !self.left.contains(consumer) {
                    let terms = terms_of(*terms);
                    self.queue.add_consumer(ConsumerId(*consumer), terms, *credit, None).unwrap();
                    self.model.consumers.insert(*consumer, (terms, 0));
                    self.model.add_credit(*consumer, *credit);
                }
                self.dispatch();
            }
            Op::Credit { consumer, credit } => {
                self.queue.add_credit(ConsumerId(*consumer), *credit);
                self.model.add_credit(*consumer, *credit);
                self.dispatch();
            }
            Op::Leave { consumer } => {
                self.left.push(*consumer);
                self.queue.remove_consumer(ConsumerId(*consumer));
                self.model.consumers.remove(consumer);
                self.model.turn.retain(|id| id != consumer);
            }
            Op::Ack { pick, stale } => self.ack(*pick, *stale),
            Op::LateAck { pick } => self.late_ack(*pick),
            Op::Nack { pick, delay } => self.give_back(*pick, ReturnCause::Nack(delay.map(Millis))),
            Op::Undelivered { pick } => self.give_back(*pick, ReturnCause::Undelivered),
            Op::Received { pick } => self.received(*pick),
            Op::Extend { pick, span } => self.extend(*pick, *span),
            Op::Wait(ms) => self.wait(*ms),
            Op::DeadLetter(max) => self.dead_letter(*max),
            Op::Purge => self.purge(),
            Op::Clear => self.clear(),
            Op::Pause(paused) => {
                let config = QueueConfig { paused: *paused, ..self.queue.config().clone() };
                self.run(&Record::Configure { config, at: self.now }, true);
                self.dispatch();
            }
            Op::Take(max) => self.take(*max),
            Op::PageOut(bytes) => self.queue.page_out(*bytes),
            Op::LatePage => self.late_page(),
            Op::Checkpoint => self.checkpoint(),
            Op::Chunks(count) => self.take_chunks(*count),
            Op::Abandon => self.abandon_snapshot(),
            Op::Restart => self.restart(),
        }
        self.queue.check_invariants();
        self.check_figures();
    }

    fn check_figures(&self) {
        let figures = self.queue.figures(self.now);
        assert_eq!(self.queue.len(), self.model.messages.len() as u64, "a message was lost or invented");
        assert_eq!(figures.ready + figures.leased + figures.delayed + figures.grouped, self.queue.len());
        assert_eq!(figures.leased, self.model.leased().len() as u64);
        let bytes: u64 = self.model.messages.iter().map(|m| m.size).sum();
        assert_eq!(self.queue.body_bytes(), bytes, "bytes are counted");
        assert_eq!(self.queue.deaths(), self.model.deaths(), "what has died waits to be dead-lettered");
    }
}
