//! Waiting for threads that may fail.

use std::thread::JoinHandle;

use anyhow::{Context, bail};

/// What a thread gave back; an error that says whose it was.
pub(crate) fn joined<T>(thread: JoinHandle<anyhow::Result<T>>, who: &str) -> anyhow::Result<T> {
    outcome(thread.join(), who)
}

/// The same for what a thread within a scope gave back.
pub(crate) fn outcome<T>(joined: std::thread::Result<anyhow::Result<T>>, who: &str) -> anyhow::Result<T> {
    match joined {
        Ok(outcome) => outcome.with_context(|| format!("{who} failed")),
        Err(_) => bail!("{who} panicked"),
    }
}
