//! The rules of queues: pure and synchronous, with no IO, no clock, no threads and no randomness.
//!
//! A [`queue::Queue`] decides what happens and writes it down as [`record::Record`]s; applying records is
//! deterministic, so that the same records rebuild the same queue after a crash, on a follower and in a test.
//! Where bytes are stored, who is connected and what time it is come in from outside.
//!
//! Start with [`machine`], then [`queue`] and [`record`].

pub mod access;
pub mod batch;
pub mod body_buffer;
pub mod config;
pub mod draft;
pub mod jobs;
pub mod machine;
pub mod message;
pub mod nodes;
pub mod offsets;
pub mod policy;
pub mod queue;
pub mod rare;
pub mod record;
pub mod schedule;
pub mod shared_messages;
pub mod topology;
#[cfg(test)]
mod versions;
mod wire;

pub use wire::WireError;
