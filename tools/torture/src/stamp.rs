//! What every message says of itself, in one header, and the body that follows from it.
//!
//! A body may be empty, so the stamp travels beside it. Each byte of the body follows from the publisher and the number
//! of the message: a body that was cut, mixed up or taken from another message is recognised.

use std::fmt;

use crate::queues::{Families, Family};

/// The header that carries a stamp, over either protocol.
pub(crate) const HEADER: &str = "torture";
/// Groups of the FIFO queue.
const GROUPS: u64 = 12;

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
    pub(crate) form: Form,
    pub(crate) body_bytes: u32,
}

/// What a body is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Bytes,
    /// What SQS takes.
    Text,
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
        let &[publisher, session, seq, targets, durability, nature, priority, form, body_bytes] =
            fields.as_slice()
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
            form: match form {
                0 => Form::Bytes,
                1 => Form::Text,
                _ => return None,
            },
            body_bytes: body_bytes.try_into().ok()?,
        })
    }

    /// The body that belongs to it.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut body = vec![0; self.body_bytes as usize];
        fastrand::Rng::with_seed(u64::from(self.publisher) << 48 ^ self.seq).fill(&mut body);
        match self.form {
            Form::Bytes => body,
            Form::Text => text(&body).into_bytes(),
        }
    }

    /// The group of a message to a FIFO queue.
    pub(crate) const fn group(&self) -> u64 {
        self.seq % GROUPS
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
        let (durability, nature, form) = (self.durability as u8, self.nature as u8, self.form as u8);
        write!(
            f,
            "{publisher:x}.{session:x}.{seq:x}.{targets:x}.{durability:x}.{nature:x}.{priority:x}.{form:x}.{body_bytes:x}"
        )
    }
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} of publisher {} in '{}'", self.seq, self.publisher, self.family.name())
    }
}

/// A text of as many bytes, with letters of all lengths and with what protocols must escape.
fn text(bytes: &[u8]) -> String {
    const RARE: [char; 8] = ['ä', '€', '😀', '\n', '\t', '\r', '"', '\\'];
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        let letter = match *byte {
            byte @ 0x20..=0xf0 => char::from(0x20 + byte % 0x5f),
            byte => RARE[usize::from(byte) % RARE.len()],
        };
        let room = bytes.len() - text.len();
        if room == 0 {
            break;
        }
        text.push(if letter.len_utf8() > room { '.' } else { letter });
    }
    text
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
            form: Form::Bytes,
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
        for text in ["", "1.2.3", "1.1.1.1.2.0.0.0.0", "1.1.1.1.0.0.0.0.0.0", "x.1.1.1.0.0.0.0.0"] {
            assert_eq!(Stamp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn bodies_of_different_messages_differ() {
        assert_eq!(stamp(1).body(), stamp(1).body());
        assert_ne!(stamp(1).body(), stamp(2).body());
        assert_eq!(Stamp { body_bytes: 0, ..stamp(1) }.body(), b"");
    }

    #[test]
    fn a_body_of_text_is_text_of_the_length_that_was_asked_for() {
        for body_bytes in [1, 2, 3, 1000] {
            let body = Stamp { form: Form::Text, body_bytes, ..stamp(1) }.body();
            assert_eq!(body.len(), body_bytes as usize);
            String::from_utf8(body).unwrap();
        }
    }
}
