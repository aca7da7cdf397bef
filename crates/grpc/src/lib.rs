//! The native way into Nexo: gRPC.
//!
//! The services and every field are described in `proto/nexo/v1/*.proto`. This crate checks what comes in, calls
//! the broker and turns its answers into replies; it decides nothing about messages itself.
//!
//! - [`serve`] runs the server: the services of Nexo, health and reflection.
//! - [`client`] is a thin client for the command line and for tests.
//! - Inside, `fields` and `config` take requests apart, `status` is the one table from errors to codes, `push`
//!   and `subscribe` are the two streams where the traffic is. `jobs` is all of job queues and budgets.
//! - What a stranger could misuse: `listener` and `guard` say who may call and how long that may take, `access` which permission each call needs, `incoming` asks
//!   for memory before a request is read, `codec` looks through it before it is decoded; `limits` has the figures.
//! - In a cluster `deposed` ends the calls at a leader that leads no more.

mod access;
mod admin;
pub mod client;
mod codec;
mod config;
mod deposed;
mod fields;
mod greeting;
mod guard;
mod health;
mod in_order;
mod incoming;
mod jobs;
mod limits;
mod listener;
mod message;
mod messages;
mod policies;
pub mod proto;
mod push;
mod queues;
mod redrive;
mod schedules;
mod server;
mod settle;
mod stats;
mod status;
mod subscribe;
mod users;

pub use server::{ServeError, serve};
