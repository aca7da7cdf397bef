//! What the broker says about itself while it runs: to standard error, quiet unless asked.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use super::config::{Config, LogFormat};

/// Sets up logging for the whole process.
pub(crate) fn start(config: &Config) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.log).with_context(|| {
        format!("log must be a level (error, warn, info, debug, trace) or a filter; it is '{}'", config.log)
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let started = match config.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
