//! Keeping pace with the disk: a connection that publishes faster than the log can write is not read from until the log
//! has caught up. Otherwise its appends would wait on a thread that others need.

use futures_util::future::BoxFuture;
use nexo_broker::{Broker, QueueError};

/// Whether the disk is behind.
#[derive(Default)]
pub(super) struct Pace {
    behind: Option<BoxFuture<'static, Result<(), QueueError>>>,
}

impl Pace {
    /// Looks how far the disk has come, after something was pushed.
    pub(super) fn check(&mut self, broker: &Broker) {
        if let Some(written) = broker.disk_behind() {
            let broker = broker.clone();
            self.behind = Some(Box::pin(async move { broker.wait_for(written).await }));
        }
    }

    pub(super) const fn is_behind(&self) -> bool {
        self.behind.is_some()
    }

    /// Resolves when the disk has caught up, or never will.
    pub(super) async fn caught_up(&mut self) {
        if let Some(behind) = &mut self.behind {
            // If it failed, whoever publishes next is told.
            let _ = behind.await;
            self.behind = None;
        }
    }
}
