//! The options that every kind of load shares.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::amqp::AmqpUrl;
use crate::native::NativeUrl;
use crate::nats::NatsUrl;
use crate::protocol::Protocol;
use crate::span;
use crate::sqs::{BATCH_MAX, SqsUrl};
use crate::work::{Ack, Durability, MessageShape, Persistence, QueueArgument, Settings, Wants};

/// The broker under load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Over AMQP 0-9-1.
    Amqp(AmqpUrl),
    /// Over the native API.
    Native(NativeUrl),
    /// NATS JetStream.
    Nats(NatsUrl),
    /// Over the SQS API.
    Sqs(SqsUrl),
}

impl Target {
    /// The way to talk to it.
    pub(crate) fn protocol(&self) -> &dyn Protocol {
        match self {
            Self::Amqp(url) => url,
            Self::Native(url) => url,
            Self::Nats(url) => url,
            Self::Sqs(url) => url,
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once("://") {
            Some(("http" | "https", _)) => text.parse().map(Self::Native),
            Some(("nats", _)) => text.parse().map(Self::Nats),
            Some(("sqs", _)) => text.parse().map(Self::Sqs),
            _ => text.parse().map(Self::Amqp),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amqp(url) => url.fmt(f),
            Self::Native(url) => url.fmt(f),
            Self::Nats(url) => url.fmt(f),
            Self::Sqs(url) => url.fmt(f),
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
    /// The broker: amqp://user:password@host:port/vhost for AMQP 0-9-1, http://host:port for Nexo's native API, nats://host:port for NATS JetStream, sqs://host:port for an SQS API
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
    /// Over AMQP, how long a consumer sleeps after each message
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = span::parse)]
    #[serde(serialize_with = "span::seconds")]
    pub consumer_pause: Duration,
    /// The kind of queue
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = QueueType::Classic)]
    pub queue_type: QueueType,
    /// Declare queues with this many priorities and use them all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub priorities: Option<u16>,
    /// An argument for the declaration of queues, such as x-max-length=1000; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub queue_argument: Vec<QueueArgument>,
    /// Over SQS, messages in one request: 1 to 10
    #[arg(long, value_name = "N", default_value_t = BATCH_MAX, value_parser = clap::value_parser!(u16).range(1..=i64::from(BATCH_MAX)))]
    pub batch: u16,
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

impl LoadOptions {
    fn persistence(&self) -> Persistence {
        if self.persistent { Persistence::Persistent } else { Persistence::Transient }
    }

    /// Whether messages survive a restart of the broker, in a word or two. Over SQS that is for the endpoint to say.
    pub(crate) fn kind(&self) -> &'static str {
        match (&self.url, self.persistence()) {
            (Target::Sqs(_), _) => "over SQS",
            (_, Persistence::Persistent) => "persistent",
            (_, Persistence::Transient) => "transient",
        }
    }

    /// Whether there are confirms to report: asked for, or because every request has an answer.
    pub(crate) fn has_confirms(&self) -> bool {
        self.confirm > 0 || matches!(self.url, Target::Sqs(_))
    }

    /// What messages to one queue look like.
    pub(crate) fn shape(&self, queue: &str) -> MessageShape {
        self.shape_for(String::new(), vec![queue.to_owned()])
    }

    /// What messages to an exchange look like, with these keys in turn.
    pub(crate) fn shape_for(&self, exchange: String, routing_keys: Vec<String>) -> MessageShape {
        MessageShape {
            exchange,
            routing_keys,
            body_bytes: self.size as usize,
            persistence: self.persistence(),
            priorities: self.priorities,
            batch: self.batch,
        }
    }

    /// What a consumer of these queues asks for.
    pub(crate) fn wants(&self, queues: Vec<String>) -> Wants {
        Wants {
            queues,
            ack: self.ack,
            prefetch: self.prefetch,
            batch: self.batch,
            pause: self.consumer_pause,
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings { durability: Durability::Transient, arguments: Vec::new() };
        if self.persistent || self.queue_type == QueueType::Quorum {
            settings.durability = Durability::Durable;
        }
        if self.queue_type == QueueType::Quorum {
            settings.arguments.push(QueueArgument::new("x-queue-type", "quorum"));
        }
        if let Some(priorities) = self.priorities {
            // The argument is the highest priority, of which there is one less than priorities with 0 among them.
            let highest = priorities.saturating_sub(1).max(1).to_string();
            settings.arguments.push(QueueArgument::new("x-max-priority", highest));
        }
        settings.arguments.extend(self.queue_argument.iter().cloned());
        settings
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        load: LoadOptions,
    }

    fn load(args: &[&str]) -> LoadOptions {
        Line::try_parse_from([&["bench"], args].concat()).unwrap().load
    }

    #[test]
    fn quorum_queues_are_durable_whatever_the_messages_are() {
        let settings = load(&["--queue-type", "quorum"]).settings();
        assert_eq!(settings.durability, Durability::Durable);
        assert_eq!(settings.arguments, [QueueArgument::new("x-queue-type", "quorum")]);
        assert_eq!(load(&[]).settings().durability, Durability::Transient);
        assert_eq!(load(&["--persistent"]).settings().durability, Durability::Durable);
    }

    #[test]
    fn the_highest_of_256_priorities_is_255() {
        let settings = load(&["--priorities", "256", "--queue-argument", "x-max-length=9"]).settings();
        let expected = [QueueArgument::new("x-max-priority", "255"), QueueArgument::new("x-max-length", "9")];
        assert_eq!(settings.arguments, expected);
    }
}
