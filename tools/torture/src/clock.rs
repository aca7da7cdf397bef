//! What time it is, as the broker tells it: the wall clock of the start and the time since.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment in microseconds since 1970.
pub(crate) type Micros = u64;

/// Now.
pub(crate) fn now() -> Micros {
    static START: OnceLock<(Duration, Instant)> = OnceLock::new();
    let start = || (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), Instant::now());
    let (wall, started) = START.get_or_init(start);
    micros(wall.saturating_add(started.elapsed()))
}

/// A span in microseconds.
pub(crate) fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
