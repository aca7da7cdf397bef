//! AMQP connections: from the listener to the last frame.
//!
//! - `listener`, `handshake`, `login`, `login_throttle`: how a connection begins.
//! - `connection`, `socket`: its task, which alone waits and reads a clock: for the socket, for ticks, and for what its
//!   session needs (`operations`, where all of the session's futures are made).
//! - `session`: what a connection holds, without IO; `dispatch`, `faults`: what bytes do to it; `timing`: what time does;
//!   `steps`, `held_up`: what it has to do and wait for before it goes on; `ending`, `leaving`: how it and its channels end.
//! - `channel`, `content`, `receive`, `intake`: one channel, and messages on their way in.
//! - Methods, by what they are about: `queues`, `exchanges`, `publish`, `consume`, `settle`, `transactions`.
//! - `outbox`, `fanout`, `confirms`, `answers`: publishes of one read go to the broker in one batch per queue, and are
//!   confirmed together, as declarations are answered, when they are safe. `pace`: a publisher that is too fast.
//! - `routing`, `message_facts`: where a publish goes, and what it asks for.
//! - `source`, `deliver`, `unacked`, `limit`: messages on their way to the client, and those it has not settled.
//! - `management`: the same without a connection, for the management API.
//! - `error`: the one table from what can go wrong to reply codes and texts.

mod access;
mod answers;
mod arguments;
mod channel;
mod confirms;
mod connection;
mod consume;
mod content;
mod deliver;
mod dispatch;
mod ending;
mod equivalence;
mod erlang;
mod error;
mod exchanges;
mod fanout;
mod faults;
mod firehose;
mod handshake;
mod held_up;
mod intake;
mod leaving;
mod limit;
mod listener;
mod login;
pub mod management;
mod message_facts;
mod observe;
mod operations;
mod options;
mod outbox;
mod output;
mod pace;
mod publish;
mod queues;
mod read_size;
mod receive;
mod reply_to;
mod routing;
mod session;
#[cfg(test)]
mod session_tests;
mod settle;
mod shared;
mod socket;
mod source;
mod steps;
mod timing;
mod transactions;
mod unacked;
mod write_size;

pub(crate) use arguments::{QueueKind, Traits, read_arguments};
pub use listener::serve;
pub use observe::publish_events;
pub use options::Options;
