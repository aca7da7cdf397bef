//! What starts brokers for tests and measurements: a process that tells when it is ready, ports that stay free while it is
//! down, and plain HTTP for its management port. It blocks, it knows no protocol of the broker's, and every wait has an
//! end.

pub mod http;
mod ports;
mod process;

use std::time::Duration;

pub use ports::{free_addresses, until_connected};
pub use process::{BrokerProcess, address_in, addresses_in};

/// How long anything may take on a busy machine: far more than it does.
pub const PATIENCE: Duration = Duration::from_secs(60);
