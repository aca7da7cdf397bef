//! What time it is, for signatures and for what is shown. When messages are due is the broker's to say.

use std::time::{SystemTime, UNIX_EPOCH};

use nexo_types::Timestamp;

/// Now.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
