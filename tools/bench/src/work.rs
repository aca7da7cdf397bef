//! What a load asks for and gets back, whatever the protocol.

use std::str::FromStr;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Whether messages are to survive a restart of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    Transient,
    Persistent,
}

/// What messages look like.
#[derive(Clone, Debug)]
pub(crate) struct MessageShape {
    /// The exchange they are published to.
    pub(crate) exchange: String,
    /// The keys they are published with, in turn; at least one, all of the same length.
    pub(crate) routing_keys: Vec<String>,
    pub(crate) body_bytes: usize,
    pub(crate) persistence: Persistence,
    /// How many priorities are used, in a mixed order; `None` to publish without.
    pub(crate) priorities: Option<u16>,
    /// Messages in one request, where a protocol has requests.
    pub(crate) batch: u16,
}

/// A message that is not to be delivered before its time.
#[derive(Clone, Debug)]
pub(crate) struct Delayed {
    pub(crate) delay: Duration,
    pub(crate) priority: u8,
    pub(crate) body: Vec<u8>,
}

/// How messages are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    /// By being delivered.
    Auto,
    /// By the consumer, this many at once.
    Every(u16),
}

impl FromStr for Ack {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u16>() {
            Ok(every) if every > 0 => Ok(Self::Every(every)),
            _ if text == "auto" => Ok(Self::Auto),
            _ => Err(format!("'{text}' must be 'auto', or how many messages one acknowledgement covers")),
        }
    }
}

/// What a consumer asks for.
#[derive(Clone, Debug)]
pub(crate) struct Wants {
    pub(crate) queues: Vec<String>,
    pub(crate) ack: Ack,
    /// Most messages that are delivered and not acknowledged; 0 for no limit.
    pub(crate) prefetch: u16,
    /// Most messages in one answer, where a protocol has answers.
    pub(crate) batch: u16,
    /// How long it sleeps after each message, as somebody who has work to do; only over AMQP.
    pub(crate) pause: Duration,
}

/// How queues are declared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) durability: Durability,
    pub(crate) arguments: Vec<QueueArgument>,
}

/// Whether queues are to survive a restart of the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Durability {
    #[default]
    Transient,
    Durable,
}

/// An argument of a declaration: `x-max-length=1000`. What looks like a number or a truth value is one.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct QueueArgument {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl QueueArgument {
    pub(crate) fn new(name: &str, value: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: value.into() }
    }
}

impl FromStr for QueueArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && name.len() <= 255 => Ok(Self::new(name, value)),
            _ => Err(format!("'{text}' is not an argument; one looks like x-max-length=1000")),
        }
    }
}

/// What a consumer has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) consumed: u64,
    pub(crate) redelivered: u64,
}

/// What a publisher with a schedule found.
pub(crate) struct Paced {
    /// How late messages were sent, in nanoseconds: the jitter of the load itself, or the broker that pushes back.
    pub(crate) late_nanos: Histogram<u64>,
    /// From the moment a message was due to its confirm.
    pub(crate) confirm_nanos: Option<Histogram<u64>>,
}

/// Every priority below `priorities` once before one comes again, neighbours far apart.
pub(crate) fn mixed(index: usize, priorities: u16) -> u8 {
    let priorities = usize::from(priorities.clamp(1, 256));
    // A prime above all of them has no divisor in common with any, so that its steps reach every residue.
    const STEP: usize = 1009;
    u8::try_from(index * STEP % priorities).expect("a residue of at most 256 is an octet")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn priorities_are_mixed_and_all_used() {
        for priorities in [1, 2, 10, 157, 255, 256] {
            let seen: BTreeSet<u8> = (0..usize::from(priorities)).map(|n| mixed(n, priorities)).collect();
            assert_eq!(seen.len(), usize::from(priorities), "{priorities}");
        }
    }

    #[test]
    fn acknowledgements_are_understood() {
        assert_eq!("auto".parse(), Ok(Ack::Auto));
        assert_eq!("100".parse(), Ok(Ack::Every(100)));
        for text in ["", "0", "-1", "manual", "70000"] {
            assert!(text.parse::<Ack>().is_err(), "{text}");
        }
    }

    #[test]
    fn arguments_are_understood() {
        assert_eq!("x-max-length=10".parse(), Ok(QueueArgument::new("x-max-length", "10")));
        assert_eq!("x-overflow=a=b".parse(), Ok(QueueArgument::new("x-overflow", "a=b")));
        assert!("=1".parse::<QueueArgument>().is_err());
        assert!("x-max-length".parse::<QueueArgument>().is_err());
    }
}
