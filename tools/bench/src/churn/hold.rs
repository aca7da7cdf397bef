//! Connections and queues that are there and do nothing, with heartbeats both ways. A connection that ends, or from
//! which nothing is heard for two heartbeats, is an error.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::{AmqpUrl, ChurnOptions, Held};
use crate::amqp::{CHANNEL, Connection, InputSize, declare_queue, delete_queue};
use crate::process;
use crate::work::{Durability, Settings};

/// How often connections are looked at.
const GLANCE: Duration = Duration::from_millis(250);
/// How long the broker may take to come to rest before its memory is looked at.
const REST: Duration = Duration::from_secs(1);

struct Line {
    connection: Connection,
    heard: Instant,
    told: Instant,
}

/// Opens everything, holds it for so long, and ends it in order.
pub(super) fn run(url: &AmqpUrl, time: Duration, options: &ChurnOptions) -> anyhow::Result<Held> {
    process::allow_many_files();
    let resident = || -> anyhow::Result<Option<i64>> {
        if options.broker_pid.is_some() {
            std::thread::sleep(REST);
        }
        Ok(options.broker_pid.map(process::resident_bytes).transpose()?.map(|bytes| bytes as i64))
    };
    let mut held = Held::default();
    let empty = resident()?;
    let mut first = Connection::open(url, InputSize::Small)?;
    first.open_channel(CHANNEL)?;
    let durable = Settings { durability: Durability::Durable, ..Settings::default() };
    let queues: Vec<String> =
        (0..options.queues).map(|n| format!("b{}-held-{n}", std::process::id())).collect();
    for queue in &queues {
        declare_queue(&mut first, queue, &durable)?;
    }
    let with_queues = if queues.is_empty() { empty } else { resident()? };
    let began = Instant::now();
    let mut lines = open(url, options)?;
    held.opened_seconds = began.elapsed().as_secs_f64();
    let with_connections = resident()?;
    hold(&mut lines, time, &mut held)?;

    held.empty_resident_bytes = empty.map(i64::unsigned_abs);
    held.queues_bytes = empty.zip(with_queues).filter(|_| !queues.is_empty()).map(|(from, to)| to - from);
    held.connections_bytes =
        with_queues.zip(with_connections).filter(|_| !lines.is_empty()).map(|(from, to)| to - from);
    for line in lines {
        line.connection.socket.set_nonblocking(false)?;
        line.connection.close().context("a connection could not be ended in order")?;
    }
    for queue in &queues {
        delete_queue(&mut first, queue)?;
    }
    first.close()?;
    Ok(held)
}

fn open(url: &AmqpUrl, options: &ChurnOptions) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for number in 1..=options.connections {
        let open = || -> anyhow::Result<Connection> {
            let mut connection = Connection::open_with_heartbeat(url, InputSize::Small, options.heartbeat)?;
            for channel in 1..=options.channels {
                connection.open_channel(channel)?;
            }
            connection.socket.set_nonblocking(true)?;
            Ok(connection)
        };
        let connection = open().with_context(|| format!("connection {number} could not be opened"))?;
        lines.push(Line { connection, heard: Instant::now(), told: Instant::now() });
        // Opening thousands may take longer than the first of them may be silent.
        if number.is_multiple_of(100) {
            keep_alive(&mut lines, &mut Held::default())?;
        }
    }
    Ok(lines)
}

fn hold(lines: &mut [Line], time: Duration, held: &mut Held) -> anyhow::Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        keep_alive(lines, held)?;
        std::thread::sleep(GLANCE.min(until.saturating_duration_since(Instant::now())));
    }
    keep_alive(lines, held)
}

/// Hears and tells what is due on every connection.
fn keep_alive(lines: &mut [Line], held: &mut Held) -> anyhow::Result<()> {
    for (number, line) in lines.iter_mut().enumerate() {
        line.keep_alive(held).with_context(|| format!("connection {} was lost", number + 1))?;
    }
    Ok(())
}

impl Line {
    fn keep_alive(&mut self, held: &mut Held) -> anyhow::Result<()> {
        let heartbeat = Duration::from_secs(u64::from(self.connection.heartbeat));
        let heard = self.connection.take_heartbeats()?;
        if heard > 0 {
            self.heard = Instant::now();
            held.heartbeats_received += heard;
        }
        if self.heard.elapsed() > 2 * heartbeat {
            bail!("nothing was heard for {:?}, with a heartbeat every {heartbeat:?}", self.heard.elapsed());
        }
        if self.told.elapsed() >= heartbeat / 2 {
            self.connection.send_heartbeat()?;
            self.told = Instant::now();
            held.heartbeats_sent += 1;
        }
        Ok(())
    }
}
