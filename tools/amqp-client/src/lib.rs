//! A raw AMQP 0-9-1 client for what loads, breaks and tests brokers. It does what it is told and nothing else: no
//! reconnecting, no heartbeats by itself, no threads or tasks of its own. It is no client for applications.
//!
//! The bytes are those of the codec, `nexo_amqp::codec`. Two faces share the handshake, the methods and the errors:
//!
//! - [`Connection`] blocks. Whoever needs every nanosecond takes its socket and its [`Input`] and scans frames in place.
//! - [`Client`] is asynchronous. It speaks in single frames, in whole messages, or in raw bytes that are no AMQP at all.
//!
//! Every wait has an end: a time that the caller chose, or [`PATIENCE`]. Where one has none, it says so.
//!
//! Begin with `client.rs`; `login.rs` is what a connection begins with.

mod assembly;
mod blocking;
mod client;
mod error;
mod frame;
mod input;
mod login;
mod messages;
pub mod methods;
mod topology;
mod url;

use std::time::Duration;

use nexo_amqp::codec::FrameMax;

pub use assembly::Content;
pub use blocking::{Connection, InputSize};
pub use client::Client;
pub use error::{Error, refuse_close};
pub use frame::OwnedFrame;
pub use input::{Filled, Input};
pub use login::{Login, Mechanism};
pub use messages::{Event, Message, Origin};
pub use methods::short;
pub use url::AmqpUrl;

/// How long a broker may take to answer or to read on before we say that it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The largest frame that we ask for, in bytes: what RabbitMQ offers by default.
pub const FRAME_BYTES_MAX: u32 = 131_072;
/// The same, as the codec takes it.
pub const FRAME_MAX: FrameMax = FrameMax::new(FRAME_BYTES_MAX).expect("larger than the smallest");
/// Properties of a message that survives a restart.
pub const PERSISTENT: &[u8] = &[0x10, 0, 2];
