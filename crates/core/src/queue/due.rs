//! Deciding what time does: delays end, leases end, lives end. Nothing is swept; each has its deadline.

use std::cmp::Reverse;

use nexo_types::{Offset, Priority, Timestamp};

use super::push::into_picks;
use super::settle::{Death, ReturnCause};
use super::{Lease, Queue};
use crate::config::{Fate, RateLimit};
use crate::message::DeathReason;
use crate::record::{Leave, Record};

/// What time has brought, not yet applied.
#[derive(Debug, Default)]
pub struct DuePlan {
    /// To be written down if [`Self::durable`], and applied.
    pub records: Vec<Record>,
    /// Whether any of the messages must survive a restart.
    pub durable: bool,
    /// Those that are to be moved to the dead-letter queue.
    pub deaths: Vec<Death>,
    /// Whether there is more to do at this moment.
    pub more: bool,
    /// Whether messages whose time has come have not all taken their places: nobody may be served before that.
    pub advancing: bool,
}

impl Queue {
    /// Decides what has become due by `now`, for at most `max` messages of each kind.
    pub fn decide_due(&mut self, now: Timestamp, max: usize) -> DuePlan {
        self.forget_dedup(now, max * 4);
        // Nobody may be served before all whose time has come have taken their places: one of them may be the most
        // urgent. That needs no record and is quick, so its bound is larger.
        let advance_max = max * 16;
        let advancing = self.advance(now, advance_max) == advance_max;
        let mut more = advancing;
        let ended = self.ended_leases(now, max);
        more |= ended.len() == max;
        let returns = self.plan_return(now, ended, ReturnCause::LeaseEnd);
        let expired = self.expired(now, max);
        more |= expired.len() == max;
        let mut plan = DuePlan {
            records: returns.records,
            durable: returns.durable,
            deaths: returns.deaths,
            more,
            advancing,
        };
        self.plan_expiry(now, expired, &mut plan);
        plan
    }

    /// Decides that messages whose life is nothing go, because nobody who waited took them.
    pub fn decide_fleeting(&mut self, now: Timestamp) -> DuePlan {
        let mut plan = DuePlan::default();
        if self.fleeting.is_empty() {
            return plan;
        }
        let mut gone = std::mem::take(&mut self.fleeting);
        gone.retain(|(lane, offset)| self.is_ready_here(*lane, *offset));
        self.plan_expiry(now, gone, &mut plan);
        plan
    }

    fn plan_expiry(&mut self, now: Timestamp, expired: Vec<(Priority, Offset)>, plan: &mut DuePlan) {
        if expired.is_empty() {
            return;
        }
        if self.config.on_expiry == Fate::DeadLetter {
            let deaths = expired.into_iter();
            plan.deaths.extend(
                deaths.filter_map(|(lane, offset)| self.mark_dying(lane, offset, DeathReason::Expired)),
            );
        } else {
            plan.durable |= expired.iter().any(|(lane, offset)| self.is_durable_ready(*lane, *offset));
            plan.records.push(Record::Drop { picks: into_picks(expired), why: Leave::Expired, at: now });
        }
    }

    /// When this queue next needs attention without being asked, if ever.
    pub fn next_deadline(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.drop_stale_deadlines();
        let lease = self.lease_ends.peek().map(|Reverse((at, _))| *at);
        let delay = self.delay_ends.peek().map(|Reverse((at, _))| *at);
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
        while moved < max
            && let Some(Reverse((at, offset))) = self.delay_ends.peek().copied()
            && at <= now
        {
            self.delay_ends.pop();
            if self.delayed.get(&offset).is_some_and(|entry| entry.ready_at.min(entry.expires_at) == at)
                && let Some(entry) = self.delayed.remove(&offset)
            {
                self.rejoin(entry);
                moved += 1;
            }
        }
        moved
    }

    fn ended_leases(&mut self, now: Timestamp, max: usize) -> Vec<Offset> {
        let mut ended = Vec::new();
        while ended.len() < max
            && let Some(Reverse((at, offset))) = self.lease_ends.peek().copied()
            && at <= now
        {
            self.lease_ends.pop();
            if self.leased.get(&offset).is_some_and(|lease| lease.ends_at(at)) {
                ended.push(offset);
            }
        }
        // The same end may stand there twice if a lease was extended to the moment it already had.
        ended.sort_unstable();
        ended.dedup();
        ended
    }

    /// If a decision about ended leases could not be written down, they must come up again.
    pub fn undo_due(&mut self) {
        self.lease_ends.clear();
        let ends = self.leased.iter().filter(|(_, lease)| lease.dying.is_none());
        self.lease_ends.extend(ends.filter_map(|(offset, lease)| Some(Reverse((lease.until?, *offset)))));
        self.rebuild_expiries();
    }

    fn expired(&mut self, now: Timestamp, max: usize) -> Vec<(Priority, Offset)> {
        let mut expired = Vec::new();
        while expired.len() < max
            && let Some(Reverse((at, lane, offset))) = self.expiries.peek().copied()
            && at <= now
        {
            self.expiries.pop();
            if self.is_ready_here(lane, offset) {
                expired.push((lane, offset));
            }
        }
        expired.sort_unstable();
        expired.dedup();
        expired
    }

    fn is_ready_here(&self, lane: Priority, offset: Offset) -> bool {
        self.rejoined.contains_key(&(Reverse(lane), offset)) || self.lanes.get(lane, offset).is_some()
    }

    fn is_durable_ready(&self, lane: Priority, offset: Offset) -> bool {
        self.rejoined
            .get(&(Reverse(lane), offset))
            .or_else(|| self.lanes.get(lane, offset))
            .is_some_and(super::Entry::is_durable)
    }

    /// Deadlines of messages that have moved on must not wake anybody, nor pile up.
    fn drop_stale_deadlines(&mut self) {
        while let Some(Reverse((at, offset))) = self.lease_ends.peek()
            && !self.leased.get(offset).is_some_and(|lease| lease.ends_at(*at))
        {
            self.lease_ends.pop();
        }
        while let Some(Reverse((at, offset))) = self.delay_ends.peek()
            && self.delayed.get(offset).is_none_or(|entry| entry.ready_at.min(entry.expires_at) != *at)
        {
            self.delay_ends.pop();
        }
        while let Some(Reverse((_, lane, offset))) = self.expiries.peek()
            && !self.is_ready_here(*lane, *offset)
        {
            self.expiries.pop();
        }
        if self.lease_ends.len() > 2 * self.leased.len() + 64 {
            let leased = &self.leased;
            self.lease_ends
                .retain(|Reverse((at, offset))| leased.get(offset).is_some_and(|lease| lease.ends_at(*at)));
        }
        if self.expiries.len() as u64 > 2 * (self.lanes.resident_len() + self.rejoined.len() as u64) + 64 {
            self.rebuild_expiries();
        }
    }

    fn rebuild_expiries(&mut self) {
        self.expiries.clear();
        let ready = self.rejoined.values().chain(self.lanes.resident());
        let fleeting = ready.clone().filter(|entry| entry.is_fleeting());
        self.fleeting = fleeting.map(|entry| (entry.priority, entry.offset)).collect();
        let ready = ready.filter(|entry| !entry.is_fleeting());
        self.expiries.extend(
            ready
                .filter(|entry| entry.expires_at != Timestamp::MAX)
                .map(|entry| Reverse((entry.expires_at, entry.priority, entry.offset))),
        );
    }
}

impl Lease {
    fn ends_at(&self, at: Timestamp) -> bool {
        self.until == Some(at) && self.dying.is_none()
    }
}
