//! What happened to a queue, as it is written down. Applying records in order gives the queue's state, after
//! a crash and on every node alike.
//!
//! Offsets that a record names and the queue does not have are passed over: they belonged to transient
//! messages, which are never written down.

use bytes::Bytes;
use nexo_types::{Offset, Priority, QueueName, Timestamp};

use crate::batch::{BatchKind, MessageBatch};
use crate::config::QueueConfig;
use crate::message::DeathReason;
use crate::offsets::OffsetSet;
use crate::wire::{Reader, WireError, Writer};

/// The version in which records are written. A new kind needs no new version, another layout of a kind does.
const VERSION: u8 = 1;

/// One thing that happened to one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The queue came to be.
    Create {
        /// What it is called.
        name: QueueName,
        /// What it is told to be.
        config: QueueConfig,
        /// When it was decided, in the broker's time.
        at: Timestamp,
    },
    /// The queue is told to be otherwise.
    Configure {
        /// The new settings, all of them.
        config: QueueConfig,
        /// When it was decided, in the broker's time.
        at: Timestamp,
    },
    /// The queue is gone, with all that was in it.
    Delete,
    /// Messages were pushed, or copied to another place in the log.
    Messages(MessageBatch),
    /// Ready messages were handed to consumers.
    Lease {
        /// Which, and for how long.
        grants: Vec<Grant>,
        /// When it was decided, in the broker's time.
        at: Timestamp,
    },
    /// Messages stay with their consumer until another moment.
    Extend {
        /// The messages, by offset.
        offsets: OffsetSet,
        /// Until when.
        until: Timestamp,
        /// When this was said.
        at: Timestamp,
    },
    /// Leased messages left the queue.
    Settle {
        /// The messages, by offset.
        offsets: OffsetSet,
        /// What took them out of the queue.
        why: Leave,
        /// When it was decided, in the broker's time.
        at: Timestamp,
    },
    /// Ready messages left the queue without having been leased.
    Drop {
        /// The messages, by lane.
        picks: Vec<Pick>,
        /// What took them out of the queue.
        why: Leave,
        /// When it was decided, in the broker's time.
        at: Timestamp,
    },
    /// Messages may not be delivered again. They stay, apart from the others, until they are dead-lettered or dropped.
    Die {
        /// The messages, by lane. They were ready or leased, or come with the record after this one.
        picks: Vec<Pick>,
        /// Why they may not be delivered again.
        reason: DeathReason,
        /// When it was decided, in the broker's time.
        at: Timestamp,
    },
    /// Leased messages came back to their place.
    Return {
        /// The messages, by offset.
        offsets: OffsetSet,
        /// From when on they may be delivered again.
        ready_at: Timestamp,
        /// Whether the delivery counts.
        attempt: AttemptCount,
        /// When it was decided, in the broker's time.
        at: Timestamp,
    },
    /// Offsets up to here may be given to transient messages, which are not written down. A restart goes on
    /// above them, so that a receipt from before it never fits another message.
    Reserve {
        /// The first offset that is not set aside.
        before: Offset,
    },
    /// All that waited left the queue.
    Purge {
        /// The offset that the next message gets, for whoever reads the log.
        before: Offset,
        /// When it was decided, in the broker's time.
        at: Timestamp,
    },
    /// All messages left the queue, also those with consumers, and their deduplication ids with them.
    Clear {
        /// The offset that the next message gets, for whoever reads the log.
        before: Offset,
        /// When it was decided, in the broker's time.
        at: Timestamp,
    },
}

/// Ready messages of one priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The priority.
    pub lane: Priority,
    /// The messages, by offset.
    pub offsets: OffsetSet,
}

/// Messages that were handed out on the same terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The messages of one lane.
    pub pick: Pick,
    /// When they come back; `None` when the consumer's connection ends.
    pub until: Option<Timestamp>,
    /// What the consumer has to say next.
    pub phase: LeasePhase,
}

/// What a leased message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePhase {
    /// The consumer's word that it has the message.
    Receipt,
    /// The consumer's word that the work is done.
    Done,
    /// Nothing: the consumer asked for messages that count as done when they are handed out.
    Taken,
}

/// Why a message left the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// It was worked on.
    Acked,
    /// Its time to live ended.
    Expired,
    /// The queue was full.
    Overflow,
    /// It moved to the dead-letter queue.
    DeadLettered,
    /// It moved to another queue because somebody said so.
    Moved,
    /// Its bytes on disk were damaged.
    Damaged,
}

/// Whether a delivery that came to nothing counts as an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptCount {
    /// The consumer had it.
    Keep,
    /// It never reached a consumer.
    Undo,
}

impl Record {
    /// The bytes to write down. For [`Record::Messages`] those of the batch, which the log marks as such.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(48);
        match self {
            Self::Messages(batch) => return batch.bytes().clone(),
            Self::Create { name, config, at } => {
                out.tag(VERSION, 0);
                out.u64(at.0);
                out.text(name.stored());
                config.encode(&mut out);
            }
            Self::Configure { config, at } => {
                out.tag(VERSION, 1);
                out.u64(at.0);
                config.encode(&mut out);
            }
            Self::Delete => out.tag(VERSION, 2),
            Self::Lease { grants, at } => {
                out.tag(VERSION, 3);
                out.u64(at.0);
                out.u64(grants.len() as u64);
                for grant in grants {
                    out.u8(grant.phase.code());
                    out.optional(grant.until.map(|t| t.0));
                    grant.pick.encode(&mut out);
                }
            }
            Self::Extend { offsets, until, at } => {
                out.tag(VERSION, 4);
                out.u64(at.0);
                out.u64(until.0);
                offsets.encode(&mut out);
            }
            Self::Settle { offsets, why, at } => {
                out.tag(VERSION, 5);
                out.u64(at.0);
                out.u8(why.code());
                offsets.encode(&mut out);
            }
            Self::Drop { picks, why, at } => {
                out.tag(VERSION, 6);
                out.u64(at.0);
                out.u8(why.code());
                Pick::encode_all(picks, &mut out);
            }
            Self::Die { picks, reason, at } => {
                out.tag(VERSION, 11);
                out.u64(at.0);
                out.u8(reason.code());
                Pick::encode_all(picks, &mut out);
            }
            Self::Return { offsets, ready_at, attempt, at } => {
                out.tag(VERSION, 7);
                out.u64(at.0);
                out.u64(ready_at.0);
                out.u8(u8::from(*attempt == AttemptCount::Undo));
                offsets.encode(&mut out);
            }
            Self::Purge { before, at } => {
                out.tag(VERSION, 8);
                out.u64(at.0);
                out.u64(before.0);
            }
            Self::Clear { before, at } => {
                out.tag(VERSION, 10);
                out.u64(at.0);
                out.u64(before.0);
            }
            Self::Reserve { before } => {
                out.tag(VERSION, 9);
                out.u64(before.0);
            }
        }
        out.into_bytes()
    }

    /// When it was decided, if it carries that. Copies of messages carry the times at which these were pushed.
    #[must_use]
    pub fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Create { at, .. }
            | Self::Configure { at, .. }
            | Self::Lease { at, .. }
            | Self::Extend { at, .. }
            | Self::Settle { at, .. }
            | Self::Drop { at, .. }
            | Self::Die { at, .. }
            | Self::Return { at, .. }
            | Self::Purge { at, .. }
            | Self::Clear { at, .. } => Some(*at),
            Self::Messages(batch) => match batch.kind() {
                BatchKind::Pushed => batch.items().last().map(|item| item.enqueued_at),
                BatchKind::Relocated => None,
            },
            Self::Delete | Self::Reserve { .. } => None,
        }
    }

    /// Reads back anything but [`Record::Messages`], which [`MessageBatch::decode_in`] reads.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        let (_, kind) = input.tag("a record", VERSION)?;
        if kind == 2 {
            input.finish()?;
            return Ok(Self::Delete);
        }
        if kind == 9 {
            let before = Offset(input.u64()?);
            input.finish()?;
            return Ok(Self::Reserve { before });
        }
        let at = Timestamp(input.u64()?);
        let record = match kind {
            0 => Self::Create {
                at,
                name: QueueName::from_stored(input.text()?).map_err(|_| WireError::BadName)?,
                config: QueueConfig::decode(&mut input)?,
            },
            1 => Self::Configure { at, config: QueueConfig::decode(&mut input)? },
            3 => {
                let mut grants = Vec::new();
                for _ in 0..input.u64()? {
                    grants.push(Grant {
                        phase: LeasePhase::from_code(input.u8()?)?,
                        until: input.optional()?.map(Timestamp),
                        pick: Pick::decode(&mut input)?,
                    });
                }
                Self::Lease { at, grants }
            }
            4 => Self::Extend { at, until: Timestamp(input.u64()?), offsets: OffsetSet::decode(&mut input)? },
            5 => Self::Settle {
                at,
                why: Leave::from_code(input.u8()?)?,
                offsets: OffsetSet::decode(&mut input)?,
            },
            6 => {
                let why = Leave::from_code(input.u8()?)?;
                Self::Drop { at, why, picks: Pick::decode_all(&mut input)? }
            }
            7 => Self::Return {
                at,
                ready_at: Timestamp(input.u64()?),
                attempt: if input.flag()? { AttemptCount::Undo } else { AttemptCount::Keep },
                offsets: OffsetSet::decode(&mut input)?,
            },
            8 => Self::Purge { at, before: Offset(input.u64()?) },
            10 => Self::Clear { at, before: Offset(input.u64()?) },
            11 => {
                let reason = DeathReason::from_code(input.u8()?)?;
                Self::Die { at, reason, picks: Pick::decode_all(&mut input)? }
            }
            value => return Err(WireError::Unknown { what: "kind of record", value }),
        };
        input.finish()?;
        Ok(record)
    }
}

impl Pick {
    fn encode(&self, out: &mut Writer) {
        out.u8(self.lane.0);
        self.offsets.encode(out);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { lane: Priority(input.u8()?), offsets: OffsetSet::decode(input)? })
    }

    fn encode_all(picks: &[Self], out: &mut Writer) {
        out.u64(picks.len() as u64);
        picks.iter().for_each(|pick| pick.encode(out));
    }

    fn decode_all(input: &mut Reader<'_>) -> Result<Vec<Self>, WireError> {
        (0..input.u64()?).map(|_| Self::decode(input)).collect()
    }
}

impl LeasePhase {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Receipt => 0,
            Self::Done => 1,
            Self::Taken => 2,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Result<Self, WireError> {
        match code {
            0 => Ok(Self::Receipt),
            1 => Ok(Self::Done),
            2 => Ok(Self::Taken),
            value => Err(WireError::Unknown { what: "phase", value }),
        }
    }
}

impl From<DeathReason> for Leave {
    /// How a message that died for this reason leaves a queue that has nowhere to send it.
    fn from(reason: DeathReason) -> Self {
        match reason {
            DeathReason::Expired => Self::Expired,
            DeathReason::Overflow => Self::Overflow,
            DeathReason::MaxAttempts | DeathReason::Rejected => Self::DeadLettered,
        }
    }
}

impl Leave {
    const fn code(self) -> u8 {
        match self {
            Self::Acked => 0,
            Self::Expired => 1,
            Self::Overflow => 2,
            Self::DeadLettered => 3,
            Self::Moved => 4,
            Self::Damaged => 5,
        }
    }

    const fn from_code(code: u8) -> Result<Self, WireError> {
        Ok(match code {
            0 => Self::Acked,
            1 => Self::Expired,
            2 => Self::Overflow,
            3 => Self::DeadLettered,
            4 => Self::Moved,
            5 => Self::Damaged,
            value => return Err(WireError::Unknown { what: "way to leave", value }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_reads_back_as_it_was_written() {
        let offsets: OffsetSet = [1, 2, 3, 9].map(Offset).into_iter().collect();
        let pick = Pick { lane: Priority(7), offsets: offsets.clone() };
        let at = Timestamp(1234);
        let records = [
            Record::Create { name: QueueName::new("q").unwrap(), config: QueueConfig::default(), at },
            Record::Configure { config: QueueConfig { paused: true, ..QueueConfig::default() }, at },
            Record::Delete,
            Record::Lease {
                grants: vec![
                    Grant { pick: pick.clone(), until: Some(Timestamp(5)), phase: LeasePhase::Receipt },
                    Grant { pick: pick.clone(), until: None, phase: LeasePhase::Done },
                ],
                at,
            },
            Record::Extend { offsets: offsets.clone(), until: Timestamp(77), at },
            Record::Settle { offsets: offsets.clone(), why: Leave::DeadLettered, at },
            Record::Drop { picks: vec![pick.clone()], why: Leave::Expired, at },
            Record::Die { picks: vec![pick], reason: DeathReason::Overflow, at },
            Record::Return { offsets, ready_at: Timestamp(5), attempt: AttemptCount::Undo, at },
            Record::Purge { before: Offset(8), at },
            Record::Clear { before: Offset(8), at },
            Record::Reserve { before: Offset(300) },
        ];
        for record in records {
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes), Ok(record));
            for cut in 0..bytes.len() {
                assert!(Record::decode(&bytes[..cut]).is_err(), "a cut record was taken for a whole one");
            }
        }
    }
}
