//! What a user may do.

use std::fmt;
use std::sync::Arc;

use super::user::User;

/// What somebody wants to do with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Make it, change it, delete it.
    Configure,
    /// Send to it.
    Write,
    /// Take from it.
    Read,
}

/// What kind of thing a permission is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    /// A queue.
    Queue,
    /// An exchange.
    Exchange,
}

/// A queue or an exchange of a virtual host, as permissions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource<'a> {
    /// The kind.
    pub kind: ResourceKind,
    /// Its name in its virtual host.
    pub name: &'a str,
}

impl<'a> Resource<'a> {
    /// A queue.
    #[must_use]
    pub const fn queue(name: &'a str) -> Self {
        Self { kind: ResourceKind::Queue, name }
    }

    /// An exchange.
    #[must_use]
    pub const fn exchange(name: &'a str) -> Self {
        Self { kind: ResourceKind::Exchange, name }
    }

    /// What patterns are held against. RabbitMQ gives the default exchange, whose name is empty, this one.
    #[must_use]
    pub fn matched_name(&self) -> &'a str {
        match self.kind {
            ResourceKind::Exchange if self.name.is_empty() => "amq.default",
            ResourceKind::Exchange | ResourceKind::Queue => self.name,
        }
    }
}

/// As RabbitMQ names it in a refusal, without its virtual host.
impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ResourceKind::Queue => "queue",
            ResourceKind::Exchange => "exchange",
        };
        write!(f, "{kind} '{}'", self.matched_name())
    }
}

impl User {
    /// Whether the user may come into a virtual host at all.
    #[must_use]
    pub fn may_enter(&self, vhost: &str) -> bool {
        self.permissions.contains_key(vhost)
    }

    /// Whether the user may do this with that.
    #[must_use]
    pub fn may(&self, vhost: &str, permission: Permission, resource: Resource<'_>) -> bool {
        self.permissions.get(vhost).is_some_and(|permissions| {
            let pattern = match permission {
                Permission::Configure => &permissions.configure,
                Permission::Write => &permissions.write,
                Permission::Read => &permissions.read,
            };
            pattern.matches(resource.matched_name().as_bytes())
        })
    }

    /// Whether the user may send with this routing key to a topic exchange, or bind with it. Where nothing is said of an
    /// exchange the permissions of [`Self::may`] are all that counts.
    #[must_use]
    pub fn may_topic(&self, vhost: &str, permission: Permission, exchange: &str, routing_key: &[u8]) -> bool {
        // Most users have none, and keys of the map are owned.
        if self.topics.is_empty() {
            return true;
        }
        let key: (Arc<str>, Arc<str>) = (vhost.into(), exchange.into());
        self.topics.get(&key).is_none_or(|topics| match permission {
            Permission::Write => topics.write.matches(routing_key),
            Permission::Read => topics.read.matches(routing_key),
            // RabbitMQ has no such permission of topics.
            Permission::Configure => true,
        })
    }
}
