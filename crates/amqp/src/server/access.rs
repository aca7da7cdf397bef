//! What the connection's user may do, as RabbitMQ asks for it: which permission each method needs, and of what. The management
//! API asks the same.

use std::time::Instant;

use nexo_access::{Identity, Permission, PublishRights, Refused, Resource};
use nexo_broker::Broker;
use nexo_broker::topology::{Binding, Destination, ExchangeKind, ExchangeSpec, Matching};
use nexo_types::{ExchangeName, QueueName, VhostName};

use super::error::{self, Refusal, exchange_name};
use super::message_facts::Facts;
use super::publish::Incoming;
use super::session::{ChannelState, Peer, Session};
use crate::codec::{Properties, ReplyCode, Table, Value};

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self::new(ReplyCode::AccessRefused, refused.to_string())
    }
}

/// What somebody may do: the user of a connection, or whoever asks the management API.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rights<'a> {
    pub(super) broker: &'a Broker,
    pub(super) identity: &'a Identity,
}

impl Rights<'_> {
    /// Whether he may do this with a queue.
    pub(super) fn may_queue(self, permission: Permission, name: &QueueName) -> Result<(), Refusal> {
        Ok(self.identity.may(name.vhost_str(), permission, Resource::queue(name.as_str()))?)
    }

    /// Whether he may do this with an exchange.
    pub(super) fn may_exchange(self, permission: Permission, name: &ExchangeName) -> Result<(), Refusal> {
        Ok(self.identity.may(name.vhost_str(), permission, Resource::exchange(name.as_str()))?)
    }

    /// Whether he may have a source lead somewhere, or no longer: it needs to read there, and if it is a topic exchange to
    /// read what has this routing key.
    pub(super) fn may_bind_to(self, source: &ExchangeName, routing_key: &[u8]) -> Result<(), Refusal> {
        self.may_exchange(Permission::Read, source)?;
        if is_topic(self.broker, source) {
            self.identity.may_topic(source.vhost_str(), Permission::Read, source.as_str(), routing_key)?;
        }
        Ok(())
    }

    /// Whether he may make or take away a binding: it needs to write to the destination, and to read from the source.
    pub(super) fn may_change_binding(self, binding: &Binding) -> Result<(), Refusal> {
        match binding.destination() {
            Destination::Queue(name) => self.may_queue(Permission::Write, name)?,
            Destination::Exchange(name) => {
                self.may_exchange(Permission::Write, name)?;
                if name.is_default() {
                    return Err(error::default_exchange());
                }
            }
        }
        if binding.source().is_default() {
            return Err(error::default_exchange());
        }
        self.may_bind_to(binding.source(), binding.key())
    }

    /// Whether he may have a queue send its dead letters to an exchange, or an exchange what it cannot route.
    pub(super) fn may_pass_on(self, from: Resource<'_>, to: &ExchangeName) -> Result<(), Refusal> {
        self.identity.may(to.vhost_str(), Permission::Read, from)?;
        self.may_exchange(Permission::Write, to)
    }

    /// Whether he may declare an exchange. What its messages go to that it cannot route is asked for when it is new.
    pub(super) fn may_declare_exchange(
        self,
        name: &ExchangeName,
        spec: &ExchangeSpec,
    ) -> Result<(), Refusal> {
        if !name.is_default() {
            self.may_exchange(Permission::Configure, name)?;
        }
        match &spec.alternate {
            Some(alternate) if self.broker.exchange_spec(name).is_none() => {
                self.may_pass_on(Resource::exchange(name.as_str()), alternate)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether he may send dead letters of a new queue where its arguments say.
    pub(super) fn may_dead_letter(self, queue: &QueueName, arguments: Table<'_>) -> Result<(), Refusal> {
        match arguments.get("x-dead-letter-exchange") {
            Some(Value::LongStr(exchange)) => {
                let exchange = exchange_name(&queue.vhost(), exchange)?;
                self.may_pass_on(Resource::queue(queue.as_str()), &exchange)
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Session {
    /// What the user of this connection may do.
    pub(super) fn rights(&self) -> Rights<'_> {
        Rights { broker: &self.shared.broker, identity: &self.identity }
    }

    /// Takes another secret in place of the one that the user came in with: a token that holds longer.
    pub(super) fn update_secret(&mut self, secret: &[u8]) -> Result<(), Refusal> {
        let refused = |reason: &dyn std::fmt::Display| {
            let (peer, user) = (Peer(self.peer), self.user.as_str());
            tracing::warn!(protocol = "amqp", %peer, user, %reason, "a new secret was refused");
            Refusal::new(ReplyCode::NotAllowed, "New secret was refused by one of the backends")
        };
        let renewed = self.shared.logins.renewed(&self.identity, secret).map_err(|error| refused(&error))?;
        renewed.may_enter(self.vhost.as_str()).map_err(|error| refused(&error))?;
        self.expires = expiry(&renewed, self.now);
        self.identity = renewed;
        for state in self.channels.values_mut() {
            if let ChannelState::Open(channel) = state {
                channel.rights = PublishRights::default();
            }
        }
        Ok(())
    }

    /// Whether the user may do this with a queue.
    pub(super) fn may_queue(&self, permission: Permission, name: &QueueName) -> Result<(), Refusal> {
        self.rights().may_queue(permission, name)
    }
}

/// When somebody who has come with a token is to go.
pub(super) fn expiry(identity: &Identity, now: Instant) -> Option<Instant> {
    identity.time_left().and_then(|left| now.checked_add(left))
}

/// Whether a message may be published, by its exchange and its routing key. What is said of the exchange is remembered.
pub(super) fn check_publish(
    broker: &Broker,
    identity: &Identity,
    vhost: &VhostName,
    rights: &mut PublishRights,
    incoming: &Incoming<'_>,
) -> Result<(), Refusal> {
    let exchange = std::str::from_utf8(incoming.exchange).unwrap_or("\u{fffd}");
    rights.check(identity, vhost.as_str(), exchange)?;
    if rights.is_by_topic()
        && let Ok(name) = ExchangeName::at(vhost, exchange)
        && is_topic(broker, &name)
    {
        return check_topics(identity, &name, incoming.routing_key, incoming.properties);
    }
    Ok(())
}

/// Whether a message may be published once to a topic exchange, or any other.
pub(super) fn check_publish_once(
    rights: Rights<'_>,
    exchange: &ExchangeName,
    routing_key: &[u8],
    properties: &[u8],
) -> Result<(), Refusal> {
    rights.may_exchange(Permission::Write, exchange)?;
    if is_topic(rights.broker, exchange) {
        return check_topics(rights.identity, exchange, routing_key, properties);
    }
    Ok(())
}

/// Whether a message may have these routing keys: its own, and those of its copies.
fn check_topics(
    identity: &Identity,
    exchange: &ExchangeName,
    routing_key: &[u8],
    properties: &[u8],
) -> Result<(), Refusal> {
    let may =
        |key: &[u8]| identity.may_topic(exchange.vhost_str(), Permission::Write, exchange.as_str(), key);
    may(routing_key)?;
    // What is wrong with properties is said when they are read for good.
    if let Ok(properties) = Properties::parse(properties)
        && let Ok(facts) = Facts::of(&properties, identity.name().as_str())
    {
        for key in &facts.copies {
            may(key)?;
        }
    }
    Ok(())
}

/// RabbitMQ asks only of plain topic exchanges.
fn is_topic(broker: &Broker, name: &ExchangeName) -> bool {
    broker.exchange_spec(name).is_some_and(|spec| spec.kind == ExchangeKind::Plain(Matching::Topic))
}
