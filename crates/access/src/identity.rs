//! Somebody who came in, and what he may do. It is asked of the users as they are now: a permission that was taken away is
//! gone for connections that are open, and somebody who was deleted may do nothing.

use std::sync::Arc;

use nexo_broker::Broker;
use nexo_broker::access::{Permission, Resource, User, UserLimits, UserName};
use nexo_types::VhostName;
use thiserror::Error;

/// Where those are at home who have no other virtual host.
pub(crate) const DEFAULT_VHOST: &str = "/";

/// What somebody may not do, in RabbitMQ's words.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Refused(String);

/// Somebody who came in.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(crate) broker: Broker,
    name: UserName,
    rights: Rights,
}

/// Where it is said what somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// Among the users.
    User,
    /// The configuration says that there is no limit.
    Everything,
}

impl Identity {
    pub(crate) const fn of_user(broker: Broker, name: UserName) -> Self {
        Self { broker, name, rights: Rights::User }
    }

    /// Somebody whom the operator's configuration lets do everything: who has one of the keys that it names.
    #[must_use]
    pub const fn configured(broker: Broker, name: UserName) -> Self {
        Self { broker, name, rights: Rights::Everything }
    }

    /// Who it is.
    #[must_use]
    pub const fn name(&self) -> &UserName {
        &self.name
    }

    /// Whether there still is such a user.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.ask(|_| true)
    }

    /// As long as this is the same, he may do what he might before. To be asked before whatever is remembered.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.broker.access_generation()
    }

    /// Whether he may come into a virtual host.
    ///
    /// # Errors
    /// If not.
    pub fn may_enter(&self, vhost: &str) -> Result<(), Refused> {
        if self.ask(|user| user.may_enter(vhost)) {
            return Ok(());
        }
        Err(Refused(format!("access to vhost '{vhost}' refused for user '{}'", self.name)))
    }

    /// Whether there is such a virtual host.
    #[must_use]
    pub fn is_vhost(&self, name: &VhostName) -> bool {
        self.broker.vhost(name).is_some()
    }

    /// Whether he may do this with that.
    ///
    /// # Errors
    /// If not.
    pub fn may(&self, vhost: &str, permission: Permission, resource: Resource<'_>) -> Result<(), Refused> {
        if self.ask(|user| user.may(vhost, permission, resource)) {
            return Ok(());
        }
        Err(Refused(format!("access to {resource} in vhost '{vhost}' refused for user '{}'", self.name)))
    }

    /// Whether he may do anything with that: then he may know of it.
    ///
    /// # Errors
    /// If not.
    pub fn may_see(&self, vhost: &str, resource: Resource<'_>) -> Result<(), Refused> {
        let any = [Permission::Configure, Permission::Write, Permission::Read];
        if self.ask(|user| any.iter().any(|permission| user.may(vhost, *permission, resource))) {
            return Ok(());
        }
        Err(Refused(format!("access to {resource} in vhost '{vhost}' refused for user '{}'", self.name)))
    }

    /// Whether he may send with this routing key to a topic exchange, or bind with it.
    ///
    /// # Errors
    /// If not.
    pub fn may_topic(
        &self,
        vhost: &str,
        permission: Permission,
        exchange: &str,
        routing_key: &[u8],
    ) -> Result<(), Refused> {
        if self.ask(|user| user.may_topic(vhost, permission, exchange, routing_key)) {
            return Ok(());
        }
        let key = String::from_utf8_lossy(routing_key);
        Err(Refused(format!(
            "access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' refused for user '{}'",
            self.name
        )))
    }

    /// Whether anything is said of the topics of an exchange.
    pub(crate) fn has_topics(&self, vhost: &str, exchange: &str) -> bool {
        self.rights == Rights::User
            && self
                .broker
                .access()
                .user(self.name.as_str())
                .is_none_or(|user| user.topics.keys().any(|(at, of)| **at == *vhost && **of == *exchange))
    }

    /// Whether he has this tag. An administrator has those for the management API as well.
    #[must_use]
    pub fn is(&self, tag: &str) -> bool {
        self.ask(|user| user.is(tag))
    }

    /// How much he may have.
    #[must_use]
    pub fn limits(&self) -> UserLimits {
        match self.rights {
            Rights::User => self.user().map(|user| user.limits).unwrap_or_default(),
            Rights::Everything => UserLimits::default(),
        }
    }

    /// Where his queues of SQS are.
    #[must_use]
    pub fn default_vhost(&self) -> Arc<str> {
        self.user().and_then(|user| user.default_vhost.clone()).unwrap_or_else(|| DEFAULT_VHOST.into())
    }

    /// What is known of him, if he is a user.
    #[must_use]
    pub fn user(&self) -> Option<Arc<User>> {
        self.broker.access().user(self.name.as_str()).cloned().filter(|_| self.rights == Rights::User)
    }

    fn ask(&self, ask: impl FnOnce(&User) -> bool) -> bool {
        match self.rights {
            Rights::User => self.broker.access().user(self.name.as_str()).is_some_and(|user| ask(user)),
            Rights::Everything => true,
        }
    }
}
