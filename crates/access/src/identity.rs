//! Somebody who came in, and what he may do. It is asked of the users as they are now: a permission that was taken away is
//! gone for connections that are open, and somebody who was deleted may do nothing. Who came with a signed token may do what
//! that grants, until it expires.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nexo_broker::Broker;
use nexo_broker::access::{Permission, Resource, Scopes, User, UserLimits, UserName};
use nexo_types::VhostName;
use thiserror::Error;

use crate::oauth::{Verified, unix_s};

/// Where those are at home who have no other virtual host.
pub(crate) const DEFAULT_VHOST: &str = "/";
/// Whoever waits for a time looks at the clock as often: it may have been set.
const CLOCK_LOOK: Duration = Duration::from_secs(60);

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
#[derive(Clone, Debug)]
enum Rights {
    /// Among the users.
    User,
    /// The configuration says that there is no limit.
    Everything,
    /// In the token that he brought.
    Token(Arc<TokenRights>),
}

#[derive(Debug)]
struct TokenRights {
    scopes: Scopes,
    /// In seconds since 1970.
    expires_s: u64,
}

impl TokenRights {
    fn left(&self) -> Duration {
        Duration::from_secs(self.expires_s.saturating_sub(unix_s()))
    }
}

/// What can be asked of somebody's rights.
enum Holder<'a> {
    User(&'a User),
    Token(&'a Scopes),
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

    pub(crate) fn of_token(broker: Broker, token: Verified) -> Self {
        let Verified { name, scopes, expires_s } = token;
        Self { broker, name, rights: Rights::Token(Arc::new(TokenRights { scopes, expires_s })) }
    }

    /// Who it is.
    #[must_use]
    pub const fn name(&self) -> &UserName {
        &self.name
    }

    /// Whether there still is such a user, or his token holds.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.ask(|_| true)
    }

    /// As long as this is the same, he may do what he might before, unless he has a token and that expires. To be asked before
    /// whatever is remembered.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.broker.access_generation()
    }

    /// How long his token still holds, if he came with one.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        match &self.rights {
            Rights::Token(token) => Some(token.left()),
            Rights::User | Rights::Everything => None,
        }
    }

    /// Resolves when his token has expired, if he came with one.
    pub async fn expired(&self) {
        loop {
            match self.time_left() {
                Some(Duration::ZERO) => return,
                Some(left) => tokio::time::sleep(left.min(CLOCK_LOOK)).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Resolves when he is refused something that is asked again after every change of users.
    pub async fn until_refused(&self, check: impl Fn(&Self) -> Result<(), Refused>) -> Refused {
        let mut changes = self.broker.access_changes();
        loop {
            if let Err(refused) = check(self) {
                return refused;
            }
            tokio::select! {
                () = changes.next() => {}
                () = self.expired() => {}
            }
        }
    }

    /// Whether he may come into a virtual host.
    ///
    /// # Errors
    /// If not.
    pub fn may_enter(&self, vhost: &str) -> Result<(), Refused> {
        let may = self.ask(|holder| match holder {
            Holder::User(user) => user.may_enter(vhost),
            Holder::Token(scopes) => scopes.may_enter(vhost),
        });
        if may {
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
        if self.ask(|holder| holder.may(vhost, permission, resource)) {
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
        if self.ask(|holder| any.iter().any(|permission| holder.may(vhost, *permission, resource))) {
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
        let may = self.ask(|holder| match holder {
            Holder::User(user) => user.may_topic(vhost, permission, exchange, routing_key),
            Holder::Token(scopes) => scopes.may_topic(vhost, permission, exchange, routing_key),
        });
        if may {
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
        match &self.rights {
            Rights::Everything => false,
            Rights::Token(token) => token.scopes.has_topics(vhost, exchange),
            Rights::User => self
                .broker
                .access()
                .user(self.name.as_str())
                .is_none_or(|user| user.topics.keys().any(|(at, of)| **at == *vhost && **of == *exchange)),
        }
    }

    /// Whether he has this tag. An administrator has those for the management API as well.
    #[must_use]
    pub fn is(&self, tag: &str) -> bool {
        self.ask(|holder| match holder {
            Holder::User(user) => user.is(tag),
            Holder::Token(scopes) => scopes.tags().contains(tag),
        })
    }

    /// His tags.
    #[must_use]
    pub fn tags(&self) -> Vec<String> {
        let shown = |tags: &std::collections::BTreeSet<nexo_broker::access::Tag>| {
            tags.iter().map(|tag| tag.as_str().to_owned()).collect()
        };
        match &self.rights {
            Rights::User => self.user().map(|user| shown(&user.tags)).unwrap_or_default(),
            Rights::Token(token) => shown(token.scopes.tags()),
            Rights::Everything => Vec::new(),
        }
    }

    /// How much he may have.
    #[must_use]
    pub fn limits(&self) -> UserLimits {
        self.user().map(|user| user.limits).unwrap_or_default()
    }

    /// Where his queues of SQS are, if he has a place of his own for them.
    #[must_use]
    pub fn default_vhost(&self) -> Option<Arc<str>> {
        self.user()?.default_vhost.clone()
    }

    /// What is known of him, if he is a user.
    #[must_use]
    pub fn user(&self) -> Option<Arc<User>> {
        match self.rights {
            Rights::User => self.broker.access().user(self.name.as_str()).cloned(),
            Rights::Everything | Rights::Token(_) => None,
        }
    }

    /// The virtual hosts that he may come into.
    #[must_use]
    pub fn vhosts(&self) -> BTreeSet<Arc<str>> {
        if let Some(user) = self.user() {
            return user.permissions.keys().cloned().collect();
        }
        let all = self.broker.vhosts().into_iter().map(|vhost| vhost.name);
        all.filter(|name| self.may_enter(name.as_str()).is_ok()).map(|name| name.as_str().into()).collect()
    }

    fn ask(&self, ask: impl FnOnce(&Holder<'_>) -> bool) -> bool {
        match &self.rights {
            Rights::User => {
                let access = self.broker.access();
                access.user(self.name.as_str()).is_some_and(|user| ask(&Holder::User(user)))
            }
            Rights::Everything => true,
            Rights::Token(token) => !token.left().is_zero() && ask(&Holder::Token(&token.scopes)),
        }
    }
}

impl Holder<'_> {
    fn may(&self, vhost: &str, permission: Permission, resource: Resource<'_>) -> bool {
        match self {
            Self::User(user) => user.may(vhost, permission, resource),
            Self::Token(scopes) => scopes.may(vhost, permission, resource),
        }
    }
}
