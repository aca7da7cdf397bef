//! The options that every kind of load shares.

use std::fmt;
use std::str::FromStr;

use crate::amqp::{Ack, AmqpUrl, Durability, Persistence, QueueArgument, Settings};

/// The broker under load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Over AMQP 0-9-1.
    Amqp(AmqpUrl),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self::Amqp)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amqp(url) => url.fmt(f),
        }
    }
}

impl serde::Serialize for Target {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What messages look like and how they are taken care of.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct LoadOptions {
    /// The broker: amqp://user:password@host:port/vhost for AMQP 0-9-1
    #[arg(long, value_name = "URL", default_value = "amqp://guest:guest@127.0.0.1:5672/%2F")]
    pub url: Target,
    /// Bytes in the body of a message
    #[arg(long, value_name = "BYTES", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=64 << 20))]
    pub size: u32,
    /// Publish messages that survive a restart, to durable queues
    #[arg(long)]
    pub persistent: bool,
    /// Have messages confirmed, with at most this many unconfirmed for each publisher; 0 for no confirms
    #[arg(long, value_name = "WINDOW", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub confirm: u32,
    /// How consumers acknowledge: auto, or once for so many messages
    #[arg(long, value_name = "auto|EVERY", default_value = "auto")]
    pub ack: Ack,
    /// Most messages with a consumer that are not acknowledged; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub prefetch: u16,
    /// The kind of queue
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = QueueType::Classic)]
    pub queue_type: QueueType,
    /// An argument for the declaration of queues, such as x-max-length=1000; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub queue_argument: Vec<QueueArgument>,
    /// The broker's process, for its processor time and memory
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
}

/// The kinds of queues of AMQP brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueType {
    /// On one node.
    Classic,
    /// Replicated; durable in any case.
    Quorum,
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        })
    }
}

impl LoadOptions {
    pub(crate) fn persistence(&self) -> Persistence {
        if self.persistent { Persistence::Persistent } else { Persistence::Transient }
    }

    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings { durability: Durability::Transient, arguments: Vec::new() };
        if self.persistent || self.queue_type == QueueType::Quorum {
            settings.durability = Durability::Durable;
        }
        if self.queue_type == QueueType::Quorum {
            settings.arguments.push(QueueArgument::new("x-queue-type", "quorum"));
        }
        settings.arguments.extend(self.queue_argument.iter().cloned());
        settings
    }
}
