//! Measuring the SQS API beside moto's, in one run and in turns.

use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::broker::{Build, Nexo};
use crate::python;
use crate::run::{free_ports, run, target};

/// How long moto may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints how fast both are, and what receives that wait cost the broker.
pub(crate) fn sqs() -> anyhow::Result<()> {
    run("cargo", &["build", "--release", "-p", "nexo-sqs", "--examples"])?;
    let nexo = Nexo::start(Build::Release)?;
    let moto = Moto::start()?;
    let load = target().join("release/examples/load").display().to_string();
    let own = format!("nexo={}", nexo.sqs());
    run(&load, &["throughput", &own, &format!("moto=127.0.0.1:{}", moto.port)])?;
    run(&load, &["longpoll", &own])
}

/// moto's server, stopped when dropped.
struct Moto {
    process: Child,
    port: u16,
}

impl Moto {
    fn start() -> anyhow::Result<Self> {
        let packages = python::packages_of("sqs/moto-requirements.txt", "venv-moto-packages")?;
        let [port] = free_ports()?;
        let process = Command::new(python::environment()?)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .env("PYTHONPATH", packages)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start moto")?;
        let started = Self { process, port };
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            ensure!(Instant::now() < end, "moto is not ready after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(started)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
