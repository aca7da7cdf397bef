//! What whoever asks may do with a queue: which permission each action needs. The checks themselves are `nexo_access`'s.

use nexo_access::{Permission, Refused, Resource};
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
        let (vhost, resource) = (queue.vhost_str(), Resource::queue(queue.as_str()));
        let allowed = match need {
            Need::Configure => self.identity.may(vhost, Permission::Configure, resource),
            Need::Write => self.identity.may(vhost, Permission::Write, resource),
            Need::Read => self.identity.may(vhost, Permission::Read, resource),
            Need::See => self.identity.may_see(vhost, resource),
        };
        allowed.map_err(|_: Refused| {
            let name: String = queue.as_str().chars().take(256).collect();
            Fault::new(FaultCode::NotPermitted, format!("Access to the resource {name} is denied."))
        })
    }

    /// Whether whoever asks may know of a queue of this name.
    pub(super) fn may_see_named(&self, name: &str) -> bool {
        QueueName::at(&self.vhost, name).is_ok_and(|name| self.may(Need::See, &name).is_ok())
    }
}
