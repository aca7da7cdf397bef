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
    /// What comes of the attempt under way, if there is one.
    done: Option<oneshot::Receiver<Result<(), QueueError>>>,
}

impl Shared {
    /// Begins to move dead letters on a worker. It goes on whether or not anybody waits for it.
    pub(crate) fn begin_move(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        deaths: Vec<Death>,
        urgency: Urgency,
    ) -> DeadLetterMove {
        let done = Some(self.try_move(slot, &deaths));
        DeadLetterMove { slot: Arc::clone(slot), deaths, urgency, done }
    }

    fn try_move(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        deaths: &[Death],
    ) -> oneshot::Receiver<Result<(), QueueError>> {
        slot.state.lock().pending_deaths.0.extend(deaths);
        let (shared, moved) = (Arc::clone(self), Arc::clone(slot));
        self.begin_on_worker(Work::Move, move || shared.bury_pending(&moved))
    }
}

impl DeadLetterMove {
    /// Waits until they are as safe where they went as their queue promises. When that has failed, the next call tries
    /// again.
    ///
    /// # Errors
    /// If some could not be moved now, with those; it is tried again, but nobody may be told that it is done.
    pub(crate) async fn wait(&mut self, shared: &Arc<Shared>) -> Result<(), (QueueError, Vec<Offset>)> {
        let done = self.done.take().unwrap_or_else(|| shared.try_move(&self.slot, &self.deaths));
        // Without an answer the broker is stopping, and what was not moved is still marked.
        let outcome = done.await.unwrap_or(Ok(()));
        let all = || self.deaths.iter().map(|death| death.offset);
        let left: Vec<Offset> = {
            let state = self.slot.state.lock();
            all().filter(|offset| state.queue.dying(*offset).is_some()).collect()
        };
        if !left.is_empty() {
            return Err((self.refusal(shared, outcome, left.len()), left));
        }
        // What moved them lies before this, in the log.
        let written = Written::at(shared.log.unwritten().1, self.urgency);
        shared.wait_for(written).await.map_err(|error| (error, all().collect()))
    }

    fn refusal(&self, shared: &Shared, outcome: Result<(), QueueError>, left: usize) -> QueueError {
        let reason = format!("{left} dead letters of queue '{}' cannot be moved now", self.slot.name);
        // Somebody else may have tried to move them, and found no room.
        let full = match outcome {
            Err(QueueError::DiskFull { reason }) => Some(reason),
            Ok(()) | Err(_) => shared.want_of_space(),
        };
        match full {
            Some(why) => QueueError::DiskFull { reason: format!("{reason}: {why}") },
            None => QueueError::Unavailable { reason },
        }
    }
}
