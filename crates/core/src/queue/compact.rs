//! A message that waits outside of the lanes, in as few bytes as may be.
//!
//! There may be millions of them: delayed ones, and those whose delay has just ended. Most are durable, have no group, and
//! their bytes are in the log only. Then what is left fits into a third of an [`MessageEntry`].

use std::borrow::Cow;

use nexo_types::{Offset, Priority, Timestamp};

use super::deadline_map::Scheduled;
use super::entry::{MessageEntry, PayloadMemory};
use crate::message::Durability;

/// Stands for a message that does not expire.
const NEVER: u32 = u32::MAX;

/// The message: see the file.
#[derive(Debug)]
pub(super) enum CompactEntry {
    Packed(Packed),
    /// It has a group, or bytes in memory, or a number that is too large.
    Whole(Box<MessageEntry>),
}

/// An entry without what most do not have.
#[derive(Debug)]
pub(super) struct Packed {
    offset: Offset,
    ready_at: Timestamp,
    /// From when it was pushed until it is ready, in milliseconds.
    delay_ms: u32,
    /// From when it was pushed until it expires, in milliseconds, or [`NEVER`].
    lifetime_ms: u32,
    stored_bytes: u32,
    attempts: u16,
    priority: Priority,
    /// Always the same. It is here because a field with few values gives [`CompactEntry`] room to say which kind it is.
    durability: Durability,
}

/// A delayed message. It is due when it is ready, or when it expires before that.
#[derive(Debug)]
pub(super) struct Delayed(pub(super) CompactEntry);

/// A message that is ready.
#[derive(Debug)]
pub(super) struct Ready(pub(super) CompactEntry);

impl From<MessageEntry> for CompactEntry {
    fn from(entry: MessageEntry) -> Self {
        match Packed::new(&entry) {
            Some(packed) => Self::Packed(packed),
            None => Self::Whole(Box::new(entry)),
        }
    }
}

impl CompactEntry {
    pub(super) fn entry(&self) -> Cow<'_, MessageEntry> {
        match self {
            Self::Packed(packed) => Cow::Owned(packed.unpack()),
            Self::Whole(entry) => Cow::Borrowed(entry),
        }
    }

    pub(super) fn into_entry(self) -> MessageEntry {
        match self {
            Self::Packed(packed) => packed.unpack(),
            Self::Whole(entry) => *entry,
        }
    }

    pub(super) const fn offset(&self) -> Offset {
        match self {
            Self::Packed(packed) => packed.offset,
            Self::Whole(entry) => entry.offset,
        }
    }

    pub(super) const fn priority(&self) -> Priority {
        match self {
            Self::Packed(packed) => packed.priority,
            Self::Whole(entry) => entry.priority,
        }
    }

    pub(super) fn enqueued_at(&self) -> Timestamp {
        match self {
            Self::Packed(packed) => packed.enqueued_at(),
            Self::Whole(entry) => entry.enqueued_at,
        }
    }

    pub(super) const fn stored_bytes(&self) -> u32 {
        match self {
            Self::Packed(packed) => packed.stored_bytes,
            Self::Whole(entry) => entry.stored_bytes,
        }
    }

    pub(super) fn is_durable(&self) -> bool {
        match self {
            Self::Packed(_) => true,
            Self::Whole(entry) => entry.is_durable(),
        }
    }

    /// Forgets the bytes if the log has them. Gives back how many that were, if any.
    pub(super) fn cool(&mut self) -> Option<u64> {
        let Self::Whole(entry) = self else { return None };
        if !entry.is_warm() {
            return None;
        }
        let bytes = entry.cached_bytes();
        entry.cool();
        if let Some(packed) = Packed::new(entry) {
            *self = Self::Packed(packed);
        }
        Some(bytes)
    }

    /// When it is ready, or when it expires before that.
    fn due(&self) -> Timestamp {
        match self {
            Self::Packed(packed) => packed.ready_at.min(packed.expires_at()),
            Self::Whole(entry) => entry.ready_at.min(entry.expires_at),
        }
    }

    /// Bytes in memory are counted elsewhere.
    const fn heap_bytes(&self) -> usize {
        match self {
            Self::Packed(_) => 0,
            Self::Whole(_) => size_of::<MessageEntry>(),
        }
    }
}

impl Packed {
    /// The entry in this form, if it can be.
    fn new(entry: &MessageEntry) -> Option<Self> {
        let MessageEntry {
            offset,
            enqueued_at,
            ready_at,
            expires_at,
            stored_bytes,
            attempts,
            priority,
            durability,
            named_group,
            // Says something of a group.
            is_tenant: _,
            payload,
            // Says something of bytes in memory, and there are none.
            payload_memory: _,
        } = entry;
        if *durability != Durability::Durable || named_group.is_some() || payload.is_some() {
            return None;
        }
        let lifetime_ms = if *expires_at == Timestamp::MAX {
            NEVER
        } else {
            u32::try_from(expires_at.0.checked_sub(enqueued_at.0)?).ok().filter(|ms| *ms != NEVER)?
        };
        Some(Self {
            offset: *offset,
            ready_at: *ready_at,
            delay_ms: u32::try_from(ready_at.0.checked_sub(enqueued_at.0)?).ok()?,
            lifetime_ms,
            stored_bytes: *stored_bytes,
            attempts: u16::try_from(*attempts).ok()?,
            priority: *priority,
            durability: *durability,
        })
    }

    fn unpack(&self) -> MessageEntry {
        MessageEntry {
            offset: self.offset,
            enqueued_at: self.enqueued_at(),
            ready_at: self.ready_at,
            expires_at: self.expires_at(),
            stored_bytes: self.stored_bytes,
            attempts: self.attempts.into(),
            priority: self.priority,
            durability: self.durability,
            named_group: None,
            is_tenant: false,
            payload: None,
            payload_memory: PayloadMemory::ALONE,
        }
    }

    fn enqueued_at(&self) -> Timestamp {
        Timestamp(self.ready_at.0 - u64::from(self.delay_ms))
    }

    fn expires_at(&self) -> Timestamp {
        if self.lifetime_ms == NEVER {
            return Timestamp::MAX;
        }
        Timestamp(self.enqueued_at().0 + u64::from(self.lifetime_ms))
    }
}

impl Scheduled for Delayed {
    fn offset(&self) -> Offset {
        self.0.offset()
    }

    fn deadline(&self) -> Timestamp {
        self.0.due()
    }

    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

impl Scheduled for Ready {
    fn offset(&self) -> Offset {
        self.0.offset()
    }

    /// Its end of life is watched with those of the lanes.
    fn deadline(&self) -> Timestamp {
        Timestamp::MAX
    }

    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use nexo_types::GroupId;
    use proptest::prelude::*;

    use super::*;

    fn plain() -> MessageEntry {
        MessageEntry {
            offset: Offset(7),
            enqueued_at: Timestamp(1_000_000),
            ready_at: Timestamp(1_060_000),
            expires_at: Timestamp::MAX,
            stored_bytes: 132,
            attempts: 0,
            priority: Priority(9),
            durability: Durability::Durable,
            named_group: None,
            is_tenant: false,
            payload: None,
            payload_memory: PayloadMemory::ALONE,
        }
    }

    fn is_packed(entry: MessageEntry) -> bool {
        let before = format!("{entry:?}");
        let compact = CompactEntry::from(entry);
        assert_eq!(format!("{:?}", compact.entry()), before, "nothing is lost");
        let packed = matches!(compact, CompactEntry::Packed(_));
        assert_eq!(compact.heap_bytes() == 0, packed);
        assert_eq!(format!("{:?}", compact.into_entry()), before);
        packed
    }

    #[test]
    fn a_delayed_message_takes_thirty_two_bytes() {
        assert_eq!(size_of::<Delayed>(), 32);
        assert!(is_packed(plain()));
        assert!(
            is_packed(MessageEntry { expires_at: Timestamp(1_050_000), ..plain() }),
            "it expires before it is ready"
        );
    }

    #[test]
    fn what_does_not_fit_is_kept_whole() {
        let group = GroupId::new("g").ok();
        assert!(!is_packed(MessageEntry { named_group: group.clone(), ..plain() }));
        assert!(!is_packed(MessageEntry { named_group: group, is_tenant: true, ..plain() }));
        assert!(!is_packed(MessageEntry { payload: Some(Bytes::from_static(b"x")), ..plain() }));
        assert!(!is_packed(MessageEntry { durability: Durability::Transient, ..plain() }));
        assert!(!is_packed(MessageEntry { attempts: 65_536, ..plain() }));
        assert!(!is_packed(MessageEntry { ready_at: Timestamp(1 << 40), ..plain() }), "in decades");
        assert!(!is_packed(MessageEntry { ready_at: Timestamp(999_999), ..plain() }), "the clock went back");
        assert!(!is_packed(MessageEntry {
            expires_at: Timestamp(1_000_000 + u64::from(u32::MAX)),
            ..plain()
        }));
    }

    proptest! {
        #[test]
        fn nothing_is_lost(
            enqueued_at in any::<u64>(), ready_at in any::<u64>(), expires_at in any::<u64>(),
            delay in any::<u32>(), lifetime in any::<u32>(), near in any::<bool>(), attempts in 0u32..100_000,
        ) {
            let enqueued_at = Timestamp(if near { enqueued_at >> 20 } else { enqueued_at });
            let ready_at = Timestamp(if near { enqueued_at.0 + u64::from(delay) } else { ready_at });
            let expires_at = Timestamp(if near { enqueued_at.0 + u64::from(lifetime) } else { expires_at });
            is_packed(MessageEntry { enqueued_at, ready_at, expires_at, attempts, ..plain() });
        }
    }
}
