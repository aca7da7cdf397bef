//! Receipt handles: what a client shows to say something about a message. Opaque to it, and checked: a handle that was cut,
//! changed or made up is recognised before any queue is asked.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use nexo_broker::Receipt;
use nexo_types::{Offset, QueueId, Timestamp};
use sha2::{Digest, Sha256};

use crate::fault::{Fault, FaultCode};

const VERSION: u8 = 1;
const FIELDS: usize = 1 + 8 + 8 + 4 + 8;
const CHECK: usize = 8;

/// The handle of a receipt.
pub(crate) fn encode(receipt: &Receipt) -> String {
    let mut bytes = Vec::with_capacity(FIELDS + CHECK);
    bytes.push(VERSION);
    bytes.extend_from_slice(&receipt.queue.0.to_be_bytes());
    bytes.extend_from_slice(&receipt.offset.0.to_be_bytes());
    bytes.extend_from_slice(&receipt.attempt.to_be_bytes());
    bytes.extend_from_slice(&receipt.granted_at.0.to_be_bytes());
    bytes.extend_from_slice(&check(&bytes));
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The receipt of a handle.
pub(crate) fn decode(handle: &str) -> Result<Receipt, Fault> {
    parse(handle).ok_or_else(|| invalid(handle))
}

/// The answer to a handle that is none, or one of another queue.
pub(crate) fn invalid(handle: &str) -> Fault {
    let handle: String = handle.chars().take(256).collect();
    Fault::new(
        FaultCode::ReceiptHandleIsInvalid,
        format!("The input receipt handle \"{handle}\" is not a valid receipt handle."),
    )
}

fn parse(handle: &str) -> Option<Receipt> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(handle).ok()?;
    let (fields, sum) = bytes.split_at_checked(FIELDS)?;
    if fields.first() != Some(&VERSION) || sum != check(fields) {
        return None;
    }
    let mut rest = &fields[1..];
    Some(Receipt {
        queue: QueueId(u64::from_be_bytes(take(&mut rest)?)),
        offset: Offset(u64::from_be_bytes(take(&mut rest)?)),
        attempt: u32::from_be_bytes(take(&mut rest)?),
        granted_at: Timestamp(u64::from_be_bytes(take(&mut rest)?)),
    })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn check(fields: &[u8]) -> [u8; CHECK] {
    let sum = Sha256::digest(fields);
    let mut check = [0; CHECK];
    check.copy_from_slice(&sum[..CHECK]);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_gives_its_receipt_back_and_a_changed_one_nothing() {
        let receipt =
            Receipt { queue: QueueId(7), offset: Offset(u64::MAX), attempt: 3, granted_at: Timestamp(9) };
        let handle = encode(&receipt);
        assert_eq!(decode(&handle), Ok(receipt));
        for at in 0..handle.len() {
            let mut other = handle.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            assert_ne!(decode(std::str::from_utf8(&other).unwrap()), Ok(receipt));
        }
        for text in ["", "x", &handle[1..], &format!("{handle}AAAA"), "ümlaut"] {
            assert_eq!(decode(text).unwrap_err().code, FaultCode::ReceiptHandleIsInvalid);
        }
    }
}
