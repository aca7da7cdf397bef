//! A broker whose process may have few files open: too many clients, and a system that gives it none for a while. It
//! refuses for the time being, goes on by itself, and loses nothing that it confirmed.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;

use common::{PATIENCE, Server, eventually, serve_command};
use nexo_grpc::client::Client;
use nexo_grpc::proto;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

const QUEUE: &str = "work";
const SEGMENT: [&str; 2] = ["--segment-bytes", "1MiB"];
const BODY_BYTES: usize = 64 * 1024;

/// Numbered messages, and which of them were confirmed.
struct Publisher {
    client: Client,
    next: u64,
    confirmed: Vec<u64>,
}

impl Publisher {
    async fn connect(server: &Server) -> Self {
        let client = Client::connect(&server.url()).await.unwrap();
        Self { client, next: 0, confirmed: Vec::new() }
    }

    /// Pushes one message; if it was refused, why.
    async fn push(&mut self) -> Result<(), String> {
        let mut body = self.next.to_le_bytes().to_vec();
        body.resize(BODY_BYTES, b'x');
        let message = proto::NewMessage { body: body.into(), ..Default::default() };
        let request =
            proto::PushRequest { queue: QUEUE.into(), messages: vec![message], ..Default::default() };
        let reply = self.client.messages().push(request).await.map_err(|status| status.to_string())?;
        match &reply.get_ref().results[0].outcome {
            Some(proto::push_result::Outcome::Pushed(_)) => {
                self.confirmed.push(self.next);
                self.next += 1;
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    }

    async fn push_bytes(&mut self, bytes: usize) {
        for _ in 0..bytes / BODY_BYTES {
            self.push().await.unwrap();
        }
    }
}

/// Takes everything out, and gives the numbers.
async fn drain(server: &Server) -> Vec<u64> {
    let client = Client::connect(&server.url()).await.unwrap();
    let mut numbers = Vec::new();
    loop {
        let request = proto::PopRequest {
            queue: QUEUE.into(),
            max: 20,
            wait_ms: 100,
            visibility_ms: Some(60_000),
            ..Default::default()
        };
        let reply = client.messages().pop(request).await.unwrap().into_inner();
        if reply.messages.is_empty() {
            return numbers;
        }
        numbers.extend(reply.messages.iter().map(|m| u64::from_le_bytes(m.body[..8].try_into().unwrap())));
    }
}

fn open_files(server: &Server) -> u64 {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count() as u64
}

fn allow_files(server: &Server, files: u64) {
    let pid = Pid::from_raw(server.pid() as i32).unwrap();
    let maximum = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(files), maximum: Some(256) });
    maximum.unwrap();
}

/// A broker that may have 256 files open, whatever this process may.
fn start_with_few_files(dir: &std::path::Path) -> Server {
    start_after("ulimit -n 256", dir)
}

/// A broker that is started by a shell after this command.
fn start_after(ulimit: &str, dir: &std::path::Path) -> Server {
    let serve = serve_command(dir);
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{ulimit} && exec \"$0\" \"$@\"")])
        .arg(serve.get_program())
        .args(serve.get_args());
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["--amqp", "127.0.0.1:0"]).args(SEGMENT);
    Server::start_by(command, dir)
}

/// How many files the process may have open: what it uses, and to what it could raise that.
fn files_limits(server: &Server) -> (u64, u64) {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn the_soft_limit_is_raised_to_the_hard_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_after("ulimit -Sn 256 && ulimit -Hn 1024", &dir.path().join("data"));
    assert_eq!(files_limits(&server), (1024, 1024));
    let clients: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(server.amqp()).unwrap()).collect();
    eventually("more clients are connected than 256 descriptors allow", || open_files(&server) > 300);
    assert!(!clients.iter().any(is_closed));

    let server = start_with_few_files(&dir.path().join("other"));
    assert_eq!(files_limits(&server), (256, 256), "it cannot be raised further");
}

fn is_closed(mut connection: &TcpStream) -> bool {
    connection.set_nonblocking(true).unwrap();
    // It may have been told why.
    match connection.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_take_no_descriptor_from_the_log_and_no_place_from_clients() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_with_few_files(&dir.path().join("data"));
    server.ok(&["queue", "create", QUEUE]);
    let mut publisher = Publisher::connect(&server).await;
    publisher.push().await.unwrap();
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&server.http).unwrap()).collect();
    eventually("those beyond the limit are closed", || {
        silent.iter().filter(|connection| is_closed(connection)).count() >= 280
    });
    let clients: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(server.amqp()).unwrap()).collect();
    eventually("clients beyond the limit are closed", || {
        clients.iter().filter(|connection| is_closed(connection)).count() >= 180
    });
    assert!(open_files(&server) < 200, "{} files", open_files(&server));

    let health = server.try_get("/health").map(|(status, _)| status);
    assert_eq!(health, Some(200), "silent connections give way to one that has something to ask");
    publisher.push_bytes(5 << 20).await;
    drop((silent, clients));
    publisher.push_bytes(3 << 20).await;
    server.kill();
    server.restart_with(&SEGMENT);
    assert_eq!(drain(&server).await, publisher.confirmed);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_descriptors_the_broker_refuses_and_goes_on_when_there_are_some() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_with_few_files(&dir.path().join("data"));
    server.ok(&["queue", "create", QUEUE]);
    let mut publisher = Publisher::connect(&server).await;
    publisher.push_bytes(3 << 20).await;
    let mut watch = TcpStream::connect(&server.http).unwrap();
    watch.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(get(&mut watch, "/health").0, 200);

    // Files that are open stay open; not one more.
    allow_files(&server, 3);
    let waiting = TcpStream::connect(&server.http).unwrap();
    let mut refusal = None;
    for _ in 0..100 {
        if let Err(error) = publisher.push().await {
            refusal = Some(error);
            break;
        }
    }
    let refusal = refusal.expect("without a descriptor there is no new segment");
    assert!(refusal.contains("Too many open files"), "{refusal}");
    let (status, body) = get(&mut watch, "/health");
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("full"), "{body}");

    allow_files(&server, 256);
    eventually("the broker is well again", || get(&mut watch, "/health").0 == 200);
    publisher.push_bytes(3 << 20).await;
    assert_eq!(server.get("/health").0, 200, "the port accepts again");
    drop(waiting);
    server.kill();
    server.restart_with(&SEGMENT);
    assert_eq!(drain(&server).await, publisher.confirmed);
}

/// `GET path` on a connection that stays open.
fn get(connection: &mut TcpStream, path: &str) -> (u16, String) {
    use std::io::Write;
    write!(connection, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    loop {
        let mut buf = [0; 4096];
        let read = connection.read(&mut buf).unwrap();
        assert!(read > 0, "the connection was closed");
        answer.extend_from_slice(&buf[..read]);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length: usize = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok())
            .unwrap();
        if body.len() >= length {
            return (head.split_whitespace().nth(1).unwrap().parse().unwrap(), body.to_owned());
        }
    }
}
