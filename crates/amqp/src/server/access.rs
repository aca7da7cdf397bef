//! What the connection's user may do, as RabbitMQ asks for it: which permission each method needs, and of what.

use std::time::Instant;

use nexo_access::{Identity, Permission, PublishRights, Refused, Resource};
use nexo_broker::Broker;
use nexo_broker::topology::{ExchangeKind, Matching};
use nexo_types::{ExchangeName, QueueName, VhostName};

use super::error::Refusal;
use super::message_facts::Facts;
use super::publish::Incoming;
use super::session::{ChannelState, Peer, Session};
use crate::codec::{Properties, ReplyCode};

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self::new(ReplyCode::AccessRefused, refused.to_string())
    }
}

impl Session {
    /// Whether the user may do this with a queue.
    pub(super) fn may_queue(&self, permission: Permission, name: &QueueName) -> Result<(), Refusal> {
        Ok(self.identity.may(name.vhost_str(), permission, Resource::queue(name.as_str()))?)
    }

    /// Whether the user may do this with an exchange.
    pub(super) fn may_exchange(&self, permission: Permission, name: &ExchangeName) -> Result<(), Refusal> {
        Ok(self.identity.may(name.vhost_str(), permission, Resource::exchange(name.as_str()))?)
    }

    /// Whether the user may have a source lead somewhere, or no longer: it needs to read there, and if it is a topic exchange
    /// to read what has this routing key.
    pub(super) fn may_bind_to(&self, source: &ExchangeName, routing_key: &[u8]) -> Result<(), Refusal> {
        self.may_exchange(Permission::Read, source)?;
        if is_topic(&self.shared.broker, source) {
            self.identity.may_topic(source.vhost_str(), Permission::Read, source.as_str(), routing_key)?;
        }
        Ok(())
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

    /// Whether the user may have a queue send its dead letters to an exchange, or an exchange what it cannot route.
    pub(super) fn may_pass_on(&self, from: Resource<'_>, to: &ExchangeName) -> Result<(), Refusal> {
        self.identity.may(self.vhost.as_str(), Permission::Read, from)?;
        self.may_exchange(Permission::Write, to)
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
        identity.may_topic(vhost.as_str(), Permission::Write, exchange, incoming.routing_key)?;
        // What is wrong with properties is said when they are read for good.
        if let Ok(properties) = Properties::parse(incoming.properties)
            && let Ok(facts) = Facts::of(&properties, identity.name().as_str())
        {
            for key in &facts.copies {
                identity.may_topic(vhost.as_str(), Permission::Write, exchange, key)?;
            }
        }
    }
    Ok(())
}

/// RabbitMQ asks only of plain topic exchanges.
fn is_topic(broker: &Broker, name: &ExchangeName) -> bool {
    broker.exchange_spec(name).is_some_and(|spec| spec.kind == ExchangeKind::Plain(Matching::Topic))
}
