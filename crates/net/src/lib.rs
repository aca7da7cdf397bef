//! What the ports share.
//!
//! - `accept.rs`: connections are taken in until the port closes.
//! - `connection.rs`: a connection that ends when its peer does nothing.
//! - `http.rs`: the server of the ports that speak HTTP/1.1.
//! - `host.rs`: the check of whom a request asks for.

mod accept;
mod connection;
mod host;
mod http;

pub use accept::{Accepted, serve_connections};
pub use connection::{Connection, ReadLimit, TimeLimits};
pub use host::{is_for_this_machine, is_loopback_name};
pub use http::{Ends, HttpLimits, HttpPort};
