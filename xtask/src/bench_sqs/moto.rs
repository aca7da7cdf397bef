//! moto's server: AWS's API in one Python process, with everything in memory.

use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::python;
use crate::run::{first_line, free_ports};

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running one, stopped when dropped.
pub(super) struct Moto {
    process: Child,
    port: u16,
    pub(super) version: String,
}

impl Moto {
    /// Installs and starts it.
    pub(super) fn start() -> anyhow::Result<Self> {
        let packages = python::packages_of("sqs/moto-requirements.txt", "venv-moto-packages")?;
        let python = python::environment()?;
        let tell = ["-c", "import moto; print(moto.__version__)"];
        let version = first_line(Command::new(&python).args(tell).env("PYTHONPATH", &packages))?;
        let [port] = free_ports()?;
        let process = Command::new(python)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .env("PYTHONPATH", packages)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start moto")?;
        let started = Self { process, port, version };
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            ensure!(Instant::now() < end, "moto is not ready after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(started)
    }

    pub(super) fn url(&self) -> String {
        format!("sqs://127.0.0.1:{}", self.port)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
