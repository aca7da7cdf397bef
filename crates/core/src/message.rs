//! One message: as it is pushed ([`NewMessage`]), and as it is stored and delivered ([`StoredMessage`]).
//!
//! The stored form is one run of bytes, the same on disk, in memory and on its way to a consumer. What the
//! rules need stands at its head; properties and body follow as they came. The moment of the push and the
//! offset are not in it: the batch that holds the message knows them.

use bytes::Bytes;
use nexo_types::{DedupId, GroupId, Millis, Offset, Priority, QueueName, Timestamp};

use crate::draft::Draft;
use crate::wire::{Reader, WireError, Writer};

pub(crate) const TRANSIENT: u8 = 1 << 0;
pub(crate) const HAS_DELAY: u8 = 1 << 1;
pub(crate) const HAS_LIFETIME: u8 = 1 << 2;
pub(crate) const HAS_DEDUP: u8 = 1 << 3;
pub(crate) const HAS_GROUP: u8 = 1 << 4;
pub(crate) const HAS_ORIGIN: u8 = 1 << 5;
pub(crate) const HAS_PROPERTIES: u8 = 1 << 6;
const KNOWN_FLAGS: u8 = 0x7f;

/// Whether a message must survive a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Written down before the push is answered.
    #[default]
    Durable,
    /// Kept in memory; gone when the process ends.
    Transient,
}

/// How a property block is to be read. The rules never look inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PropertyFormat {
    /// Names and values as the native API has them.
    #[default]
    Native,
    /// Exchange, routing key and basic properties as an AMQP 0-9-1 client sent them.
    Amqp,
}

/// Everything about a message that is neither body nor a matter of the rules, as the bytes it came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// How to read them.
    pub format: PropertyFormat,
    /// The bytes; empty for none.
    pub bytes: Bytes,
}

/// Why a message is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeathReason {
    /// It was delivered as often as its queue allows and never acknowledged.
    MaxAttempts,
    /// Its time to live ended.
    Expired,
    /// The queue was full and it was the oldest.
    Overflow,
    /// A consumer rejected it for good.
    Rejected,
}

/// Where a moved message comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Why it was moved.
    pub reason: DeathReason,
    /// The queue in which it died.
    pub queue: QueueName,
    /// Its offset in that queue.
    pub offset: Offset,
    /// How often it had been delivered there.
    pub attempts: u32,
    /// The broker's time of the move.
    pub at: Timestamp,
    /// When it had been pushed there.
    pub enqueued_at: Timestamp,
}

/// Which messages before it a new message may repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DedupScope {
    /// Those with the same id.
    #[default]
    Id,
    /// Those whose id is the same up to its first space, whatever stands behind it: the id of a message within its group,
    /// compared over all groups.
    Stem,
}

/// How high the priority of a message may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PriorityCap {
    /// As high as it likes.
    #[default]
    None,
    /// As high as its queue says ([`max_priority`](crate::config::QueueConfig::max_priority)): a higher one becomes that.
    Queue,
}

/// A message on its way in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// What it says.
    pub body: Bytes,
    /// What is said about it.
    pub properties: Properties,
    /// Bytes that stand before those of the properties in the stored block. A protocol that sends many messages to
    /// one place makes them once.
    pub address: Bytes,
    /// How urgent it is.
    pub priority: Priority,
    /// How urgent it may be. Not stored: it is about this push only.
    pub priority_cap: PriorityCap,
    /// How long nobody may see it.
    pub delay: Millis,
    /// How long it may wait, from the push; `None` for as long as the queue allows.
    pub ttl: Option<Millis>,
    /// A second message with this id within the queue's window is not taken.
    pub dedup: Option<DedupId>,
    /// How that id is compared with those before it. Not stored: it is about this push only.
    pub dedup_scope: DedupScope,
    /// Messages of one group are worked on one at a time and in order.
    pub group: Option<GroupId>,
    /// Whether it must survive a restart.
    pub durability: Durability,
    /// Set when it comes from another queue.
    pub origin: Option<Origin>,
}

/// What the rules need to know of a stored message, without touching the rest.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    pub(crate) durability: Durability,
    pub(crate) priority: Priority,
    pub(crate) delay: Millis,
    pub(crate) lifetime: Option<Millis>,
    pub(crate) dedup: Option<&'a str>,
    pub(crate) group: Option<&'a str>,
    pub(crate) body_bytes: u32,
}

impl<'a> Head<'a> {
    pub(crate) fn parse(stored: &'a [u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(stored);
        let (mut head, flags) = Self::read(&mut input)?;
        if flags & HAS_ORIGIN != 0 {
            Origin::decode(&mut input)?;
        }
        if flags & HAS_PROPERTIES != 0 {
            input.u8()?;
            input.bytes()?;
        }
        head.body_bytes = u32::try_from(input.left()).map_err(|_| WireError::Range)?;
        Ok(head)
    }

    fn read(input: &mut Reader<'a>) -> Result<(Self, u8), WireError> {
        let flags = input.u8()?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(WireError::Unknown { what: "set of message flags", value: flags });
        }
        let has = |bit: u8| flags & bit != 0;
        let head = Self {
            durability: if has(TRANSIENT) { Durability::Transient } else { Durability::Durable },
            priority: Priority(input.u8()?),
            delay: if has(HAS_DELAY) { Millis(input.u64()?) } else { Millis::ZERO },
            lifetime: if has(HAS_LIFETIME) { Some(Millis(input.u64()?)) } else { None },
            dedup: if has(HAS_DEDUP) { Some(input.text()?) } else { None },
            group: if has(HAS_GROUP) { Some(input.text()?) } else { None },
            body_bytes: 0,
        };
        Ok((head, flags))
    }
}

/// A message as it is stored, for whoever only passes it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageView<'a> {
    /// How urgent it is.
    pub priority: Priority,
    /// Whether it survives a restart.
    pub durability: Durability,
    /// How to read the properties.
    pub format: PropertyFormat,
    /// What is said about it.
    pub properties: &'a [u8],
    /// What it says.
    pub body: &'a [u8],
}

impl<'a> MessageView<'a> {
    /// Looks into the stored form.
    ///
    /// # Errors
    /// If the bytes are not a stored message.
    pub fn parse(stored: &'a [u8]) -> Result<Self, WireError> {
        let mut input = Reader::new(stored);
        let (head, flags) = Head::read(&mut input)?;
        if flags & HAS_ORIGIN != 0 {
            Origin::decode(&mut input)?;
        }
        let (format, properties) = if flags & HAS_PROPERTIES != 0 {
            (PropertyFormat::from_code(input.u8()?)?, input.bytes()?)
        } else {
            (PropertyFormat::default(), &[][..])
        };
        let Head { priority, durability, .. } = head;
        Ok(Self { priority, durability, format, properties, body: input.rest() })
    }
}

/// A message as it is stored, taken apart. Properties and body share the memory of the bytes it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// How urgent it is.
    pub priority: Priority,
    /// Whether it survives a restart.
    pub durability: Durability,
    /// How long nobody might see it, from the push.
    pub delay: Millis,
    /// How long it may wait, from the push.
    pub lifetime: Option<Millis>,
    /// Its deduplication id, which its queue remembers for its window.
    pub dedup: Option<DedupId>,
    /// Its group, which its queue keeps in order or in fair shares.
    pub group: Option<GroupId>,
    /// Where it comes from, if it was moved.
    pub origin: Option<Origin>,
    /// What is said about it.
    pub properties: Properties,
    /// What it says.
    pub body: Bytes,
}

impl NewMessage {
    /// A plain message of priority 0 with this body.
    #[must_use]
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// The message without its bytes.
    #[must_use]
    pub fn as_draft(&self) -> Draft<'_> {
        Draft {
            body: &self.body,
            format: self.properties.format,
            address: &self.address,
            properties: &self.properties.bytes,
            priority: self.priority,
            priority_cap: self.priority_cap,
            delay: self.delay,
            ttl: self.ttl,
            dedup: self.dedup.as_ref(),
            group: self.group.as_ref(),
            durability: self.durability,
            origin: self.origin.as_ref(),
        }
    }
}

impl StoredMessage {
    /// Takes the stored form apart.
    ///
    /// # Errors
    /// If the bytes are not a stored message.
    pub fn parse(bytes: &Bytes) -> Result<Self, WireError> {
        let mut input = Reader::new(bytes);
        let (head, flags) = Head::read(&mut input)?;
        let origin = if flags & HAS_ORIGIN != 0 { Some(Origin::decode(&mut input)?) } else { None };
        let properties = if flags & HAS_PROPERTIES != 0 {
            let format = PropertyFormat::from_code(input.u8()?)?;
            Properties { format, bytes: bytes.slice_ref(input.bytes()?) }
        } else {
            Properties::default()
        };
        Ok(Self {
            priority: head.priority,
            durability: head.durability,
            delay: head.delay,
            lifetime: head.lifetime,
            dedup: head.dedup.map(DedupId::new).transpose().map_err(|_| WireError::BadName)?,
            group: head.group.map(GroupId::new).transpose().map_err(|_| WireError::BadName)?,
            origin,
            properties,
            body: bytes.slice_ref(input.rest()),
        })
    }

    /// The priority of the message in its stored form, which has two bytes at least.
    pub(crate) const fn priority_byte(stored: &[u8]) -> u8 {
        stored[1]
    }

    /// Lowers the priority of a message in its stored form to `max`, if it is higher.
    pub(crate) fn cap_priority(stored: &mut [u8], max: Priority) {
        stored[1] = stored[1].min(max.0);
    }

    /// The message as it was pushed.
    #[must_use]
    pub fn into_new(self) -> NewMessage {
        NewMessage {
            body: self.body,
            properties: self.properties,
            address: Bytes::new(),
            priority: self.priority,
            priority_cap: PriorityCap::default(),
            delay: self.delay,
            ttl: self.lifetime,
            dedup: self.dedup,
            dedup_scope: DedupScope::default(),
            group: self.group,
            durability: self.durability,
            origin: self.origin,
        }
    }

    /// The message as it would be pushed somewhere else, with its origin noted.
    #[must_use]
    pub fn into_moved(self, origin: Option<Origin>) -> NewMessage {
        NewMessage {
            body: self.body,
            properties: self.properties,
            address: Bytes::new(),
            priority: self.priority,
            priority_cap: PriorityCap::default(),
            delay: Millis::ZERO,
            ttl: None,
            // A dead letter that is sent back must not be taken for a repetition of itself.
            dedup: None,
            dedup_scope: DedupScope::default(),
            group: self.group,
            durability: self.durability,
            origin,
        }
    }
}

impl PropertyFormat {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Native => 0,
            Self::Amqp => 1,
        }
    }

    const fn from_code(code: u8) -> Result<Self, WireError> {
        match code {
            0 => Ok(Self::Native),
            1 => Ok(Self::Amqp),
            value => Err(WireError::Unknown { what: "property format", value }),
        }
    }
}

impl Origin {
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u8(self.reason.code());
        out.text(self.queue.stored());
        out.u64(self.offset.0);
        out.u64(self.attempts.into());
        out.u64(self.at.0);
        out.u64(self.enqueued_at.0);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            reason: DeathReason::from_code(input.u8()?)?,
            queue: QueueName::from_stored(input.text()?).map_err(|_| WireError::BadName)?,
            offset: Offset(input.u64()?),
            attempts: input.u32()?,
            at: Timestamp(input.u64()?),
            enqueued_at: Timestamp(input.u64()?),
        })
    }
}

impl DeathReason {
    /// The word that clients see.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max_attempts",
            Self::Expired => "expired",
            Self::Overflow => "overflow",
            Self::Rejected => "rejected",
        }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::MaxAttempts => 0,
            Self::Expired => 1,
            Self::Overflow => 2,
            Self::Rejected => 3,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Result<Self, WireError> {
        match code {
            0 => Ok(Self::MaxAttempts),
            1 => Ok(Self::Expired),
            2 => Ok(Self::Overflow),
            3 => Ok(Self::Rejected),
            value => Err(WireError::Unknown { what: "reason of death", value }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(message: &NewMessage) -> Bytes {
        let mut out = Writer::default();
        message.as_draft().encode(message.ttl, &mut out);
        assert_eq!(out.len(), message.as_draft().encoded_len(message.ttl));
        out.into_bytes()
    }

    #[test]
    fn a_message_with_everything_comes_back_whole() {
        let message = NewMessage {
            body: Bytes::from_static(b"body"),
            properties: Properties { format: PropertyFormat::Native, bytes: Bytes::from_static(b"ops") },
            address: Bytes::from_static(b"pr"),
            priority: Priority(200),
            priority_cap: PriorityCap::default(),
            delay: Millis(5),
            ttl: Some(Millis(9)),
            dedup: Some(DedupId::new("d").unwrap()),
            dedup_scope: DedupScope::Id,
            group: Some(GroupId::new("g").unwrap()),
            durability: Durability::Transient,
            origin: Some(Origin {
                reason: DeathReason::Expired,
                queue: QueueName::new("q").unwrap(),
                offset: Offset(7),
                attempts: 3,
                at: Timestamp(11),
                enqueued_at: Timestamp(10),
            }),
        };
        let stored = stored(&message);
        let read = StoredMessage::parse(&stored).unwrap();
        let view = MessageView::parse(&stored).unwrap();
        assert_eq!((view.body, view.properties), (&read.body[..], &read.properties.bytes[..]));
        assert_eq!((view.priority, view.durability), (read.priority, read.durability));
        assert_eq!(read.body, message.body);
        assert_eq!(&read.properties.bytes[..], b"props", "the address stands before the properties");
        assert_eq!((read.priority, read.delay, read.lifetime), (Priority(200), Millis(5), Some(Millis(9))));
        assert_eq!((&read.dedup, &read.group), (&message.dedup, &message.group));
        assert_eq!(read.durability, Durability::Transient);
        assert_eq!(read.origin, message.origin);
    }

    #[test]
    fn a_plain_message_costs_two_bytes_more_than_its_body() {
        assert_eq!(stored(&NewMessage::new("0123456789abcdef")).len(), 18);
    }

    #[test]
    fn bytes_that_are_no_message_are_refused_and_never_panic() {
        let whole =
            stored(&NewMessage { dedup: Some(DedupId::new("dedup").unwrap()), ..NewMessage::new("x") });
        for cut in 0..4 {
            assert!(StoredMessage::parse(&whole.slice(..cut)).is_err());
        }
        assert!(StoredMessage::parse(&Bytes::from_static(&[0x80, 0])).is_err());
    }
}
