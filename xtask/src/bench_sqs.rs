//! Measuring the SQS API beside moto's, in one run and in turns.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::broker::Nexo;
use crate::python;
use crate::run::{root, run};

/// How long moto may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints how fast both are, and what receives that wait cost the broker.
pub(crate) fn sqs() -> anyhow::Result<()> {
    run("cargo", &["build", "--release", "-p", "nexo"])?;
    run("cargo", &["build", "--release", "-p", "nexo-sqs", "--examples"])?;
    let nexo = Nexo::start_release()?;
    let moto = Moto::start()?;
    let load = target().join("release/examples/load").display().to_string();
    let own = format!("nexo={}", nexo.sqs());
    run(&load, &["throughput", &own, &format!("moto=127.0.0.1:{}", moto.port)])?;
    run(&load, &["longpoll", &own])
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// moto's server, stopped when dropped.
struct Moto {
    process: Child,
    port: u16,
}

impl Moto {
    fn start() -> anyhow::Result<Self> {
        let packages = python::packages_of("sqs/moto-requirements.txt", "venv-moto-packages")?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .context("cannot find a free port")?
            .port();
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
