mod confirms;
mod connection;
mod consumer;
mod delayed;
mod deliveries;
mod paced;
mod protocol;
mod publisher;
mod sink;
mod template;
mod topology;
mod url;

pub(crate) use connection::{Connection, InputSize};
pub(crate) use publisher::CHANNEL;
pub use sink::Sink;
pub(crate) use topology::{bind, declare_queue, delete_queue, unbind};
pub use url::AmqpUrl;
