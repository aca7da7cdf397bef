//! What time it is. The only place that asks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nexo_types::Timestamp;

/// The wall clock as it was at the start, and the time since. A clock that somebody sets while the broker runs neither
/// ends leases early nor holds them up, and a record is never older than the one before it.
#[derive(Debug)]
pub(crate) struct Clock {
    wall: Duration,
    started: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall, started: Instant::now() }
    }
}

impl Clock {
    pub(crate) fn now(&self) -> Timestamp {
        let now = self.wall.saturating_add(self.started.elapsed());
        Timestamp(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}
