//! Whether a queue that is there is the one that a declaration asks for.

use nexo_broker::{Durability, QueueHandle};
use nexo_types::QueueName;

use super::erlang;
use super::error::Refusal;
use crate::codec::method::queue::Declare;
use crate::codec::{Table, Value};

/// The arguments that RabbitMQ compares, in its order; others make no difference.
const COMPARED: [&str; 14] = [
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-delivery-limit",
    "x-consumer-timeout",
];

/// Compares them as RabbitMQ does.
pub(super) fn check(queue: &QueueHandle, declare: &Declare<'_>) -> Result<(), Refusal> {
    let name = queue.name();
    let config = queue.base_config();
    let durable = queue.durability() == Durability::Durable;
    // A queue that belongs to a connection never survives a restart, whatever its declaration said.
    if queue.owner().is_none() && durable != declare.durable {
        return Err(differs(name, "durable", &plain(declare.durable), &plain(durable)));
    }
    if config.auto_delete != declare.auto_delete {
        return Err(differs(name, "auto_delete", &plain(declare.auto_delete), &plain(config.auto_delete)));
    }
    let current = Table::parse(&config.arguments).unwrap_or(Table::EMPTY);
    COMPARED.iter().try_for_each(|key| compare(name, key, current, declare.arguments))
}

fn compare(name: &QueueName, key: &str, current: Table<'_>, received: Table<'_>) -> Result<(), Refusal> {
    let default = (key == "x-queue-type").then_some(Value::LongStr(b"classic"));
    let typed =
        |value: Value<'_>| format!("the value '{}' of type '{}'", erlang::value(value), value.type_name());
    match (current.get(key).or(default), received.get(key).or(default)) {
        (None, None) => Ok(()),
        (Some(current), Some(received)) if same(current, received) => Ok(()),
        (Some(current), Some(received)) => {
            Err(differs(name, key, &plain(erlang::value(received)), &plain(erlang::value(current))))
        }
        (Some(current), None) => Err(differs(name, key, "none", &typed(current))),
        (None, Some(received)) => Err(differs(name, key, &typed(received), "none")),
    }
}

/// Numbers are the same across widths: clients choose one by the size of the number.
fn same(one: Value<'_>, other: Value<'_>) -> bool {
    match (one.as_integer(), other.as_integer()) {
        (Some(one), Some(other)) => one == other,
        (None, None) => one == other,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn plain(value: impl std::fmt::Display) -> String {
    format!("'{value}'")
}

fn differs(name: &QueueName, key: &str, received: &str, current: &str) -> Refusal {
    let vhost = name.vhost_str();
    Refusal::precondition(format!(
        "inequivalent arg '{key}' for queue '{name}' in vhost '{vhost}': received {received} but current is {current}"
    ))
}
