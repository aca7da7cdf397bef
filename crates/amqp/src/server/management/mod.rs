//! AMQP for those who have no connection: what the management API declares, binds, publishes and gets. The rules, codes and
//! texts are those of [`server`](super), so that a queue is the same whichever way it was asked for.
//!
//! - `json`: tables and properties as JSON, and back.
//! - `declare`: queues, exchanges and bindings.
//! - `messages`: publishing one message, and getting some.

mod declare;
mod json;
mod messages;

use nexo_access::Identity;
use nexo_broker::Broker;
use thiserror::Error;

pub use declare::{
    ExchangeAsked, QueueAsked, bind, binding, check_exchange, check_queue, check_shared, declare_exchange,
    declare_queue, delete_exchange, delete_queue, purge_queue, queue_type, unbind,
};
pub use json::{JsonError, argument_json, properties, raw_table_json};
pub use messages::{AckMode, Got, Publish, get, publish};

use super::access::Rights;
use super::error::Refusal;
use crate::codec::ReplyCode;

/// Who wants something done, and of which broker. Whether he may is asked as of an AMQP client.
#[derive(Clone, Copy, Debug)]
pub struct By<'a> {
    /// The broker.
    pub broker: &'a Broker,
    /// Who asks.
    pub identity: &'a Identity,
}

impl<'a> By<'a> {
    const fn rights(self) -> Rights<'a> {
        Rights { broker: self.broker, identity: self.identity }
    }
}

/// Why something was not done, in the words that an AMQP client would be told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{code} {name} - {text}")]
pub struct Refused {
    /// AMQP's number for it.
    pub code: u16,
    /// AMQP's name for it.
    pub name: &'static str,
    /// What is wrong.
    pub text: String,
}

impl Refused {
    /// Whether the broker is to blame, and not whoever asked.
    #[must_use]
    pub const fn is_of_broker(&self) -> bool {
        self.code == ReplyCode::InternalError.number()
    }

    /// Whether whoever asked lacks a permission. An exchange that nobody may publish to has the same code and other words.
    #[must_use]
    pub fn is_of_permissions(&self) -> bool {
        self.code == ReplyCode::AccessRefused.number() && self.text.starts_with("access to ")
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { code: refusal.code.number(), name: refusal.code.name(), text: refusal.text }
    }
}

impl From<JsonError> for Refused {
    fn from(error: JsonError) -> Self {
        Refusal::precondition(error.to_string()).into()
    }
}

/// Gives an outcome when it is safe to tell: a refusal may rest on what another has just declared or deleted.
async fn settled<T>(broker: &Broker, outcome: Result<T, Refusal>) -> Result<T, Refused> {
    if let Err(refusal) = &outcome
        && refusal.rests_on_declares()
    {
        broker.wait_for(broker.last_change()).await.map_err(Refusal::from)?;
    }
    outcome.map_err(Refused::from)
}
