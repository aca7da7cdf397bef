//! The broker that was just built, running for tests: on loopback, on free ports, with data that goes when it stops.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

use crate::python::Variable;
use crate::run::{root, run};

/// A running broker, stopped when dropped.
pub(crate) struct Nexo {
    process: Child,
    data: PathBuf,
    amqp: String,
}

impl Nexo {
    /// Builds and starts one.
    pub(crate) fn start() -> anyhow::Result<Self> {
        run("cargo", &["build", "--quiet", "-p", "nexo"])?;
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        let data = target.join("conformance-data").join(std::process::id().to_string());
        let mut process = Command::new(target.join("debug").join("nexo"))
            .args(["serve", "--amqp", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--http", "off", "--data-dir"])
            .arg(&data)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the broker")?;
        let stdout = process.stdout.take().context("the broker has an output")?;
        let mut ready = String::new();
        BufReader::new(stdout).read_line(&mut ready).context("the broker did not say that it is ready")?;
        let amqp = ready.split_whitespace().find_map(|word| word.strip_prefix("amqp="));
        let amqp = amqp.map(str::to_owned).unwrap_or_default();
        let started = Self { process, data, amqp };
        ensure!(!started.amqp.is_empty(), "the broker did not get ready; it said {ready:?}");
        Ok(started)
    }

    /// What the conformance tests need to know of it.
    pub(crate) fn variables(&self) -> Vec<Variable> {
        vec![("AMQP_URL".to_owned(), format!("amqp://guest:guest@{}/%2F", self.amqp))]
    }
}

impl Drop for Nexo {
    fn drop(&mut self) {
        // It may have ended by itself; then the tests have failed already.
        self.process.kill().ok();
        self.process.wait().ok();
        std::fs::remove_dir_all(&self.data).ok();
    }
}
