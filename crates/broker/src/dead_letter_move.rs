//! A move of dead letters that somebody waits for: who is told that a message was rejected must find it where it went,
//! after a crash as well.

use std::sync::Arc;

use nexo_core::queue::Death;
use nexo_log::Urgency;
use nexo_types::Offset;
use tokio::sync::oneshot;

use crate::error::QueueError;
use crate::shared::{Shared, Written};
use crate::slot::Slot;
use crate::workers::Work;

/// Dead letters on their way out of a queue.
#[derive(Debug)]
pub(crate) struct DeadLetterMove {
    slot: Arc<Slot>,
    deaths: Vec<Death>,
    urgency: Urgency,
    done: oneshot::Receiver<()>,
}

impl Shared {
    /// Begins to move dead letters on a worker. It goes on whether or not anybody waits for it.
    pub(crate) fn begin_move(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        deaths: Vec<Death>,
        urgency: Urgency,
    ) -> DeadLetterMove {
        slot.state.lock().pending_deaths.0.extend(&deaths);
        let (shared, moved) = (Arc::clone(self), Arc::clone(slot));
        let done = self.begin_on_worker(Work::Move, move || shared.bury_pending(&moved));
        DeadLetterMove { slot: Arc::clone(slot), deaths, urgency, done }
    }
}

impl DeadLetterMove {
    /// Waits until they are as safe where they went as their queue promises.
    ///
    /// # Errors
    /// If some could not be moved now, with those; it is tried again, but nobody may be told that it is done.
    pub(crate) async fn wait(self, shared: &Shared) -> Result<(), (QueueError, Vec<Offset>)> {
        let all = || self.deaths.iter().map(|death| death.offset);
        // Without an answer the broker is stopping, and what was not moved is still marked.
        let _ = self.done.await;
        let left: Vec<Offset> = {
            let state = self.slot.state.lock();
            all().filter(|offset| state.queue.dying(*offset).is_some()).collect()
        };
        if !left.is_empty() {
            let name = &self.slot.name;
            let reason = format!("{} dead letters of queue '{name}' cannot be moved now", left.len());
            return Err((QueueError::Unavailable { reason }, left));
        }
        // What moved them lies before this, in the log.
        let written = Written::at(shared.log.unwritten().1, self.urgency);
        shared.wait_for(written).await.map_err(|error| (error, all().collect()))
    }
}
