//! The queues of a load, and the exchange in front of them where there is one: declared before it, deleted after.

use anyhow::Context;
use nexo_amqp::codec::method::{QueueMethod, exchange, queue};
use nexo_amqp::codec::{Method, Table, TableBuf};
use nexo_amqp_client::{AmqpUrl, Connection, InputSize, methods, short};

use super::publisher::CHANNEL;
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
            let delete = methods::delete_exchange(short(&name)?);
            self.connection.call(CHANNEL, &delete, "exchange.delete-ok")?;
        }
        Ok(self.connection.close()?)
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
        arguments: arguments.as_table(),
        ..methods::declare_queue(short(name)?)
    };
    connection.send(CHANNEL, &declare)?;
    wait_for_queue(connection)?;
    Ok(())
}

/// How many messages wait in a queue that is there.
pub(crate) fn queue_depth(connection: &mut Connection, name: &str) -> anyhow::Result<u32> {
    let declare = queue::Declare { passive: true, ..methods::declare_queue(short(name)?) };
    connection.send(CHANNEL, &declare)?;
    wait_for_queue(connection)
}

/// Deletes one queue on an open channel.
pub(crate) fn delete_queue(connection: &mut Connection, name: &str) -> anyhow::Result<()> {
    Ok(connection.call(CHANNEL, &methods::delete_queue(short(name)?), "queue.delete-ok")?)
}

/// Binds a queue to an exchange.
pub(crate) fn bind(
    connection: &mut Connection,
    queue: &str,
    exchange: &str,
    routing_key: &str,
) -> anyhow::Result<()> {
    let bind = methods::bind(short(queue)?, short(exchange)?, short(routing_key)?);
    Ok(connection.call(CHANNEL, &bind, "queue.bind-ok")?)
}

/// Ends a binding.
pub(crate) fn unbind(
    connection: &mut Connection,
    queue: &str,
    exchange: &str,
    routing_key: &str,
) -> anyhow::Result<()> {
    let unbind = methods::unbind(short(queue)?, short(exchange)?, short(routing_key)?);
    Ok(connection.call(CHANNEL, &unbind, "queue.unbind-ok")?)
}

/// Declares an exchange on an open channel.
pub(crate) fn declare_exchange(
    connection: &mut Connection,
    name: &str,
    kind: &str,
    arguments: Table<'_>,
) -> anyhow::Result<()> {
    let declare = exchange::Declare { arguments, ..methods::declare_exchange(short(name)?, short(kind)?) };
    Ok(connection.call(CHANNEL, &declare, "exchange.declare-ok")?)
}

fn wait_for_queue(connection: &mut Connection) -> anyhow::Result<u32> {
    Ok(connection.wait_for(CHANNEL, |method| match method {
        Method::Queue(QueueMethod::DeclareOk(ok)) => Some(ok.message_count),
        _ => None,
    })?)
}
