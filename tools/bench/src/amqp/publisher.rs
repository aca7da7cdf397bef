//! A publisher: one connection, one thread. Without confirms only TCP slows it down; with confirms it fills its
//! window, waits for whatever the broker confirms, and fills it again, which needs no second thread.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use nexo_amqp::codec::method::confirm;
use nexo_amqp_client::{AmqpUrl, Connection, Error, Filled, InputSize, PATIENCE};

use super::confirms::Confirms;
pub(super) use super::confirms::Times;
use super::template::Template;
use crate::tally::Tally;
use crate::work::MessageShape;

/// The channel of all that a load publishes and consumes.
pub(crate) const CHANNEL: u16 = 1;

/// A connection that publishes.
pub(crate) struct Publisher {
    connection: Connection,
    template: Template,
    confirming: Option<Confirming>,
    published: u64,
    /// Messages that are marked one by one, on their way into one write.
    marked: Vec<u8>,
}

struct Confirming {
    /// Most messages that are sent and not confirmed.
    window: u64,
    confirms: Confirms,
}

impl Publisher {
    /// Connects; `window` is how many may be unconfirmed, 0 for no confirms.
    pub(crate) fn open(url: &AmqpUrl, shape: &MessageShape, window: u32) -> anyhow::Result<Self> {
        let mut connection = Connection::open(url, InputSize::Small)?;
        connection.open_channel(CHANNEL)?;
        let template = Template::new(shape, connection.frame_max)?;
        let confirming = if window == 0 {
            None
        } else {
            connection.call(CHANNEL, &confirm::Select { nowait: false }, "confirm.select-ok")?;
            Some(Confirming { window: u64::from(window), confirms: Confirms::new(connection.frame_max) })
        };
        Ok(Self { connection, template, confirming, published: 0, marked: Vec::new() })
    }

    /// Publishes until told to stop or `limit` is reached, then waits until the broker has seen everything. Gives back
    /// how long confirms took, in nanoseconds.
    pub(crate) fn run(
        mut self,
        limit: Option<u64>,
        stop: &AtomicBool,
        tally: &Tally,
    ) -> anyhow::Result<Option<Histogram<u64>>> {
        let limit = limit.unwrap_or(u64::MAX);
        while self.published < limit && !stop.load(Ordering::Relaxed) {
            let room = self.room();
            if room == 0 {
                self.await_confirms(tally)?;
            } else {
                self.publish(room.min(limit - self.published), tally)?;
            }
        }
        while self.unconfirmed() > 0 {
            self.await_confirms(tally)?;
        }
        self.finish()
    }

    /// Publishes as many as the window has room for; all of them are on their way when this returns.
    pub(super) fn fill_window(&mut self, tally: &Tally) -> anyhow::Result<()> {
        while let room @ 1.. = self.room() {
            self.publish(room, tally)?;
        }
        Ok(())
    }

    /// Ends the connection once the broker has seen everything.
    pub(super) fn finish(mut self) -> anyhow::Result<Option<Histogram<u64>>> {
        self.connection.close_channel(CHANNEL)?;
        self.connection.close()?;
        Ok(self.confirming.map(|confirming| confirming.confirms.nanos))
    }

    /// The socket, for whoever waits until there is something to read.
    pub(super) fn socket(&self) -> &TcpStream {
        &self.connection.socket
    }

    /// Writes at most this many messages.
    fn publish(&mut self, count: u64, tally: &Tally) -> anyhow::Result<()> {
        let frames = self.template.take(usize::try_from(count).unwrap_or(usize::MAX));
        let bytes = frames.len();
        let began = Instant::now();
        if let Err(error) = (&self.connection.socket).write_all(frames) {
            return Err(self.why(error));
        }
        self.published += self.template.count(bytes);
        if let Some(Confirming { confirms, .. }) = &mut self.confirming {
            confirms.sent(self.published, Times::From(began));
        }
        tally.published.set(self.published);
        Ok(())
    }

    /// Writes `count` messages at once that say in their bodies when they were due.
    pub(super) fn publish_marked(
        &mut self,
        due: Duration,
        count: u64,
        times: Times,
        tally: &Tally,
    ) -> anyhow::Result<()> {
        let mark = (due.as_nanos() as u64).to_be_bytes();
        self.marked.clear();
        for _ in 0..count {
            self.marked.extend_from_slice(self.template.take_marked(mark));
        }
        if let Err(error) = (&self.connection.socket).write_all(&self.marked) {
            return Err(self.why(error));
        }
        self.published += count;
        if let Some(Confirming { confirms, .. }) = &mut self.confirming {
            confirms.sent(self.published, times);
        }
        tally.published.set(self.published);
        Ok(())
    }

    /// Reads confirms, waiting until there are some.
    pub(super) fn await_confirms(&mut self, tally: &Tally) -> anyhow::Result<()> {
        let Some(Confirming { confirms, .. }) = &mut self.confirming else { return Ok(()) };
        let input = &mut self.connection.input;
        let filled = input.fill(&self.connection.socket).context("cannot read confirms")?;
        ensure!(filled == Filled::More, "nothing was confirmed for {PATIENCE:?}");
        let done = confirms.scan(input.bytes(), Instant::now())?;
        input.consume(done);
        tally.confirmed.set(confirms.confirmed());
        Ok(())
    }

    /// How many may be sent now.
    pub(super) fn room(&self) -> u64 {
        self.confirming.as_ref().map_or(u64::MAX, |confirming| confirming.window - self.unconfirmed())
    }

    pub(super) fn unconfirmed(&self) -> u64 {
        self.confirming.as_ref().map_or(0, |confirming| self.published - confirming.confirms.confirmed())
    }

    /// A write failed: the broker may have said why before it went.
    fn why(&mut self, error: std::io::Error) -> anyhow::Error {
        // If it has said something, it is there already.
        self.connection.socket.set_read_timeout(Some(Duration::from_secs(1))).ok();
        match self.connection.wait_for(CHANNEL, |_| None::<()>) {
            Err(reason @ Error::Closed { .. }) => reason.into(),
            _ => anyhow::Error::new(error).context("cannot publish"),
        }
    }
}
