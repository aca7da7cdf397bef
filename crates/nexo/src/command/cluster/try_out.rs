//! `nexo cluster try`: three nodes on this machine, as processes of their own, until Ctrl-C.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::output::{Format, Printer};
use crate::signals::Signals;
use crate::view::columns;

/// The nodes. Each has a block of ports of its own.
const NODES: [&str; 3] = ["a", "b", "c"];
/// From the ports of one node to those of the next.
const BLOCK: u16 = 10;
/// How long a node may take to be ready: the second and third get everything from the first.
const READY_MAX: Duration = Duration::from_secs(60);
/// How long a node may take to end, before it is ended.
const END_MAX: Duration = Duration::from_secs(20);

/// Run three nodes on this machine, to try a cluster out; Ctrl-C ends them
#[derive(Debug, clap::Args)]
pub(super) struct TryArgs {
    /// Where the data of the nodes lies [default: a new directory, which is removed in the end]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The first port: a node has it and the next four, and the others have those that are 10 and 20 higher
    #[arg(long, value_name = "PORT", default_value_t = 17650, value_parser = clap::value_parser!(u16).range(1..=65_500))]
    first_port: u16,
    /// What the nodes log, to standard error: a level from error to trace
    #[arg(long, value_name = "FILTER", default_value = "error")]
    log: String,
}

/// Where a node is reached.
struct Ports(u16);

impl Ports {
    fn at(&self, offset: u16) -> String {
        format!("127.0.0.1:{}", self.0 + offset)
    }

    fn cluster(&self) -> String {
        self.at(0)
    }

    fn amqp(&self) -> String {
        self.at(1)
    }

    fn grpc(&self) -> String {
        self.at(2)
    }

    fn sqs(&self) -> String {
        self.at(3)
    }

    fn http(&self) -> String {
        self.at(4)
    }
}

/// A node that runs.
struct Running {
    name: &'static str,
    ports: Ports,
    child: Child,
}

impl TryArgs {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new().context("cannot listen for signals")?;
        let dir = Directory::new(self.data_dir.as_deref())?;
        let mut running = Vec::new();
        let started = tokio::select! {
            started = self.start_all(dir.path(), &mut running) => Some(started),
            _ = signals.next() => None,
        };
        let outcome = match started {
            Some(Err(error)) => Err(error),
            // Somebody has seen enough.
            None => Ok(()),
            Some(Ok(())) => {
                tell(dir.path(), &running)?;
                tokio::select! {
                    _ = signals.next() => Ok(()),
                    ended = until_all_ended(&mut running) => ended,
                }
            }
        };
        end_all(running).await;
        outcome.map(|()| ExitCode::SUCCESS)
    }

    async fn start_all(&self, dir: &Path, running: &mut Vec<Running>) -> anyhow::Result<()> {
        let first = Ports(self.first_port).cluster();
        for (place, name) in (0u16..).zip(NODES) {
            let ports = Ports(self.first_port + place * BLOCK);
            let child = self.spawn(name, &ports, dir, (place > 0).then_some(first.as_str()))?;
            running.push(Running { name, ports, child });
            let node = running.last_mut().context("it was just added")?;
            tokio::time::timeout(READY_MAX, node.until_ready())
                .await
                .with_context(|| format!("node '{name}' is not ready within {} s", READY_MAX.as_secs()))??;
        }
        Ok(())
    }

    fn spawn(&self, name: &str, ports: &Ports, dir: &Path, join: Option<&str>) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        let mut command = Command::new(program);
        // Settings of a broker of one's own are not meant for these.
        for (variable, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"NEXO_"))
        {
            command.env_remove(variable);
        }
        command
            .args(["serve", "--node", name, "--cluster", &ports.cluster(), "--data-dir"])
            .arg(dir.join(name))
            .args(["--amqp", &ports.amqp(), "--grpc", &ports.grpc(), "--sqs", &ports.sqs()])
            .args(["--http", &ports.http(), "--log", &self.log]);
        if let Some(join) = join {
            command.args(["--join", join]);
        }
        // Ctrl-C in the terminal is for this process, which ends them one after the other.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        command.spawn().with_context(|| format!("cannot start node '{name}'"))
    }
}

impl Running {
    async fn until_ready(&mut self) -> anyhow::Result<()> {
        let stdout = self.child.stdout.take().context("a node has an output")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = lines.next_line().await.context("cannot read what a node says")?.unwrap_or_default();
        let name = self.name;
        ensure!(
            line.starts_with("ready"),
            "node '{name}' did not start; what it said is above. If a port is taken, --first-port chooses others"
        );
        Ok(())
    }
}

/// Says how to reach the nodes.
fn tell(dir: &Path, running: &[Running]) -> anyhow::Result<()> {
    let mut out = Printer::new(Format::Text);
    let mut table = columns(&["NODE", "AMQP", "NATIVE", "SQS", "MANAGEMENT"]);
    for node in running {
        let ports = &node.ports;
        table.add_row([
            node.name.to_owned(),
            format!("amqp://{}", ports.amqp()),
            format!("http://{}", ports.grpc()),
            format!("http://{}", ports.sqs()),
            format!("http://{}", ports.http()),
        ]);
    }
    let Some(first) = running.first() else { bail!("there is no node") };
    let (grpc, http) = (first.ports.grpc(), first.ports.http());
    out.line(format_args!("ready: three nodes, with their data in {}\n\n{table}\n", dir.display()))?;
    out.line(format_args!("Any of them takes any client. In another terminal:"))?;
    out.line(format_args!("  nexo --management http://{http} cluster status --watch"))?;
    out.line(format_args!("  nexo --server http://{grpc} queue create mail"))?;
    for node in running {
        let pid = node.child.id().unwrap_or_default();
        out.line(format_args!("  kill -9 {pid}    # lose node '{}'", node.name))?;
    }
    out.line("\nCtrl-C ends them.")?;
    out.flush()?;
    Ok(())
}

/// A node may be lost, which is what this is for. Without any there is nothing left to do.
async fn until_all_ended(running: &mut [Running]) -> anyhow::Result<()> {
    for node in running {
        node.child.wait().await.with_context(|| format!("cannot wait for node '{}'", node.name))?;
    }
    Ok(())
}

/// The first one last: it is left alone in the end, and has nobody to hand over to.
async fn end_all(running: Vec<Running>) {
    for mut node in running.into_iter().rev() {
        let pid = node.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(pid) = pid {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(END_MAX, node.child.wait()).await.is_err() {
            // What is left is killed when it is dropped.
            crate::output::note(format_args!("node '{}' does not end and is killed", node.name));
        }
    }
}

/// Where the data lies: a directory that stays, or one that goes.
struct Directory {
    path: PathBuf,
    is_ours: bool,
}

impl Directory {
    fn new(given: Option<&Path>) -> anyhow::Result<Self> {
        let (path, is_ours) = match given {
            Some(path) => (path.to_owned(), false),
            None => {
                let name = format!("nexo-try-{}-{:08x}", std::process::id(), fastrand::u32(..));
                (std::env::temp_dir().join(name), true)
            }
        };
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make '{}'", path.display()))?;
        Ok(Self { path, is_ours })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.is_ours {
            // What is left there is in nobody's way.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
