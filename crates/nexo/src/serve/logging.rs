//! What the broker says about itself while it runs: to standard error, quiet unless asked.

use std::io::{self, IsTerminal};

use anyhow::{Context, bail};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::config::{Config, LogFormat};

/// Sets up logging for the whole process.
pub(crate) fn start(config: &Config) -> anyhow::Result<()> {
    let filter = filter(&config.log)?;
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

/// What is logged. A word that is no level would be taken for the name of a module, and then nothing at all were logged.
fn filter(text: &str) -> anyhow::Result<EnvFilter> {
    let refused = || {
        format!(
            "log must be a level (error, warn, info, debug, trace, off) or a filter like warn,nexo_broker=debug; it is \
             '{text}'"
        )
    };
    let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
    let is_known = |part: &str| part.contains(['=', '[']) || is_level(part);
    if let Some(word) = text.split(',').map(str::trim).find(|part| !is_known(part)) {
        bail!("{}; '{word}' is no level", refused());
    }
    EnvFilter::try_new(text).with_context(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_or_a_filter_is_understood() {
        for text in
            ["error", "warn", "INFO", "debug", "trace", "off", "warn,nexo_broker=debug", "nexo_amqp=trace"]
        {
            assert!(filter(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for text in ["loud", "", "warn,loud", "nexo_broker", "nexo_broker=loud", "info debug", "a=b=c"] {
            let error = format!("{:#}", filter(text).expect_err(text));
            assert!(error.starts_with("log must be a level"), "{error}");
            assert!(error.contains(text), "{error}");
        }
    }
}
