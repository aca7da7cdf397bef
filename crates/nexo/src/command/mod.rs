//! The commands that talk to a broker, each in a file of its own.

pub(crate) mod bench;
pub(crate) mod binding;
pub(crate) mod channel;
pub(crate) mod completions;
pub(crate) mod connection;
pub(crate) mod consume;
mod consumer;
pub(crate) mod consumer_list;
pub(crate) mod exchange;
mod execute;
pub(crate) mod health;
pub(crate) mod jobs;
mod lines;
pub(crate) mod peek;
pub(crate) mod permission;
pub(crate) mod policy;
pub(crate) mod pop;
pub(crate) mod produce;
pub(crate) mod push;
pub(crate) mod queue;
mod queue_settings;
mod redrive;
pub(crate) mod schedule;
pub(crate) mod settle;
pub(crate) mod stats;
pub(crate) mod user;
pub(crate) mod vhost;
