//! A fresh broker for one scenario, with a data folder of its own; both go when it is dropped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use nexo_harness::address_in;

use crate::run::target;

/// A running broker.
pub(super) struct Broker {
    process: Child,
    data: PathBuf,
    /// The line in which it says where it listens.
    ready: String,
}

impl Broker {
    pub(super) fn start(binary: &Path, name: &str, serve: &[&str]) -> anyhow::Result<Self> {
        let data = target().join("abuse-data").join(format!("{}-{name}", std::process::id()));
        let any = "127.0.0.1:0";
        let mut process = Command::new(binary)
            .args(["serve", "--amqp", any, "--grpc", any, "--sqs", any, "--http", any, "--data-dir"])
            .arg(&data)
            .args(serve)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start '{}'", binary.display()))?;
        let stdout = process.stdout.take().context("the broker has an output")?;
        let mut started = Self { process, data, ready: String::new() };
        BufReader::new(stdout).read_line(&mut started.ready).context("cannot read what the broker says")?;
        started.address("amqp")?;
        Ok(started)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Where it listens for a protocol.
    pub(super) fn address(&self, protocol: &str) -> anyhow::Result<&str> {
        address_in(&self.ready, protocol)
            .with_context(|| format!("the broker has no {protocol}; it said {:?}", self.ready))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended by itself; then the scenario has failed already.
        self.process.kill().ok();
        self.process.wait().ok();
        std::fs::remove_dir_all(&self.data).ok();
    }
}
