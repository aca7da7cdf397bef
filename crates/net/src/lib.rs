//! What the HTTP ports share: connections that end when their peer does nothing, and the check of whom a request asks
//! for.

mod connection;
mod host;

pub use connection::{Connection, TimeLimits};
pub use host::is_for_this_machine;
