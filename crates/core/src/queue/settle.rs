//! Deciding what a consumer's word, or its silence, does to a message it holds.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nexo_types::{Millis, Offset, Priority, Timestamp};
use thiserror::Error;

use super::Queue;
use super::lease::Lease;
use super::push::into_picks;
use crate::message::{DeathReason, Durability};
use crate::offsets::OffsetSet;
use crate::record::{AttemptCount, LeasePhase, Leave, Record};

/// Why a receipt does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LeaseError {
    /// The queue never gave out such an offset.
    #[error("never delivered")]
    Unknown,
    /// The message is not with a consumer.
    #[error("not leased")]
    NotLeased,
    /// It is with a consumer as a later attempt.
    #[error("delivered again as attempt {current}")]
    Stale {
        /// That attempt.
        current: u32,
    },
    /// It had been received before.
    #[error("already received")]
    AlreadyReceived {
        /// When its lease ends.
        until: Option<Timestamp>,
    },
}

/// Why a message comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnCause {
    /// The consumer gave it back, to be delivered again after this time or after the queue's back-off.
    Nack(Option<Millis>),
    /// The consumer says that it will never succeed.
    Reject,
    /// The consumer's connection ended.
    SessionEnd,
    /// It never reached the consumer.
    Undelivered,
    /// It could not be read from the log, and is to be tried again after this time.
    Unreadable(Millis),
    /// Its lease ended.
    LeaseEnd,
}

/// A message that is dead where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// The message.
    pub offset: Offset,
    /// Why it may not be delivered again.
    pub reason: DeathReason,
}

/// What is known of a message that is about to be moved.
#[derive(Clone, Debug)]
pub struct Dying {
    /// Why it may not be delivered again.
    pub reason: DeathReason,
    /// When it was pushed.
    pub enqueued_at: Timestamp,
    /// How often it has been delivered.
    pub attempts: u32,
    /// Whether it survives a restart.
    pub durability: Durability,
    /// Bytes of its stored form.
    pub stored_bytes: u32,
    /// How urgent it is.
    pub priority: Priority,
    /// Its stored form, if it is in memory.
    pub payload: Option<Bytes>,
}

/// What somebody's word about leased messages comes to, not yet applied.
#[derive(Debug)]
pub struct Verdict<T> {
    /// For each receipt, in the order of the question.
    pub answers: Vec<Result<T, LeaseError>>,
    /// To be written down if [`Self::durable`], and applied.
    pub records: Vec<Record>,
    /// Whether any of the messages must survive a restart.
    pub durable: bool,
}

/// Messages that come back, not yet applied.
#[derive(Debug, Default)]
pub struct ReturnPlan {
    /// To be written down if [`Self::durable`], and applied.
    pub records: Vec<Record>,
    /// Whether any of the messages must survive a restart.
    pub durable: bool,
    /// Those that are to be dead-lettered once the records are applied, and those that already were to be.
    pub deaths: Vec<Death>,
}

impl Queue {
    /// Decides which of these leased messages are done.
    #[must_use]
    pub fn decide_ack(&self, now: Timestamp, receipts: &[(Offset, u32)]) -> Verdict<()> {
        let (answers, held, durable) = self.sort_out(receipts, |_| Ok(()));
        let records = self.leave_records(held, Leave::Acked, now);
        Verdict { answers, records, durable }
    }

    /// Decides that these messages stay with their consumers for `span` from now.
    #[must_use]
    pub fn decide_extend(
        &self,
        now: Timestamp,
        receipts: &[(Offset, u32)],
        span: Millis,
    ) -> Verdict<Timestamp> {
        let until = now.plus(span);
        let (answers, held, durable) = self.sort_out(receipts, |_| Ok(until));
        let mut records = self.lease_records(held.iter().copied());
        if !held.is_empty() {
            records.push(Record::Extend { offsets: held.into_iter().collect(), until, at: now });
        }
        Verdict { answers, records, durable }
    }

    /// Decides which of these messages have been received; from then on they are leased as usual. Messages
    /// that were popped with different lease times give several records.
    #[must_use]
    pub fn decide_received(&self, now: Timestamp, receipts: &[(Offset, u32)]) -> Verdict<Timestamp> {
        let until_of = |lease: &Lease| now.plus(lease.span().unwrap_or(self.config.visibility));
        let (answers, held, durable) = self.sort_out(receipts, |lease| match lease.phase {
            LeasePhase::Receipt => Ok(until_of(lease)),
            LeasePhase::Done | LeasePhase::Taken => Err(LeaseError::AlreadyReceived { until: lease.until() }),
        });
        let mut records = self.lease_records(held.iter().copied());
        let mut by_end: BTreeMap<Timestamp, Vec<Offset>> = BTreeMap::new();
        for offset in held {
            if let Some(lease) = self.leased.get(offset) {
                by_end.entry(until_of(lease)).or_default().push(offset);
            }
        }
        records.extend(by_end.into_iter().map(|(until, offsets)| Record::Extend {
            offsets: offsets.into_iter().collect(),
            until,
            at: now,
        }));
        Verdict { answers, records, durable }
    }

    /// Decides what becomes of leased messages that come back.
    #[must_use]
    pub fn decide_return(
        &self,
        now: Timestamp,
        receipts: &[(Offset, u32)],
        cause: ReturnCause,
    ) -> (Vec<Result<(), LeaseError>>, ReturnPlan) {
        let (answers, held, _) = self.sort_out(receipts, |_| Ok(()));
        (answers, self.plan_return(now, held, cause))
    }

    /// Decides that all messages which belong to connections come back: after a restart there are none.
    #[must_use]
    pub fn decide_session_end(&self, now: Timestamp) -> ReturnPlan {
        let held = self.held_by_sessions().into_iter().map(|(offset, _)| offset).collect();
        self.plan_return(now, held, ReturnCause::SessionEnd)
    }

    /// Messages that belong to connections, with the attempt of each.
    #[must_use]
    pub fn held_by_sessions(&self) -> Vec<(Offset, u32)> {
        let held = self.leased.iter().filter(|lease| lease.until().is_none());
        held.map(|lease| (lease.entry.offset, lease.entry.attempts)).collect()
    }

    pub(super) fn plan_return(&self, now: Timestamp, held: Vec<Offset>, cause: ReturnCause) -> ReturnPlan {
        let mut plan = ReturnPlan { durable: self.any_durable(held.iter()), ..ReturnPlan::default() };
        let mut by_time: BTreeMap<Timestamp, Vec<Offset>> = BTreeMap::new();
        let rejected = cause == ReturnCause::Reject;
        let reason = if rejected { DeathReason::Rejected } else { DeathReason::MaxAttempts };
        let mut dead: Vec<(Priority, Offset)> = Vec::new();
        let attempt = match cause {
            ReturnCause::Undelivered | ReturnCause::Unreadable(_) => AttemptCount::Undo,
            ReturnCause::Nack(_) | ReturnCause::Reject | ReturnCause::SessionEnd | ReturnCause::LeaseEnd => {
                AttemptCount::Keep
            }
        };
        let retry = self.config.retry;
        let max_attempts = self.config.max_attempts;
        for offset in held {
            let Some(lease) = self.leased.get(offset) else { continue };
            // It is about to be moved, and nothing brings it back: it would be moved twice, or not at all. Whoever says
            // it again waits for the same move.
            if let Some(reason) = lease.dying {
                plan.deaths.push(Death { offset, reason });
                continue;
            }
            let attempts = lease.entry.attempts;
            let used_up = attempt == AttemptCount::Keep && max_attempts.is_some_and(|max| attempts >= max);
            if used_up || rejected {
                dead.push((lease.entry.priority, offset));
                plan.deaths.push(Death { offset, reason });
                continue;
            }
            let wait = match cause {
                ReturnCause::Nack(Some(delay)) | ReturnCause::Unreadable(delay) => delay,
                ReturnCause::Nack(None) => retry.wait_after(attempts),
                ReturnCause::Reject
                | ReturnCause::SessionEnd
                | ReturnCause::Undelivered
                | ReturnCause::LeaseEnd => Millis::ZERO,
            };
            by_time.entry(now.plus(wait)).or_default().push(offset);
        }
        let leaving = dead.iter().map(|(_, offset)| *offset);
        plan.records = self.lease_records(by_time.values().flatten().copied().chain(leaving));
        if !dead.is_empty() {
            plan.records.push(Record::Die { picks: into_picks(dead), reason, at: now });
        }
        plan.records.extend(by_time.into_iter().map(|(ready_at, offsets)| Record::Return {
            offsets: offsets.into_iter().collect::<OffsetSet>(),
            ready_at,
            attempt,
            at: now,
        }));
        plan
    }

    /// What is known of a message that is about to be moved, if it still is.
    #[must_use]
    pub fn dying(&self, offset: Offset) -> Option<Dying> {
        let (entry, reason) = match self.dying.get(&offset) {
            Some((entry, reason)) => (entry, *reason),
            None => {
                let lease = self.leased.get(offset)?;
                (&lease.entry, lease.dying?)
            }
        };
        Some(Dying {
            reason,
            enqueued_at: entry.enqueued_at,
            attempts: entry.attempts,
            durability: entry.durability,
            stored_bytes: entry.stored_bytes,
            priority: entry.priority,
            payload: entry.payload.clone(),
        })
    }

    /// Decides that a message which is about to be moved leaves the queue.
    #[must_use]
    pub fn decide_dead_letter(&self, now: Timestamp, offset: Offset, why: Leave) -> Option<Record> {
        if let Some((entry, _)) = self.dying.get(&offset) {
            // As a ready message leaves: so it does in a replay that could not read that it died.
            return Some(Record::Drop { picks: into_picks(vec![(entry.priority, offset)]), why, at: now });
        }
        let lease = self.leased.get(offset).filter(|lease| lease.dying.is_some());
        lease.and_then(|_| self.leave_records(vec![offset], why, now).pop())
    }

    /// All messages that are about to be moved: what is left to do after a move has failed.
    #[must_use]
    pub fn deaths(&self) -> Vec<Death> {
        let waiting =
            self.dying.iter().map(|(offset, (_, reason))| Death { offset: *offset, reason: *reason });
        let leased = self.leased.iter();
        let leased =
            leased.filter_map(|lease| Some(Death { offset: lease.entry.offset, reason: lease.dying? }));
        let mut all: Vec<Death> = waiting.chain(leased).collect();
        all.sort_unstable_by_key(|death| death.offset);
        all
    }

    /// Checks receipts one by one. A receipt that is named twice holds once. Gives back those that hold, and whether any of
    /// their messages must survive a restart.
    fn sort_out<T>(
        &self,
        receipts: &[(Offset, u32)],
        check: impl Fn(&Lease) -> Result<T, LeaseError>,
    ) -> (Vec<Result<T, LeaseError>>, Vec<Offset>, bool) {
        let mut durable = false;
        let mut held: Vec<Offset> = Vec::with_capacity(receipts.len());
        // Nearly always they come in order, and then a repetition shows without a set.
        let in_order = receipts.is_sorted_by(|(a, _), (b, _)| a < b);
        let mut seen = BTreeSet::new();
        let answers = receipts
            .iter()
            .map(|&(offset, attempt)| {
                let lease = self.lease_of(offset, attempt)?;
                let answer = check(lease)?;
                if !in_order && !seen.insert(offset) {
                    return Err(LeaseError::NotLeased);
                }
                held.push(offset);
                durable |= lease.entry.is_durable();
                Ok(answer)
            })
            .collect();
        (answers, held, durable)
    }

    fn lease_of(&self, offset: Offset, attempt: u32) -> Result<&Lease, LeaseError> {
        match self.leased.get(offset) {
            Some(lease) if lease.entry.attempts == attempt => Ok(lease),
            Some(lease) => Err(LeaseError::Stale { current: lease.entry.attempts }),
            None if offset >= self.next_offset || attempt == 0 => Err(LeaseError::Unknown),
            None => Err(LeaseError::NotLeased),
        }
    }
}
