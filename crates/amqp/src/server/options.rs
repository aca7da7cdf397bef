//! What an operator may set.

use std::time::Duration;

/// Settings of the AMQP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a client may hold a message before its channel is closed, where the queue does not say
    /// (`x-consumer-timeout`); zero for any time.
    pub consumer_timeout: Duration,
}

impl Default for Options {
    /// As RabbitMQ has it: half an hour.
    fn default() -> Self {
        Self { consumer_timeout: Duration::from_secs(30 * 60) }
    }
}
