//! A broker that was started to be measured.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nexo_grpc::client::Client;
use rustix::process::{Pid, Signal, kill_process};

use crate::process;

/// A running broker. Killed when dropped.
pub(super) struct Server {
    child: Child,
    url: String,
    /// From the start of the process to its ready line.
    pub(super) ready_after: Duration,
}

impl Server {
    pub(super) fn start(nexo: &Path, data_dir: &Path) -> anyhow::Result<Self> {
        let started = Instant::now();
        let mut child = Command::new(nexo)
            .args([
                "serve",
                "--grpc",
                "127.0.0.1:0",
                "--http",
                "off",
                "--amqp",
                "off",
                "--sqs",
                "off",
                "--data-dir",
            ])
            .arg(data_dir)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", nexo.display()))?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("the broker has an output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let ready_after = started.elapsed();
        let Some(address) = line.split_whitespace().find_map(|word| word.strip_prefix("grpc=")) else {
            bail!("the broker did not get ready; it said {line:?}");
        };
        Ok(Self { child, url: format!("http://{address}"), ready_after })
    }

    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.url).await?)
    }

    /// Resident memory in bytes.
    pub(super) fn resident_bytes(&self) -> anyhow::Result<u64> {
        process::resident_bytes(self.child.id())
    }

    /// Processor time used so far.
    pub(super) fn processor_time(&self) -> anyhow::Result<Duration> {
        process::processor_time(self.child.id())
    }

    /// Ends it at once, as a crash would.
    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, and waits.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process has an id")?;
        kill_process(pid, Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
