//! Clients over SQS, in its JSON protocol: senders, senders to a FIFO queue, and receivers.

mod groups;
mod message;
mod receive;
mod send;
mod setup;
mod wire;

pub(crate) use groups::send_until_answered;
pub(crate) use receive::receive;
pub(crate) use send::send;
pub(crate) use setup::create_queues;
