//! Deciding who gets what: ready messages in the order of their urgency and arrival, consumers in turn.

use std::borrow::Cow;
use std::cmp::Reverse;

use nexo_types::{ConsumerId, Offset, Priority, Timestamp};

use super::apply::Handed;
use super::compact::CompactEntry;
use super::consumers::NextTurn;
use super::cursor::{Cursor, Waiting};
use super::entry::MessageEntry;
use super::groups::GroupTake;
use super::lanes::Lanes;
use super::returned::Returned;
use super::terms::{LeaseTerms, Terms};
use super::{NeedsPage, Queue};
use crate::offsets::OffsetSet;
use crate::record::{Grant, LeasePhase, Pick, Record};

/// Messages handed to consumers, not yet applied.
#[derive(Debug)]
pub struct Dispatch {
    /// To be written down if [`Self::durable`], and applied with [`Queue::commit_dispatch`].
    pub record: Record,
    /// Whether any of the messages must survive a restart.
    pub durable: bool,
    /// Who gets them, in the order of the record.
    pub turns: Vec<Turn>,
    taken: u64,
    runs: bool,
}

/// Messages in a row that go to one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The consumer that gets them.
    pub consumer: ConsumerId,
    /// How many.
    pub count: u32,
    lease: LeaseTerms,
    /// What they count for among the bytes that the consumer may hold.
    bytes: u64,
}

impl Dispatch {
    /// Whether it must be written down whatever the disk has left: messages leave the queue by it, since their consumer
    /// does not acknowledge, or they are a run of one group, whose place a replay could not tell otherwise.
    #[must_use]
    pub fn must_be_written(&self) -> bool {
        let Record::Lease { grants, .. } = &self.record else { return false };
        self.runs || grants.iter().any(|grant| grant.phase == LeasePhase::Taken)
    }
}

impl Queue {
    /// Whether there may be something to hand out.
    #[must_use]
    pub fn can_dispatch(&self) -> bool {
        !self.config.paused
            && self.consumers.anyone_waiting()
            && (self.lanes.len() > 0 || !self.returned.is_empty())
    }

    /// Decides which ready messages, at most `max`, go to which consumers.
    ///
    /// Credit is used up at once; if the record cannot be written down, [`Self::undo_dispatch`] gives it back.
    pub fn decide_dispatch(&mut self, now: Timestamp, max: usize) -> Option<Dispatch> {
        if !self.can_dispatch() {
            return None;
        }
        let allowed = self.config.rate_limit.map_or(u64::MAX, |limit| self.tokens.available(limit, now));
        let max = max.min(usize::try_from(allowed).unwrap_or(usize::MAX));
        let waiting = self.lanes.len();
        let mut plan = Plan::default();
        let mut ready = walk_ready(&self.returned, &self.lanes);
        // Whose turn it is, and what it may still have in it.
        let mut current: Option<NextTurn> = None;
        // Bytes of the turn beyond its first message, not yet noted.
        let mut handed_bytes = 0;
        while plan.taken < max {
            let Some(entry) = ready.next_entry() else { break };
            if !entry.is_alive(now) {
                // Its end of life is due and will be dealt with; nobody gets it any more.
                continue;
            }
            let bytes = entry.handed_bytes();
            match &mut current {
                Some(turn) => {
                    turn.room = turn.room.saturating_sub(bytes.into());
                    handed_bytes += u64::from(bytes);
                }
                None => {
                    let rest = waiting.saturating_sub(plan.taken as u64);
                    let in_flight = self.leased.len() + plan.leased;
                    current = self.consumers.next_turn((max - plan.taken) as u32, bytes, rest, in_flight);
                }
            }
            let Some(turn) = &mut current else { break };
            let (consumer, terms) = (turn.consumer, turn.terms);
            turn.count -= 1;
            let (until, phase) = match terms.grant(now, self.config.visibility, self.config.receipt_timeout) {
                // It does not leave before its bytes have been read: whoever reads them settles it.
                (_, LeasePhase::Taken) if entry.payload.is_none() => (None, LeasePhase::Done),
                granted => granted,
            };
            plan.add(entry, consumer, terms, (until, phase));
            let runs =
                entry.group().is_some() && terms.groups == GroupTake::Run && phase != LeasePhase::Taken;
            // A run is not bound to turns: all of it goes to whoever got its first message.
            if turn.count == 0 || turn.room == 0 || runs {
                self.consumers.end_turn(*turn, std::mem::take(&mut handed_bytes));
                current = None;
            }
            let Some(group) = entry.group() else { continue };
            if phase == LeasePhase::Taken {
                // It is gone with this record, and the next of its group may be the most urgent of all.
                break;
            }
            if runs {
                for next in self.groups.get(group).into_iter().flatten() {
                    let in_flight = self.leased.len() + plan.leased;
                    if plan.taken >= max
                        || !next.is_alive(now)
                        || !self.consumers.take_one_more(consumer, next.handed_bytes(), in_flight)
                    {
                        break;
                    }
                    plan.add(next, consumer, terms, (until, phase));
                    plan.runs = true;
                }
            }
        }
        let Plan { grants, turns, durable, taken, runs, .. } = plan;
        if let Some(turn) = current {
            self.consumers.end_turn(turn, handed_bytes);
        }
        if taken == 0 {
            return None;
        }
        let taken = taken as u64;
        if let Some(limit) = self.config.rate_limit {
            self.tokens.take(limit, now, taken);
        }
        Some(Dispatch { record: Record::Lease { grants, at: now }, durable, turns, taken, runs })
    }

    /// Applies a dispatch. The messages come in the order of its turns.
    ///
    /// # Errors
    /// Never for a dispatch that was just decided: it names only messages in memory.
    pub fn commit_dispatch(&mut self, dispatch: &Dispatch) -> Result<Vec<Handed>, NeedsPage> {
        let handed = self.apply(&dispatch.record)?.handed;
        if self.leased.is_empty() {
            // Nobody acknowledges.
            return Ok(handed);
        }
        let mut rest = handed.as_slice();
        for turn in &dispatch.turns {
            let (mine, others) = rest.split_at((turn.count as usize).min(rest.len()));
            rest = others;
            let span = if let LeaseTerms::For(span) = turn.lease { Some(span) } else { None };
            for one in mine {
                self.leased.update(one.offset, |lease| lease.hand_to(turn.consumer, span));
            }
        }
        Ok(handed)
    }

    /// Gives back the credit that a dispatch used, because its record could not be written down.
    pub fn undo_dispatch(&mut self, dispatch: &Dispatch) {
        for turn in &dispatch.turns {
            self.consumers.give_back_bytes(turn.consumer, turn.bytes);
            self.consumers.give_back(turn.consumer, turn.count);
        }
        if let Some(limit) = self.config.rate_limit {
            self.tokens.give_back(limit, dispatch.taken);
        }
    }

    /// Decides to take ready messages aside for the broker itself, in order: at most `max` of those wanted. They
    /// stay leased until the broker moves or returns them; a restart returns them.
    #[must_use]
    pub fn decide_take(&self, now: Timestamp, max: usize, wanted: impl Fn(Offset) -> bool) -> Option<Record> {
        let mut grants = Vec::new();
        let mut ready = walk_ready(&self.returned, &self.lanes);
        let mut taken = 0;
        while taken < max
            && let Some(entry) = ready.next_entry()
        {
            if entry.expires_at > now && wanted(entry.offset) {
                add_grant(&mut grants, entry, None, LeasePhase::Done);
                taken += 1;
            }
        }
        (!grants.is_empty()).then_some(Record::Lease { grants, at: now })
    }

    /// Ready messages in memory, at most `max`, in the order of delivery.
    pub(super) fn ready_in_order(&self, max: usize) -> Vec<ReadySize> {
        let mut ready = walk_ready(&self.returned, &self.lanes);
        std::iter::from_fn(|| ready.next_entry().map(ReadySize::from)).take(max).collect()
    }

    /// Ready messages in memory, at most `max`, as a full queue drops them: lowest priority first.
    pub(super) fn ready_from_the_lowest(&self, max: usize) -> Vec<ReadySize> {
        let mut priorities: Vec<Priority> = self.lanes.priorities_ascending().collect();
        priorities.extend(self.returned.priorities());
        priorities.sort_unstable();
        priorities.dedup();
        let mut found = Vec::new();
        for priority in priorities {
            let mut returned = self.returned.of_priority(priority).map(ReadySize::from).peekable();
            let mut cursor = self.lanes.lane_cursor(priority);
            while found.len() < max {
                let waiting = self.lanes.at(&mut cursor).filter(|waiting| waiting.priority() == priority);
                match (returned.peek(), waiting) {
                    (Some(_), None) => found.extend(returned.next()),
                    (Some(early), Some(waiting)) if early.offset < waiting.offset() => {
                        found.extend(returned.next())
                    }
                    (_, Some(Waiting::Here(entry))) => {
                        found.push(ReadySize::from(entry));
                        Lanes::step(&mut cursor);
                    }
                    (_, Some(Waiting::Paged(..))) => return found,
                    (None, None) => break,
                }
            }
        }
        found
    }
}

/// What a dispatch comes to, as it grows.
#[derive(Default)]
struct Plan {
    grants: Vec<Grant>,
    turns: Vec<Turn>,
    durable: bool,
    taken: usize,
    /// Those of them that their consumers will acknowledge.
    leased: usize,
    /// Whether messages are among them whose turn comes after another of their group.
    runs: bool,
}

impl Plan {
    fn add(
        &mut self,
        entry: &MessageEntry,
        consumer: ConsumerId,
        terms: Terms,
        (until, phase): (Option<Timestamp>, LeasePhase),
    ) {
        add_grant(&mut self.grants, entry, until, phase);
        match self.turns.last_mut() {
            Some(turn) if turn.consumer == consumer => {
                turn.count += 1;
                turn.bytes += u64::from(entry.handed_bytes());
            }
            _ => {
                let bytes = entry.handed_bytes().into();
                self.turns.push(Turn { consumer, count: 1, lease: terms.lease, bytes });
            }
        }
        self.durable |= entry.is_durable();
        self.taken += 1;
        self.leased += usize::from(phase != LeasePhase::Taken);
    }
}

pub(super) fn add_grant(
    grants: &mut Vec<Grant>,
    entry: &MessageEntry,
    until: Option<Timestamp>,
    phase: LeasePhase,
) {
    match grants.last_mut() {
        Some(grant)
            if grant.pick.lane == entry.priority
                && grant.until == until
                && grant.phase == phase
                && grant.pick.offsets.last() < Some(entry.offset) =>
        {
            grant.pick.offsets.push(entry.offset);
        }
        _ => grants.push(Grant {
            pick: Pick { lane: entry.priority, offsets: OffsetSet::one(entry.offset) },
            until,
            phase,
        }),
    }
}

/// What a full queue must know of a ready message to drop it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadySize {
    pub(super) priority: Priority,
    pub(super) offset: Offset,
    pub(super) stored_bytes: u32,
}

impl From<&MessageEntry> for ReadySize {
    fn from(entry: &MessageEntry) -> Self {
        Self { priority: entry.priority, offset: entry.offset, stored_bytes: entry.stored_bytes }
    }
}

impl From<&CompactEntry> for ReadySize {
    fn from(entry: &CompactEntry) -> Self {
        Self { priority: entry.priority(), offset: entry.offset(), stored_bytes: entry.stored_bytes() }
    }
}

/// Ready messages in the order of delivery, up to the first that is not in memory.
struct ReadyWalk<'a, R: Iterator<Item = &'a CompactEntry>> {
    returned: std::iter::Peekable<R>,
    lanes: &'a Lanes,
    cursor: Cursor,
    /// The last one that was in a compact form, as it is given out.
    unpacked: Option<MessageEntry>,
}

fn walk_ready<'a>(
    returned: &'a Returned,
    lanes: &'a Lanes,
) -> ReadyWalk<'a, impl Iterator<Item = &'a CompactEntry>> {
    ReadyWalk { returned: returned.iter().peekable(), cursor: lanes.cursor(), lanes, unpacked: None }
}

impl<'a, R: Iterator<Item = &'a CompactEntry>> ReadyWalk<'a, R> {
    #[inline]
    fn next_entry(&mut self) -> Option<&MessageEntry> {
        let Some(waiting) = self.lanes.at(&mut self.cursor) else { return self.next_returned() };
        if let Some(early) = self.returned.peek()
            && (Reverse(early.priority()), early.offset()) < (Reverse(waiting.priority()), waiting.offset())
        {
            return self.next_returned();
        }
        match waiting {
            Waiting::Here(entry) => {
                Lanes::step(&mut self.cursor);
                Some(entry)
            }
            Waiting::Paged(..) => None,
        }
    }

    fn next_returned(&mut self) -> Option<&MessageEntry> {
        match self.returned.next()?.entry() {
            Cow::Borrowed(entry) => Some(entry),
            Cow::Owned(entry) => Some(self.unpacked.insert(entry)),
        }
    }
}
