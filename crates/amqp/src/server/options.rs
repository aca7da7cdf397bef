//! What an operator may set.

use std::num::NonZeroU16;
use std::time::Duration;

/// As RabbitMQ has it.
const CHANNEL_MAX: NonZeroU16 = NonZeroU16::new(2047).expect("it is not zero");

/// Settings of the AMQP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a client may hold a message before its channel is closed, where the queue does not say
    /// (`x-consumer-timeout`); zero for any time.
    pub consumer_timeout: Duration,
    /// How long a message that has not come whole, or a transaction, may stand still while others wait for the memory
    /// that it holds. Then its channel is closed.
    pub standstill_max: Duration,
    /// Channels that one connection may have.
    pub channel_max: NonZeroU16,
    /// How long a client may take to agree to the end of its connection, and then to close its socket.
    pub close_max: Duration,
}

impl Default for Options {
    /// The time for holding messages as RabbitMQ has it: half an hour.
    fn default() -> Self {
        Self {
            consumer_timeout: Duration::from_secs(30 * 60),
            // A network that is slow comes on; a client that is stuck does not.
            standstill_max: Duration::from_secs(30),
            channel_max: CHANNEL_MAX,
            // Clients close at once. One that does not is stuck, or holds a descriptor for nothing.
            close_max: Duration::from_secs(5),
        }
    }
}
