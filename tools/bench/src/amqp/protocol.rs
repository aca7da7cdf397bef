//! AMQP as a protocol for loads.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nexo_amqp_client::AmqpUrl;

use super::consumer::Consumer;
use super::delayed;
use super::paced::PacedPublisher;
use super::publisher::Publisher;
use super::topology::Topology;
use crate::crew::{CREW_MIN, Crew, Member};
use crate::protocol::{Consume, Declared, Look, Protocol, Publish, PublishPaced};
use crate::schedule::Schedule;
use crate::tally::{Tally, add_tally};
use crate::work::{Delayed, MessageShape, Paced, Seen, Settings, Wants};

impl Protocol for AmqpUrl {
    fn declare(
        &self,
        queues: &[String],
        fan_out: Option<&str>,
        settings: &Settings,
    ) -> anyhow::Result<Box<dyn Declared>> {
        let mut topology = Topology::declare(self, queues, settings)?;
        if let Some(exchange) = fan_out {
            topology.exchange(exchange, "fanout")?;
        }
        Ok(Box::new(topology))
    }

    fn declare_delayed(&self, queue: &str) -> anyhow::Result<Box<dyn Declared>> {
        Ok(Box::new(delayed::declare(self, queue)?))
    }

    fn publish_delayed(
        &self,
        queue: &str,
        messages: &mut dyn Iterator<Item = Delayed>,
    ) -> anyhow::Result<()> {
        delayed::publish(self, queue, messages)
    }

    fn publishers(
        &self,
        shapes: &[MessageShape],
        window: u32,
        limit: Option<u64>,
        tallies: &mut Vec<Arc<Tally>>,
    ) -> anyhow::Result<Vec<Box<dyn Publish>>> {
        let mut alone = Vec::new();
        for shape in shapes {
            let publisher = Publisher::open(self, shape, window)?;
            alone.push(Alone { publisher, tally: add_tally(tallies), limit });
        }
        if window > 0 && limit.is_none() && alone.len() >= CREW_MIN {
            return Ok(vec![Box::new(Crew::new(alone))]);
        }
        Ok(alone.into_iter().map(|alone| Box::new(alone) as Box<dyn Publish>).collect())
    }

    fn paced(
        &self,
        shape: &MessageShape,
        window: u32,
        schedule: Schedule,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Box<dyn PublishPaced>> {
        let publisher = PacedPublisher::new(Publisher::open(self, shape, window)?, schedule);
        Ok(Box::new(Tallied { inner: publisher, tally }))
    }

    fn consumer(&self, wants: &Wants, tally: Arc<Tally>) -> anyhow::Result<Box<dyn Consume>> {
        Ok(Box::new(Tallied { inner: Consumer::open(self, wants)?, tally }))
    }
}

/// A publisher with a thread of its own.
struct Alone {
    publisher: Publisher,
    tally: Arc<Tally>,
    limit: Option<u64>,
}

impl Publish for Alone {
    fn run(self: Box<Self>, stop: &AtomicBool) -> anyhow::Result<Option<Histogram<u64>>> {
        self.publisher.run(self.limit, stop, &self.tally)
    }
}

impl Member for Alone {
    fn socket(&self) -> &TcpStream {
        self.publisher.socket()
    }

    fn fill_window(&mut self) -> anyhow::Result<()> {
        self.publisher.fill_window(&self.tally)
    }

    fn await_confirms(&mut self) -> anyhow::Result<()> {
        self.publisher.await_confirms(&self.tally)
    }

    fn unconfirmed(&self) -> u64 {
        self.publisher.unconfirmed()
    }

    fn finish(self) -> anyhow::Result<Option<Histogram<u64>>> {
        self.publisher.finish()
    }
}

/// Somebody with counters.
struct Tallied<T> {
    inner: T,
    tally: Arc<Tally>,
}

impl PublishPaced for Tallied<PacedPublisher> {
    fn run(self: Box<Self>, began: Instant, measured: Duration, stop: &AtomicBool) -> anyhow::Result<Paced> {
        self.inner.run(began, measured, stop, &self.tally)
    }
}

impl Consume for Tallied<Consumer> {
    fn run(self: Box<Self>, stop: &AtomicBool, look: Look<'_>) -> anyhow::Result<Seen> {
        self.inner.run(stop, &self.tally, look)
    }
}
