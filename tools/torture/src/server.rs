//! The broker's process: started again and again on the same ports and the same data.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use nexo_harness::free_addresses;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::doors::Door;

/// How long anything about the process may take: far more than it does.
const PATIENCE: Duration = Duration::from_secs(60);

/// The broker.
#[derive(Debug)]
pub(crate) struct Server {
    nexo: PathBuf,
    data_dir: PathBuf,
    log: PathBuf,
    door: Door,
    /// What else it is started with.
    arguments: Vec<String>,
    child: Option<Child>,
    stdout: Option<ChildStdout>,
}

impl Server {
    /// A broker that is not started yet.
    pub(crate) fn new(nexo: &Path, data_dir: &Path, log: &Path) -> anyhow::Result<Self> {
        let [amqp, grpc, sqs, http] = free_addresses()?;
        Ok(Self {
            nexo: nexo.to_owned(),
            data_dir: data_dir.to_owned(),
            log: log.to_owned(),
            door: Door { amqp, grpc, sqs, http },
            arguments: Vec::new(),
            child: None,
            stdout: None,
        })
    }

    /// Where it is reached, now and after every start.
    pub(crate) const fn door(&self) -> Door {
        self.door
    }

    /// Gives it more to be started with, from its next start on.
    pub(crate) fn set_arguments(&mut self, arguments: Vec<String>) {
        self.arguments = arguments;
    }

    /// Starts it and does not wait.
    pub(crate) fn launch(&mut self) -> anyhow::Result<()> {
        let Door { amqp, grpc, sqs, http } = self.door;
        let mut child = Command::new(&self.nexo)
            .args(["serve", "--segment-bytes", "4MiB", "--memory-bytes-max", "32MiB"])
            .args(["--amqp", &amqp.to_string(), "--grpc", &grpc.to_string()])
            .args(["--sqs", &sqs.to_string(), "--http", &http.to_string()])
            .args(&self.arguments)
            .arg("--data-dir")
            .arg(&self.data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(self.open_log()?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start '{}'", self.nexo.display()))?;
        self.stdout = child.stdout.take();
        self.child = Some(child);
        Ok(())
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let stdout = self.stdout.take().context("the broker is not started")?;
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout);
        timeout(PATIENCE, stdout.read_line(&mut line)).await.context("the broker does not get ready")??;
        if !line.starts_with("ready") {
            let status = self.ended().await?;
            bail!("the broker did not get ready and ended with {status}; it said: {}", self.last_words());
        }
        Ok(())
    }

    pub(crate) async fn start(&mut self) -> anyhow::Result<()> {
        self.launch()?;
        self.ready().await
    }

    /// Sends a signal, if it runs.
    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().and_then(Child::id).and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = id.and_then(Pid::from_raw) {
            // It may be gone already; then the next wait says how it ended.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let mut child = self.child.take().context("the broker is not started")?;
        self.stdout = None;
        timeout(PATIENCE, child.wait())
            .await
            .context("the broker does not end")?
            .context("cannot wait for it")
    }

    /// How it ended by itself, if it has.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// The end of what it said.
    pub(crate) fn last_words(&self) -> String {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// Whatever it said that a sound broker does not say.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let bad = |line: &&str| line.contains("panicked at") || line.contains(" ERROR ");
        said.lines().filter(bad).map(str::to_owned).collect()
    }

    fn open_log(&self) -> anyhow::Result<File> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        log.with_context(|| format!("cannot open '{}'", self.log.display()))
    }
}
