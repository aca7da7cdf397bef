//! Queues, exchanges and bindings for the management API.

use bytes::Bytes;
use nexo_access::Permission;
use nexo_broker::topology::{self, Binding, Destination, ExchangeSpec};
use nexo_broker::{Broker, Declaration, DeleteIf, Durability, QueueConfig, QueueError, QueueHandle};
use nexo_types::{ExchangeName, QueueName};
use serde_json::{Map, Value as Json};

use super::super::arguments::{QueueKind, Traits, queue_config};
use super::super::equivalence;
use super::super::error::{self, Refusal, bind_refusal};
use super::super::exchanges::{binding_arguments, exchange_spec};
use super::super::queues::{locked, with_default_type};
use super::json::{JsonError, table};
use super::{By, Refused, settled};
use crate::codec::method::{exchange, queue};
use crate::codec::{ShortStr, TableBuf};

/// A queue that somebody wants.
#[derive(Clone, Copy, Debug)]
pub struct QueueAsked<'a> {
    /// Whether it survives a restart.
    pub durability: Durability,
    /// Whether it goes with its last consumer.
    pub auto_delete: bool,
    /// Its arguments.
    pub arguments: &'a Map<String, Json>,
}

/// An exchange that somebody wants.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeAsked<'a> {
    /// Its type.
    pub kind: &'a str,
    /// Whether it survives a restart.
    pub durability: Durability,
    /// Whether it goes with its last binding.
    pub auto_delete: bool,
    /// Whether only exchanges may publish to it.
    pub internal: bool,
    /// Its arguments.
    pub arguments: &'a Map<String, Json>,
}

/// Declares a queue. `true` if there was none of the name.
///
/// # Errors
/// As `queue.declare` refuses it.
pub async fn declare_queue(by: By<'_>, name: &QueueName, asked: QueueAsked<'_>) -> Result<bool, Refused> {
    let arguments = table(asked.arguments)?;
    let declared = declare(by, name, asked, &arguments).await;
    settled(by.broker, declared).await
}

async fn declare(
    by: By<'_>,
    name: &QueueName,
    asked: QueueAsked<'_>,
    arguments: &TableBuf,
) -> Result<bool, Refusal> {
    let declare = queue_declare(name, asked, arguments);
    let broker = by.broker;
    error::refuse_reserved_queue(name)?;
    by.rights().may_queue(Permission::Configure, name)?;
    let typed = with_default_type(broker, &name.vhost(), &declare);
    let declare = match &typed {
        Some(arguments) => queue::Declare { arguments: arguments.as_table(), ..declare },
        None => declare,
    };
    let check = |found: &QueueHandle| {
        refuse_owned(found)?;
        equivalence::check(found, &declare)
    };
    if let Some(found) = broker.queue(name) {
        check(&found)?;
    } else {
        by.rights().may_dead_letter(name, declare.arguments)?;
    }
    let config = queue_config(&declare, name)?;
    let declaration = Declaration { config, durability: asked.durability, owner: None };
    let declared = broker.begin_declare(name, declaration).await;
    let declared = declared.map_err(|error| error::create_refusal(name, error))?;
    if !declared.is_new {
        check(&declared.queue)?;
    }
    broker.wait_for(declared.written).await?;
    Ok(declared.is_new)
}

/// The method by which a client would ask for it.
fn queue_declare<'a>(
    name: &'a QueueName,
    asked: QueueAsked<'_>,
    arguments: &'a TableBuf,
) -> queue::Declare<'a> {
    queue::Declare {
        ticket: 0,
        queue: ShortStr::clipped(name.as_str().as_bytes()),
        passive: false,
        durable: asked.durability == Durability::Durable,
        exclusive: false,
        auto_delete: asked.auto_delete,
        nowait: false,
        arguments: arguments.as_table(),
    }
}

/// Whether a queue could be declared so, as far as that can be said without a broker.
///
/// # Errors
/// As [`declare_queue`].
pub fn check_queue(name: &QueueName, asked: QueueAsked<'_>) -> Result<(), Refused> {
    let arguments = table(asked.arguments)?;
    error::refuse_reserved_queue(name)?;
    queue_config(&queue_declare(name, asked, &arguments), name)?;
    Ok(())
}

/// A queue that belongs to a connection is nobody else's.
pub(super) fn refuse_owned(queue: &QueueHandle) -> Result<(), Refusal> {
    if queue.owner().is_some() { Err(locked(queue.name())) } else { Ok(()) }
}

/// The queue of this name, which must be there and not belong to a connection.
pub(super) fn shared_queue(broker: &Broker, name: &QueueName) -> Result<QueueHandle, Refusal> {
    let queue = broker.queue(name).ok_or_else(|| QueueError::NotFound { name: name.clone() })?;
    refuse_owned(&queue)?;
    Ok(queue)
}

/// Whether a queue is there and belongs to no connection: what others may empty, look into or change.
///
/// # Errors
/// As `queue.purge` refuses it otherwise.
pub async fn check_shared(broker: &Broker, name: &QueueName) -> Result<(), Refused> {
    settled(broker, shared_queue(broker, name).map(drop)).await
}

/// Deletes a queue.
///
/// # Errors
/// As `queue.delete` refuses it, and if there is no such queue.
pub async fn delete_queue(by: By<'_>, name: &QueueName, only_if: DeleteIf) -> Result<(), Refused> {
    let deleted = async {
        by.rights().may_queue(Permission::Configure, name)?;
        shared_queue(by.broker, name)?;
        by.broker.delete_queue_if(name, only_if).await?;
        Ok::<(), Refusal>(())
    };
    settled(by.broker, deleted.await).await
}

/// Takes everything that waits out of a queue.
///
/// # Errors
/// As `queue.purge` refuses it.
pub async fn purge_queue(by: By<'_>, name: &QueueName) -> Result<u64, Refused> {
    let purged = async {
        by.rights().may_queue(Permission::Read, name)?;
        Ok(shared_queue(by.broker, name)?.purge().await?)
    };
    settled(by.broker, purged.await).await
}

/// What RabbitMQ calls the type of a queue.
#[must_use]
pub fn queue_type(config: &QueueConfig) -> &'static str {
    match Traits::of(config).kind {
        QueueKind::Classic => "classic",
        QueueKind::Quorum => "quorum",
    }
}

/// Declares an exchange. `true` if there was none of the name.
///
/// # Errors
/// As `exchange.declare` refuses it.
pub async fn declare_exchange(
    by: By<'_>,
    name: &ExchangeName,
    asked: ExchangeAsked<'_>,
) -> Result<bool, Refused> {
    let spec = check_exchange(name, asked)?;
    let declared = async {
        by.rights().may_declare_exchange(name, &spec)?;
        let is_new = by.broker.exchange(name).is_none();
        by.broker.declare_exchange(name, spec).await?;
        Ok(is_new)
    };
    settled(by.broker, declared.await).await
}

/// What a declaration of an exchange asks for, if it could be declared so, as far as that can be said without a broker.
///
/// # Errors
/// As [`declare_exchange`].
pub fn check_exchange(name: &ExchangeName, asked: ExchangeAsked<'_>) -> Result<ExchangeSpec, Refused> {
    let arguments = table(asked.arguments)?;
    let declare = exchange::Declare {
        ticket: 0,
        exchange: ShortStr::clipped(name.as_str().as_bytes()),
        kind: ShortStr::clipped(asked.kind.as_bytes()),
        passive: false,
        durable: asked.durability == Durability::Durable,
        auto_delete: asked.auto_delete,
        internal: asked.internal,
        nowait: false,
        arguments: arguments.as_table(),
    };
    Ok(exchange_spec(&declare, name)?)
}

/// Deletes an exchange.
///
/// # Errors
/// As `exchange.delete` refuses it, and if there is no such exchange.
pub async fn delete_exchange(
    by: By<'_>,
    name: &ExchangeName,
    only_if: topology::DeleteIf,
) -> Result<(), Refused> {
    let deleted = async {
        if !name.is_default() && !name.is_reserved() {
            by.rights().may_exchange(Permission::Configure, name)?;
        }
        if !name.is_default() {
            let _ = by.broker.check_exchange(name)?;
        }
        by.broker.delete_exchange(name, only_if).await?;
        Ok::<(), Refusal>(())
    };
    settled(by.broker, deleted.await).await
}

/// A binding with arguments in JSON.
///
/// # Errors
/// If the arguments are no table.
pub fn binding(
    source: ExchangeName,
    destination: Destination,
    routing_key: &str,
    arguments: &Map<String, Json>,
) -> Result<Binding, JsonError> {
    let arguments = table(arguments)?;
    let key = Bytes::copy_from_slice(routing_key.as_bytes());
    Ok(Binding::new(source, destination, key, binding_arguments(arguments.as_table())))
}

/// Binds a queue or an exchange to an exchange.
///
/// # Errors
/// As `queue.bind` and `exchange.bind` refuse it.
pub async fn bind(by: By<'_>, binding: Binding, arguments: &Map<String, Json>) -> Result<(), Refused> {
    let (broker, arguments) = (by.broker, table(arguments)?);
    let bound = async {
        by.rights().may_change_binding(&binding)?;
        if let Destination::Queue(name) = binding.destination() {
            // Of two that are missing RabbitMQ names the exchange.
            let _ = broker.check_exchange(binding.source())?;
            shared_queue(broker, name)?;
        }
        broker.bind(binding).await.map_err(|error| bind_refusal(error, arguments.as_table()))
    };
    settled(broker, bound.await).await
}

/// Takes a binding away.
///
/// # Errors
/// As `queue.unbind` and `exchange.unbind` refuse it.
pub async fn unbind(by: By<'_>, binding: &Binding) -> Result<(), Refused> {
    let broker = by.broker;
    let unbound = async {
        by.rights().may_change_binding(binding)?;
        if let Destination::Queue(name) = binding.destination()
            && let Some(queue) = broker.queue(name)
        {
            refuse_owned(&queue)?;
        }
        broker.unbind(binding).await?;
        Ok::<(), Refusal>(())
    };
    settled(broker, unbound.await).await
}
