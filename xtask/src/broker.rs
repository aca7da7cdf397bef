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
    program: PathBuf,
    amqp: String,
    sqs: String,
}

impl Nexo {
    /// Builds and starts one.
    pub(crate) fn start() -> anyhow::Result<Self> {
        run("cargo", &["build", "--quiet", "-p", "nexo"])?;
        Self::start_program("debug")
    }

    /// Starts one that was built for speed.
    pub(crate) fn start_release() -> anyhow::Result<Self> {
        Self::start_program("release")
    }

    /// Where its SQS API is.
    pub(crate) fn sqs(&self) -> &str {
        &self.sqs
    }

    fn start_program(profile: &str) -> anyhow::Result<Self> {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        let data = target.join("conformance-data").join(std::process::id().to_string());
        let program = target.join(profile).join("nexo");
        let mut process = Command::new(&program)
            .args(["serve", "--amqp", "127.0.0.1:0", "--sqs", "127.0.0.1:0"])
            .args(["--grpc", "127.0.0.1:0", "--http", "off", "--data-dir"])
            .arg(&data)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the broker")?;
        let stdout = process.stdout.take().context("the broker has an output")?;
        let mut ready = String::new();
        BufReader::new(stdout).read_line(&mut ready).context("the broker did not say that it is ready")?;
        let address = |name: &str| {
            let word = ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            word.map(str::to_owned).unwrap_or_default()
        };
        let started = Self { process, data, program, amqp: address("amqp"), sqs: address("sqs") };
        ensure!(
            !started.amqp.is_empty() && !started.sqs.is_empty(),
            "the broker did not get ready; it said {ready:?}"
        );
        Ok(started)
    }

    /// What the conformance tests need to know of it.
    pub(crate) fn variables(&self) -> Vec<Variable> {
        let variable = |name: &str, value: String| (name.to_owned(), value);
        vec![
            variable("AMQP_URL", format!("amqp://guest:guest@{}/%2F", self.amqp)),
            variable("SQS_URL", format!("http://{}", self.sqs)),
            variable("NEXO_BIN", self.program.display().to_string()),
        ]
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
