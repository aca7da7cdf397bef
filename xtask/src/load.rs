//! Runs `nexo bench` as it was just built, and reads its report.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
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
        let dir = target().join("rivals-data");
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make '{}'", dir.display()))?;
        Ok(Self { nexo: target().join("release").join("nexo"), dir })
    }

    pub(crate) fn nexo(&self) -> &Path {
        &self.nexo
    }

    /// Runs a load and gives back its report.
    pub(crate) fn report(&self, args: &[&str]) -> anyhow::Result<Value> {
        let output = Command::new(&self.nexo)
            .arg("bench")
            .args(args)
            .args(["--output", "json"])
            .stdin(Stdio::null())
            .output()
            .context("cannot start nexo bench")?;
        ensure!(
            output.status.success(),
            "nexo bench {} failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        serde_json::from_slice(&output.stdout).context("nexo bench does not print a report")
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
