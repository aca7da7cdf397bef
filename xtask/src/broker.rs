//! The broker that was just built, running for tests: on loopback, on free ports, with data that goes when it stops.
//!
//! Tests that need a hand on it (`tools/conformance/amqp/test_operations.py`) call this program again: `xtask control ADDRESS
//! WORD` hands one word to the thread here that looks after the process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nexo_harness::{BrokerProcess, PATIENCE, free_addresses, http};

use crate::python::Variable;
use crate::run::{run, target, write};

/// How many were started: each has a folder of its own.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// How the broker was built, and programs that drive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    Debug,
    Release,
}

impl Build {
    /// Builds the program of a package, and says where it is.
    pub(crate) fn program(self, package: &str) -> anyhow::Result<PathBuf> {
        let (folder, args): (_, &[&str]) = match self {
            Self::Debug => ("debug", &["build", "--quiet", "-p", package]),
            Self::Release => ("release", &["build", "--quiet", "--release", "-p", package]),
        };
        run("cargo", args)?;
        Ok(target().join(folder).join(package))
    }
}

/// How many nodes the broker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// It is by itself.
    One,
    /// It is a cluster, and clients come to a node that leads nothing.
    Three,
}

/// A running broker, stopped when dropped.
pub(crate) struct Nexo {
    running: Arc<Mutex<Running>>,
    program: PathBuf,
    control: SocketAddr,
    amqp: SocketAddr,
    sqs: SocketAddr,
    grpc: SocketAddr,
}

/// The processes, and what it takes to start them again.
struct Running {
    program: PathBuf,
    home: PathBuf,
    /// All nodes. The last one is that of the clients.
    nodes: Vec<Node>,
}

struct Node {
    process: BrokerProcess,
    name: String,
    settings: PathBuf,
    http: SocketAddr,
}

impl Nexo {
    /// Builds and starts one.
    pub(crate) fn start(build: Build) -> anyhow::Result<Self> {
        Self::start_nodes(build, Nodes::One)
    }

    /// The same with so many nodes.
    pub(crate) fn start_nodes(build: Build, nodes: Nodes) -> anyhow::Result<Self> {
        let program = build.program("nexo")?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let home = target().join("conformance-data").join(format!("{}-{number}", std::process::id()));
        fs::create_dir_all(&home).with_context(|| format!("cannot make '{}'", home.display()))?;
        let names: &[&str] = match nodes {
            Nodes::One => &["a"],
            Nodes::Three => &["a", "b", "c"],
        };
        let mut running = Running { program: program.clone(), home, nodes: Vec::new() };
        let (mut ports, mut join) = (free_addresses::<4>()?, Vec::new());
        for name in names {
            // Fixed, because clients come back to the same address after a restart.
            ports = free_addresses()?;
            let cluster = (nodes == Nodes::Three).then(free_addresses::<1>).transpose()?;
            running.add(name, ports, cluster.map(|[address]| address), &mut join)?;
        }
        let [amqp, sqs, grpc, _] = ports;
        running.until_followed()?;
        let running = Arc::new(Mutex::new(running));
        let control = answer_control(&running)?;
        Ok(Self { running, program, control, amqp, sqs, grpc })
    }

    /// Where it listens for AMQP.
    pub(crate) const fn amqp(&self) -> SocketAddr {
        self.amqp
    }

    /// Where its SQS API is.
    pub(crate) const fn sqs(&self) -> SocketAddr {
        self.sqs
    }

    /// Where its native API is.
    pub(crate) const fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Where its management port is.
    pub(crate) fn http(&self) -> SocketAddr {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).judged().http
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).judged().process.pid()
    }

    /// What the conformance tests need to know of it.
    pub(crate) fn variables(&self) -> anyhow::Result<Vec<Variable>> {
        let program = std::env::current_exe().context("cannot tell where xtask is")?;
        let control = |word: &str| format!("'{}' control {} {word}", program.display(), self.control);
        Ok(vec![
            ("AMQP_URL".to_owned(), format!("amqp://guest:guest@{}/%2F", self.amqp)),
            ("AMQP_BLOCK_COMMAND".to_owned(), control("block")),
            ("AMQP_UNBLOCK_COMMAND".to_owned(), control("unblock")),
            ("AMQP_RESTART_COMMAND".to_owned(), control("restart")),
            ("AMQP_MOVE_COMMAND".to_owned(), control("move")),
            ("GRPC_URL".to_owned(), format!("http://{}", self.grpc)),
            ("HTTP_URL".to_owned(), format!("http://{}", self.http())),
            ("SQS_URL".to_owned(), format!("http://{}", self.sqs)),
            ("NEXO_BIN".to_owned(), self.program.display().to_string()),
            (
                "RABBITMQCTL".to_owned(),
                format!("'{}' --management http://{} rabbitmqctl", self.program.display(), self.http()),
            ),
        ])
    }
}

impl Drop for Nexo {
    fn drop(&mut self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.nodes.iter_mut().for_each(|node| node.process.kill());
        fs::remove_dir_all(&running.home).ok();
    }
}

impl Running {
    /// The node that clients come to.
    fn judged(&self) -> &Node {
        self.nodes.last().expect("there is one from the start on")
    }

    /// Starts one more. In a cluster it joins those that are there.
    fn add(
        &mut self,
        name: &str,
        [amqp, sqs, grpc, http]: [SocketAddr; 4],
        cluster: Option<SocketAddr>,
        join: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let data = self.home.join(format!("data-{name}"));
        let mut text = format!(
            "amqp = '{amqp}'\nsqs = '{sqs}'\ngrpc = '{grpc}'\nhttp = '{http}'\ndata_dir = '{}'\n",
            data.display()
        );
        if let Some(address) = cluster {
            text.push_str(&format!("node = '{name}'\ncluster = '{address}'\njoin = {join:?}\n"));
            join.push(address.to_string());
        }
        let settings = self.home.join(format!("{name}.toml"));
        write(&settings, &text)?;
        let process = spawn(&self.program, &settings)?;
        self.nodes.push(Node { process, name: name.to_owned(), settings, http });
        Ok(())
    }

    /// In a cluster: waits until all nodes are in step and another one than that of the clients leads.
    fn until_followed(&self) -> anyhow::Result<()> {
        if self.nodes.len() == 1 {
            return Ok(());
        }
        let leader = self.until_in_step()?;
        if leader == self.nodes.len() - 1 { self.transfer_from(leader) } else { Ok(()) }
    }

    /// Waits until all nodes are in step, and says which of them leads.
    fn until_in_step(&self) -> anyhow::Result<usize> {
        let in_step = format!("all {} nodes are in step", self.nodes.len());
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.ask_cluster(&["status"])?;
            let compact: String = status.split_whitespace().collect();
            let leads = |node: &Node| compact.contains(&format!(r#""leader":"{}""#, node.name));
            if let (true, Some(leader)) = (status.contains(&in_step), self.nodes.iter().position(leads)) {
                return Ok(leader);
            }
            ensure!(Instant::now() < end, "the cluster is not in step after {PATIENCE:?}: {status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Has the next node lead in place of this one.
    fn transfer_from(&self, leader: usize) -> anyhow::Result<()> {
        let next = &self.nodes[(leader + 1) % self.nodes.len()];
        let end = Instant::now() + PATIENCE;
        while self.until_in_step()? == leader {
            ensure!(Instant::now() < end, "leadership does not move to {} within {PATIENCE:?}", next.name);
            self.ask_cluster(&["transfer", &next.name])?;
        }
        Ok(())
    }

    /// What `nexo cluster` says of the node that clients come to.
    fn ask_cluster(&self, words: &[&str]) -> anyhow::Result<String> {
        let management = format!("http://{}", self.judged().http);
        let asked = Command::new(&self.program)
            .args(["--management", &management, "--output", "json", "cluster"])
            .args(words)
            .output()?;
        Ok(String::from_utf8_lossy(&asked.stdout).into_owned())
    }

    /// Starts all nodes again. None of a cluster gets ready alone.
    fn restart(&mut self) -> anyhow::Result<()> {
        let program = &self.program;
        std::thread::scope(|scope| {
            let started: Vec<_> = self
                .nodes
                .iter_mut()
                .map(|node| {
                    // As a power cut would: whatever was promised must be there already.
                    node.process.kill();
                    scope.spawn(move || -> anyhow::Result<()> {
                        node.process = spawn(program, &node.settings)?;
                        Ok(())
                    })
                })
                .collect();
            started.into_iter().try_for_each(|thread| match thread.join() {
                Ok(started) => started,
                Err(_) => bail!("a node could not be started"),
            })
        })?;
        self.until_followed()
    }

    fn obey(&mut self, word: &str) -> anyhow::Result<()> {
        match word {
            // More than any disk has: as if it were nearly full.
            "block" => {
                self.nodes.iter().try_for_each(|node| node.set_disk_free_min(u64::from(u32::MAX) << 30, 503))
            }
            "unblock" => self.nodes.iter().try_for_each(|node| node.set_disk_free_min(0, 200)),
            "restart" => self.restart(),
            "move" => self.transfer_from(self.until_in_step()?),
            other => bail!("'{other}' is none of block, unblock, restart and move"),
        }
    }
}

impl Node {
    /// Changes the setting, has the broker read it, and waits until its health shows that it did.
    fn set_disk_free_min(&self, bytes: u64, status: u16) -> anyhow::Result<()> {
        let text = fs::read_to_string(&self.settings).context("cannot read the broker's settings")?;
        let others: String = text.lines().filter(|line| !line.starts_with("disk_free_min")).fold(
            String::new(),
            |mut text, line| {
                text.push_str(line);
                text.push('\n');
                text
            },
        );
        write(&self.settings, &format!("{others}disk_free_min = {bytes}\n"))?;
        let asked = Command::new("kill").args(["-HUP", &self.process.pid().to_string()]).status();
        ensure!(
            asked.is_ok_and(|status| status.success()),
            "the broker cannot be asked to read its settings"
        );
        let end = Instant::now() + PATIENCE;
        while http::get(self.http, "/health", PATIENCE)?.status != status {
            ensure!(Instant::now() < end, "the broker's health is not {status} after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Hands one word to the program that runs the tests.
pub(crate) fn control(address: &str, word: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("nobody answers at {address}"))?;
    writeln!(stream, "{word}").context("cannot ask")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).context("there is no answer")?;
    ensure!(answer.trim() == "done", "{}", answer.trim());
    Ok(())
}

/// Answers [`control`] until the process ends.
fn answer_control(running: &Arc<Mutex<Running>>) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen for control")?;
    let address = listener.local_addr().context("cannot tell the address of control")?;
    let running = Arc::clone(running);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut word = String::new();
            let asked = BufReader::new(&stream).read_line(&mut word);
            let done = asked
                .context("cannot read the word")
                .and_then(|_| running.lock().unwrap_or_else(PoisonError::into_inner).obey(word.trim()));
            let answer = done.map_or_else(|error| format!("{error:#}"), |()| "done".to_owned());
            // Whoever asked may have given up.
            writeln!(&stream, "{answer}").ok();
        }
    });
    Ok(address)
}

/// Starts the broker and waits until it is ready.
fn spawn(program: &Path, settings: &Path) -> anyhow::Result<BrokerProcess> {
    BrokerProcess::start(Command::new(program).args(["serve", "--config"]).arg(settings))
}
