//! Methods with nothing set but what they are about. Whoever wants more says so:
//! `queue::Declare { durable: true, ..declare_queue(name) }`.

use nexo_amqp::codec::method::{basic, exchange, queue};
use nexo_amqp::codec::{ShortStr, Table};

use crate::error::Error;

/// A name as the protocol carries it.
///
/// # Errors
/// If it is longer than 255 bytes.
pub fn short(text: &str) -> Result<ShortStr<'_>, Error> {
    ShortStr::new(text.as_bytes()).map_err(|_| Error::NameTooLong(text.to_owned()))
}

/// A transient queue that everybody can use.
#[must_use]
pub const fn declare_queue(queue: ShortStr<'_>) -> queue::Declare<'_> {
    queue::Declare {
        ticket: 0,
        queue,
        passive: false,
        durable: false,
        exclusive: false,
        auto_delete: false,
        nowait: false,
        arguments: Table::EMPTY,
    }
}

/// The end of a queue, whatever is in it.
#[must_use]
pub const fn delete_queue(queue: ShortStr<'_>) -> queue::Delete<'_> {
    queue::Delete { ticket: 0, queue, if_unused: false, if_empty: false, nowait: false }
}

/// A binding of a queue to an exchange.
#[must_use]
pub const fn bind<'a>(
    queue: ShortStr<'a>,
    exchange: ShortStr<'a>,
    routing_key: ShortStr<'a>,
) -> queue::Bind<'a> {
    queue::Bind { ticket: 0, queue, exchange, routing_key, nowait: false, arguments: Table::EMPTY }
}

/// The end of such a binding.
#[must_use]
pub const fn unbind<'a>(
    queue: ShortStr<'a>,
    exchange: ShortStr<'a>,
    routing_key: ShortStr<'a>,
) -> queue::Unbind<'a> {
    queue::Unbind { ticket: 0, queue, exchange, routing_key, arguments: Table::EMPTY }
}

/// A transient exchange.
#[must_use]
pub const fn declare_exchange<'a>(exchange: ShortStr<'a>, kind: ShortStr<'a>) -> exchange::Declare<'a> {
    exchange::Declare {
        ticket: 0,
        exchange,
        kind,
        passive: false,
        durable: false,
        auto_delete: false,
        internal: false,
        nowait: false,
        arguments: Table::EMPTY,
    }
}

/// The end of an exchange.
#[must_use]
pub const fn delete_exchange(exchange: ShortStr<'_>) -> exchange::Delete<'_> {
    exchange::Delete { ticket: 0, exchange, if_unused: false, nowait: false }
}

/// A publish that nobody must be there for.
#[must_use]
pub const fn publish<'a>(exchange: ShortStr<'a>, routing_key: ShortStr<'a>) -> basic::Publish<'a> {
    basic::Publish { ticket: 0, exchange, routing_key, mandatory: false, immediate: false }
}

/// A consumer that acknowledges.
#[must_use]
pub const fn consume<'a>(queue: ShortStr<'a>, consumer_tag: ShortStr<'a>) -> basic::Consume<'a> {
    basic::Consume {
        ticket: 0,
        queue,
        consumer_tag,
        no_local: false,
        no_ack: false,
        exclusive: false,
        nowait: false,
        arguments: Table::EMPTY,
    }
}
