//! Every method that a server can receive or send, one module per class. The tables in the modules are the
//! specification's; `class.rs` turns them into structs that decode and encode themselves.
//!
//! Short strings are bytes. Outside of content methods RabbitMQ demands that they are UTF-8 and answers 501
//! otherwise; [`ShortStr::to_str`](super::ShortStr::to_str) tells a caller that wants the same.

pub mod access;
pub mod basic;
pub mod channel;
mod class;
pub mod confirm;
pub mod connection;
pub mod exchange;
mod fields;
pub mod queue;
pub mod tx;

pub use access::AccessMethod;
pub use basic::BasicMethod;
pub use channel::ChannelMethod;
pub use class::{AmqpMethod, ContentMethod, Method, MethodId, encode_method};
pub use confirm::ConfirmMethod;
pub use connection::ConnectionMethod;
pub use exchange::ExchangeMethod;
pub use fields::FieldsWriter;
pub use queue::QueueMethod;
pub use tx::TxMethod;

pub(crate) use class::encode_method_unreserved;
