//! Keeping pace: a connection that publishes faster than the log can write is not read from until the log has caught
//! up, or its appends would wait on a thread that others need. The same holds for one that publishes so much that the
//! consumers of its queues are not served in time.
//!
//! A connection that consumes as well is not read from while it is paused, so its acknowledgements are not either. When
//! its consumers may hold no more until some come ([`Awaits::Acks`]), a long pause would wait for itself: nothing is
//! handed out, so nobody may publish. Such a connection pauses for a moment only ([`PAUSE_AWAITING_ACKS`]) and publishes
//! a few messages at a time in between ([`RATION_MESSAGES`]), which is more than clients publish that do anything else.
//! What it publishes goes to its queues and is not set aside until others have caught up: a queue has a bound in memory
//! and the disk behind it, and an acknowledgement overtakes what was published before it only on a full disk, where it may be
//! what makes room.
//!
//! What a client has written before an acknowledgement is read before it. One that publishes faster than the broker
//! reads keeps its own acknowledgements waiting in the sockets' buffers, and no pause makes that better.

use std::time::Duration;

use futures_util::future::BoxFuture;
use nexo_broker::{Broker, Pacing, QueueHandle};
use tokio::time::{Instant, timeout_at};

/// Messages that a connection may publish without being paused: whoever publishes little keeps nobody from anything.
const UNPAUSED_MESSAGES: usize = 256;
/// As above, for large messages.
const UNPAUSED_BYTES: usize = 64 << 10;

/// The longest pause. Much shorter ones are usual: this is for a connection that waits in vain, on which a client may
/// have asked for something. With a hundred publishers one in turn waits longer than a second, and whoever gives up pushes all
/// that it has read.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// As above, for a connection whose consumers wait for acknowledgements.
const PAUSE_AWAITING_ACKS: Duration = Duration::from_millis(1);
/// What is published between pauses that did not last until consumers were served: so many messages …
pub(super) const RATION_MESSAGES: usize = 2 * UNPAUSED_MESSAGES;
/// … or so many bytes.
pub(super) const RATION_BYTES: usize = 2 * UNPAUSED_BYTES;

/// A connection that always has more to read works so long before others have their turn: changing tasks costs …
const TURN: Duration = Duration::from_millis(10);
/// … but consumers that do not get what comes should get theirs.
const TURN_UNEVEN: Duration = Duration::from_micros(500);

/// What a connection that publishes waits for.
#[derive(Default)]
pub(super) struct Pace {
    /// The disk is behind.
    disk: Option<BoxFuture<'static, ()>>,
    pause: Option<Pause>,
    messages: usize,
    bytes: usize,
    uneven: bool,
    /// Whether the last pause ended before consumers were served.
    rationed: bool,
}

/// Consumers of its queues are behind.
struct Pause {
    began: Instant,
    served: BoxFuture<'static, ()>,
}

/// What a connection's own consumers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    /// Acknowledgements, which come on the same connection.
    Acks,
    /// Messages, or nothing.
    NoAcks,
}

/// What was pushed.
#[derive(Debug, Default)]
pub(super) struct Pushed {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// Whether consumers of one of the queues do not get what comes.
    pub(super) uneven: bool,
    /// Queues that ask for a pause.
    pub(super) pauses: Vec<QueueHandle>,
}

impl Pace {
    /// Looks how far the disk has come, after something was pushed, and whether consumers are served.
    pub(super) fn check(&mut self, broker: &Broker, pushed: Pushed) {
        self.messages += pushed.messages;
        self.bytes += pushed.bytes;
        let much = self.messages > UNPAUSED_MESSAGES || self.bytes > UNPAUSED_BYTES;
        self.uneven = pushed.uneven;
        self.rationed &= pushed.uneven;
        let pauses = if much { pushed.pauses } else { Vec::new() };
        let disk = broker.disk_behind();
        if disk.is_none() && pauses.is_empty() {
            return;
        }
        (self.messages, self.bytes) = (0, 0);
        if let Some(written) = disk {
            let broker = broker.clone();
            self.disk = Some(Box::pin(async move {
                // If it failed, whoever publishes next is told.
                let _ = broker.wait_for(written).await;
            }));
        }
        if !pauses.is_empty() {
            self.pause_until(async move {
                for queue in pauses {
                    queue.until_even().await;
                }
            });
        }
    }

    fn pause_until(&mut self, served: impl Future<Output = ()> + Send + 'static) {
        self.pause = Some(Pause { began: Instant::now(), served: Box::pin(served) });
    }

    /// How long the connection may read on before others have their turn.
    pub(super) const fn turn(&self) -> Duration {
        if self.uneven { TURN_UNEVEN } else { TURN }
    }

    pub(super) const fn is_behind(&self) -> bool {
        self.disk.is_some() || self.pause.is_some()
    }

    /// Whether little may be published before the next pause.
    pub(super) const fn is_rationed(&self) -> bool {
        self.rationed
    }

    pub(super) const fn pacing(&self) -> Pacing {
        if self.rationed { Pacing::Unpaced } else { Pacing::Paced }
    }

    /// Resolves when the disk has caught up, or never will, and consumers have been served, or the pause has lasted long
    /// enough.
    pub(super) async fn caught_up(&mut self, awaits: Awaits) {
        if let Some(disk) = &mut self.disk {
            disk.await;
            self.disk = None;
        }
        if let Some(pause) = &mut self.pause {
            let most = match awaits {
                Awaits::Acks => PAUSE_AWAITING_ACKS,
                Awaits::NoAcks => PAUSE_MAX,
            };
            self.rationed = timeout_at(pause.began + most, &mut pause.served).await.is_err();
            self.pause = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_pause_never_waits_for_the_connections_own_acknowledgements() {
        let mut pace = Pace::default();
        pace.pause_until(pending());
        assert!(pace.is_behind());
        pace.caught_up(Awaits::Acks).await;
        assert!(!pace.is_behind() && pace.is_rationed());
        assert_eq!(pace.pacing(), Pacing::Unpaced);
    }

    #[tokio::test]
    async fn a_pause_ends_early_when_acknowledgements_become_due_meanwhile() {
        let mut pace = Pace::default();
        pace.pause_until(pending());
        let short = PAUSE_AWAITING_ACKS * 4;
        assert!(tokio::time::timeout(short, pace.caught_up(Awaits::NoAcks)).await.is_err());
        assert!(pace.is_behind(), "it goes on waiting");
        pace.caught_up(Awaits::Acks).await;
        assert!(!pace.is_behind());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_paced_publishers_wait_for_their_turns() {
        // One goes on every 50 milliseconds, in the order in which they came.
        let gate = Arc::new(Semaphore::new(0));
        let publishers: Vec<_> = (0..100)
            .map(|_| {
                let gate = Arc::clone(&gate);
                tokio::spawn(async move {
                    let mut pace = Pace::default();
                    for _ in 0..3 {
                        let gate = Arc::clone(&gate);
                        pace.pause_until(async move { gate.acquire().await.unwrap().forget() });
                        pace.caught_up(Awaits::NoAcks).await;
                        assert_eq!(
                            pace.pacing(),
                            Pacing::Paced,
                            "one that gives up takes the turns of others"
                        );
                    }
                })
            })
            .collect();
        for _ in 0..300 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            gate.add_permits(1);
        }
        for publisher in publishers {
            publisher.await.unwrap();
        }
    }

    #[tokio::test]
    async fn every_pause_ends_and_one_that_ended_in_time_rations_nobody() {
        let mut pace = Pace::default();
        pace.pause_until(pending());
        pace.caught_up(Awaits::NoAcks).await;
        assert!(!pace.is_behind() && pace.is_rationed());
        pace.pause_until(std::future::ready(()));
        pace.caught_up(Awaits::NoAcks).await;
        assert!(!pace.is_rationed());
        assert_eq!(pace.pacing(), Pacing::Paced);
    }
}
