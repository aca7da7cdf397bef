//! AMQP 0-9-1 as RabbitMQ speaks it, so that its clients work unchanged.
//!
//! - [`codec`] turns bytes into frames, methods and properties and back. It is pure: no socket, no clock, no state beyond
//!   the bytes it is given.
//! - `server` holds connections: one task each, which reads, writes, and translates methods into calls to the broker.
//! - [`management`] declares, publishes and gets for the management API, by the same rules.
//! - [`register`] has the broker know what it must know of messages that came this way: headers, and how a dead message
//!   is addressed anew.

mod address;
pub mod codec;
mod headers;
mod json;
mod property_codec;
mod server;

pub use property_codec::register;
pub use server::{Options, management, publish_events, serve};
