//! A publisher that waits until the broker has taken care of what it sent before it goes on: for few messages whose
//! time matters, or that are too large or too odd for a template.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_amqp::codec::method::confirm;
use nexo_amqp_client::{AmqpUrl, Connection, Filled, InputSize, PATIENCE};

use super::confirms::Confirms;
use super::publisher::CHANNEL;

/// A connection with one channel that has its publishes confirmed.
pub(crate) struct Confirmed {
    /// For declarations, while nothing is unconfirmed.
    pub(crate) connection: Connection,
    confirms: Confirms,
    published: u64,
}

/// A connection with a channel on which publishes are confirmed.
pub(super) fn open_confirming(url: &AmqpUrl) -> anyhow::Result<(Connection, Confirms)> {
    let mut connection = Connection::open(url, InputSize::Small)?;
    connection.open_channel(CHANNEL)?;
    connection.call(CHANNEL, &confirm::Select { nowait: false }, "confirm.select-ok")?;
    let confirms = Confirms::new(connection.frame_max);
    Ok((connection, confirms))
}

impl Confirmed {
    pub(crate) fn open(url: &AmqpUrl) -> anyhow::Result<Self> {
        let (connection, confirms) = open_confirming(url)?;
        Ok(Self { connection, confirms, published: 0 })
    }

    /// Sends the frames of one message, and gives back how long it took from then to its confirm.
    pub(crate) fn publish(&mut self, frames: &[u8]) -> anyhow::Result<Duration> {
        let began = Instant::now();
        (&self.connection.socket).write_all(frames).context("cannot publish")?;
        self.published += 1;
        let input = &mut self.connection.input;
        while self.confirms.confirmed() < self.published {
            let filled = input.fill(&self.connection.socket).context("cannot read a confirm")?;
            ensure!(filled == Filled::More, "nothing was confirmed for {PATIENCE:?}");
            let done = self.confirms.scan(input.bytes(), Instant::now())?;
            input.consume(done);
        }
        Ok(began.elapsed())
    }

    /// Sends the frames of one message, and again whenever the socket's time to read is over, until a confirm comes.
    pub(crate) fn publish_until_confirmed(&mut self, frames: &[u8]) -> anyhow::Result<()> {
        let before = self.confirms.confirmed();
        (&self.connection.socket).write_all(frames).context("cannot publish")?;
        while self.confirms.confirmed() == before {
            let input = &mut self.connection.input;
            match input.fill(&self.connection.socket).context("cannot read a confirm")? {
                Filled::Nothing => (&self.connection.socket).write_all(frames).context("cannot publish")?,
                Filled::More => {
                    let done = self.confirms.scan(input.bytes(), Instant::now())?;
                    input.consume(done);
                }
            }
        }
        Ok(())
    }
}
