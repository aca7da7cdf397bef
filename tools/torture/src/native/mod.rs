//! Clients over the native API.

mod connection;
mod consume;
mod publish;

pub(crate) use connection::Connection;
pub(crate) use consume::{Pull, pop, subscribe};
pub(crate) use publish::{push, push_stream};
