//! The SQS API: every AWS SDK works with Nexo by changing its endpoint.
//!
//! - `protocol`: AWS JSON 1.0 and the older Query protocol with XML answers, both into one model of requests and answers
//!   (`request.rs`, `response.rs`). Pure.
//! - `service`: one implementation of each action, in terms of the broker.
//! - `settings.rs`, `attributes.rs`: what SQS keeps with a queue, and what clients call it.
//! - `message.rs`, `message_attributes.rs`: messages between SQS and the broker. `docs/interop.md` has the table.
//! - `signature`, `refusals.rs`, `host.rs`: who is let in.
//! - `http.rs`, `listener.rs`, `request_body.rs`: the port. Its connections are `nexo-net`'s.
//!
//! `fault.rs` is the one table of errors.

mod arn;
mod attributes;
mod clock;
mod fault;
mod host;
mod http;
mod ids;
mod limits;
mod listener;
mod md5_lanes;
mod message;
mod message_attributes;
mod object;
mod policy;
mod protocol;
mod queue_codec;
mod queue_url;
mod receipt_handle;
mod redrive;
mod refusals;
mod request;
mod request_body;
mod response;
mod service;
mod settings;
mod signature;
mod text;

pub use limits::LimitMode;
pub use listener::serve;
pub use queue_codec::register;
pub use service::SqsOptions;
pub use signature::{AccessKey, AccessKeyError};
