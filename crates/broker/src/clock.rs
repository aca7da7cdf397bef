//! What time it is. The only place that asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nexo_types::Timestamp;

/// The clock may be this far behind the log before anybody is told. Less comes from a clock that is kept right.
const BEHIND_MAX: Duration = Duration::from_secs(1);

/// The wall clock as it was at the start, and the time since. A clock that somebody sets while the broker runs neither
/// ends leases early nor holds them up. One that was set back before a start goes on where the log ends. So no record
/// carries an earlier time than one before it.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Duration,
    started: Instant,
    /// What the wall clock said then.
    wall: Duration,
    /// By how many milliseconds it was put forward since.
    forward: AtomicU64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::not_before(Timestamp(0))
    }
}

impl Clock {
    /// A clock for a log whose records carry no later time than this.
    pub(crate) fn not_before(floor: Timestamp) -> Self {
        let started = Instant::now();
        let wall = wall();
        Self { start: start(wall, floor), started, wall, forward: AtomicU64::new(0) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let forward = self.forward.load(Ordering::Relaxed);
        as_timestamp(self.start.saturating_add(self.started.elapsed()) + Duration::from_millis(forward))
    }

    /// Puts it forward: another node, whose clock was ahead, wrote records up to this time.
    pub(crate) fn raise(&self, floor: Timestamp) {
        let behind = floor.since(self.now()).0;
        if behind > 0 {
            self.forward.fetch_add(behind, Ordering::Relaxed);
        }
    }

    /// What the calendar says, for schedules: the same, and it is set when the wall clock is, forward and back. A machine that
    /// slept has another date when it wakes up.
    pub(crate) fn calendar(&self) -> Timestamp {
        as_timestamp(self.calendar_at(wall()))
    }

    fn calendar_at(&self, wall: Duration) -> Duration {
        let forward = Duration::from_millis(self.forward.load(Ordering::Relaxed));
        (self.start + forward).saturating_add(wall).saturating_sub(self.wall)
    }
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn as_timestamp(since: Duration) -> Timestamp {
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The time at which a clock begins.
fn start(wall: Duration, floor: Timestamp) -> Duration {
    let floor = Duration::from_millis(floor.0);
    let behind = floor.saturating_sub(wall);
    if behind > BEHIND_MAX {
        tracing::warn!(
            behind_ms = u64::try_from(behind.as_millis()).unwrap_or(u64::MAX),
            "the system's clock is behind the data; the broker's time goes on from that"
        );
    }
    wall.max(floor)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nexo_core::config::QueueConfig;
    use nexo_core::message::NewMessage;
    use nexo_log::disk::MemoryDisk;
    use nexo_types::{Millis, QueueName};

    use super::*;
    use crate::broker::Broker;
    use crate::options::BrokerOptions;
    use crate::request::PopRequest;

    #[test]
    fn time_goes_on_where_the_log_ends() {
        let (wall, later) = (Duration::from_secs(1000), Duration::from_secs(5000));
        assert_eq!(start(wall, Timestamp(999_999)), wall);
        assert_eq!(start(wall, Timestamp(5_000_000)), later);
    }

    #[test]
    fn a_clock_that_is_put_forward_goes_on_from_there() {
        let clock = Clock::default();
        let later = clock.now().plus(Millis::from_secs(3600));
        clock.raise(later);
        clock.raise(Timestamp(1));
        assert!(clock.now() >= later && clock.calendar() >= later);
        assert!(clock.now() < later.plus(Millis::from_secs(3600)));
    }

    #[test]
    fn the_calendar_follows_the_wall_clock_and_time_does_not() {
        let clock =
            Clock { wall: Duration::from_secs(1000), start: Duration::from_secs(5000), ..Clock::default() };
        assert_eq!(clock.calendar_at(Duration::from_secs(1060)), Duration::from_secs(5060));
        assert_eq!(clock.calendar_at(Duration::from_secs(400)), Duration::from_secs(4400));
    }

    /// The clock was an hour ahead when the broker ran, and has been set right since.
    #[tokio::test]
    async fn a_clock_that_is_set_back_before_a_start_makes_no_record_earlier() {
        let disk = Arc::new(MemoryDisk::new());
        let queue = QueueName::new("q").unwrap();
        let ahead = Clock::default().now().plus(Millis::from_secs(3600));
        let open = || Broker::open_on(disk.clone(), BrokerOptions::new("memory")).unwrap();
        let broker = Broker::open_at(disk.clone(), BrokerOptions::new("memory"), ahead).unwrap();
        broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        broker.push(&queue, vec![NewMessage::new("x")]).await.unwrap();
        let request = PopRequest { max: 1, wait: Millis::ZERO, visibility: None, bytes_max: None };
        let held = broker.pop(&queue, request).await.unwrap();
        let pushed = broker.push(&queue, vec![NewMessage::new("y")]).await;
        assert!(pushed.is_ok() && held[0].granted_at >= ahead);
        drop(broker);
        // By the records since the last checkpoint, and by the checkpoint alone.
        for _ in 0..2 {
            let broker = open();
            let now = broker.shared.clock.now();
            assert!(now >= held[0].granted_at, "{now}");
            let until = broker.shared.catalog.get(&queue).unwrap().state.lock().queue.next_deadline(now);
            assert!(until > Some(now), "the lease has not ended");
            let shared = Arc::clone(&broker.shared);
            tokio::task::spawn_blocking(move || shared.checkpoint()).await.unwrap().unwrap();
            broker.shutdown().await;
        }
    }
}
