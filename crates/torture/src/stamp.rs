//! What every message says of itself, in one header, and the body that follows from it.
//!
//! A body may be empty, so the stamp travels beside it. Each byte of the body follows from the publisher and the number
//! of the message: a body that was cut, mixed up or taken from another message is recognised.

use std::fmt;

use crate::queues::{Families, Family};

/// The header that carries a stamp, over either protocol.
pub(crate) const HEADER: &str = "torture";

/// Who sent a message, when, where to and what it is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) publisher: u16,
    /// The connection it was sent on; publishers count theirs.
    pub(crate) session: u32,
    /// Counts up over all sessions of a publisher.
    pub(crate) seq: u64,
    /// Where its copies go.
    pub(crate) targets: Families,
    pub(crate) durability: Durability,
    pub(crate) nature: Nature,
    pub(crate) priority: u8,
    pub(crate) body_bytes: u32,
}

/// Whether a message survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    Durable,
    Transient,
}

/// What consumers do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Acknowledge it, sooner or later.
    Sound,
    /// Fail it as often as it comes, until it is a dead letter.
    Poison,
}

/// One copy of a message: a fanout makes several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Copy {
    pub(crate) publisher: u16,
    pub(crate) seq: u64,
    pub(crate) family: Family,
}

impl Stamp {
    /// Reads the header's text; `None` if it is not one of ours.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let fields: Vec<u64> =
            text.split('.').map(|part| u64::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
        let &[publisher, session, seq, targets, durability, nature, priority, body_bytes] = fields.as_slice()
        else {
            return None;
        };
        Some(Self {
            publisher: publisher.try_into().ok()?,
            session: session.try_into().ok()?,
            seq,
            targets: Families::from_bits(targets.try_into().ok()?)?,
            durability: match durability {
                0 => Durability::Durable,
                1 => Durability::Transient,
                _ => return None,
            },
            nature: match nature {
                0 => Nature::Sound,
                1 => Nature::Poison,
                _ => return None,
            },
            priority: priority.try_into().ok()?,
            body_bytes: body_bytes.try_into().ok()?,
        })
    }

    /// The body that belongs to it.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut body = vec![0; self.body_bytes as usize];
        fastrand::Rng::with_seed(u64::from(self.publisher) << 48 ^ self.seq).fill(&mut body);
        body
    }

    /// Its copy in one family of queues.
    pub(crate) const fn copy_in(&self, family: Family) -> Copy {
        Copy { publisher: self.publisher, seq: self.seq, family }
    }

    /// All its copies.
    pub(crate) fn copies(&self) -> impl Iterator<Item = Copy> + use<> {
        let stamp = *self;
        self.targets.iter().map(move |family| stamp.copy_in(family))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { publisher, session, seq, priority, body_bytes, .. } = self;
        let targets = self.targets.bits();
        let (durability, nature) = (self.durability as u8, self.nature as u8);
        write!(
            f,
            "{publisher:x}.{session:x}.{seq:x}.{targets:x}.{durability:x}.{nature:x}.{priority:x}.{body_bytes:x}"
        )
    }
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} of publisher {} in '{}'", self.seq, self.publisher, self.family.name())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn stamp(seq: u64) -> Stamp {
        Stamp {
            publisher: 3,
            session: 1,
            seq,
            targets: Families::one(Family::WORK_A),
            durability: Durability::Durable,
            nature: Nature::Sound,
            priority: 0,
            body_bytes: 100,
        }
    }

    #[test]
    fn a_stamp_survives_being_written_as_text() {
        let stamp = Stamp { durability: Durability::Transient, nature: Nature::Poison, ..stamp(77) };
        assert_eq!(Stamp::parse(&stamp.to_string()), Some(stamp));
    }

    #[test]
    fn other_texts_are_no_stamps() {
        for text in ["", "1.2.3", "1.1.1.1.2.0.0.0", "1.1.1.1.0.0.0.0.0", "x.1.1.1.0.0.0.0"] {
            assert_eq!(Stamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn bodies_of_different_messages_differ() {
        assert_eq!(stamp(1).body(), stamp(1).body());
        assert_ne!(stamp(1).body(), stamp(2).body());
        assert_eq!(Stamp { body_bytes: 0, ..stamp(1) }.body(), b"");
    }
}
