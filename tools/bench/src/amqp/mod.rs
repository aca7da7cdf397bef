mod confirmed;
mod confirms;
mod consumer;
mod delayed;
mod deliveries;
mod paced;
mod protocol;
mod publisher;
mod sink;
mod template;
mod topology;

pub(crate) use confirmed::Confirmed;
pub(crate) use deliveries::Deliveries;
pub(crate) use nexo_amqp_client::{AmqpUrl, Connection, InputSize, short};
pub(crate) use publisher::CHANNEL;
pub use sink::Sink;
pub(crate) use topology::{bind, declare_exchange, declare_queue, delete_queue, queue_depth, unbind};
