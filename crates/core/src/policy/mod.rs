//! Policies: settings for all queues and exchanges whose names match a pattern, as RabbitMQ has them; and runtime parameters,
//! which are kept for whoever asks for them.
//!
//! [`Policies`] holds those of all virtual hosts. Like a queue it *decides* what a change comes to and then *applies* the
//! records; the broker writes them down in between. A copy of it costs nothing, because copies share what has not changed.
//!
//! Of the policies that match a queue the one with the highest priority counts, and so does one operator policy; the two are
//! *merged* (`merge.rs`). What a queue then is, with its own settings, is `effective.rs`. The broker writes that down with the
//! queue, so that a queue's records alone say what it is.
//!
//! - `definition.rs`: the keys of a definition, what they may be, and the words in which RabbitMQ refuses them.
//! - `pattern.rs`: which names a policy is for. `policy.rs`: one policy. `state.rs`: all of them.

mod change;
mod definition;
mod effective;
mod erlang;
mod error;
mod machine;
mod merge;
mod pattern;
#[allow(clippy::module_inception, reason = "it is the file of one policy")]
mod policy;
mod record;
mod snapshot;
mod state;

pub use definition::{Definition, OverflowWord, PolicySettings};
pub use effective::{QueueFacts, effective};
pub use error::PolicyError;
pub use pattern::PolicyPattern;
pub use policy::{ApplyTo, Policy, PolicyKind, Subject};
pub use record::PolicyRecord;
pub use state::{Policies, PolicyPair};
