//! What the compiler makes of `proto/nexo/v1/*.proto`. Nothing here is written by hand.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::needless_pass_by_value)]

tonic::include_proto!("nexo.v1");

/// The descriptions of all services and messages, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nexo.v1.bin"));
