//! Runs `nexo bench` as it was just built, and reads its report.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::run::{run, target};

/// The program, and where brokers that it loads have their data.
pub(crate) struct Bench {
    nexo: PathBuf,
    /// Where the data of all brokers is, and so the disk in question.
    dir: PathBuf,
}

impl Bench {
    /// Builds it for release.
    pub(crate) fn build() -> anyhow::Result<Self> {
        run("cargo", &["build", "--release", "-p", "nexo"])?;
        Self::of(target().join("release").join("nexo"))
    }

    /// One that was built before.
    pub(crate) fn of(nexo: PathBuf) -> anyhow::Result<Self> {
        let dir = target().join("rivals-data");
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make '{}'", dir.display()))?;
        Ok(Self { nexo, dir })
    }

    pub(crate) fn nexo(&self) -> &Path {
        &self.nexo
    }

    /// Runs a load and gives back its report.
    pub(crate) fn report(&self, args: &[&str]) -> anyhow::Result<Value> {
        read(args, &self.command(args).output().context("cannot start nexo bench")?)
    }

    /// The same, for a load that may hang: ended when it takes longer than this.
    pub(crate) fn report_within(&self, args: &[&str], limit: Duration) -> anyhow::Result<Value> {
        // A report is smaller than what a pipe holds, so that nobody needs to read while it runs.
        let mut child = self
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start nexo bench")?;
        let end = Instant::now() + limit;
        while child.try_wait().context("cannot wait for nexo bench")?.is_none() {
            if Instant::now() >= end {
                child.kill().ok();
                child.wait().ok();
                bail!("not done in {limit:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        read(args, &child.wait_with_output().context("cannot read the report")?)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.nexo);
        command.arg("bench").args(args).args(["--output", "json"]).stdin(Stdio::null());
        command
    }

    /// The disk's own time, and the machine.
    fn disk(&self) -> anyhow::Result<Value> {
        let dir = self.dir.display().to_string();
        self.report(&["disk", "--data-dir", &dir])
    }

    /// The disk's own time for a small append with a sync, at the median.
    pub(crate) fn disk_micros(&self) -> anyhow::Result<f64> {
        let report = self.disk()?;
        report.pointer("/sync_time/p50_us").and_then(Value::as_f64).context("the disk has a time")
    }

    /// The machine, one line each.
    pub(crate) fn machine(&self) -> Vec<String> {
        let report = self.disk().unwrap_or_default();
        let lines = report.pointer("/machine").and_then(Value::as_array).cloned().unwrap_or_default();
        lines.iter().filter_map(|line| line.as_str().map(str::to_owned)).collect()
    }
}

/// The report that a load printed.
fn read(args: &[&str], output: &Output) -> anyhow::Result<Value> {
    ensure!(
        output.status.success(),
        "nexo bench {} failed: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("nexo bench does not print a report")
}
