//! What a consumer shows to say something about a message it was given.

use std::fmt;
use std::str::FromStr;

use nexo_types::{Offset, QueueId, Timestamp};
use thiserror::Error;

/// One delivery of one message: which queue, which message, which attempt. A receipt of an earlier attempt is
/// recognised and refused, so a worker that was too slow cannot settle what another now works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt {
    /// Which queue; a later one of the same name has another id.
    pub queue: QueueId,
    /// Its offset, from 0 on in each queue.
    pub offset: Offset,
    /// Which delivery of it, counting from 1.
    pub attempt: u32,
    /// When it was delivered. A message that a crash took back may leave its place to another; its receipt must not
    /// fit that one.
    pub granted_at: Timestamp,
}

/// The version in which receipts are written. One without a version is of the first: that is how they once were.
const VERSION: u64 = 1;

/// A text that is no receipt.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReceiptError {
    /// It is something else.
    #[error("'{text}' is not a receipt; one looks like '{example}' and comes with a delivered message")]
    NoReceipt {
        /// At most its first 64 characters.
        text: String,
        /// What one looks like.
        example: Receipt,
    },
    /// A later release has made it.
    #[error("the receipt is of version {version}; this build of Nexo knows versions up to {VERSION}")]
    LaterVersion {
        /// The version that it names.
        version: u64,
    },
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "v{VERSION}-{:x}-{:x}-{:x}-{:x}",
            self.queue.0, self.offset.0, self.attempt, self.granted_at.0
        )
    }
}

impl FromStr for Receipt {
    type Err = ReceiptError;

    fn from_str(text: &str) -> Result<Self, ReceiptError> {
        let versioned = text.strip_prefix('v').and_then(|rest| rest.split_once('-'));
        let (version, rest) = match versioned {
            Some((version, rest)) => (hex(version), rest),
            None => (Some(VERSION), text),
        };
        if let Some(version) = version.filter(|version| *version > VERSION) {
            return Err(ReceiptError::LaterVersion { version });
        }
        let parse = || {
            version.filter(|version| *version > 0)?;
            let mut parts = rest.split('-');
            let queue = hex(parts.next()?)?;
            let offset = hex(parts.next()?)?;
            let attempt = u32::try_from(hex(parts.next()?)?).ok()?;
            let granted_at = Timestamp(hex(parts.next()?)?);
            let receipt = Self { queue: QueueId(queue), offset: Offset(offset), attempt, granted_at };
            parts.next().is_none().then_some(receipt)
        };
        parse().ok_or_else(|| ReceiptError::NoReceipt {
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
        assert_eq!(receipt.to_string(), "v1-7-ffffffffffffffff-3-9");
        assert_eq!(receipt.to_string().parse(), Ok(receipt));
        assert_eq!("7-ffffffffffffffff-3-9".parse(), Ok(receipt), "as it was before there were versions");
    }

    #[test]
    fn a_later_version_is_refused_by_name() {
        let error = "v2-and-what-it-likes".parse::<Receipt>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the receipt is of version 2; this build of Nexo knows versions up to 1"
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "1-2",
            "1-2-3",
            "1-2-3-4-5",
            "1-2-x-4",
            "+1-2-3-4",
            "1-2-1ffffffff-4",
            "1--3-4",
            "v-1-2-3-4",
            "v0-1-2-3-4",
        ] {
            assert!(text.parse::<Receipt>().is_err(), "{text}");
        }
    }
}
