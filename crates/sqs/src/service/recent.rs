//! What was done to queues lately, where AWS makes clients wait before they do it again. Only counts with strict limits.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nexo_types::QueueName;
use parking_lot::Mutex;

use crate::fault::{Fault, FaultCode};

/// How long AWS makes clients wait.
const PAUSE: Duration = Duration::from_secs(60);

/// Queues that were purged or deleted within the last minute.
#[derive(Debug, Default)]
pub(super) struct Recent {
    purged: Mutex<HashMap<QueueName, Instant>>,
    deleted: Mutex<HashMap<QueueName, Instant>>,
}

impl Recent {
    /// A queue is to be purged, unless it has just been.
    pub(super) fn purge(&self, name: &QueueName) -> Result<(), Fault> {
        let mut purged = self.purged.lock();
        if is_recent(&mut purged, name) {
            let message = format!("Only one PurgeQueue operation on {name} is allowed every 60 seconds.");
            return Err(Fault::new(FaultCode::PurgeQueueInProgress, message));
        }
        purged.insert(name.clone(), Instant::now());
        Ok(())
    }

    /// A queue was deleted.
    pub(super) fn deleted(&self, name: &QueueName) {
        let mut deleted = self.deleted.lock();
        deleted.retain(|_, at| at.elapsed() < PAUSE);
        deleted.insert(name.clone(), Instant::now());
    }

    /// A queue is to be created, unless one of its name has just been deleted.
    pub(super) fn create(&self, name: &QueueName) -> Result<(), Fault> {
        if is_recent(&mut self.deleted.lock(), name) {
            return Err(Fault::new(
                FaultCode::QueueDeletedRecently,
                "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
            ));
        }
        Ok(())
    }
}

fn is_recent(when: &mut HashMap<QueueName, Instant>, name: &QueueName) -> bool {
    when.retain(|_, at| at.elapsed() < PAUSE);
    when.contains_key(name)
}
