//! What whoever asks may do with a queue: which permission each action needs. The checks themselves are `nexo_access`'s.

use nexo_access::{Identity, Permission, Refused, Resource};
use nexo_types::QueueName;

use super::Context;
use crate::fault::{Fault, FaultCode};

/// What an action needs of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// To make, change or delete it.
    Configure,
    /// To send to it.
    Write,
    /// To receive from it, and to say something about what was received.
    Read,
    /// To know of it: any of these.
    See,
}

impl Context {
    /// Whether whoever asks may.
    pub(super) fn may(&self, need: Need, queue: &QueueName) -> Result<(), Fault> {
        allows(&self.identity, need, queue).map_err(|_: Refused| denied(queue))
    }

    /// Resolves when whoever asks may no longer.
    pub(super) async fn until_refused(&self, need: Need, queue: &QueueName) -> Fault {
        self.identity.until_refused(|identity| allows(identity, need, queue)).await;
        denied(queue)
    }
}

fn allows(identity: &Identity, need: Need, queue: &QueueName) -> Result<(), Refused> {
    let (vhost, resource) = (queue.vhost_str(), Resource::queue(queue.as_str()));
    match need {
        Need::Configure => identity.may(vhost, Permission::Configure, resource),
        Need::Write => identity.may(vhost, Permission::Write, resource),
        Need::Read => identity.may(vhost, Permission::Read, resource),
        Need::See => identity.may_see(vhost, resource),
    }
}

pub(super) fn denied(queue: &QueueName) -> Fault {
    let name: String = queue.as_str().chars().take(256).collect();
    Fault::new(FaultCode::NotPermitted, format!("Access to the resource {name} is denied."))
}
