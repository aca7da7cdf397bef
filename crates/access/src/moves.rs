//! The right to move messages out of a queue, for as long as that takes: to another one, or each back to where it came from.
//! Whoever moves reads from the one and writes to the other, whichever that is for a message.

use std::sync::Arc;

use nexo_broker::MoveGate;
use nexo_broker::access::{Permission, Resource};
use nexo_types::QueueName;
use parking_lot::Mutex;

use crate::identity::{Identity, Refused};

/// Somebody moves messages.
#[derive(Clone, Debug)]
pub struct MoveRight {
    identity: Identity,
    source: QueueName,
    target: Option<QueueName>,
    /// The first queue that a message might not go back to.
    refused: Arc<Mutex<Option<Refused>>>,
}

impl MoveRight {
    /// The right to move messages from `source` to `target`, or without one to where each came from.
    ///
    /// # Errors
    /// If he may not read there, or not write there. Where each message came from is not known yet.
    pub fn new(identity: &Identity, source: &QueueName, target: Option<&QueueName>) -> Result<Self, Refused> {
        let right = Self {
            identity: identity.clone(),
            source: source.clone(),
            target: target.cloned(),
            refused: Arc::default(),
        };
        right.check().map(|()| right)
    }

    fn check(&self) -> Result<(), Refused> {
        may(&self.identity, Permission::Read, &self.source)?;
        self.target.as_ref().map_or(Ok(()), |target| may(&self.identity, Permission::Write, target))
    }

    /// Lets the broker move only where that is allowed.
    #[must_use]
    pub fn gate(&self) -> MoveGate {
        let (identity, refused) = (self.identity.clone(), Arc::clone(&self.refused));
        MoveGate::new(move |target| match may(&identity, Permission::Write, target) {
            Ok(()) => true,
            Err(refusal) => {
                refused.lock().get_or_insert(refusal);
                false
            }
        })
    }

    /// The first queue that a message might not go back to, if there was one.
    #[must_use]
    pub fn refused(&self) -> Option<Refused> {
        self.refused.lock().clone()
    }

    /// Resolves when he may no longer move anything.
    pub async fn until_lost(&self) -> Refused {
        self.identity.until_refused(|_| self.check()).await
    }
}

fn may(identity: &Identity, permission: Permission, queue: &QueueName) -> Result<(), Refused> {
    identity.may(queue.vhost_str(), permission, Resource::queue(queue.as_str()))
}
