//! AMQP 0-9-1 as cheaply as it can be spoken: frames that are prepared once and written in large pieces, reads that
//! are scanned in place, blocking sockets with a thread each. The pure codec of `nexo-amqp` serves where it is not
//! hot: logging in, declaring, and whatever is unusual on the way.

mod confirms;
mod connection;
mod consumer;
mod deliveries;
mod input;
mod publisher;
mod sink;
mod template;
mod topology;
mod url;

pub use consumer::Ack;
pub(crate) use consumer::{Consumer, Seen, Wants};
pub(crate) use publisher::Publisher;
pub use sink::Sink;
pub(crate) use template::{MessageShape, Persistence};
pub use topology::QueueArgument;
pub(crate) use topology::{Durability, Settings, Topology};
pub use url::AmqpUrl;
