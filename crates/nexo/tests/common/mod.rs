//! A real broker process and real commands against it. Every wait has an end.

// Each test program uses its own part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nexo_harness::http;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// With this in the environment brokers of tests are nodes of clusters of three that lead nothing.
const ON_CLUSTERS: &str = "NEXO_TEST_ON_CLUSTERS";

/// Longest wait for anything. Far more than it takes; a test that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The settings of the ports with TLS. A certificate would open them where every test wants them.
pub const SECURE_PORTS: [&str; 4] = ["NEXO_AMQPS", "NEXO_GRPC_TLS", "NEXO_SQS_TLS", "NEXO_HTTPS"];

/// A running broker with a data directory of its own. Killed when dropped.
pub struct Server {
    process: Process,
    /// The other nodes of its cluster, one of which leads, if the tests run on clusters.
    others: Vec<Server>,
    dir: Option<TempDir>,
    data_dir: PathBuf,
    /// Address of the native API.
    pub grpc: String,
    /// Address of health and metrics.
    pub http: String,
    /// The line it printed when it was ready.
    pub ready: String,
}

/// How a command ended and what it said.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A child process that does not outlive the test.
pub struct Process {
    child: Child,
    stdout: Option<mpsc::Receiver<String>>,
    stderr: Option<mpsc::Receiver<String>>,
}

impl Server {
    /// A broker on free ports with fresh data.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with more options.
    pub fn start_with(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        let mut server = if std::env::var_os(ON_CLUSTERS).is_some() {
            Self::start_follower(dir.path(), args)
        } else {
            Self::start_in(&data_dir, args)
        };
        server.dir = Some(dir);
        server
    }

    /// A node of a cluster of three that another one leads.
    fn start_follower(dir: &Path, args: &[&str]) -> Self {
        let addresses = nexo_harness::free_addresses::<3>().unwrap().map(|address| address.to_string());
        let mut nodes: Vec<Self> = Vec::new();
        for (name, address) in ["a", "b", "c"].into_iter().zip(&addresses) {
            let join = ["--join", &addresses[0]];
            let join = if nodes.is_empty() { &[] } else { &join[..] };
            let own = ["--node", name, "--cluster", address];
            nodes.push(Self::start_in(&dir.join(name), &[args, &own, join].concat()));
        }
        let mut judged = nodes.pop().unwrap();
        judged.others = nodes;
        judged.until_followed();
        judged
    }

    /// Waits until all nodes are in step, and another one leads.
    fn until_followed(&self) {
        eventually("all nodes are in step, and another one leads", || {
            let shown = self.run(&["--output", "json", "cluster", "status"]);
            let Ok(status) = serde_json::from_str::<serde_json::Value>(&shown.stdout) else { return false };
            if status["leader"] == "c" {
                self.run(&["cluster", "transfer", "a"]);
            }
            let risk = status["risk"].as_str().unwrap_or_default();
            let is_followed = status["leader"].is_string() && status["leader"] != "c";
            risk.contains("all 3 nodes are in step") && is_followed
        });
    }

    /// A broker on free ports with the data in `data_dir`.
    pub fn start_in(data_dir: &Path, args: &[&str]) -> Self {
        let mut command = serve_command(data_dir);
        command.args(args);
        Self::start_by(command, data_dir)
    }

    /// A broker on free ports, started by this command.
    pub fn start_by(mut command: Command, data_dir: &Path) -> Self {
        // By the environment, so that arguments may say otherwise.
        command.env("NEXO_GRPC", "127.0.0.1:0").env("NEXO_HTTP", "127.0.0.1:0");
        let mut process = Process::spawn(&mut command);
        let Some(ready) = process.first_line() else {
            panic!("the broker did not get ready: {:?}", process.finish());
        };
        let (grpc, http) = (address(&ready, "grpc"), address(&ready, "http"));
        Self { process, others: Vec::new(), dir: None, data_dir: data_dir.to_owned(), grpc, http, ready }
    }

    /// Sends SIGKILL, as a power cut would, and waits for the end. On a cluster all nodes lose their power.
    pub fn kill(&mut self) {
        self.others.iter_mut().for_each(Self::kill);
        self.process.signal(Signal::KILL);
        self.process.wait();
    }

    /// Asks it to end and waits for it.
    pub fn stop(&mut self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.wait()
    }

    /// Asks it to end and gives what it said after its ready line.
    pub fn stop_and_collect(&mut self) -> Finished {
        self.process.signal(Signal::TERM);
        self.process.finish()
    }

    /// Sends a signal and does not wait.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Stops it where it is, and waits until all its threads stand: one of them takes the signal and tells the others, which go on until
    /// then.
    pub fn freeze(&self) {
        self.process.signal(Signal::STOP);
        let deadline = Instant::now() + PATIENCE;
        while !all_threads_stand(self.pid()) {
            assert!(Instant::now() < deadline, "the process does not stand still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// A new process on the same data, after [`Self::kill`] or [`Self::stop`].
    pub fn restart(&mut self) {
        self.restart_with(&[]);
    }

    /// The same with more options.
    pub fn restart_with(&mut self, args: &[&str]) {
        // Those that were killed as well are started at the same time: none of them gets ready alone.
        let (data, others) = (self.data_dir.clone(), std::mem::take(&mut self.others));
        let (mut next, others) = std::thread::scope(|scope| {
            let start = |mut other: Self| {
                if other.process.child.try_wait().unwrap().is_some() {
                    other.restart_with(args);
                }
                other
            };
            let others: Vec<_> = others.into_iter().map(|other| scope.spawn(move || start(other))).collect();
            let next = Self::start_in(&data, args);
            (next, others.into_iter().map(|other| other.join().unwrap()).collect::<Vec<Self>>())
        });
        next.dir = self.dir.take();
        next.others = others;
        if !next.others.is_empty() {
            next.until_followed();
        }
        *self = next;
    }

    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The address that `--server` takes.
    pub fn url(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// The address that RabbitMQ's clients take, if the broker was started with `--amqp`.
    pub fn amqp_url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", address(&self.ready, "amqp"))
    }

    /// The address of AMQP, if the broker was started with `--amqp`.
    pub fn amqp(&self) -> String {
        address(&self.ready, "amqp")
    }

    /// The address of SQS, if the broker was started with `--sqs`.
    pub fn sqs(&self) -> String {
        address(&self.ready, "sqs")
    }

    /// A command against this broker, not yet started.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = nexo();
        command
            .args(args)
            .env("NEXO_SERVER", self.url())
            .env("NEXO_MANAGEMENT", format!("http://{}", self.http));
        command
    }

    /// Runs a command against this broker to its end.
    pub fn run(&self, args: &[&str]) -> Finished {
        Process::spawn(&mut self.command(args)).finish()
    }

    /// Runs a command with this standard input.
    pub fn run_with_input(&self, args: &[&str], input: impl Into<Vec<u8>>) -> Finished {
        let mut command = self.command(args);
        command.stdin(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let mut stdin = process.stdin();
        let input = input.into();
        let feed = std::thread::spawn(move || stdin.write_all(&input));
        let finished = process.finish();
        feed.join().unwrap().unwrap();
        finished
    }

    /// Runs a command that must succeed, and gives what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        self.run(args).ok()
    }

    /// Runs a command that must succeed, and gives the JSON objects it printed.
    pub fn json(&self, args: &[&str]) -> Vec<serde_json::Value> {
        let args = [&["--output", "json"], args].concat();
        self.ok(&args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until the queue exists and has this many messages to hand out. Dead letters arrive a moment after
    /// what killed them was answered.
    #[track_caller]
    pub fn until_ready(&self, queue: &str, count: u64) {
        eventually("the messages are there", || {
            let shown = self.run(&["--output", "json", "queue", "show", queue]);
            let queue: Option<serde_json::Value> = serde_json::from_str(&shown.stdout).ok();
            queue.is_some_and(|queue| queue["stats"]["ready"] == count)
        });
    }

    /// `GET path` on the management port: status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        self.try_get(path).expect("the management port answers")
    }

    /// The same; `None` if the connection was closed without an answer.
    pub fn try_get(&self, path: &str) -> Option<(u16, String)> {
        let answer = http::get(&self.http, path, PATIENCE).ok()?;
        Some((answer.status, answer.body))
    }
}

impl Finished {
    /// What a command that must have succeeded printed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// The one line that a command which must have failed said.
    #[track_caller]
    pub fn error(self) -> String {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        self.stderr.trim_end().to_owned()
    }
}

impl Process {
    /// Starts `command` with its output caught.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = Some(lines(child.stdout.take().unwrap()));
        let stderr = Some(lines(child.stderr.take().unwrap()));
        Self { child, stdout, stderr }
    }

    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// The next line of standard output; `None` if there is none any more.
    pub fn first_line(&mut self) -> Option<String> {
        next_line(self.stdout.as_ref().unwrap())
    }

    /// The next line of standard error; `None` if there is none any more.
    pub fn first_error_line(&mut self) -> Option<String> {
        next_line(self.stderr.as_ref().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        // It may have ended by itself, which the caller will see.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the process did not end within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end and gives all that was said.
    pub fn finish(&mut self) -> Finished {
        let status = self.wait();
        let collect = |lines: Option<mpsc::Receiver<String>>| {
            let mut text = String::new();
            let lines = lines.unwrap();
            while let Ok(line) = lines.recv_timeout(PATIENCE) {
                text.push_str(&line);
            }
            text
        };
        Finished {
            code: status.code(),
            stdout: collect(self.stdout.take()),
            stderr: collect(self.stderr.take()),
        }
    }
}

fn next_line(lines: &mpsc::Receiver<String>) -> Option<String> {
    match lines.recv_timeout(PATIENCE) {
        Ok(line) => Some(line.trim_end_matches('\n').to_owned()),
        Err(mpsc::RecvTimeoutError::Disconnected) => None,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("no line within {PATIENCE:?}"),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, without anything from the environment of whoever runs the tests.
pub fn nexo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nexo"));
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.as_encoded_bytes().starts_with(b"NEXO_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// `nexo serve` on `data_dir`, not yet started.
pub fn serve_command(data_dir: impl AsRef<OsStr>) -> Command {
    let mut command = nexo();
    // By the environment, so that a test that needs one of them can say so with the flag.
    command.env("NEXO_AMQP", "off").env("NEXO_SQS", "off").args(["serve", "--data-dir"]).arg(data_dir);
    for port in SECURE_PORTS {
        command.env(port, "off");
    }
    command
}

/// Asks until `done` says yes.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What the ready line says after `name`.
fn address(ready: &str, name: &str) -> String {
    nexo_harness::address_in(ready, name).unwrap_or_else(|| panic!("no {name} in {ready:?}")).to_owned()
}

fn lines(from: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (out, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        loop {
            let mut bytes = Vec::new();
            match from.read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    if out.send(String::from_utf8_lossy(&bytes).into_owned()).is_err() {
                        return;
                    }
                }
            }
        }
    });
    lines
}

fn all_threads_stand(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.flatten().all(|thread| {
        // A thread that has ended meanwhile has no state. The name in brackets may have anything in it.
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.is_empty() || stat.rsplit_once(')').is_some_and(|(_, state)| state.trim_start().starts_with('T'))
    })
}
