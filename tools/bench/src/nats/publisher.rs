//! A publisher to a stream, with as many messages on their way as the window allows.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use nexo_amqp_client::Filled;

use super::NatsUrl;
use super::connection::{Connection, Line, PATIENCE};
use crate::crew::Member;
use crate::percentiles;
use crate::protocol::Publish;
use crate::tally::Tally;
use crate::work::MessageShape;

/// About how many bytes go into one write.
const WRITE_BYTES: usize = 64 * 1024;

/// A connection that publishes.
pub(super) struct Publisher {
    connection: Connection,
    /// The same publish over and over.
    lines: Vec<u8>,
    message_bytes: usize,
    window: u64,
    limit: u64,
    tally: Arc<Tally>,
    published: u64,
    confirmed: u64,
    /// When messages were sent: the last of a run and the moment.
    sent: VecDeque<(u64, Instant)>,
    nanos: Histogram<u64>,
}

impl Publisher {
    pub(super) fn open(
        url: &NatsUrl,
        shape: &MessageShape,
        window: u32,
        limit: Option<u64>,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Self> {
        ensure!(shape.priorities.is_none(), "NATS has no priorities");
        let [subject] = shape.routing_keys.as_slice() else {
            anyhow::bail!("over NATS a publisher has one queue");
        };
        let connection = Connection::open(url)?;
        let mut line =
            format!("PUB {subject} {} {}\r\n", connection.inbox("ack")?, shape.body_bytes).into_bytes();
        line.extend(std::iter::repeat_n(b'x', shape.body_bytes));
        line.extend_from_slice(b"\r\n");
        Ok(Self {
            connection,
            message_bytes: line.len(),
            lines: line.repeat((WRITE_BYTES / line.len()).max(1)),
            window: u64::from(window),
            limit: limit.unwrap_or(u64::MAX),
            tally,
            published: 0,
            confirmed: 0,
            sent: VecDeque::new(),
            nanos: percentiles::nanos(),
        })
    }

    fn room(&self) -> u64 {
        (self.window - self.unconfirmed()).min(self.limit - self.published)
    }

    fn take(&mut self, acks: u64) {
        let (now, to) = (Instant::now(), self.confirmed + acks);
        while self.confirmed < to
            && let Some(&(last, when)) = self.sent.front()
        {
            let through = last.min(to);
            percentiles::note(&mut self.nanos, now - when, through - self.confirmed);
            self.confirmed = through;
            if through == last {
                self.sent.pop_front();
            }
        }
        self.tally.confirmed.set(self.confirmed);
    }
}

impl Member for Publisher {
    fn socket(&self) -> &TcpStream {
        &self.connection.socket
    }

    fn fill_window(&mut self) -> anyhow::Result<()> {
        while let room @ 1.. = self.room() {
            let count = room.min((self.lines.len() / self.message_bytes) as u64);
            let when = Instant::now();
            let bytes = usize::try_from(count)? * self.message_bytes;
            std::io::Write::write_all(&mut &self.connection.socket, &self.lines[..bytes])
                .context("cannot publish")?;
            self.published += count;
            self.sent.push_back((self.published, when));
            self.tally.published.set(self.published);
        }
        Ok(())
    }

    fn await_confirms(&mut self) -> anyhow::Result<()> {
        let Connection { socket, input } = &mut self.connection;
        let filled = input.fill(socket).context("cannot read confirms")?;
        ensure!(filled == Filled::More, "nothing was confirmed for {PATIENCE:?}");
        let (mut acks, mut at, mut pings) = (0, 0, 0);
        while let Some((line, bytes)) = Line::parse(&input.bytes()[at..])? {
            match line {
                Line::Message { payload, .. } => {
                    // `{"stream":"name","seq":1}`, or `{"error":…`.
                    ensure!(
                        payload.starts_with(b"{\"stream\""),
                        "NATS refuses a message: {}",
                        String::from_utf8_lossy(payload)
                    );
                    acks += 1;
                }
                Line::Ping => pings += 1,
                Line::Other => {}
            }
            at += bytes;
        }
        input.consume(at);
        for _ in 0..pings {
            self.connection.write(b"PONG\r\n")?;
        }
        self.take(acks);
        Ok(())
    }

    fn unconfirmed(&self) -> u64 {
        self.published - self.confirmed
    }

    fn finish(self) -> anyhow::Result<Option<Histogram<u64>>> {
        Ok(Some(self.nanos))
    }
}

impl Publish for Publisher {
    fn run(mut self: Box<Self>, stop: &AtomicBool) -> anyhow::Result<Option<Histogram<u64>>> {
        while self.published < self.limit && !stop.load(Ordering::Relaxed) {
            self.fill_window()?;
            self.await_confirms()?;
        }
        while self.unconfirmed() > 0 {
            self.await_confirms()?;
        }
        self.finish()
    }
}
