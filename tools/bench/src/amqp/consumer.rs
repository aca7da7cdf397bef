//! A consumer: one connection, one thread, large reads that are scanned in place.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_amqp::codec::encode_method;
use nexo_amqp::codec::method::basic;
use nexo_amqp_client::{AmqpUrl, Connection, Filled, InputSize, PATIENCE, methods, short};

use super::deliveries::Deliveries;
use super::publisher::CHANNEL;
use crate::protocol::Look;
use crate::tally::Tally;
use crate::work::{Ack, Seen, Wants};

/// How often a consumer that gets nothing looks whether it should stop.
const GLANCE: Duration = Duration::from_millis(50);

/// A connection that consumes.
pub(crate) struct Consumer {
    connection: Connection,
    deliveries: Deliveries,
    ack: Ack,
    acknowledged: u64,
    acks: Vec<u8>,
    /// How long to sleep after each message.
    pause: Duration,
}

impl Consumer {
    /// Connects and subscribes. Deliveries begin at once.
    pub(crate) fn open(url: &AmqpUrl, wants: &Wants) -> anyhow::Result<Self> {
        if let Ack::Every(every) = wants.ack {
            ensure!(
                wants.prefetch == 0 || every <= wants.prefetch,
                "an acknowledgement for every {every} messages would never come with a prefetch of {}",
                wants.prefetch
            );
        }
        let mut connection = Connection::open(url, InputSize::Large)?;
        connection.open_channel(CHANNEL)?;
        if wants.prefetch > 0 {
            // For each consumer, as clients do it; quorum queues know no other way.
            let qos = basic::Qos { prefetch_size: 0, prefetch_count: wants.prefetch, global: false };
            connection.call(CHANNEL, &qos, "basic.qos-ok")?;
        }
        for queue in &wants.queues {
            // No answer is asked for: deliveries of the first queue may come before that for the second.
            let consume = methods::consume(short(queue)?, short(queue)?);
            let no_ack = wants.ack == Ack::Auto;
            connection.send(CHANNEL, &basic::Consume { no_ack, nowait: true, ..consume })?;
        }
        connection.socket.set_read_timeout(Some(GLANCE))?;
        let deliveries = Deliveries::new(connection.frame_max);
        Ok(Self {
            connection,
            deliveries,
            ack: wants.ack,
            acknowledged: 0,
            acks: Vec::new(),
            pause: wants.pause,
        })
    }

    /// Consumes until told to stop, and shows every message to whoever looks.
    pub(crate) fn run(self, stop: &AtomicBool, tally: &Tally, look: Look<'_>) -> anyhow::Result<Seen> {
        // Decided once, so that a load where nobody looks has nothing to call for each message.
        match look {
            Some(look) => self.run_with(stop, tally, look),
            None => self.run_with(stop, tally, |_, _| ()),
        }
    }

    fn run_with(
        mut self,
        stop: &AtomicBool,
        tally: &Tally,
        mut seen: impl FnMut(&[u8], Instant),
    ) -> anyhow::Result<Seen> {
        while !stop.load(Ordering::Relaxed) {
            let filled = self.connection.input.fill(&self.connection.socket);
            match filled.context("cannot read deliveries")? {
                Filled::More => {
                    let now = Instant::now();
                    let bytes = self.connection.input.bytes();
                    let done = self.deliveries.scan(bytes, |body| seen(body, now))?;
                    self.connection.input.consume(done);
                    if self.pause.is_zero() {
                        tally.consumed.set(self.deliveries.count);
                        self.acknowledge(self.deliveries.count)?;
                    } else {
                        self.take_slowly(stop, tally)?;
                    }
                }
                Filled::Nothing => self.acknowledge_all()?,
            }
        }
        self.acknowledge_all()?;
        self.connection.socket.set_read_timeout(Some(PATIENCE))?;
        self.connection.close()?;
        Ok(Seen { consumed: self.deliveries.count, redelivered: self.deliveries.redelivered })
    }

    /// Takes what has come one by one, with a pause after each.
    fn take_slowly(&mut self, stop: &AtomicBool, tally: &Tally) -> anyhow::Result<()> {
        for taken in tally.consumed.get() + 1..=self.deliveries.count {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(self.pause);
            tally.consumed.set(taken);
            self.acknowledge(taken)?;
        }
        Ok(())
    }

    /// Sends the acknowledgements that have come due when so many messages were taken, in one write.
    fn acknowledge(&mut self, taken: u64) -> anyhow::Result<()> {
        let Ack::Every(every) = self.ack else { return Ok(()) };
        while taken - self.acknowledged >= u64::from(every) {
            self.acknowledged += u64::from(every);
            let ack = basic::Ack { delivery_tag: self.acknowledged, multiple: every > 1 };
            encode_method(&mut self.acks, CHANNEL, &ack);
        }
        self.flush()
    }

    /// Sends one acknowledgement for whatever is left.
    fn acknowledge_all(&mut self) -> anyhow::Result<()> {
        if self.ack != Ack::Auto && self.deliveries.count > self.acknowledged {
            self.acknowledged = self.deliveries.count;
            let ack = basic::Ack { delivery_tag: self.acknowledged, multiple: true };
            encode_method(&mut self.acks, CHANNEL, &ack);
        }
        self.flush()
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if !self.acks.is_empty() {
            (&self.connection.socket).write_all(&self.acks).context("cannot acknowledge")?;
            self.acks.clear();
        }
        Ok(())
    }
}
