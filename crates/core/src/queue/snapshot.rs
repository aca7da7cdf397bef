//! The durable state of a queue as bytes, so that recovery need not read the log from its beginning.
//!
//! Ready messages that were never delivered are written as ranges; the others one by one. Bodies are not
//! written: the log has them.

use std::collections::BTreeMap;

use nexo_types::{GroupId, Offset, Position, Priority, QueueId, QueueName, SegmentId, Timestamp};
use thiserror::Error;

use super::dedup::Dedup;
use super::entry::Entry;
use super::lanes::Lanes;
use super::{Lease, Queue, Totals};
use crate::config::QueueConfig;
use crate::message::Durability;
use crate::record::Phase;
use crate::wire::{Reader, WireError, Writer};

const WAITING: u8 = 0;
const LEASED: u8 = 1;
const BEHIND: u8 = 2;

/// A snapshot that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the snapshot of a queue cannot be read: {0}")]
pub struct SnapshotError(#[from] WireError);

impl Queue {
    /// The durable state as bytes.
    #[must_use]
    pub fn snapshot(&self) -> bytes::Bytes {
        let mut out = Writer::with_capacity(256);
        out.u64(self.id.0);
        out.text(self.name.as_str());
        out.u64(self.created_at.0);
        self.config.encode(&mut out);
        out.u64(self.next_offset.0);
        out.u64(self.reserved.0);
        self.totals.encode(&mut out);
        self.lanes.encode(&mut out);
        self.encode_loose(&mut out);
        self.dedup.encode(&mut out);
        out.into_bytes()
    }

    /// A queue in the state of a snapshot. Everything that can be on disk only is.
    ///
    /// # Errors
    /// If the bytes are not a snapshot.
    pub fn restore(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut input = Reader::new(bytes);
        let id = QueueId(input.u64()?);
        let name = QueueName::new(input.text()?).map_err(|_| WireError::BadName)?;
        let created_at = Timestamp(input.u64()?);
        let config = QueueConfig::decode(&mut input)?;
        let mut queue = Self::new(id, name, config, created_at);
        queue.next_offset = Offset(input.u64()?);
        queue.reserved = Offset(input.u64()?);
        queue.totals = Totals::decode(&mut input)?;
        queue.lanes = Lanes::decode(&mut input)?;
        queue.decode_loose(&mut input)?;
        queue.dedup = Dedup::decode(&mut input)?;
        input.finish()?;
        Ok(queue)
    }

    /// To be called once all records after the snapshot are applied: offsets that transient messages may
    /// have had are passed over, what recovery brought into memory leaves it, and what was replayed counts for no rate.
    pub fn finish_recovery(&mut self) {
        self.next_offset = self.next_offset.max(self.reserved);
        self.usage.clear();
        self.rates = super::Rates::default();
        self.page_out();
    }

    fn encode_loose(&self, out: &mut Writer) {
        let mut names: Vec<&GroupId> = self.groups.keys().collect();
        names.sort_unstable();
        let index: BTreeMap<&GroupId, u64> =
            names.iter().enumerate().map(|(i, name)| (*name, i as u64)).collect();
        out.u64(names.len() as u64);
        for name in &names {
            out.text(name.as_str());
        }
        let waiting = self.rejoined.values().chain(self.delayed.values());
        let waiting: Vec<&Entry> = waiting
            .chain(self.dying.values().map(|(entry, _)| entry))
            .filter(|entry| entry.is_durable())
            .collect();
        let leased: Vec<&Lease> = self.leased.values().filter(|lease| lease.entry.is_durable()).collect();
        let behind: Vec<&Entry> =
            names.iter().flat_map(|name| &self.groups[*name]).filter(|entry| entry.is_durable()).collect();
        out.u64((waiting.len() + leased.len() + behind.len()) as u64);
        for entry in waiting {
            out.u8(WAITING);
            entry.encode(&index, out);
        }
        for lease in leased {
            out.u8(LEASED);
            lease.entry.encode(&index, out);
            out.optional(lease.until.map(|until| until.0));
            out.u8(lease.phase.code());
            out.u64(lease.granted_at.0);
        }
        for entry in behind {
            out.u8(BEHIND);
            entry.encode(&index, out);
        }
    }

    fn decode_loose(&mut self, input: &mut Reader<'_>) -> Result<(), WireError> {
        let mut names = Vec::new();
        for _ in 0..input.u64()? {
            names.push(GroupId::new(input.text()?).map_err(|_| WireError::BadName)?);
        }
        for _ in 0..input.u64()? {
            let stage = input.u8()?;
            let entry = Entry::decode(&names, input)?;
            self.loose_bytes += u64::from(entry.stored_bytes);
            match stage {
                WAITING => {
                    self.head_of_group(&entry);
                    self.place(entry, Timestamp(0));
                }
                LEASED => {
                    let until = input.optional()?.map(Timestamp);
                    let phase = Phase::from_code(input.u8()?)?;
                    let granted_at = Timestamp(input.u64()?);
                    self.head_of_group(&entry);
                    self.leased_bytes += u64::from(entry.stored_bytes);
                    if let Some(until) = until {
                        self.lease_ends.push(std::cmp::Reverse((until, entry.offset)));
                    }
                    self.leased.insert(
                        entry.offset,
                        Lease { entry, until, phase, granted_at, consumer: None, span: None, dying: None },
                    );
                }
                BEHIND => self.wait_behind(entry)?,
                value => return Err(WireError::Unknown { what: "stage of a message", value }),
            }
        }
        Ok(())
    }

    fn head_of_group(&mut self, entry: &Entry) {
        if let Some(group) = &entry.group {
            self.note_out(group);
        }
    }

    fn wait_behind(&mut self, entry: Entry) -> Result<(), WireError> {
        let group = entry.group.clone().ok_or(WireError::Range)?;
        self.note_restored(&group, &entry);
        match self.groups.get_mut(&group) {
            Some(behind) => {
                behind.push_back(entry);
                self.grouped += 1;
            }
            // The head was transient and has not survived: the first of those behind it is the head now.
            None => {
                self.note_out(&group);
                self.place(entry, Timestamp(0));
            }
        }
        Ok(())
    }
}

impl Entry {
    fn encode(&self, groups: &BTreeMap<&GroupId, u64>, out: &mut Writer) {
        out.u64(self.offset.0);
        out.u64(self.at.segment.0.into());
        out.u64(self.at.byte.into());
        out.u64(self.stored_bytes.into());
        out.u8(self.priority.0);
        out.u64(self.attempts.into());
        out.u64(self.enqueued_at.0);
        out.u64(self.ready_at.0);
        out.u64(self.expires_at.0);
        out.optional(self.group.as_ref().map(|group| groups[group]));
    }

    fn decode(groups: &[GroupId], input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            offset: Offset(input.u64()?),
            at: Position { segment: SegmentId(input.u32()?), byte: input.u32()? },
            stored_bytes: input.u32()?,
            priority: Priority(input.u8()?),
            attempts: input.u32()?,
            enqueued_at: Timestamp(input.u64()?),
            ready_at: Timestamp(input.u64()?),
            expires_at: Timestamp(input.u64()?),
            group: match input.optional()? {
                None => None,
                Some(index) => {
                    let index = usize::try_from(index).map_err(|_| WireError::Range)?;
                    Some(groups.get(index).ok_or(WireError::Range)?.clone())
                }
            },
            tenant: None,
            durability: Durability::Durable,
            payload: None,
        })
    }
}

impl Totals {
    fn encode(&self, out: &mut Writer) {
        for total in self.all() {
            out.u64(total);
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            pushed: input.u64()?,
            delivered: input.u64()?,
            redelivered: input.u64()?,
            acked: input.u64()?,
            dead_lettered: input.u64()?,
            expired: input.u64()?,
            overflowed: input.u64()?,
            purged: input.u64()?,
            damaged: input.u64()?,
        })
    }

    const fn all(&self) -> [u64; 9] {
        let Self {
            pushed,
            delivered,
            redelivered,
            acked,
            dead_lettered,
            expired,
            overflowed,
            purged,
            damaged,
        } = *self;
        [pushed, delivered, redelivered, acked, dead_lettered, expired, overflowed, purged, damaged]
    }
}
