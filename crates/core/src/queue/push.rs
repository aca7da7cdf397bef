//! Deciding what of a push is taken.

use std::collections::BTreeMap;

use nexo_types::{DedupId, Millis, Offset, Timestamp};

use super::Queue;
use super::dedup::find_in;
use super::entry::MESSAGE_OVERHEAD_BYTES;
use crate::batch::{BatchBuilder, BatchKind, MessageBatch};
use crate::config::{GroupMode, Overflow};
use crate::draft::PackedBatch;
use crate::message::{DeathReason, Durability, NewMessage};
use crate::queue::due::DuePlan;
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
}

/// Where the messages of a packed batch go.
#[derive(Debug)]
pub struct PackedPlan {
    /// To be written down first, if the log must know that offsets are in use.
    pub reserve: Option<Record>,
    /// The offset of the first of them.
    pub first: Offset,
}

impl Queue {
    /// Decides what of a push is taken.
    #[must_use]
    pub fn decide_push(&self, now: Timestamp, messages: &[NewMessage], admission: Admission) -> PushPlan {
        let levelled = self.levelled(messages);
        let messages = levelled.as_deref().unwrap_or(messages);
        let mut plan = PushPlan { outcomes: Vec::with_capacity(messages.len()), ..PushPlan::default() };
        let mut next = self.next_offset;
        let (mut count, mut bytes) = self.load();
        let mut new_ids: BTreeMap<&DedupId, Offset> = BTreeMap::new();
        let mut accepted: Vec<(Offset, &NewMessage, Option<Millis>)> = Vec::with_capacity(messages.len());
        let check_limits = admission == Admission::Checked && self.config.overflow == Overflow::Reject;
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
                if let Some(max) = self.config.max_messages.filter(|max| count >= *max) {
                    plan.outcomes.push(PushOutcome::Refused { limit: "max_messages", max });
                    continue;
                }
                if let Some(max) = self.config.max_bytes.filter(|max| bytes + size > *max) {
                    plan.outcomes.push(PushOutcome::Refused { limit: "max_bytes", max });
                    continue;
                }
                bytes += size;
                count += 1;
            }
            if let Some(id) = &message.dedup {
                new_ids.insert(id, next);
            }
            plan.outcomes.push(PushOutcome::Accepted(next));
            accepted.push((next, message, lifetime));
            next = next.next();
        }
        plan.batches = into_batches(now, &accepted);
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
        self.plan_packed(messages.len(), messages.durability(), messages.has_dedup())
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
        Some(PackedPlan { reserve, first: self.next_offset })
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
        let mut picked: Vec<(nexo_types::Priority, Offset)> = Vec::new();
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

/// Consecutive messages that are alike in durability share a batch, up to its size.
fn into_batches(
    now: Timestamp,
    accepted: &[(Offset, &NewMessage, Option<Millis>)],
) -> Vec<(Durability, MessageBatch)> {
    let mut batches = Vec::new();
    let mut open: Option<(Durability, BatchBuilder)> = None;
    for (at, (offset, message, lifetime)) in accepted.iter().enumerate() {
        let len = message.as_draft().encoded_len(*lifetime);
        if open.as_ref().is_some_and(|(kind, batch)| *kind != message.durability || !batch.has_room(len)) {
            batches.extend(open.take());
        }
        let (_, batch) = open.get_or_insert_with(|| {
            let builder =
                BatchBuilder::new(BatchKind::Pushed, *offset, now, (len + 4) * (accepted.len() - at));
            (message.durability, builder)
        });
        batch.push(*offset, message, *lifetime);
    }
    batches.extend(open);
    batches.into_iter().map(|(durability, builder)| (durability, builder.finish())).collect()
}

/// Messages of several priorities as picks, each by offset.
pub(super) fn into_picks(mut picked: Vec<(nexo_types::Priority, Offset)>) -> Vec<Pick> {
    picked.sort_unstable();
    let mut picks: Vec<Pick> = Vec::new();
    for (lane, offset) in picked {
        match picks.last_mut() {
            Some(pick) if pick.lane == lane => pick.offsets.push(offset),
            _ => picks.push(Pick { lane, offsets: crate::offsets::OffsetSet::one(offset) }),
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
