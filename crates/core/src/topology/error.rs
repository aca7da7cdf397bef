//! Why a change to exchanges and bindings is refused. Each protocol maps these to its own codes.

use nexo_types::{ExchangeName, QueueName};
use thiserror::Error;

use super::vhost::VhostError;

/// A property in which an exchange is otherwise than a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The property, by the name that RabbitMQ gives it.
    pub property: &'static str,
    /// What is asked for, with the quotes and words that RabbitMQ puts around it.
    pub received: String,
    /// What it is, likewise.
    pub current: String,
}

/// Why an exchange cannot be of the type that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KindError {
    /// No such type.
    #[error("unknown exchange type '{name}'")]
    Unknown {
        /// What was given.
        name: String,
    },
    /// A delayed exchange without another type, or one that does not exist.
    #[error("an x-delayed-message exchange needs an argument 'x-delayed-type' with the type that it delays")]
    NoDelayedType,
    /// A property that cannot be hashed.
    #[error("property '{name}' cannot be hashed; correlation_id, message_id and timestamp can")]
    Property {
        /// What was given.
        name: String,
    },
    /// A header and a property.
    #[error("'hash-header' and 'hash-property' exclude each other")]
    TwoHashes,
    /// A header or property whose name is not a text.
    #[error("'hash-header' and 'hash-property' must be texts")]
    HashIsNoText,
}

/// Why an exchange is not declared.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeclareError {
    /// The default exchange is what it is.
    #[error("the default exchange cannot be declared")]
    DefaultExchange,
    /// A name that only the broker may use.
    #[error("exchange name '{name}' begins with 'amq.', which is reserved")]
    Reserved {
        /// One that begins with `amq.`.
        name: ExchangeName,
    },
    /// It exists, but is otherwise.
    #[error(
        "exchange '{name}' exists with {} {}; this declare asks for {}",
        difference.property, difference.current, difference.received
    )]
    Differs {
        /// The one that is there already.
        name: ExchangeName,
        /// Where it differs first.
        difference: Difference,
    },
    /// Its virtual host is not there.
    #[error(transparent)]
    Vhost(#[from] VhostError),
    /// Its alternate exchange would be in another virtual host.
    #[error("the alternate exchange of exchange '{name}' cannot be in another virtual host")]
    AlternateElsewhere {
        /// The one that was declared.
        name: ExchangeName,
    },
    /// There are too many.
    #[error("exchange '{name}' would be one more than the {max} that there may be")]
    TooMany {
        /// The one that was declared.
        name: ExchangeName,
        /// Exchanges, over all virtual hosts.
        max: usize,
    },
}

/// Why a passive declare fails.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PassiveError {
    /// RabbitMQ lets nobody ask after the default exchange.
    #[error("the default exchange cannot be asked after")]
    DefaultExchange,
    /// There is none of that name.
    #[error("there is no exchange '{name}'")]
    NoSuchExchange {
        /// As it was asked for.
        name: ExchangeName,
    },
}

/// Why an exchange is not deleted. One that does not exist is as good as deleted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeleteError {
    /// The default exchange stays.
    #[error("the default exchange cannot be deleted")]
    DefaultExchange,
    /// The exchanges that the broker brings with it stay.
    #[error("exchange '{name}' belongs to the broker and cannot be deleted")]
    Reserved {
        /// One that every virtual host has.
        name: ExchangeName,
    },
    /// It has bindings, and is to be deleted only if it has none.
    #[error("exchange '{name}' has bindings and is to be deleted only without")]
    InUse {
        /// One with bindings from it, that was to go only without.
        name: ExchangeName,
    },
}

/// Why a binding is not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BindError {
    /// The default exchange has its bindings and no others.
    #[error("the default exchange can be neither end of a binding")]
    DefaultExchange,
    /// Its ends are in two virtual hosts.
    #[error("a binding cannot lead from one virtual host to another")]
    AcrossVhosts,
    /// The source, or the destination, is not there.
    #[error("there is no exchange '{name}'")]
    NoSuchExchange {
        /// The end of the binding that is not there.
        name: ExchangeName,
    },
    /// The destination is not there.
    #[error("there is no queue '{name}'")]
    NoSuchQueue {
        /// The end of the binding that is not there.
        name: QueueName,
    },
    /// An `x-match` that means nothing.
    #[error("x-match is '{value}'; it must be all, any, all-with-x or any-with-x")]
    UnknownMatch {
        /// What was given.
        value: String,
    },
    /// An `x-match` that is no text.
    #[error("x-match must be a text: all, any, all-with-x or any-with-x")]
    MatchIsNoText,
    /// A binding key of a consistent-hash exchange that is no number.
    #[error("binding key '{key}' must be a whole number: the weight of the destination")]
    WeightIsNoNumber {
        /// The key of the binding, which is its weight.
        key: String,
    },
    /// A weight of nothing.
    #[error("binding key '{key}' must be above 0: the weight of the destination")]
    WeightTooSmall {
        /// The key of the binding, which is its weight.
        key: String,
    },
    /// There are too many.
    #[error("there may be {max} bindings, and there are")]
    TooMany {
        /// Bindings, over all exchanges.
        max: usize,
    },
}

/// Why a binding is not undone. One that does not exist is as good as undone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnbindError {
    /// The default exchange keeps its bindings.
    #[error("the default exchange can be neither end of a binding")]
    DefaultExchange,
}

/// Why a message is not routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RouteError {
    /// There is no such exchange.
    #[error("there is no such exchange")]
    NoSuchExchange,
    /// Clients may not publish to it.
    #[error("the exchange is internal: clients may not publish to it")]
    Internal,
}
