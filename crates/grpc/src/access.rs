//! Who calls, and what he may do: which permission each call needs. The checks themselves are `nexo_access`'s.

use nexo_access::{Identity, Permission, Refused, Resource, Tag};
use nexo_broker::topology::VhostError;
use nexo_broker::{DeadLetters, QueueConfig, Receipt};
use nexo_types::{BudgetName, JobQueueName, QueueName, VhostName};
use tonic::{Code, Request, Status};

use crate::status::Failure;

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self { code: Code::PermissionDenied, message: refused.to_string() }
    }
}

/// Who calls. The guard has let nobody pass without one.
pub(crate) fn caller<T>(request: &Request<T>) -> Result<Identity, Status> {
    let identity = request.extensions().get::<Identity>().cloned();
    identity.ok_or_else(|| Status::unauthenticated("nobody is known to have made this call"))
}

/// Only administrators manage users and virtual hosts.
pub(crate) fn administrator<T>(request: &Request<T>) -> Result<(), Status> {
    let identity = caller(request)?;
    if identity.is(Tag::ADMINISTRATOR) {
        return Ok(());
    }
    let text = format!("user '{}' is no administrator, and only those may do this", identity.name());
    Err(Status::permission_denied(text))
}

/// What patterns of queues are for: a queue, a job queue or a budget.
pub(crate) trait LikeQueue {
    fn vhost(&self) -> VhostName;
    fn resource(&self) -> (&str, Resource<'_>);
}

macro_rules! like_queue {
    ($($name:ty),*) => {$(
        impl LikeQueue for $name {
            fn vhost(&self) -> VhostName {
                self.vhost()
            }

            fn resource(&self) -> (&str, Resource<'_>) {
                (self.vhost_str(), Resource::queue(self.as_str()))
            }
        }
    )*};
}

like_queue!(QueueName, JobQueueName, BudgetName);

/// Whether he may do this with a queue.
pub(crate) fn may(
    identity: &Identity,
    permission: Permission,
    queue: &impl LikeQueue,
) -> Result<(), Failure> {
    let (vhost, resource) = queue.resource();
    identity.may(vhost, permission, resource).map_err(|refused| refusal(identity, queue, refused))
}

/// Resolves when he may no longer do this with a queue.
pub(crate) async fn until_refused(
    identity: &Identity,
    permission: Permission,
    queue: &impl LikeQueue,
) -> Failure {
    let check = |identity: &Identity| {
        let (vhost, resource) = queue.resource();
        identity.may(vhost, permission, resource)
    };
    refusal(identity, queue, identity.until_refused(check).await)
}

/// Whether he may know of a queue.
pub(crate) fn may_see(identity: &Identity, queue: &impl LikeQueue) -> Result<(), Failure> {
    let (vhost, resource) = queue.resource();
    identity.may_see(vhost, resource).map_err(|refused| refusal(identity, queue, refused))
}

/// What is said of a queue that somebody may not use. Where there is no such virtual host, he is told that, as AMQP does.
pub(crate) fn refusal(identity: &Identity, queue: &impl LikeQueue, refused: Refused) -> Failure {
    let name = queue.vhost();
    if identity.is_vhost(&name) { refused.into() } else { VhostError::NotFound { name }.into() }
}

/// Whether he may make a queue, or give one these settings. Who has dead letters go elsewhere reads from the one and writes to
/// the other.
pub(crate) fn may_configure(
    identity: &Identity,
    queue: &QueueName,
    config: &QueueConfig,
) -> Result<(), Failure> {
    may(identity, Permission::Configure, queue)?;
    may_dead_letter(identity, queue, config)
}

/// Whether he may have dead letters go where these settings say. The queue that the broker makes for them counts like any other.
pub(crate) fn may_dead_letter(
    identity: &Identity,
    queue: &QueueName,
    config: &QueueConfig,
) -> Result<(), Failure> {
    if !config.has_dead_letters() {
        return Ok(());
    }
    match &config.dead_letters {
        DeadLetters::Nowhere => Ok(()),
        DeadLetters::OwnQueue | DeadLetters::Queue(_) => {
            let target =
                config.dead_letter_queue_of(queue).map_err(|error| Failure::invalid(error.to_string()))?;
            may(identity, Permission::Read, queue)?;
            target.map_or(Ok(()), |target| may(identity, Permission::Write, &target))
        }
        DeadLetters::Exchange { exchange, .. } => {
            may(identity, Permission::Read, queue)?;
            Ok(identity.may(
                exchange.vhost_str(),
                Permission::Write,
                Resource::exchange(exchange.as_str()),
            )?)
        }
    }
}

/// The right to push to the queue that was last asked for, for a stream that mostly pushes to one.
#[derive(Debug, Default)]
pub(crate) struct PushRight {
    generation: u64,
    queue: Option<QueueName>,
}

impl PushRight {
    pub(crate) fn check(&mut self, identity: &Identity, queue: &QueueName) -> Result<(), Failure> {
        let generation = identity.generation();
        if self.generation == generation && self.queue.as_ref() == Some(queue) {
            return Ok(());
        }
        self.queue = None;
        may(identity, Permission::Write, queue)?;
        (self.generation, self.queue) = (generation, Some(queue.clone()));
        Ok(())
    }
}

/// Whether he may say something about each of these deliveries: who may read from their queues.
pub(crate) fn may_settle(
    identity: &Identity,
    queue_of: impl Fn(&Receipt) -> Option<QueueName>,
    receipts: &[Receipt],
) -> Vec<Result<(), Failure>> {
    let mut last: Option<(nexo_types::QueueId, Result<(), Failure>)> = None;
    let mut check = |receipt: &Receipt| {
        if let Some((queue, outcome)) = &last
            && *queue == receipt.queue
        {
            return outcome.clone();
        }
        // Of a queue that is gone the broker has more to say.
        let outcome = queue_of(receipt).map_or(Ok(()), |name| may(identity, Permission::Read, &name));
        last = Some((receipt.queue, outcome.clone()));
        outcome
    };
    receipts.iter().map(&mut check).collect()
}
