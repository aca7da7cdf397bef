//! Applying records: the only way the durable state of a queue changes.
//!
//! The same state and the same record give the same state, on every node, every time. A record may name
//! messages that are not here (they were transient, and the record is being replayed); those are passed over.
//! It may name messages that are not in memory (only while replaying: decisions name none); then applying stops
//! with [`NeedsPage`], and is taken up again once the page is there. What was done before that is not done twice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use nexo_types::{GroupId, Offset, Priority, Timestamp};
use thiserror::Error;

use super::compact::Delayed;
use super::deadline_map::DeadlineMap;
use super::entry::{MessageEntry, handed_bytes};
use super::fair::Tenants;
use super::lane::PageRequest;
use super::lanes::Lanes;
use super::lease::Lease;
use super::returned::Returned;
use super::usage::Way;
use super::{Queue, Refused};
use crate::batch::{BatchKind, MessageBatch};
use crate::message::{DeathReason, Durability};
use crate::record::{AttemptCount, Grant, LeasePhase, Leave, Pick, Record};

/// Deduplication ids that a message with one lets go of: more than it brings, so that there are never many too many.
const DEDUP_FORGET_MAX: usize = 16;

/// Part of the queue must come into memory before a record can be applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("messages of lane {} must be read first", .0.lane.0)]
pub struct NeedsPage(pub PageRequest);

/// What applying a record gives back.
#[derive(Debug, Default)]
pub struct Applied {
    /// Messages that were handed out, in the order of the record.
    pub handed: Vec<Handed>,
    /// What a purge or delete took out. Letting go of millions of messages takes time: do it without the lock.
    pub removed: Option<Removed>,
}

/// A message that was handed out.
#[derive(Clone, Debug)]
pub struct Handed {
    /// Its place in the queue.
    pub offset: Offset,
    /// How often it has been delivered, this time included.
    pub attempts: u32,
    /// When it was pushed.
    pub enqueued_at: Timestamp,
    /// When it comes back.
    pub until: Option<Timestamp>,
    /// When it was handed out.
    pub granted_at: Timestamp,
    /// How urgent it is.
    pub priority: Priority,
    /// What it counts for among the bytes that its consumer may hold.
    pub charged: u32,
    /// Its stored form, if it was in memory.
    pub payload: Option<Bytes>,
}

impl Handed {
    /// Adds the stored form, read from the log: only now is it known what it counts for.
    pub fn complete(&mut self, payload: Bytes) {
        self.charged = handed_bytes(payload.len());
        self.payload = Some(payload);
    }
}

/// Messages that have left the queue together.
#[derive(Debug, Default)]
pub struct Removed {
    /// How many.
    pub count: u64,
    // Only to be let go of without the lock.
    lanes: Lanes,
    returned: Returned,
    delayed: DeadlineMap<Delayed>,
    leased: DeadlineMap<Lease>,
    dying: HashMap<Offset, (MessageEntry, DeathReason), FixedState>,
    _groups: BTreeMap<GroupId, VecDeque<MessageEntry>>,
    _behind: HashMap<Offset, GroupId, FixedState>,
    _expiries: BinaryHeap<Reverse<(Timestamp, Priority, Offset)>>,
}

impl Queue {
    /// Applies one record. [`Record::Create`] and [`Record::Delete`] are the
    /// catalog's to apply; here they change nothing but the settings.
    ///
    /// # Errors
    /// If messages must come into memory first.
    pub fn apply(&mut self, record: &Record) -> Result<Applied, NeedsPage> {
        let mut applied = Applied::default();
        match record {
            Record::Create { config, .. } | Record::Configure { config, .. } => {
                if config.single_active_consumer || !self.consumers.is_unused() {
                    self.consumers.set_single_active(config.single_active_consumer);
                }
                self.config = config.clone().into();
            }
            Record::Delete => applied.removed = Some(self.remove_all()),
            Record::Messages(batch) => match batch.kind() {
                BatchKind::Pushed => self.apply_push(batch),
                // A copy of messages says where they are stored, which is not the queue's to know.
                BatchKind::Relocated => {}
            },
            Record::Lease { grants, at } => {
                applied.handed.reserve(grants.iter().map(|grant| grant.pick.offsets.len() as usize).sum());
                let mut last = None;
                for grant in grants {
                    self.apply_grant(grant, *at, &mut last, &mut applied.handed)?;
                }
            }
            Record::Extend { offsets, until, .. } => {
                for offset in offsets.iter() {
                    self.apply_extend(offset, *until);
                }
            }
            Record::Settle { offsets, why, at } => {
                let before = self.totals.acked;
                for offset in offsets.iter() {
                    self.apply_settle(offset, *why, *at);
                }
                self.rates.served.acked.add(*at, self.totals.acked - before);
            }
            Record::Drop { picks, why, at } => self.apply_drop(picks, *why, *at)?,
            Record::Die { picks, reason, at } => self.apply_death(picks, *reason, *at)?,
            Record::Return { offsets, ready_at, attempt, at } => {
                for offset in offsets.iter() {
                    self.apply_return(offset, *ready_at, *attempt, *at);
                }
            }
            Record::Reserve { before } => self.reserved = self.reserved.max(*before),
            Record::Purge { .. } => applied.removed = Some(self.apply_purge()),
            Record::Clear { .. } => {
                let removed = self.remove_all();
                self.dedup.clear();
                applied.removed = Some(removed);
            }
        }
        Ok(applied)
    }

    fn apply_push(&mut self, batch: &MessageBatch) {
        let Refused(mut refused) = self.refused.take();
        refused.sort_unstable_by_key(|(offset, _)| *offset);
        for item in batch.items() {
            // The batch was made by us or has passed a checksum; what cannot be read was not made by this
            // version, and the format version has been checked.
            let Ok((mut entry, dedup)) = MessageEntry::with_dedup(batch, item) else {
                debug_assert!(false, "a batch holds readable messages");
                continue;
            };
            if let Some(id) = dedup {
                self.forget_dedup(item.enqueued_at, DEDUP_FORGET_MAX);
                self.touch(item.offset);
                self.dedup.insert(id, item.offset, item.enqueued_at.plus(self.config.dedup_window));
            }
            self.note_tenant(&mut entry);
            if let Some(tenant) = entry.tenant() {
                self.tenants.add(tenant);
            }
            self.next_offset = self.next_offset.max(item.offset.next());
            self.totals.pushed += 1;
            if entry.is_durable() {
                self.note_usage(entry.offset, entry.stored_bytes, Way::In);
            }
            match refused.binary_search_by_key(&item.offset, |(offset, _)| *offset) {
                Err(_) => self.take_in(entry),
                Ok(found) => {
                    self.touch(item.offset);
                    self.loose_bytes += u64::from(entry.stored_bytes);
                    self.put_aside(entry, refused[found].1);
                }
            }
        }
        if let Some(item) = batch.items().last() {
            self.rates.pushed.add(item.enqueued_at, batch.items().len() as u64);
        }
    }

    /// Forgets deduplication ids whose windows have ended by `now`. That needs no record: the moment is known.
    pub(super) fn forget_dedup(&mut self, now: Timestamp, max: usize) {
        for _ in 0..max {
            let Some(offset) = self.dedup.ended(now) else { return };
            self.touch(offset);
            self.dedup.forget_first();
        }
    }

    /// A new message takes its place.
    fn take_in(&mut self, mut entry: MessageEntry) {
        let now = entry.enqueued_at;
        if let Some(group) = entry.group().cloned() {
            self.touch(entry.offset);
            self.loose_bytes += u64::from(entry.stored_bytes);
            if let Some(behind) = self.groups.get_mut(&group) {
                // It may wait for long; its bytes are read back when its turn comes.
                entry.cool();
                let cached = entry.cached_bytes();
                self.behind.insert(entry.offset, group);
                behind.push_back(entry);
                self.loose_cached_bytes += cached;
                self.grouped += 1;
            } else {
                self.note_out(&group);
                self.place(entry, now);
            }
        } else if entry.ready_at > now {
            self.touch(entry.offset);
            self.loose_bytes += u64::from(entry.stored_bytes);
            self.place(entry, now);
        } else {
            self.watch_expiry(&entry);
            self.lanes.push_back(entry);
        }
    }

    pub(super) fn watch_expiry(&mut self, entry: &MessageEntry) {
        if entry.has_ttl_zero() {
            self.ttl_zero.push((entry.priority, entry.offset));
        } else if entry.expires_at != Timestamp::MAX {
            self.expiries.push(Reverse((entry.expires_at, entry.priority, entry.offset)));
        }
    }

    /// Leases ready messages. One that waits behind others of its group follows those in the record: `last` is the group
    /// of the message before it.
    fn apply_grant(
        &mut self,
        grant: &Grant,
        at: Timestamp,
        last: &mut Option<GroupId>,
        handed: &mut Vec<Handed>,
    ) -> Result<(), NeedsPage> {
        let mut again = 0;
        let (before, acked) = (handed.len(), self.totals.acked);
        for offset in grant.pick.offsets.iter() {
            let mut ready = self.take_ready(grant.pick.lane, offset, at)?;
            if ready.is_none()
                && let Some(group) = last.as_ref()
            {
                ready = self.take_follower(group, offset);
            }
            let Some(mut entry) = ready else {
                // A lease that is written down after the fact.
                self.forget_unwritten(offset);
                continue;
            };
            if last.as_ref() != entry.group() {
                *last = entry.group().cloned();
            }
            entry.attempts += 1;
            // Counted one by one: applying may stop at any message, and goes on at the same one.
            self.totals.delivered += 1;
            if entry.attempts > 1 {
                self.totals.redelivered += 1;
                again += 1;
            }
            self.rates.served.wait.add(at.since(entry.ready_at));
            handed.push(Handed {
                offset,
                attempts: entry.attempts,
                enqueued_at: entry.enqueued_at,
                until: grant.until,
                granted_at: at,
                priority: entry.priority,
                charged: entry.handed_bytes(),
                payload: entry.hand_out_payload(),
            });
            if grant.phase == LeasePhase::Taken {
                self.leave(&entry, Leave::Acked, at);
            } else {
                self.count(&entry);
                self.leased_bytes += u64::from(entry.stored_bytes);
                self.leased.insert(Lease::new(entry, grant.until, grant.phase, at));
            }
        }
        let count = (handed.len() - before) as u64;
        self.rates.served.acked.add(at, self.totals.acked - acked);
        self.rates.served.delivered.add(at, count);
        self.rates.served.redelivered.add(at, again);
        Ok(())
    }

    fn apply_extend(&mut self, offset: Offset, until: Timestamp) {
        self.touch(offset);
        self.leased.update(offset, |lease| lease.extend(until));
    }

    fn apply_settle(&mut self, offset: Offset, why: Leave, at: Timestamp) {
        self.touch(offset);
        if let Some(lease) = self.leased.remove(offset) {
            self.note_ended(&lease);
            self.leave(&lease.entry, why, at);
        } else if let Some(entry) = self.take_dying(offset) {
            self.leave(&entry, why, at);
        }
    }

    /// A message is not leased any more.
    fn note_ended(&mut self, lease: &Lease) {
        self.forget_unwritten(lease.entry.offset);
        self.uncount(&lease.entry);
        self.leased_bytes -= u64::from(lease.entry.stored_bytes);
    }

    fn apply_drop(&mut self, picks: &[Pick], why: Leave, at: Timestamp) -> Result<(), NeedsPage> {
        for pick in picks {
            for offset in pick.offsets.iter() {
                let mut out = self.take_ready(pick.lane, offset, at)?;
                out = out.or_else(|| self.take_held(offset)).or_else(|| self.take_delayed(offset));
                if let Some(entry) = out {
                    self.leave(&entry, why, at);
                } else if let Some(entry) = self.take_returned_to_group(offset) {
                    self.count_leave(&entry, why);
                }
            }
        }
        Ok(())
    }

    /// Messages are not delivered any more: one that is leased stays where it is, one that is ready is put aside, and so is one
    /// that comes with the next record.
    fn apply_death(&mut self, picks: &[Pick], reason: DeathReason, at: Timestamp) -> Result<(), NeedsPage> {
        for pick in picks {
            for offset in pick.offsets.iter() {
                if offset >= self.next_offset {
                    self.refused.0.push((offset, reason));
                } else if self.leased.contains(offset) {
                    self.touch(offset);
                    self.leased.update(offset, |lease| lease.dying = Some(reason));
                } else if let Some(entry) = self.take_ready(pick.lane, offset, at)? {
                    self.put_aside(entry, reason);
                }
            }
        }
        Ok(())
    }

    /// A loose message waits to be dead-lettered. Where many do, the log has their bytes.
    pub(super) fn put_aside(&mut self, mut entry: MessageEntry, reason: DeathReason) {
        self.warm(&mut entry);
        self.dying_bytes += u64::from(entry.stored_bytes);
        self.dying.insert(entry.offset, (entry, reason));
    }

    fn apply_return(&mut self, offset: Offset, ready_at: Timestamp, attempt: AttemptCount, at: Timestamp) {
        self.touch(offset);
        let Some(lease) = self.leased.remove(offset) else { return };
        self.note_ended(&lease);
        let mut entry = lease.entry;
        if attempt == AttemptCount::Undo {
            entry.attempts = entry.attempts.saturating_sub(1);
        }
        entry.ready_at = ready_at;
        self.come_back(entry, at);
    }

    /// Everything that waits goes; what is with a consumer stays, and stays the head of its group. The containers
    /// themselves are taken out, so that this takes no longer for millions of messages.
    fn apply_purge(&mut self) -> Removed {
        self.changes.change_all();
        let mut removed = Removed {
            lanes: std::mem::take(&mut self.lanes),
            returned: std::mem::take(&mut self.returned),
            delayed: self.delayed.take(),
            _groups: std::mem::take(&mut self.groups),
            _behind: self.behind.take(),
            _expiries: std::mem::take(&mut self.expiries),
            ..Removed::default()
        };
        removed.count =
            removed.lanes.len() + removed.returned.len() as u64 + removed.delayed.len() as u64 + self.grouped;
        self.loose_bytes = self.held_entries().map(|entry| u64::from(entry.stored_bytes)).sum();
        self.loose_cached_bytes = self.held_entries().map(|entry| entry.cached_bytes()).sum();
        self.loose_warm = self.held_entries().filter(|entry| entry.is_warm()).count() as u64;
        let out: Vec<GroupId> = self.held_entries().filter_map(|entry| entry.group().cloned()).collect();
        self.tenants = Tenants::of(self.held_entries().filter_map(|entry| entry.tenant()));
        self.reset_groups(&out);
        self.totals.purged += removed.count;
        removed
    }

    /// Everything goes, also what is with a consumer.
    fn remove_all(&mut self) -> Removed {
        let mut removed = self.apply_purge();
        self.unwritten_leases.clear();
        removed.leased = self.leased.take();
        removed.dying = self.dying.take();
        let held = (removed.leased.len() + removed.dying.len()) as u64;
        removed.count += held;
        self.totals.purged += held;
        self.reset_groups(&[]);
        self.tenants = Tenants::default();
        self.loose_bytes = 0;
        self.leased_bytes = 0;
        self.dying_bytes = 0;
        self.loose_cached_bytes = 0;
        self.loose_warm = 0;
        removed
    }

    /// Takes a ready message out of its place; it is loose from then on.
    pub(super) fn take_ready(
        &mut self,
        lane: Priority,
        offset: Offset,
        at: Timestamp,
    ) -> Result<Option<MessageEntry>, NeedsPage> {
        self.touch(offset);
        if let Some(entry) = self.take_returned(lane, offset) {
            return Ok(Some(entry));
        }
        if let Some(entry) = self.lanes.remove(lane, offset).map_err(NeedsPage)? {
            self.loose_bytes += u64::from(entry.stored_bytes);
            return Ok(Some(entry));
        }
        // While replaying, time moves only with the records.
        if self.delayed.contains(offset) {
            self.advance(at, usize::MAX);
            return Ok(self.take_returned(lane, offset));
        }
        Ok(None)
    }

    fn take_returned(&mut self, lane: Priority, offset: Offset) -> Option<MessageEntry> {
        if self.returned.is_empty() {
            return None;
        }
        let entry = self.returned.remove(lane, offset)?;
        self.uncount(&entry);
        Some(entry)
    }

    /// Takes out a message that is leased or dying.
    fn take_held(&mut self, offset: Offset) -> Option<MessageEntry> {
        self.touch(offset);
        if let Some(lease) = self.leased.remove(offset) {
            self.note_ended(&lease);
            return Some(lease.entry);
        }
        self.take_dying(offset)
    }

    fn take_dying(&mut self, offset: Offset) -> Option<MessageEntry> {
        if self.dying.is_empty() {
            return None;
        }
        let (entry, _) = self.dying.remove(&offset)?;
        self.dying_bytes -= u64::from(entry.stored_bytes);
        self.uncount(&entry);
        Some(entry)
    }

    /// Takes out a message whose time has not come.
    fn take_delayed(&mut self, offset: Offset) -> Option<MessageEntry> {
        self.touch(offset);
        if self.delayed.is_empty() {
            return None;
        }
        let entry = self.delayed.remove(offset)?.0.into_entry();
        self.uncount(&entry);
        Some(entry)
    }

    /// A loose message leaves the queue.
    fn leave(&mut self, entry: &MessageEntry, why: Leave, at: Timestamp) {
        self.count_leave(entry, why);
        if let Some(group) = entry.group() {
            self.release_group(group, at);
        }
    }

    /// The same, for a message that was not out: its group is as it was.
    fn count_leave(&mut self, entry: &MessageEntry, why: Leave) {
        self.free(entry);
        match why {
            Leave::Acked => self.totals.acked += 1,
            Leave::Expired => self.totals.expired += 1,
            Leave::Overflow => self.totals.overflowed += 1,
            Leave::DeadLettered => self.totals.dead_lettered += 1,
            Leave::Damaged => self.totals.damaged += 1,
            Leave::Moved => {}
        }
        if let Some(tenant) = entry.tenant() {
            self.tenants.remove(tenant);
        }
    }

    /// Whether any of these messages must survive a restart.
    pub(super) fn any_durable<'a>(&self, mut offsets: impl Iterator<Item = &'a Offset>) -> bool {
        offsets.any(|offset| {
            self.leased.get(*offset).is_some_and(|lease| lease.entry.durability == Durability::Durable)
        })
    }
}
