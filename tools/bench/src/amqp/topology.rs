//! The queues of a load, and the exchange in front of them where there is one: declared before it, deleted after.

use anyhow::Context;
use nexo_amqp::codec::method::{ExchangeMethod, QueueMethod, exchange, queue};
use nexo_amqp::codec::{Method, ShortStr, Table, TableBuf};

use super::connection::{Connection, InputSize, short};
use super::publisher::CHANNEL;
use super::url::AmqpUrl;
use crate::protocol::Declared;
use crate::work::{Durability, Settings};

/// What was declared. Deleted by [`Topology::delete`].
#[derive(Debug)]
pub(crate) struct Topology {
    connection: Connection,
    pub(crate) queues: Vec<String>,
    exchange: Option<String>,
}

impl Topology {
    /// Declares queues of these names.
    pub(crate) fn declare(url: &AmqpUrl, queues: &[String], settings: &Settings) -> anyhow::Result<Self> {
        let mut connection = Connection::open(url, InputSize::Small)?;
        connection.open_channel(CHANNEL)?;
        let mut topology = Self { connection, queues: Vec::new(), exchange: None };
        for queue in queues {
            declare_queue(&mut topology.connection, queue, settings)
                .with_context(|| format!("cannot declare the queue '{queue}'"))?;
            topology.queues.push(queue.clone());
        }
        Ok(topology)
    }

    /// Declares an exchange of this kind and binds every queue to it.
    pub(crate) fn exchange(&mut self, name: &str, kind: &str) -> anyhow::Result<()> {
        self.exchange_with(name, kind, Table::EMPTY)
    }

    /// The same with arguments for the exchange.
    pub(crate) fn exchange_with(
        &mut self,
        name: &str,
        kind: &str,
        arguments: Table<'_>,
    ) -> anyhow::Result<()> {
        declare_exchange(&mut self.connection, name, kind, arguments)
            .with_context(|| format!("cannot declare the exchange '{name}' of type {kind}"))?;
        self.exchange = Some(name.to_owned());
        for queue in &self.queues {
            bind(&mut self.connection, queue, name, queue)?;
        }
        Ok(())
    }
}

impl Declared for Topology {
    fn delete(mut self: Box<Self>) -> anyhow::Result<()> {
        for queue in std::mem::take(&mut self.queues) {
            delete_queue(&mut self.connection, &queue)?;
        }
        if let Some(name) = self.exchange.take() {
            let delete =
                exchange::Delete { ticket: 0, exchange: short(&name)?, if_unused: false, nowait: false };
            self.connection.send(CHANNEL, &delete)?;
            self.connection.wait_for(CHANNEL, |method| match method {
                Method::Exchange(ExchangeMethod::DeleteOk(_)) => Some(()),
                _ => None,
            })?;
        }
        self.connection.close()
    }
}

/// Declares one queue on an open channel.
pub(crate) fn declare_queue(
    connection: &mut Connection,
    name: &str,
    settings: &Settings,
) -> anyhow::Result<()> {
    let mut arguments = TableBuf::new();
    for argument in &settings.arguments {
        let name = short(&argument.name)?;
        match (argument.value.parse::<i64>(), argument.value.parse::<bool>()) {
            (Ok(number), _) => arguments.put(name, number),
            (_, Ok(truth)) => arguments.put(name, truth),
            _ => arguments.put(name, argument.value.as_str()),
        };
    }
    let declare = queue::Declare {
        durable: settings.durability == Durability::Durable,
        ..declaration(name, arguments.as_table())?
    };
    connection.send(CHANNEL, &declare)?;
    wait_for_queue(connection)?;
    Ok(())
}

/// How many messages wait in a queue that is there.
pub(crate) fn queue_depth(connection: &mut Connection, name: &str) -> anyhow::Result<u32> {
    let declare = queue::Declare { passive: true, ..declaration(name, Table::EMPTY)? };
    connection.send(CHANNEL, &declare)?;
    wait_for_queue(connection)
}

/// Deletes one queue on an open channel.
pub(crate) fn delete_queue(connection: &mut Connection, name: &str) -> anyhow::Result<()> {
    let delete =
        queue::Delete { ticket: 0, queue: short(name)?, if_unused: false, if_empty: false, nowait: false };
    connection.send(CHANNEL, &delete)?;
    connection.wait_for(CHANNEL, |method| match method {
        Method::Queue(QueueMethod::DeleteOk(_)) => Some(()),
        _ => None,
    })
}

/// Binds a queue to an exchange.
pub(crate) fn bind(
    connection: &mut Connection,
    queue: &str,
    exchange: &str,
    routing_key: &str,
) -> anyhow::Result<()> {
    let bind = queue::Bind {
        ticket: 0,
        queue: short(queue)?,
        exchange: short(exchange)?,
        routing_key: short(routing_key)?,
        nowait: false,
        arguments: Table::EMPTY,
    };
    connection.send(CHANNEL, &bind)?;
    connection.wait_for(CHANNEL, |method| match method {
        Method::Queue(QueueMethod::BindOk(_)) => Some(()),
        _ => None,
    })
}

/// Ends a binding.
pub(crate) fn unbind(
    connection: &mut Connection,
    queue: &str,
    exchange: &str,
    routing_key: &str,
) -> anyhow::Result<()> {
    let unbind = queue::Unbind {
        ticket: 0,
        queue: short(queue)?,
        exchange: short(exchange)?,
        routing_key: short(routing_key)?,
        arguments: Table::EMPTY,
    };
    connection.send(CHANNEL, &unbind)?;
    connection.wait_for(CHANNEL, |method| match method {
        Method::Queue(QueueMethod::UnbindOk(_)) => Some(()),
        _ => None,
    })
}

/// Declares an exchange on an open channel.
pub(crate) fn declare_exchange(
    connection: &mut Connection,
    name: &str,
    kind: &str,
    arguments: Table<'_>,
) -> anyhow::Result<()> {
    let declare = exchange::Declare {
        ticket: 0,
        exchange: short(name)?,
        kind: short(kind)?,
        passive: false,
        durable: false,
        auto_delete: false,
        internal: false,
        nowait: false,
        arguments,
    };
    connection.send(CHANNEL, &declare)?;
    connection.wait_for(CHANNEL, |method| match method {
        Method::Exchange(ExchangeMethod::DeclareOk(_)) => Some(()),
        _ => None,
    })
}

fn declaration<'a>(name: &'a str, arguments: Table<'a>) -> anyhow::Result<queue::Declare<'a>> {
    let queue: ShortStr<'a> = short(name)?;
    Ok(queue::Declare {
        ticket: 0,
        queue,
        passive: false,
        durable: false,
        exclusive: false,
        auto_delete: false,
        nowait: false,
        arguments,
    })
}

fn wait_for_queue(connection: &mut Connection) -> anyhow::Result<u32> {
    connection.wait_for(CHANNEL, |method| match method {
        Method::Queue(QueueMethod::DeclareOk(ok)) => Some(ok.message_count),
        _ => None,
    })
}
