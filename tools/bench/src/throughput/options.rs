//! What can be asked of `throughput`.

use std::time::Duration;

use crate::options::LoadOptions;
use crate::span;

/// Options of `throughput`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct ThroughputOptions {
    /// What messages look like and how they are taken care of.
    #[command(flatten)]
    pub load: LoadOptions,
    /// Publishers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub publishers: u16,
    /// Consumers, each with a connection of its own; 0 only publishes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub consumers: u16,
    /// Queues, shared out among publishers and consumers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub queues: u16,
    /// Publish to a fanout exchange, with a queue for each consumer
    #[arg(long, conflicts_with = "queues")]
    pub fan_out: bool,
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub duration: Duration,
    /// How long to run before measuring begins
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub warmup: Duration,
    /// How long consumers may take for what is left when publishers have stopped
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub drain: Duration,
}

impl ThroughputOptions {
    /// One publisher, one queue, one consumer, for so long after a second of warm-up.
    #[must_use]
    pub fn new(load: LoadOptions, duration: Duration) -> Self {
        Self {
            load,
            publishers: 1,
            consumers: 1,
            queues: 1,
            fan_out: false,
            duration,
            warmup: Duration::from_secs(1),
            drain: Duration::from_secs(10),
        }
    }
}
