//! Deciding what of a push is taken.

use std::collections::BTreeMap;

use nexo_types::{DedupId, Millis, Offset, Priority, Timestamp};

use super::Queue;
use super::dedup::find_in;
use super::entry::MESSAGE_OVERHEAD_BYTES;
use crate::batch::{BatchBuilder, BatchKind, MessageBatch};
use crate::config::{DeadLetters, Fate, GroupMode, Overflow};
use crate::draft::{Draft, PackedBatch};
use crate::message::{DeathReason, Durability, NewMessage, PriorityCap};
use crate::offsets::OffsetSet;
use crate::queue::due::DuePlan;
use crate::queue::settle::Death;
use crate::record::{Pick, Record};
use crate::shared_messages::SharedMessages;

/// Offsets that are set aside for transient messages at a time, so that a reservation is rarely written.
const RESERVE: u64 = 1 << 20;
/// Messages dropped at a time when a queue is over its limit, so that its lock is not held for long.
const OVERFLOW_STEP: usize = 1000;

/// Whether the queue's limits hold for a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// They do.
    Checked,
    /// They do not: the message is moved here from another queue, and must not be lost.
    Forced,
}

/// What becomes of a pushed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// It gets this offset.
    Accepted(Offset),
    /// It repeats this one.
    Duplicate(Offset),
    /// The queue is full.
    Refused {
        /// Which limit.
        limit: &'static str,
        /// What it is.
        max: u64,
        /// Its offset, if it is dead-lettered.
        dead_letter: Option<Offset>,
    },
}

/// What a push comes to, not yet applied.
#[derive(Debug, Default)]
pub struct PushPlan {
    /// To be written down first, if the log must know that offsets are in use.
    pub reserve: Option<Record>,
    /// To be applied in this order; durable ones are written down first.
    pub batches: Vec<(Durability, MessageBatch)>,
    /// For each message, in order.
    pub outcomes: Vec<PushOutcome>,
    /// Which of the messages are refused and become dead letters.
    pub dead_letters: RefusedMessages,
}

/// Messages that a full queue refuses and dead-letters: they are in its batches, and die as they come.
#[derive(Debug, Default)]
pub struct RefusedMessages(OffsetSet);

impl RefusedMessages {
    /// The record that stands before a batch, in the same frame, if some of its messages are refused.
    #[must_use]
    pub fn death_in(&self, batch: &MessageBatch, now: Timestamp) -> Option<Record> {
        if self.0.is_empty() {
            return None;
        }
        let refused = batch.items().iter().filter(|item| self.0.contains(item.offset));
        let picked: Vec<(Priority, Offset)> =
            refused.map(|item| (batch.priority(item), item.offset)).collect();
        let reason = DeathReason::Overflow;
        (!picked.is_empty()).then(|| Record::Die { picks: into_picks(picked), reason, at: now })
    }

    /// Those of one batch, to be dead-lettered once its records are applied.
    #[must_use]
    pub fn deaths_in(&self, batch: &MessageBatch) -> Vec<Death> {
        let refused = batch.items().iter().filter(|item| self.0.contains(item.offset));
        refused.map(|item| Death { offset: item.offset, reason: DeathReason::Overflow }).collect()
    }
}

/// Where the messages of a packed batch go.
#[derive(Debug)]
pub struct PackedPlan {
    /// To be written down first, if the log must know that offsets are in use.
    pub reserve: Option<Record>,
    /// The offset of the first of them.
    pub first: Offset,
    /// The highest priority that they may have, if they keep to what the queue allows.
    priority_max: Priority,
}

impl PackedPlan {
    /// Makes the batch that a packed batch becomes by this plan.
    #[must_use]
    pub fn seal(&self, mut packed: PackedBatch, at: Timestamp) -> MessageBatch {
        packed.cap_priorities(self.priority_max);
        packed.seal(self.first, at)
    }
}

impl Queue {
    /// Decides what of a push is taken.
    #[must_use]
    pub fn decide_push(&self, now: Timestamp, messages: &[NewMessage], admission: Admission) -> PushPlan {
        let capped = self.capped(messages);
        let messages = capped.as_deref().unwrap_or(messages);
        let levelled = self.levelled(messages);
        let messages = levelled.as_deref().unwrap_or(messages);
        let mut plan = PushPlan { outcomes: Vec::with_capacity(messages.len()), ..PushPlan::default() };
        let mut next = self.next_offset;
        let (mut count, mut bytes) = self.load();
        let mut new_ids: BTreeMap<&DedupId, Offset> = BTreeMap::new();
        let mut taken: Vec<Taken<'_>> = Vec::with_capacity(messages.len());
        let check_limits = admission == Admission::Checked && self.config.overflow == Overflow::Reject;
        let dead_letters_refused =
            self.config.on_refusal == Fate::DeadLetter && self.config.dead_letters != DeadLetters::Nowhere;
        for message in messages {
            if let Some(id) = &message.dedup {
                let scope = message.dedup_scope;
                let known = find_in(&new_ids, id, scope, |offset| Some(*offset));
                let known = known.or_else(|| self.dedup.find(id, scope, now));
                if let Some(first) = known {
                    plan.outcomes.push(PushOutcome::Duplicate(first));
                    continue;
                }
            }
            let lifetime = shorter(message.ttl, self.config.ttl);
            if check_limits {
                let size = message.body.len() as u64;
                let max_messages = self.config.max_messages.filter(|max| count >= *max);
                let max_bytes = self.config.max_bytes.filter(|max| bytes + size > *max);
                let passed = max_messages.map(|max| ("max_messages", max));
                if let Some((limit, max)) = passed.or(max_bytes.map(|max| ("max_bytes", max))) {
                    let dead_letter = dead_letters_refused.then_some(next);
                    if let Some(offset) = dead_letter {
                        plan.dead_letters.0.push(offset);
                        taken.push(Taken { offset, message, fate: TakenAs::DeadLetter });
                        next = next.next();
                    }
                    plan.outcomes.push(PushOutcome::Refused { limit, max, dead_letter });
                    continue;
                }
                bytes += size;
                count += 1;
            }
            if let Some(id) = &message.dedup {
                new_ids.insert(id, next);
            }
            plan.outcomes.push(PushOutcome::Accepted(next));
            taken.push(Taken { offset: next, message, fate: TakenAs::Message(lifetime) });
            next = next.next();
        }
        plan.batches = into_batches(now, &taken);
        let any_transient = plan.batches.iter().any(|(durability, _)| *durability == Durability::Transient);
        if any_transient && next > self.reserved {
            plan.reserve = Some(Record::Reserve { before: Offset(next.0 + RESERVE) });
        }
        plan
    }

    /// Decides where messages go that are packed already, if they can go as they are; `None` if each must be looked at.
    #[must_use]
    pub fn decide_packed(&self, packed: &PackedBatch) -> Option<PackedPlan> {
        self.plan_packed(packed.len(), packed.durability(), packed.has_dedup())
    }

    /// The same for messages that go to other queues as well.
    #[must_use]
    pub fn decide_shared(&self, messages: &SharedMessages) -> Option<PackedPlan> {
        // What queues share has one priority in all of them.
        if messages.priorities().exceed(self.priority_max()) {
            return None;
        }
        self.plan_packed(messages.len(), messages.durability(), messages.has_dedup())
    }

    /// The highest priority of messages that keep to what the queue allows.
    fn priority_max(&self) -> Priority {
        self.config.max_priority.unwrap_or_default()
    }

    /// The messages of a push with priorities that the queue allows; `None` if all stay as they are.
    fn capped(&self, messages: &[NewMessage]) -> Option<Vec<NewMessage>> {
        let max = self.priority_max();
        let exceeds =
            |message: &NewMessage| message.priority > max && message.priority_cap == PriorityCap::Queue;
        let cap = |message: &NewMessage| {
            let priority = if exceeds(message) { max } else { message.priority };
            NewMessage { priority, ..message.clone() }
        };
        messages.iter().any(exceeds).then(|| messages.iter().map(cap).collect())
    }

    fn plan_packed(&self, count: usize, durability: Durability, has_dedup: bool) -> Option<PackedPlan> {
        let may_refuse = self.config.overflow == Overflow::Reject
            && (self.config.max_messages.is_some() || self.config.max_bytes.is_some());
        let gives_priorities = self.config.groups == GroupMode::Fair;
        if may_refuse || gives_priorities || self.config.ttl.is_some() || has_dedup {
            return None;
        }
        let after = self.next_offset.0 + count as u64;
        let reserve = (durability == Durability::Transient && after > self.reserved.0)
            .then_some(Record::Reserve { before: Offset(after + RESERVE) });
        Some(PackedPlan { reserve, first: self.next_offset, priority_max: self.priority_max() })
    }

    /// Decides what a queue that is over its limit drops or dead-letters: see [`Overflow`]. If it is anything, there may be
    /// more.
    #[must_use]
    pub fn decide_overflow(&self, now: Timestamp) -> DuePlan {
        let mut plan = DuePlan::default();
        let (mut over_count, mut over_bytes) = self.excess();
        if over_count == 0 && over_bytes == 0 {
            return plan;
        }
        let mut picked: Vec<(Priority, Offset)> = Vec::new();
        let candidates = match self.config.overflow {
            Overflow::DropHead => self.ready_in_order(OVERFLOW_STEP),
            Overflow::DropOldest | Overflow::Reject => self.ready_from_the_lowest(OVERFLOW_STEP),
        };
        for entry in candidates {
            if over_count == 0 && over_bytes == 0 {
                break;
            }
            picked.push((entry.priority, entry.offset));
            over_count = over_count.saturating_sub(1);
            let body = entry.stored_bytes.saturating_sub(MESSAGE_OVERHEAD_BYTES);
            over_bytes = over_bytes.saturating_sub(body.into());
        }
        plan.more = !picked.is_empty();
        self.plan_end(now, picked, self.config.on_overflow, DeathReason::Overflow, &mut plan);
        plan
    }

    /// Whether a page must come into memory before an overflowing queue can drop more.
    #[must_use]
    pub fn overflow_page(&self) -> Option<super::PageRequest> {
        if self.excess() == (0, 0) {
            return None;
        }
        match self.config.overflow {
            Overflow::DropHead => self.lanes.first_page(),
            Overflow::DropOldest | Overflow::Reject => self.lanes.lowest_page(),
        }
    }

    /// How many messages and bytes of bodies a queue that drops has too many.
    fn excess(&self) -> (u64, u64) {
        if self.config.overflow == Overflow::Reject {
            return (0, 0);
        }
        let (count, bytes) = self.load();
        let over = |load: u64, max: Option<u64>| max.map_or(0, |max| load.saturating_sub(max));
        (over(count, self.config.max_messages), over(bytes, self.config.max_bytes))
    }
}

/// A message that gets an offset.
struct Taken<'a> {
    offset: Offset,
    message: &'a NewMessage,
    fate: TakenAs,
}

/// What becomes of it.
enum TakenAs {
    /// It waits to be delivered, as long as this.
    Message(Option<Millis>),
    /// It was refused, and is only here to be dead-lettered.
    DeadLetter,
}

impl Taken<'_> {
    /// What is stored of it, and how long it may wait.
    fn draft(&self) -> (Draft<'_>, Option<Millis>) {
        let draft = self.message.as_draft();
        match self.fate {
            TakenAs::Message(lifetime) => (draft, lifetime),
            // Nobody waits for it, and it keeps nobody out.
            TakenAs::DeadLetter => (Draft { delay: Millis::ZERO, dedup: None, group: None, ..draft }, None),
        }
    }
}

/// Consecutive messages that are alike in durability share a batch, up to its size.
fn into_batches(now: Timestamp, taken: &[Taken<'_>]) -> Vec<(Durability, MessageBatch)> {
    let mut batches = Vec::new();
    let mut open: Option<(Durability, BatchBuilder)> = None;
    for (at, one) in taken.iter().enumerate() {
        let (message, lifetime) = one.draft();
        let len = message.encoded_len(lifetime);
        if open.as_ref().is_some_and(|(kind, batch)| *kind != message.durability || !batch.has_room(len)) {
            batches.extend(open.take());
        }
        let (_, batch) = open.get_or_insert_with(|| {
            let builder =
                BatchBuilder::new(BatchKind::Pushed, one.offset, now, (len + 4) * (taken.len() - at));
            (message.durability, builder)
        });
        batch.push(one.offset, &message, lifetime);
    }
    batches.extend(open);
    batches.into_iter().map(|(durability, builder)| (durability, builder.finish())).collect()
}

/// Messages of several priorities as picks, each by offset.
pub(super) fn into_picks(mut picked: Vec<(Priority, Offset)>) -> Vec<Pick> {
    picked.sort_unstable();
    let mut picks: Vec<Pick> = Vec::new();
    for (lane, offset) in picked {
        match picks.last_mut() {
            Some(pick) if pick.lane == lane => pick.offsets.push(offset),
            _ => picks.push(Pick { lane, offsets: OffsetSet::one(offset) }),
        }
    }
    picks
}

fn shorter(a: Option<Millis>, b: Option<Millis>) -> Option<Millis> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nexo_types::{QueueId, QueueName};
    use proptest::prelude::*;

    use super::*;
    use crate::config::QueueConfig;
    use crate::message::MessageView;
    use crate::shared_messages::SharedMessages;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn queue(config: QueueConfig) -> Queue {
        Queue::new(QueueId(1), QueueName::new("q").unwrap(), config, NOW)
    }

    fn prioritised(priority: u8, priority_cap: PriorityCap) -> NewMessage {
        NewMessage { priority: Priority(priority), priority_cap, ..NewMessage::new("body") }
    }

    fn packed(messages: &[NewMessage]) -> PackedBatch {
        let mut packed = PackedBatch::new(Durability::Durable, 0, 0);
        for message in messages {
            packed.push(&message.as_draft());
        }
        packed
    }

    fn priorities(batch: &MessageBatch) -> Vec<u8> {
        let stored = batch.items().iter().map(|item| batch.payload(item));
        stored.map(|stored| MessageView::parse(&stored).unwrap().priority.0).collect()
    }

    proptest! {
        #[test]
        fn a_queue_caps_priorities_however_messages_come(
            own in prop::collection::vec(any::<u8>(), 1..20),
            max in prop::option::of(any::<u8>()),
            kept in any::<bool>(),
        ) {
            let cap = if kept { PriorityCap::Queue } else { PriorityCap::None };
            let queue = queue(QueueConfig { max_priority: max.map(Priority), ..QueueConfig::default() });
            let messages: Vec<NewMessage> = own.iter().map(|own| prioritised(*own, cap)).collect();
            let most = if kept { max.unwrap_or(0) } else { u8::MAX };
            let expected: Vec<u8> = own.iter().map(|own| (*own).min(most)).collect();
            let plan = queue.decide_push(NOW, &messages, Admission::Forced);
            prop_assert_eq!(&priorities(&plan.batches[0].1), &expected);
            let packed_plan = queue.decide_packed(&packed(&messages)).unwrap();
            let sealed = packed_plan.seal(packed(&messages), NOW);
            prop_assert_eq!(&sealed, &plan.batches[0].1);
            prop_assert_eq!(MessageBatch::decode(sealed.bytes().clone()).unwrap(), sealed);
            // Whoever must look at each is told as much of them.
            prop_assert_eq!(packed(&messages).messages().unwrap(), messages.clone());
            let shared = SharedMessages::new(packed(&messages), &Arc::default());
            prop_assert_eq!(queue.decide_shared(&shared).is_some(), own == expected);
            prop_assert_eq!(shared.to_packed().messages().unwrap(), messages);
        }
    }

    #[test]
    fn a_cap_comes_before_fair_shares() {
        let fair = queue(QueueConfig { groups: GroupMode::Fair, ..QueueConfig::default() });
        let grouped =
            NewMessage { group: Some(nexo_types::GroupId::new("a").unwrap()), ..NewMessage::new("x") };
        let messages = [grouped, prioritised(9, PriorityCap::Queue), prioritised(9, PriorityCap::None)];
        let plan = fair.decide_push(NOW, &messages, Admission::Checked);
        assert_eq!(priorities(&plan.batches[0].1), [20, 10, 9], "a priority that does not count is none");
    }

    #[test]
    fn messages_with_a_cap_and_without_are_not_packed_together() {
        let batch = packed(&[prioritised(1, PriorityCap::Queue)]);
        assert!(batch.has_room(&prioritised(2, PriorityCap::Queue).as_draft()));
        assert!(!batch.has_room(&prioritised(2, PriorityCap::None).as_draft()));
    }

    #[test]
    fn settings_of_an_earlier_release_are_completed_once() {
        let old = QueueConfig { has_unread_arguments: true, ..QueueConfig::default() };
        let mut queue = queue(old);
        let record = Record::Configure { config: queue.config().clone(), at: NOW };
        queue.apply(&record).unwrap();
        queue.read_arguments(|config| config.max_priority = Some(Priority(3)));
        queue.read_arguments(|_| panic!("they have been read"));
        let complete = QueueConfig { max_priority: Some(Priority(3)), ..QueueConfig::default() };
        assert_eq!(*queue.config(), complete);
        assert_eq!(*queue.restored().config(), complete, "the next snapshot has them");
    }

    #[test]
    fn what_is_refused_comes_and_dies_in_one_frame_and_a_replay_tells_the_same() {
        let config =
            QueueConfig { max_messages: Some(1), on_refusal: Fate::DeadLetter, ..QueueConfig::default() };
        let mut queue = queue(config.clone());
        let messages =
            [prioritised(0, PriorityCap::None), prioritised(7, PriorityCap::None), NewMessage::new("x")];
        let plan = queue.decide_push(NOW, &messages, Admission::Checked);
        let refused =
            |at| PushOutcome::Refused { limit: "max_messages", max: 1, dead_letter: Some(Offset(at)) };
        assert_eq!(plan.outcomes, [PushOutcome::Accepted(Offset(0)), refused(1), refused(2)]);
        let (_, batch) = &plan.batches[0];
        let death = plan.dead_letters.death_in(batch, NOW).unwrap();
        let deaths = plan.dead_letters.deaths_in(batch);
        let records = [death, Record::Messages(batch.clone())];
        let mut replayed = super::tests::queue(config);
        for queue in [&mut queue, &mut replayed] {
            for record in &records {
                queue.apply(record).unwrap();
            }
            assert_eq!((queue.counts().0, queue.len()), (1, 3), "two are apart from what is ready");
            assert_eq!(queue.deaths(), deaths);
            queue.check_invariants();
        }
        assert_eq!(replayed.outline(NOW), queue.outline(NOW));
        assert_eq!(queue.restored().deaths(), deaths, "a snapshot has them");
        let forced = queue.decide_push(NOW, &messages, Admission::Forced);
        assert!(forced.dead_letters.death_in(&forced.batches[0].1, NOW).is_none(), "what must come is taken");
        for death in deaths {
            let leave =
                queue.decide_dead_letter(NOW, death.offset, crate::record::Leave::DeadLettered).unwrap();
            queue.apply(&leave).unwrap();
        }
        assert_eq!((queue.len(), queue.deaths().len()), (1, 0));
        queue.check_invariants();
    }
}
