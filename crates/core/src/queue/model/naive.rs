//! The naive model: every message in one list, every consumer in another, and all of them looked at for every
//! question.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use nexo_types::{DedupId, GroupId, Millis, Offset, Priority, Timestamp};

use crate::config::RateLimit;
use crate::message::DeathReason;
use crate::queue::{Death, Terms};
use crate::record::LeasePhase;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Where {
    Waiting,
    /// It died while it waited.
    Aside,
    Leased {
        until: Option<Timestamp>,
        phase: LeasePhase,
        visibility: Millis,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Naive {
    pub(super) offset: Offset,
    pub(super) priority: Priority,
    pub(super) group: Option<GroupId>,
    pub(super) ready_at: Timestamp,
    pub(super) expires_at: Timestamp,
    pub(super) attempts: u32,
    pub(super) size: u64,
    pub(super) place: Where,
    /// It is to be dead-lettered.
    pub(super) dying: Option<DeathReason>,
}

impl Naive {
    pub(super) fn is_leased(&self) -> bool {
        matches!(self.place, Where::Leased { .. })
    }
}

/// Every message in one list, every consumer in another.
#[derive(Default)]
pub(super) struct Model {
    pub(super) messages: Vec<Naive>,
    pub(super) next: u64,
    pub(super) dedup: Vec<(DedupId, Timestamp, Offset)>,
    pub(super) consumers: BTreeMap<u64, (Terms, u32)>,
    pub(super) turn: VecDeque<u64>,
    pub(super) delivered_at: Vec<Timestamp>,
}

impl Model {
    pub(super) fn ready(&self, now: Timestamp) -> Vec<&Naive> {
        let mut ready: Vec<&Naive> = self
            .messages
            .iter()
            .filter(|m| m.place == Where::Waiting && m.ready_at.min(m.expires_at) <= now)
            .filter(|m| match &m.group {
                None => true,
                Some(group) => !self.messages.iter().any(|o| {
                    o.group.as_ref() == Some(group) && (o.offset < m.offset || o.place != Where::Waiting)
                }),
            })
            .collect();
        ready.sort_by_key(|m| (Reverse(m.priority), m.offset));
        ready
    }

    /// What a consumer that takes runs gets after this message of a group: the next of it, if it may be delivered.
    pub(super) fn follower(&self, group: &GroupId, offset: Offset, now: Timestamp) -> Option<&Naive> {
        let behind = self.messages.iter().filter(|m| m.group.as_ref() == Some(group) && m.offset > offset);
        let next = behind.min_by_key(|m| m.offset)?;
        (next.place == Where::Waiting && next.ready_at <= now && next.expires_at > now).then_some(next)
    }

    /// Uses credit of a consumer although it is not its turn.
    pub(super) fn take_one_more(&mut self, consumer: u64) -> Terms {
        let (terms, credit) = self.consumers.get_mut(&consumer).expect("who is served is there");
        *credit -= 1;
        if *credit == 0 {
            self.turn.retain(|id| *id != consumer);
        }
        *terms
    }

    pub(super) fn get(&mut self, offset: Offset) -> Option<&mut Naive> {
        self.messages.iter_mut().find(|m| m.offset == offset)
    }

    pub(super) fn remove(&mut self, offset: Offset) -> Naive {
        let at = self.messages.iter().position(|m| m.offset == offset).expect("the model has the message");
        self.messages.remove(at)
    }

    pub(super) fn leased(&self) -> Vec<&Naive> {
        self.messages.iter().filter(|m| m.is_leased()).collect()
    }

    /// A message may not be delivered again.
    pub(super) fn die(&mut self, death: &Death) {
        let message = self.get(death.offset).expect("what dies was there");
        message.dying = Some(death.reason);
        if message.place == Where::Waiting {
            message.place = Where::Aside;
        }
    }

    /// What waits to be dead-lettered.
    pub(super) fn deaths(&self) -> Vec<Death> {
        let mut deaths: Vec<Death> =
            self.messages.iter().filter_map(|m| Some(Death { offset: m.offset, reason: m.dying? })).collect();
        deaths.sort_unstable_by_key(|death| death.offset);
        deaths
    }

    pub(super) fn add_credit(&mut self, consumer: u64, credit: u32) {
        let Some((_, held)) = self.consumers.get_mut(&consumer) else { return };
        *held += credit;
        if *held > 0 && !self.turn.contains(&consumer) {
            self.turn.push_back(consumer);
        }
    }

    pub(super) fn next_consumer(&mut self) -> Option<(u64, Terms)> {
        let consumer = self.turn.pop_front()?;
        let (terms, credit) = self.consumers.get_mut(&consumer).expect("leavers leave the row");
        *credit -= 1;
        if *credit > 0 {
            self.turn.push_back(consumer);
        }
        Some((consumer, *terms))
    }

    pub(super) fn allowed(&self, limit: Option<RateLimit>, now: Timestamp) -> bool {
        // The engine's limit is an even flow after a burst; never more than the burst plus one period's flow.
        limit.is_none_or(|limit| {
            let lately = self.delivered_at.iter().filter(|at| now.since(**at) < limit.period).count();
            lately < 2 * limit.deliveries as usize
        })
    }
}
