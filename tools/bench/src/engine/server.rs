//! A broker that was started to be measured.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use nexo_grpc::client::Client;
use nexo_harness::BrokerProcess;
use rustix::process::{Pid, Signal, kill_process};

use crate::process;

/// A running broker. Killed when dropped.
pub(super) struct Server {
    process: BrokerProcess,
    url: String,
    /// From the start of the process to its ready line.
    pub(super) ready_after: Duration,
}

impl Server {
    pub(super) fn start(nexo: &Path, data_dir: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(nexo);
        command.args(["serve", "--grpc", "127.0.0.1:0"]);
        command.args(["--http", "off", "--amqp", "off", "--sqs", "off", "--data-dir"]).arg(data_dir);
        let started = Instant::now();
        let process = BrokerProcess::start(&mut command)?;
        let ready_after = started.elapsed();
        let url = format!("http://{}", process.address("grpc").context("the broker tells its address")?);
        Ok(Self { process, url, ready_after })
    }

    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.url).await?)
    }

    /// Resident memory in bytes.
    pub(super) fn resident_bytes(&self) -> anyhow::Result<u64> {
        process::resident_bytes(self.process.pid())
    }

    /// Processor time used so far.
    pub(super) fn processor_time(&self) -> anyhow::Result<Duration> {
        process::processor_time(self.process.pid())
    }

    /// Ends it at once, as a crash would.
    pub(super) fn kill(mut self) {
        self.process.kill();
    }

    /// Asks it to end, and waits.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let pid =
            i32::try_from(self.process.pid()).ok().and_then(Pid::from_raw).context("a process has an id")?;
        kill_process(pid, Signal::TERM)?;
        self.process.wait()?;
        Ok(())
    }
}
