//! Messages with a delay and a priority each, through an exchange of type `x-delayed-message`. What counts here is when
//! they come, not how fast they go.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, ensure};
use nexo_amqp::codec::{PropertiesBuilder, ShortStr, TableBuf, encode_message};
use nexo_amqp_client::{AmqpUrl, Connection, Filled, PATIENCE, methods, short};

use super::confirmed::open_confirming;
use super::publisher::CHANNEL;
use super::topology::Topology;
use crate::work::{Delayed, Durability, QueueArgument, Settings};

/// Messages that are sent before their confirms are waited for.
const BATCH: usize = 500;

/// Makes a queue with all priorities behind an exchange of the same name that delays.
pub(super) fn declare(url: &AmqpUrl, name: &str) -> anyhow::Result<Topology> {
    let arguments = vec![QueueArgument::new("x-max-priority", "255")];
    let settings = Settings { durability: Durability::Durable, arguments };
    let mut topology = Topology::declare(url, &[name.to_owned()], &settings)?;
    let mut arguments = TableBuf::new();
    arguments.put(ShortStr::from_static("x-delayed-type"), "direct");
    topology.exchange_with(name, "x-delayed-message", arguments.as_table())?;
    Ok(topology)
}

/// Publishes all messages, and waits until they are confirmed.
pub(super) fn publish(
    url: &AmqpUrl,
    name: &str,
    messages: &mut dyn Iterator<Item = Delayed>,
) -> anyhow::Result<()> {
    let (mut connection, mut confirms) = open_confirming(url)?;
    let mut published = 0;
    loop {
        let mut out = Vec::new();
        for message in (&mut *messages).take(BATCH) {
            encode(&mut out, name, &message, &connection)?;
            published += 1;
        }
        if out.is_empty() {
            return Ok(connection.close()?);
        }
        (&connection.socket).write_all(&out).context("cannot publish")?;
        while confirms.confirmed() < published {
            let filled = connection.input.fill(&connection.socket).context("cannot read confirms")?;
            ensure!(filled == Filled::More, "nothing was confirmed for {PATIENCE:?}");
            let done = confirms.scan(connection.input.bytes(), Instant::now())?;
            connection.input.consume(done);
        }
    }
}

fn encode(out: &mut Vec<u8>, name: &str, message: &Delayed, connection: &Connection) -> anyhow::Result<()> {
    let publish = methods::publish(short(name)?, short(name)?);
    let mut headers = TableBuf::new();
    headers.put(ShortStr::from_static("x-delay"), i64::try_from(message.delay.as_millis())?);
    let properties =
        PropertiesBuilder::new().headers(headers.as_table()).delivery_mode(2).priority(message.priority);
    encode_message(out, CHANNEL, &publish, &properties.to_vec(), &message.body, connection.frame_max);
    Ok(())
}
