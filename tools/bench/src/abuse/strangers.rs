//! Connections that want nothing good: thousands that are idle, peers that send a byte now and then (slow loris), and such
//! that send garbage. They must end on time, cost little, and keep no newcomer waiting.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::Found;
use super::newcomer::{Newcomers, Port};
use super::target::Target;
use crate::amqp::{Connection, InputSize};
use crate::process;

/// Idle clients, each logged in.
const IDLE: u64 = 5_000;
/// How long they are held.
const IDLE_FOR: Duration = Duration::from_secs(10);
/// Slow peers of one port.
const SLOW: u64 = 1_000;
/// How often each sends a byte.
const SLOW_EVERY: Duration = Duration::from_secs(1);
/// How long after its limit a peer may still be there: it is looked at once a second.
const LATE: Duration = Duration::from_secs(5);
/// Peers that send garbage, one after the other, at this distance: their sockets cost the load more than the broker.
const GARBAGE_EVERY: Duration = Duration::from_millis(4);
const GARBAGE_FOR: Duration = Duration::from_secs(10);
const GARBAGE_BYTES: usize = 64 << 10;
/// How long such a peer waits to be let go.
const GARBAGE_PATIENCE: Duration = Duration::from_millis(200);

impl Port {
    fn address(self, target: &Target) -> String {
        match self {
            Self::Amqp => format!("{}:{}", target.amqp.host, target.amqp.port),
            Self::Grpc => target.native.to_string().trim_start_matches("http://").to_owned(),
            Self::Sqs => target.sqs.clone(),
            Self::Http => target.http.clone(),
        }
    }

    /// What a peer says that begins well and never comes to the point.
    const fn opening(self) -> &'static [u8] {
        match self {
            Self::Amqp => b"AMQP\x00\x00\x09\x01\x01\x00\x00\x00\x00\xff\xff",
            Self::Grpc => b"PRI * HTTP/2.0\r\n\r\nSM",
            Self::Sqs | Self::Http => b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaa",
        }
    }

    /// How long the broker waits for the rest of it.
    const fn limit(self) -> Duration {
        match self {
            Self::Amqp | Self::Grpc => Duration::from_secs(10),
            Self::Sqs | Self::Http => Duration::from_secs(30),
        }
    }
}

/// Does something to a port while newcomers come to it, and the probe publishes.
fn meanwhile(
    target: &Target,
    port: Port,
    work: impl FnOnce(&mut Found) -> anyhow::Result<()>,
) -> anyhow::Result<Found> {
    let mut found = Found::default();
    target.probed(&mut found, |found| {
        let newcomers = Newcomers::start(target, port)?;
        let worked = work(found);
        let finished = newcomers.finish(found);
        worked.and(finished)
    })?;
    Ok(found)
}

/// Clients that have logged in and say nothing.
pub(super) fn idle_connections(target: &Target) -> anyhow::Result<Found> {
    let before = process::resident_bytes(target.pid)?;
    meanwhile(target, Port::Amqp, |found| {
        let began = Instant::now();
        let count = target.count(IDLE);
        let held: Vec<Connection> = (0..count)
            .map(|_| Connection::open(&target.amqp, InputSize::Small))
            .collect::<Result<_, _>>()
            .context("a client could not log in")?;
        let opened = began.elapsed();
        std::thread::sleep(target.time(IDLE_FOR));
        let each = process::resident_bytes(target.pid)?.saturating_sub(before) / count;
        found
            .add("connections", format!("{count} in {:.1} s", opened.as_secs_f64()))
            .add("memory of each", format!("{:.1} KiB", each as f64 / 1024.0))
            .number("held", held.len() as f64)
            .number("connection_bytes", each as f64);
        Ok(())
    })
}

/// Peers that send a byte a second.
pub(super) fn slow_loris(target: &Target, port: Port) -> anyhow::Result<Found> {
    meanwhile(target, port, |found| {
        let address = port.address(target);
        let count = target.count(SLOW);
        let mut open: Vec<TcpStream> = Vec::new();
        for _ in 0..count {
            let socket = TcpStream::connect(&address).context("a port takes no connection")?;
            socket.set_nonblocking(true)?;
            open.push(socket);
        }
        let began = Instant::now();
        let mut longest = Duration::ZERO;
        let mut bytes = port.opening().iter().cycle();
        while !open.is_empty() && began.elapsed() < port.limit() + LATE {
            let byte = [*bytes.next().context("a cycle has no end")?];
            open.retain(|socket| is_open(socket, byte));
            if !open.is_empty() {
                longest = began.elapsed();
            }
            std::thread::sleep(SLOW_EVERY);
        }
        let ended = count - open.len() as u64;
        found
            .add("peers", count)
            .add("ended", format!("{ended}, the last after {:.0} s", longest.as_secs_f64()))
            .number("ended_part", ended as f64 / count as f64);
        Ok(())
    })
}

/// Sends a byte and looks whether the other end is still there.
fn is_open(mut socket: &TcpStream, byte: [u8; 1]) -> bool {
    let waits = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
    if socket.write(&byte).is_err_and(|error| !waits(&error)) {
        return false;
    }
    match socket.read(&mut [0; 512]) {
        Ok(count) => count > 0,
        Err(error) => waits(&error),
    }
}

/// Peers that send bytes without any sense.
pub(super) fn garbage(target: &Target, port: Port) -> anyhow::Result<Found> {
    meanwhile(target, port, |found| {
        let address = port.address(target);
        let mut random = fastrand::Rng::with_seed(7);
        let (mut made, mut ended) = (0u64, 0u64);
        let (began, whole) = (Instant::now(), target.time(GARBAGE_FOR));
        let mut bytes = vec![0; GARBAGE_BYTES];
        while began.elapsed() < whole {
            random.fill(&mut bytes);
            let mut socket = TcpStream::connect(&address).context("a port takes no connection")?;
            socket.set_write_timeout(Some(GARBAGE_PATIENCE))?;
            socket.set_read_timeout(Some(GARBAGE_PATIENCE))?;
            made += 1;
            // It may be cut off before it has said all.
            let is_cut = socket.write_all(&bytes).is_err() || is_ended(&mut socket);
            ended += u64::from(is_cut);
            std::thread::sleep(GARBAGE_EVERY);
        }
        found
            .add(
                "peers",
                format!("{made}, each with {} KiB; {ended} were let go at once", GARBAGE_BYTES >> 10),
            )
            .number("ended_part", ended as f64 / made as f64);
        Ok(())
    })
}

/// Whether the other end closes the connection, after whatever it has to say.
fn is_ended(socket: &mut TcpStream) -> bool {
    let mut answer = [0; 4096];
    loop {
        match socket.read(&mut answer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }
}
