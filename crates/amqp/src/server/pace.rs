//! Keeping pace: a connection that publishes faster than the log can write is not read from until the log has caught
//! up, or its appends would wait on a thread that others need. The same holds for one that publishes so much that the
//! consumers of its queues are not served in time.

use std::time::Duration;

use futures_util::future::BoxFuture;
use nexo_broker::{Broker, QueueHandle};

/// Messages that a connection may publish without being paused: whoever publishes little keeps nobody from anything.
const UNPAUSED_MESSAGES: usize = 256;
/// As above, for large messages.
const UNPAUSED_BYTES: usize = 64 << 10;

/// A connection that always has more to read works so long before others have their turn: changing tasks costs …
const TURN: Duration = Duration::from_millis(10);
/// … but consumers that do not get what comes should get theirs.
const TURN_UNEVEN: Duration = Duration::from_micros(500);

/// What a connection that publishes waits for.
#[derive(Default)]
pub(super) struct Pace {
    behind: Option<BoxFuture<'static, ()>>,
    messages: usize,
    bytes: usize,
    uneven: bool,
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
        let pauses = if much { pushed.pauses } else { Vec::new() };
        let disk = broker.disk_behind();
        if disk.is_none() && pauses.is_empty() {
            return;
        }
        (self.messages, self.bytes) = (0, 0);
        let broker = broker.clone();
        self.behind = Some(Box::pin(async move {
            if let Some(written) = disk {
                // If it failed, whoever publishes next is told.
                let _ = broker.wait_for(written).await;
            }
            for queue in pauses {
                queue.until_even().await;
            }
        }));
    }

    /// How long the connection may read on before others have their turn.
    pub(super) const fn turn(&self) -> Duration {
        if self.uneven { TURN_UNEVEN } else { TURN }
    }

    pub(super) const fn is_behind(&self) -> bool {
        self.behind.is_some()
    }

    /// Resolves when the disk has caught up, or never will, and consumers have been served.
    pub(super) async fn caught_up(&mut self) {
        if let Some(behind) = &mut self.behind {
            behind.await;
            self.behind = None;
        }
    }
}
