//! What a channel remembers of its right to publish: most messages go to the exchange of the one before, and nobody's
//! permissions change meanwhile. RabbitMQ remembers them too.

use nexo_broker::access::{Permission, Resource};
use nexo_types::same_bytes;

use crate::identity::{Identity, Refused};

/// The exchange that somebody was last allowed to publish to.
#[derive(Debug, Default)]
pub struct PublishRights {
    /// As of which users; 0 for never.
    generation: u64,
    exchange: Vec<u8>,
    /// Whether something is said of its topics, so that each routing key must be looked at.
    by_topic: bool,
}

impl PublishRights {
    /// Whether it is known that this may be published. `false` if it must be looked up.
    #[inline]
    #[must_use]
    pub fn knows(&self, identity: &Identity, exchange: &[u8]) -> bool {
        self.generation == identity.broker.access_generation()
            && !self.by_topic
            && same_bytes(&self.exchange, exchange)
    }

    /// Looks up whether somebody may publish to an exchange, and remembers that.
    ///
    /// # Errors
    /// If not.
    pub fn check(&mut self, identity: &Identity, vhost: &str, exchange: &str) -> Result<(), Refused> {
        // Asked for before: a change in between makes what is remembered too old, never too new.
        let generation = identity.broker.access_generation();
        if self.generation == generation && same_bytes(&self.exchange, exchange.as_bytes()) {
            return Ok(());
        }
        self.generation = 0;
        identity.may(vhost, Permission::Write, Resource::exchange(exchange))?;
        self.by_topic = identity.has_topics(vhost, exchange);
        self.exchange.clear();
        self.exchange.extend_from_slice(exchange.as_bytes());
        self.generation = generation;
        Ok(())
    }

    /// Whether each routing key must be looked at, if it is a topic exchange. As of the last [`Self::check`].
    #[must_use]
    pub const fn is_by_topic(&self) -> bool {
        self.by_topic
    }
}
