//! What time it is. The only place that asks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nexo_types::Timestamp;

/// The wall clock as it was at the start, and the time since. A clock that somebody sets while the broker runs neither
/// ends leases early nor holds them up, and a record is never older than the one before it.
#[derive(Debug)]
pub(crate) struct Clock {
    wall_ms: u64,
    started: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        Self { wall_ms: u64::try_from(wall).unwrap_or(u64::MAX), started: Instant::now() }
    }
}

impl Clock {
    pub(crate) fn now(&self) -> Timestamp {
        let since = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Timestamp(self.wall_ms.saturating_add(since))
    }
}
