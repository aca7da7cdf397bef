//! The broker under abuse, and the few things that several scenarios do to it.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use nexo_amqp::codec::{FrameMax, encode_message};
use nexo_amqp_client::methods;

use super::{AbuseOptions, Found, descriptors};
use crate::amqp::{AmqpUrl, CHANNEL, Confirmed, Connection, InputSize, declare_queue, short};
use crate::native::NativeUrl;
use crate::probe::{self, Probe};
use crate::protocol::Protocol;
use crate::threads::joined;
use crate::work::{Durability, MessageShape, Persistence, Settings};

/// How long the probe runs before a load begins and after it has ended.
const MARGIN: Duration = Duration::from_secs(1);
/// How long a broker may take nothing before it counts as holding the sender back.
pub(super) const HELD_BACK: Duration = Duration::from_secs(5);
/// Messages of a filling publisher that may be unconfirmed.
const WINDOW: u32 = 1_000;

/// A queue that survives a restart.
pub(super) const DURABLE: Settings = Settings { durability: Durability::Durable, arguments: Vec::new() };

/// A broker and how much of a load it gets.
pub(super) struct Target {
    pub(super) amqp: AmqpUrl,
    pub(super) native: NativeUrl,
    pub(super) sqs: String,
    pub(super) http: String,
    pub(super) pid: u32,
    divide: u64,
}

impl Target {
    pub(super) fn new(options: &AbuseOptions) -> Self {
        Self {
            amqp: options.url.clone(),
            native: options.native.clone(),
            sqs: options.sqs.clone(),
            http: options.http.clone(),
            pid: options.broker_pid,
            divide: options.divide.max(1),
        }
    }

    /// A count, scaled down for a quick look.
    pub(super) fn count(&self, full: u64) -> u64 {
        (full / self.divide).max(1)
    }

    /// A time, scaled down for a quick look, though less than counts are.
    pub(super) fn time(&self, full: Duration) -> Duration {
        if self.divide > 1 { full / 5 } else { full }
    }

    /// Does something with the probe beside it, and asks whether the broker is well afterwards.
    pub(super) fn probed(
        &self,
        found: &mut Found,
        work: impl FnOnce(&mut Found) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let probe = Probe::start(&self.amqp, probe::EVERY)?;
        std::thread::sleep(MARGIN);
        let worked = work(found);
        std::thread::sleep(MARGIN);
        let probed = probe.finish();
        worked?;
        found.probe = Some(probed?);
        let health = descriptors::said(descriptors::health(&self.http));
        found.number("healthy_after", descriptors::healthy(&health));
        if health != descriptors::WELL {
            found.add("health after", health);
        }
        Ok(())
    }

    /// An AMQP connection with a channel.
    pub(super) fn connect(&self, size: InputSize) -> anyhow::Result<Connection> {
        let mut connection = Connection::open(&self.amqp, size)?;
        connection.open_channel(CHANNEL)?;
        Ok(connection)
    }

    /// A publisher that waits for each confirm, and a durable queue.
    pub(super) fn publisher(&self, queue: &str) -> anyhow::Result<Confirmed> {
        let mut publisher = Confirmed::open(&self.amqp)?;
        declare_queue(&mut publisher.connection, queue, &DURABLE)?;
        Ok(publisher)
    }

    /// Fills a durable queue with persistent messages, over AMQP; gives back how long it took.
    pub(super) fn fill(&self, queue: &str, count: u64, body_bytes: usize) -> anyhow::Result<Duration> {
        drop(self.publisher(queue)?);
        let began = Instant::now();
        publish(&self.amqp, &[shape(queue, body_bytes, Persistence::Persistent)], WINDOW, count)?;
        Ok(began.elapsed())
    }
}

/// Messages for one queue.
pub(super) fn shape(queue: &str, body_bytes: usize, persistence: Persistence) -> MessageShape {
    MessageShape {
        exchange: String::new(),
        routing_keys: vec![queue.to_owned()],
        body_bytes,
        persistence,
        priorities: None,
        batch: 1,
    }
}

/// Publishes so many messages of each shape at the same time.
pub(super) fn publish(
    protocol: &dyn Protocol,
    shapes: &[MessageShape],
    window: u32,
    count: u64,
) -> anyhow::Result<()> {
    let mut tallies = Vec::new();
    let publishers = protocol.publishers(shapes, window, Some(count), &mut tallies)?;
    let threads: Vec<_> = publishers
        .into_iter()
        .map(|publisher| std::thread::spawn(move || publisher.run(&AtomicBool::new(false))))
        .collect();
    for thread in threads {
        joined(thread, "a publisher")?;
    }
    Ok(())
}

/// The frames of one message.
pub(super) fn message(
    exchange: &str,
    routing_key: &str,
    properties: &[u8],
    body: &[u8],
    frame_max: FrameMax,
) -> anyhow::Result<Vec<u8>> {
    let publish = methods::publish(short(exchange)?, short(routing_key)?);
    let mut frames = Vec::new();
    encode_message(&mut frames, CHANNEL, &publish, properties, body, frame_max);
    Ok(frames)
}

/// How an attempt to send something large ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// The broker read no further.
    HeldBack,
    /// It ended the connection.
    Ended,
}

/// Sends bytes as far as the broker takes them; adds to `taken` how many it took.
pub(super) fn send(mut socket: &TcpStream, mut bytes: &[u8], taken: &mut u64) -> anyhow::Result<Sent> {
    socket.set_write_timeout(Some(HELD_BACK)).context("cannot limit the time of a write")?;
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(0) => return Ok(Sent::Ended),
            Ok(count) => {
                *taken += count as u64;
                bytes = &bytes[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(Sent::HeldBack);
            }
            Err(_) => return Ok(Sent::Ended),
        }
    }
    Ok(Sent::All)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_ended_connection_is_told_from_one_that_takes_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let mut taken = 0;
        assert_eq!(send(&client, &[1; 1000], &mut taken).unwrap(), Sent::All);
        assert_eq!(taken, 1000);
        // With unread bytes this is a reset.
        drop(server);
        let mut last = Sent::All;
        for _ in 0..100 {
            last = send(&client, &[1; 100_000], &mut taken).unwrap();
            if last == Sent::Ended {
                break;
            }
        }
        assert_eq!(last, Sent::Ended);
    }
}
