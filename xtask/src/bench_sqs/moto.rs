//! moto's server: AWS's API in one Python process, with everything in memory.

use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use nexo_harness::{PATIENCE, until_connected};

use crate::python;
use crate::run::{first_line, free_ports};

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
        let mut started = Self { process, port, version };
        until_connected("moto", (Ipv4Addr::LOCALHOST, port).into(), PATIENCE, || {
            let status = started.process.try_wait().context("cannot ask for moto's process")?;
            Ok(status.map(|status| status.to_string()))
        })?;
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
