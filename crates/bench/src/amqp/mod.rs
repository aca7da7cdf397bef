//! AMQP 0-9-1 as cheaply as it can be spoken: frames that are prepared once and written in large pieces, reads that
//! are scanned in place, blocking sockets with a thread each. The pure codec of `nexo-amqp` serves where it is not
//! hot: logging in, declaring, and whatever is unusual on the way.

mod confirms;
mod connection;
mod consumer;
mod crew;
mod deliveries;
mod input;
mod paced;
mod publisher;
mod sink;
mod template;
mod topology;
mod url;

pub(crate) use connection::{Connection, InputSize};
pub use consumer::Ack;
pub(crate) use consumer::{Consumer, Seen, Wants};
pub(crate) use crew::Crew;
pub(crate) use paced::{Paced, PacedPublisher};
pub(crate) use publisher::{CHANNEL, Publisher};
pub use sink::Sink;
pub(crate) use template::{MessageShape, Persistence};
pub use topology::QueueArgument;
pub(crate) use topology::{Durability, Settings, Topology, bind, declare_queue, delete_queue, unbind};
pub use url::AmqpUrl;
