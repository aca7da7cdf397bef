//! The broker that was just built, running for tests: on loopback, on free ports, with data that goes when it stops.
//!
//! Tests that need a hand on it (`tools/conformance/amqp/test_operations.py`) call this program again: `xtask control ADDRESS
//! WORD` hands one word to the thread here that looks after the process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nexo_harness::{BrokerProcess, PATIENCE, free_addresses, http};

use crate::python::Variable;
use crate::run::{run, target, write};

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

/// A running broker, stopped when dropped.
pub(crate) struct Nexo {
    running: Arc<Mutex<Running>>,
    program: PathBuf,
    control: SocketAddr,
    amqp: SocketAddr,
    sqs: SocketAddr,
    grpc: SocketAddr,
}

/// The process, and what it takes to start it again.
struct Running {
    process: BrokerProcess,
    program: PathBuf,
    home: PathBuf,
    http: SocketAddr,
}

impl Nexo {
    /// Builds and starts one.
    pub(crate) fn start(build: Build) -> anyhow::Result<Self> {
        let program = build.program("nexo")?;
        let home = target().join("conformance-data").join(std::process::id().to_string());
        fs::create_dir_all(&home).with_context(|| format!("cannot make '{}'", home.display()))?;
        // Fixed, because clients come back to the same address after a restart.
        let [amqp, sqs, grpc, http] = free_addresses()?;
        let data = home.join("data");
        let settings = format!(
            "amqp = '{amqp}'\nsqs = '{sqs}'\ngrpc = '{grpc}'\nhttp = '{http}'\ndata_dir = '{}'\n",
            data.display()
        );
        write(&home.join("nexo.toml"), &settings)?;
        let process = spawn(&program, &home)?;
        let running = Arc::new(Mutex::new(Running { process, program: program.clone(), home, http }));
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
        self.running.lock().unwrap_or_else(PoisonError::into_inner).http
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).process.pid()
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
        running.process.kill();
        fs::remove_dir_all(&running.home).ok();
    }
}

impl Running {
    fn obey(&mut self, word: &str) -> anyhow::Result<()> {
        match word {
            // More than any disk has: as if it were nearly full.
            "block" => self.set_disk_free_min(u64::from(u32::MAX) << 30, 503),
            "unblock" => self.set_disk_free_min(0, 200),
            "restart" => {
                // As a power cut would: whatever was promised must be there already.
                self.process.kill();
                self.process = spawn(&self.program, &self.home)?;
                Ok(())
            }
            other => bail!("'{other}' is none of block, unblock and restart"),
        }
    }

    /// Changes the setting, has the broker read it, and waits until its health shows that it did.
    fn set_disk_free_min(&self, bytes: u64, status: u16) -> anyhow::Result<()> {
        let path = self.home.join("nexo.toml");
        let text = fs::read_to_string(&path).context("cannot read the broker's settings")?;
        let others: String = text.lines().filter(|line| !line.starts_with("disk_free_min")).fold(
            String::new(),
            |mut text, line| {
                text.push_str(line);
                text.push('\n');
                text
            },
        );
        write(&path, &format!("{others}disk_free_min = {bytes}\n"))?;
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
fn spawn(program: &Path, home: &Path) -> anyhow::Result<BrokerProcess> {
    BrokerProcess::start(Command::new(program).args(["serve", "--config"]).arg(home.join("nexo.toml")))
}
