//! Names in addresses and bodies. A vhost is named in nearly all of them.

use nexo_types::{ExchangeName, QueueName, VhostName};

use super::Api;
use super::error::ApiError;

/// What the default exchange is called where an address cannot name nothing.
const DEFAULT_EXCHANGE: &str = "amq.default";

/// A vhost that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vhost(VhostName);

impl Vhost {
    /// The vhost of this name.
    pub(super) fn named(api: &Api, name: &str) -> Result<Self, ApiError> {
        let name = VhostName::new(name).ok().filter(|name| api.broker.vhost(name).is_some());
        name.map(Self).ok_or_else(ApiError::not_found)
    }

    /// One that is known to be there.
    pub(super) const fn of(name: VhostName) -> Self {
        Self(name)
    }

    pub(super) const fn name(&self) -> &VhostName {
        &self.0
    }

    /// The vhost in which something is to be made.
    pub(super) fn to_change(api: &Api, name: &str) -> Result<Self, ApiError> {
        Self::named(api, name).map_err(|_| ApiError::no_vhost())
    }

    /// All there are.
    pub(super) fn all(api: &Api) -> Vec<Self> {
        api.broker.vhosts().into_iter().map(|vhost| Self(vhost.name)).collect()
    }

    pub(super) fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// A queue of this vhost.
    pub(super) fn queue(&self, name: &str) -> Result<QueueName, ApiError> {
        Ok(QueueName::at(&self.0, name)?)
    }

    /// An exchange of this vhost.
    pub(super) fn exchange(&self, name: &str) -> Result<ExchangeName, ApiError> {
        let name = if name == DEFAULT_EXCHANGE { "" } else { name };
        Ok(ExchangeName::at(&self.0, name)?)
    }

    /// Whether a queue is one of this vhost.
    pub(super) fn has_queue(&self, name: &QueueName) -> bool {
        self.as_str() == of_queue(name)
    }
}

/// The vhost that a queue is in.
pub(super) fn of_queue(name: &QueueName) -> &str {
    name.vhost_str()
}

/// The vhost that an exchange is in.
pub(super) fn of_exchange(name: &ExchangeName) -> &str {
    name.vhost_str()
}
