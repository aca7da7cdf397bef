//! What time it is. The only place that asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nexo_types::Timestamp;

/// The wall clock, except that it never goes back: a record is never older than the one before it.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    latest: AtomicU64,
}

impl Clock {
    pub(crate) fn now(&self) -> Timestamp {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let wall = u64::try_from(wall).unwrap_or(u64::MAX);
        Timestamp(self.latest.fetch_max(wall, Ordering::Relaxed).max(wall))
    }
}
