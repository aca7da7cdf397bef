//! What a load needs of a protocol. One implementation each: [`crate::amqp`], [`crate::nats`] and [`crate::sqs`] over raw bytes, [`crate::native`] with
//! the gRPC client.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::schedule::Schedule;
use crate::tally::Tally;
use crate::work::{Delayed, MessageShape, Paced, Seen, Settings, Wants};

/// Whoever looks at each message: at the beginning of its body, and the moment it came.
pub(crate) type Look<'a> = Option<&'a mut dyn FnMut(&[u8], Instant)>;

/// A way to talk to a broker.
pub(crate) trait Protocol {
    /// Makes queues of these names, behind an exchange that copies to all of them if one is named.
    fn declare(
        &self,
        queues: &[String],
        fan_out: Option<&str>,
        settings: &Settings,
    ) -> anyhow::Result<Box<dyn Declared>>;

    /// Makes a queue with 256 priorities that takes delayed messages.
    fn declare_delayed(&self, queue: &str) -> anyhow::Result<Box<dyn Declared>>;

    /// Publishes all messages to such a queue, and waits until they are confirmed.
    fn publish_delayed(&self, queue: &str, messages: &mut dyn Iterator<Item = Delayed>)
    -> anyhow::Result<()>;

    /// Connects publishers, who begin when they are run. `window` is how many messages of each may be unconfirmed, 0
    /// for no confirms; each ends by itself after `limit` messages. Several may share a thread; each has a tally.
    fn publishers(
        &self,
        shapes: &[MessageShape],
        window: u32,
        limit: Option<u64>,
        tallies: &mut Vec<Arc<Tally>>,
    ) -> anyhow::Result<Vec<Box<dyn Publish>>>;

    /// Connects a publisher that keeps a schedule.
    fn paced(
        &self,
        shape: &MessageShape,
        window: u32,
        schedule: Schedule,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Box<dyn PublishPaced>>;

    /// Connects a consumer.
    fn consumer(&self, wants: &Wants, tally: Arc<Tally>) -> anyhow::Result<Box<dyn Consume>>;
}

/// What was made for a load.
pub(crate) trait Declared {
    /// Deletes everything, with whatever is left in the queues.
    fn delete(self: Box<Self>) -> anyhow::Result<()>;
}

/// A publisher, or several that share a thread.
pub(crate) trait Publish: Send {
    /// Publishes until told to stop, then waits until the broker has seen everything. Gives back how long confirms took,
    /// in nanoseconds.
    fn run(self: Box<Self>, stop: &AtomicBool) -> anyhow::Result<Option<Histogram<u64>>>;
}

/// A publisher with a schedule.
pub(crate) trait PublishPaced: Send {
    /// Publishes by the schedule from `began` on until told to stop. The first eight bytes of each body are the
    /// nanoseconds from `began` to the moment when the message was due. What is due before `measured` is not measured.
    fn run(self: Box<Self>, began: Instant, measured: Duration, stop: &AtomicBool) -> anyhow::Result<Paced>;
}

/// A consumer.
pub(crate) trait Consume: Send {
    /// Consumes until told to stop.
    fn run(self: Box<Self>, stop: &AtomicBool, look: Look<'_>) -> anyhow::Result<Seen>;
}
