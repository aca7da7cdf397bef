//! Ids that clients see. A message's id follows from where the message is, so that a repeated send is told the id of the
//! first without anybody having to remember it.

use nexo_types::{Offset, QueueId, Timestamp};
use sha2::{Digest, Sha256};

/// The id of a message. Two data directories may both have a queue 1: the moment at which the queue was created tells its
/// messages apart from those of all others.
pub(crate) fn message_id(queue: QueueId, created_at: Timestamp, offset: Offset) -> String {
    let mut hash = Sha256::new();
    hash.update(b"message");
    for number in [queue.0, created_at.0, offset.0] {
        hash.update(number.to_be_bytes());
    }
    let sum = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&sum[..16]);
    uuid(bytes)
}

/// An id that nobody had before.
pub(crate) fn random() -> String {
    uuid(fastrand::u128(..).to_be_bytes())
}

/// The place of a message in a FIFO queue, in the twenty digits that AWS has.
pub(crate) fn sequence_number(offset: Offset) -> String {
    format!("{:020}", offset.0)
}

/// Bytes as a UUID of version 4, which is the kind that says nothing about them.
fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = hex(&bytes);
    let mut text = String::with_capacity(36);
    for part in [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20]] {
        text.push_str(part);
        text.push('-');
    }
    text.push_str(&digits[20..]);
    text
}

/// Bytes as small hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for digit in bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        text.push(char::from(DIGITS[usize::from(digit)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_one_id_and_no_other_has_it() {
        let id = |queue, created, offset| message_id(QueueId(queue), Timestamp(created), Offset(offset));
        assert_eq!(id(1, 2, 3), id(1, 2, 3));
        assert_ne!(id(1, 2, 3), id(1, 2, 4));
        assert_ne!(id(1, 2, 3), id(1, 3, 3));
        assert_ne!(id(1, 2, 3), id(2, 2, 3));
        assert_eq!(id(1, 2, 3).len(), 36);
        assert_eq!(&id(1, 2, 3)[14..15], "4");
    }

    #[test]
    fn sequence_numbers_sort_as_text() {
        assert!(sequence_number(Offset(9)) < sequence_number(Offset(10)));
        assert_eq!(sequence_number(Offset(u64::MAX)).len(), 20);
    }
}
