//! What a consumer shows to say something about a message it was given.

use std::fmt;
use std::str::FromStr;

use nexo_types::{Offset, QueueId, Timestamp};
use thiserror::Error;

/// One delivery of one message: which queue, which message, which attempt. A receipt of an earlier attempt is
/// recognised and refused, so a worker that was too slow cannot settle what another now works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt {
    /// The queue.
    pub queue: QueueId,
    /// The message.
    pub offset: Offset,
    /// Which delivery of it, counting from 1.
    pub attempt: u32,
    /// When it was delivered. A message that a crash took back may leave its place to another; its receipt must not
    /// fit that one.
    pub granted_at: Timestamp,
}

/// A text that is no receipt.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{text}' is not a receipt; one looks like '{example}' and comes with a delivered message")]
pub struct ReceiptError {
    text: String,
    example: Receipt,
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}-{:x}", self.queue.0, self.offset.0, self.attempt, self.granted_at.0)
    }
}

impl FromStr for Receipt {
    type Err = ReceiptError;

    fn from_str(text: &str) -> Result<Self, ReceiptError> {
        let parse = || {
            let mut parts = text.split('-');
            let queue = hex(parts.next()?)?;
            let offset = hex(parts.next()?)?;
            let attempt = u32::try_from(hex(parts.next()?)?).ok()?;
            let granted_at = Timestamp(hex(parts.next()?)?);
            let receipt = Self { queue: QueueId(queue), offset: Offset(offset), attempt, granted_at };
            parts.next().is_none().then_some(receipt)
        };
        parse().ok_or_else(|| ReceiptError {
            // A wrong text may be of any length; the error repeats only its head.
            text: text.chars().take(64).collect(),
            example: Self {
                queue: QueueId(0x1a),
                offset: Offset(0x2b),
                attempt: 1,
                granted_at: Timestamp(0x19c0),
            },
        })
    }
}

fn hex(text: &str) -> Option<u64> {
    // `from_str_radix` would take a sign as well.
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_survives_being_written_as_text() {
        let receipt =
            Receipt { queue: QueueId(7), offset: Offset(u64::MAX), attempt: 3, granted_at: Timestamp(9) };
        assert_eq!(receipt.to_string().parse(), Ok(receipt));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "1-2", "1-2-3", "1-2-3-4-5", "1-2-x-4", "+1-2-3-4", "1-2-1ffffffff-4", "1--3-4"] {
            assert!(text.parse::<Receipt>().is_err(), "{text}");
        }
    }
}
