//! `queue.*`: declaring, deleting, purging and binding queues.

use bytes::Bytes;
use nexo_access::Permission;
use nexo_broker::topology::{Binding, DefaultQueueType, Destination};
use nexo_broker::{
    Broker, CreateError, Declaration, DeleteError, DeleteIf, Durability, QueueError, QueueHandle, Written,
};
use nexo_types::{QueueName, VhostName};

use super::arguments::{QueueKind, kind_of, queue_config};
use super::equivalence;
use super::error::{self, Refusal, exchange_name, queue_name};
use super::exchanges::binding_arguments;
use super::operations::Operation;
use super::reply_to::{REPLY_TO, REPLY_TO_PREFIX};
use super::session::Session;
use crate::codec::method::{QueueMethod, queue};
use crate::codec::{AmqpMethod, ReplyCode, ShortStr, TableBuf};

const QUEUE_TYPE: &str = "x-queue-type";

impl Session {
    pub(super) fn queue_method(&mut self, number: u16, method: &QueueMethod<'_>) -> Result<(), Refusal> {
        match method {
            QueueMethod::Declare(declare) => self.declare_queue(number, declare),
            QueueMethod::Bind(bind) => self.bind_queue(number, bind),
            QueueMethod::Unbind(unbind) => self.unbind_queue(number, unbind),
            QueueMethod::Purge(purge) => {
                let name = self.named(number, &purge.queue)?;
                self.may_queue(Permission::Read, &name)?;
                let queue = self.queue(number, &purge.queue)?;
                self.perform(Operation::Purge { channel: number, queue, nowait: purge.nowait });
                Ok(())
            }
            QueueMethod::Delete(delete) => self.delete_queue(number, delete),
            QueueMethod::DeclareOk(_)
            | QueueMethod::BindOk(_)
            | QueueMethod::PurgeOk(_)
            | QueueMethod::DeleteOk(_)
            | QueueMethod::UnbindOk(_) => Err(error::unimplemented()),
        }
    }

    /// A queue was emptied, or could not be.
    pub(super) fn answer_purge(&mut self, number: u16, nowait: bool, purged: Result<u64, QueueError>) {
        match purged {
            Ok(count) if self.is_open(number) => {
                self.answer_unless(nowait, number, &queue::PurgeOk { message_count: clamp(count) });
            }
            Ok(_) => {}
            Err(error) => self.conclude(number, Err(Refusal::from(error).of(queue::Purge::ID))),
        }
    }

    fn declare_queue(&mut self, number: u16, declare: &queue::Declare<'_>) -> Result<(), Refusal> {
        if self.is_reply_name(&declare.queue) {
            let (name, consumers) = (declare.queue, 1);
            let answer = queue::DeclareOk { queue: name, message_count: 0, consumer_count: consumers };
            self.answer_when(Written::NOTHING, declare.nowait, number, &answer);
            return Ok(());
        }
        let typed = with_default_type(&self.shared.broker, &self.vhost, declare);
        let arguments = typed.as_ref().map_or(declare.arguments, TableBuf::as_table);
        let declare = &queue::Declare { arguments, ..*declare };
        let queue = if declare.passive {
            let queue = self.queue(number, &declare.queue)?;
            queue.touch();
            queue
        } else {
            let Some(queue) = self.make_queue(declare)? else {
                self.take_again_after(Operation::Room);
                return Ok(());
            };
            queue
        };
        self.channel(number)?.last_queue = Some(queue.name().clone());
        let (messages, consumers) = queue.counts();
        let answer = queue::DeclareOk {
            queue: ShortStr::clipped(queue.name().as_str().as_bytes()),
            message_count: clamp(messages),
            consumer_count: clamp(consumers),
        };
        self.answer_when(queue.created(), declare.nowait, number, &answer);
        Ok(())
    }

    /// The queue that is declared; `None` if the log has no room for it now.
    fn make_queue(&mut self, declare: &queue::Declare<'_>) -> Result<Option<QueueHandle>, Refusal> {
        let name = if declare.queue.is_empty() {
            if kind_of(declare.arguments) == QueueKind::Quorum {
                let text = "Cannot declare a server-named queue for type rabbit_quorum_queue";
                return Err(Refusal::precondition(text));
            }
            QueueName::at(&self.vhost, &self.shared.new_name("amq.gen-"))?
        } else {
            let name = queue_name(&self.vhost, &declare.queue)?;
            error::refuse_reserved_queue(&name)?;
            name
        };
        self.may_queue(Permission::Configure, &name)?;
        let broker = self.shared.broker.clone();
        if let Some(found) = broker.queue(&name) {
            self.check_same(&found, declare)?;
        } else {
            self.rights().may_dead_letter(&name, declare.arguments)?;
        }
        let config = queue_config(declare, &name)?;
        let owner = declare.exclusive.then_some(self.id);
        let durability = if declare.durable { Durability::Durable } else { Durability::Transient };
        // Noted before the queue is there, so that it goes even if this connection ends right now.
        self.owns_queues |= declare.exclusive;
        let declaration = Declaration { config, durability, owner };
        let declared = match broker.try_declare(&name, &declaration) {
            Ok(declared) => declared,
            Err(CreateError::Queue(QueueError::Busy { .. })) => return Ok(None),
            Err(error) => return Err(error::create_refusal(&name, error)),
        };
        if !declared.is_new {
            self.check_same(&declared.queue, declare)?;
        }
        Ok(Some(declared.queue))
    }

    fn check_same(&self, queue: &QueueHandle, declare: &queue::Declare<'_>) -> Result<(), Refusal> {
        // RabbitMQ compares the owner strictly here: not even the owner may declare it as shared.
        if queue.owner() != declare.exclusive.then_some(self.id) {
            return Err(locked(queue.name()));
        }
        equivalence::check(queue, declare)
    }

    /// Whether it names direct replies: those of any client, or of one that is there.
    fn is_reply_name(&self, name: &[u8]) -> bool {
        name == REPLY_TO
            || (name.starts_with(REPLY_TO_PREFIX.as_bytes()) && self.shared.replies.knows(&self.vhost, name))
    }

    fn delete_queue(&mut self, number: u16, delete: &queue::Delete<'_>) -> Result<(), Refusal> {
        let name = self.named(number, &delete.queue)?;
        self.may_queue(Permission::Configure, &name)?;
        let broker = self.shared.broker.clone();
        let (mut count, mut deleted) = (0, None);
        if let Some(queue) = broker.queue(&name) {
            self.check_owner(&queue)?;
            let only_if = DeleteIf { unused: delete.if_unused, empty: delete.if_empty };
            // What clients hold is not counted.
            let ready = queue.counts().0;
            match broker.try_delete(&name, only_if) {
                Ok((_, written)) => (count, deleted) = (ready, Some(written)),
                Err(DeleteError::Queue(QueueError::Busy { .. })) => {
                    self.take_again_after(Operation::Room);
                    return Ok(());
                }
                // Somebody else was faster.
                Err(DeleteError::Queue(QueueError::NotFound { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Where there was none, it may be that another has deleted it just now.
        let written = deleted.unwrap_or_else(|| broker.last_delete());
        let answer = queue::DeleteOk { message_count: clamp(count) };
        self.answer_when(written, delete.nowait, number, &answer);
        Ok(())
    }

    fn bind_queue(&mut self, number: u16, bind: &queue::Bind<'_>) -> Result<(), Refusal> {
        let name = self.named(number, &bind.queue)?;
        self.may_queue(Permission::Write, &name)?;
        let source = exchange_name(&self.vhost, &bind.exchange)?;
        if source.is_default() {
            return Err(error::default_exchange());
        }
        // Neither queue nor key: the last declared queue, by its own name.
        let key = if bind.queue.is_empty() && bind.routing_key.is_empty() {
            Bytes::copy_from_slice(name.as_str().as_bytes())
        } else {
            Bytes::copy_from_slice(&bind.routing_key)
        };
        self.rights().may_bind_to(&source, &key)?;
        let queue = self.queue(number, &bind.queue);
        if matches!(&queue, Err(refusal) if refusal.code == ReplyCode::NotFound) {
            // Of two that are missing RabbitMQ names the exchange.
            let _ = self.shared.broker.check_exchange(&source)?;
        }
        let queue = queue?;
        let destination = Destination::Queue(queue.name().clone());
        let binding = Binding::new(source, destination, key, binding_arguments(bind.arguments));
        let bound = self.shared.broker.try_bind(binding);
        let refusal = |error| error::bind_refusal(error, bind.arguments);
        self.answer_change(bound, refusal, bind.nowait, number, &queue::BindOk {})
    }

    fn unbind_queue(&mut self, number: u16, unbind: &queue::Unbind<'_>) -> Result<(), Refusal> {
        let name = self.named(number, &unbind.queue)?;
        self.may_queue(Permission::Write, &name)?;
        let source = exchange_name(&self.vhost, &unbind.exchange)?;
        if source.is_default() {
            return Err(error::default_exchange());
        }
        let key = if unbind.queue.is_empty() && unbind.routing_key.is_empty() {
            Bytes::copy_from_slice(name.as_str().as_bytes())
        } else {
            Bytes::copy_from_slice(&unbind.routing_key)
        };
        self.rights().may_bind_to(&source, &key)?;
        if let Some(queue) = self.shared.broker.queue(&name) {
            self.check_owner(&queue)?;
        }
        let binding =
            Binding::new(source, Destination::Queue(name), key, binding_arguments(unbind.arguments));
        let unbound = self.shared.broker.try_unbind(&binding);
        self.answer_change(unbound, Refusal::from, false, number, &queue::UnbindOk {})
    }

    /// The name that a client means: the channel's last declared queue, if it gives none.
    pub(super) fn named(&mut self, number: u16, name: &[u8]) -> Result<QueueName, Refusal> {
        if !name.is_empty() {
            return queue_name(&self.vhost, name);
        }
        let last = self.channel(number)?.last_queue.clone();
        last.ok_or_else(|| Refusal::not_found("no previously declared queue"))
    }

    /// The queue that a client means, which must be there and not be another connection's own.
    pub(super) fn queue(&mut self, number: u16, name: &[u8]) -> Result<QueueHandle, Refusal> {
        let name = self.named(number, name)?;
        let queue = self.shared.broker.queue(&name).ok_or_else(|| Refusal::no_queue(&name))?;
        self.check_owner(&queue)?;
        Ok(queue)
    }

    fn check_owner(&self, queue: &QueueHandle) -> Result<(), Refusal> {
        match queue.owner() {
            Some(owner) if owner != self.id => Err(locked(queue.name())),
            Some(_) | None => Ok(()),
        }
    }
}

/// The arguments of a declaration that names no type, with the one that its virtual host gives to such queues.
pub(super) fn with_default_type(
    broker: &Broker,
    vhost: &VhostName,
    declare: &queue::Declare<'_>,
) -> Option<TableBuf> {
    let fits = |kind: &DefaultQueueType| match kind {
        DefaultQueueType::Classic => true,
        DefaultQueueType::Quorum => declare.durable && !declare.exclusive && !declare.auto_delete,
    };
    if declare.passive || declare.arguments.get(QUEUE_TYPE).is_some() {
        return None;
    }
    let kind = broker.default_queue_type(vhost).filter(fits)?;
    let mut arguments = TableBuf::from(declare.arguments);
    arguments.put(ShortStr::from_static(QUEUE_TYPE), kind.as_str());
    Some(arguments)
}

pub(super) fn locked(name: &QueueName) -> Refusal {
    Refusal::new(
        ReplyCode::ResourceLocked,
        format!(
            "cannot obtain exclusive access to locked queue '{name}' in vhost '{}'. It could be originally declared on \
             another connection or the exclusive property value does not match that of the original declaration.",
            name.vhost_str()
        ),
    )
}

pub(super) fn clamp(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
