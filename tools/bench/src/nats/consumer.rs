//! A consumer of a stream: deliveries are pushed, one acknowledgement covers all before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nexo_amqp_client::Filled;

use super::NatsUrl;
use super::connection::{Connection, Line};
use crate::protocol::{Consume, Look};
use crate::tally::Tally;
use crate::work::{Ack, Seen, Wants};

/// How often a consumer that gets nothing looks whether it should stop.
const GLANCE: Duration = Duration::from_millis(50);

/// A connection that consumes.
pub(super) struct Consumer {
    connection: Connection,
    every: u64,
    tally: Arc<Tally>,
    consumed: u64,
    /// Acknowledgements that are on their way into one write.
    acks: Vec<u8>,
    /// How to acknowledge the last message, if it is not.
    last: Option<Vec<u8>>,
}

impl Consumer {
    pub(super) fn open(url: &NatsUrl, wants: &Wants, tally: Arc<Tally>) -> anyhow::Result<Self> {
        let [queue] = wants.queues.as_slice() else { anyhow::bail!("over NATS a consumer has one queue") };
        let Ack::Every(every) = wants.ack else {
            anyhow::bail!("over NATS a consumer acknowledges; --ack must be a number");
        };
        ensure!(wants.prefetch >= every, "--prefetch must be at least as large as --ack");
        let mut connection = Connection::open(url)?;
        // A push consumer delivers only to a subject that somebody subscribes to by its full name.
        let deliver = connection.inbox("deliver")?.replace("_INBOX", "deliver");
        connection.write(format!("SUB {deliver} 2\r\n").as_bytes())?;
        let config = format!(
            r#"{{"stream_name":"{queue}","config":{{"deliver_subject":"{deliver}","deliver_policy":"all","ack_policy":"all","max_ack_pending":{}}}}}"#,
            wants.prefetch
        );
        connection.ask(&format!("$JS.API.CONSUMER.CREATE.{queue}"), &config)?;
        connection.socket.set_read_timeout(Some(GLANCE))?;
        Ok(Self { connection, every: u64::from(every), tally, consumed: 0, acks: Vec::new(), last: None })
    }

    /// Everything that one read brought.
    fn scan(&mut self, look: &mut Look<'_>) -> anyhow::Result<()> {
        let now = Instant::now();
        let mut at = 0;
        while let Some((line, bytes)) = Line::parse(&self.connection.input.bytes()[at..])? {
            match line {
                Line::Message { reply: Some(reply), payload } => {
                    self.consumed += 1;
                    if let Some(look) = look {
                        look(payload, now);
                    }
                    if self.consumed.is_multiple_of(self.every) {
                        acknowledge(&mut self.acks, reply);
                        self.last = None;
                    } else if at + bytes == self.connection.input.bytes().len() {
                        // Nothing follows yet: this may be the last one of all.
                        self.last = Some(reply.to_vec());
                    }
                }
                Line::Ping => self.acks.extend_from_slice(b"PONG\r\n"),
                Line::Message { reply: None, .. } | Line::Other => {}
            }
            at += bytes;
        }
        self.connection.input.consume(at);
        self.tally.consumed.set(self.consumed);
        self.flush()
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if !self.acks.is_empty() {
            let acks = std::mem::take(&mut self.acks);
            self.connection.write(&acks)?;
        }
        Ok(())
    }
}

fn acknowledge(out: &mut Vec<u8>, reply: &[u8]) {
    out.extend_from_slice(b"PUB ");
    out.extend_from_slice(reply);
    out.extend_from_slice(b" 0\r\n\r\n");
}

impl Consume for Consumer {
    fn run(mut self: Box<Self>, stop: &AtomicBool, mut look: Look<'_>) -> anyhow::Result<Seen> {
        while !stop.load(Ordering::Relaxed) {
            let Connection { socket, input } = &mut self.connection;
            match input.fill(socket).context("cannot read deliveries")? {
                Filled::More => self.scan(&mut look)?,
                Filled::Nothing => {
                    if let Some(reply) = self.last.take() {
                        acknowledge(&mut self.acks, &reply);
                        self.flush()?;
                    }
                }
            }
        }
        Ok(Seen { consumed: self.consumed, redelivered: 0 })
    }
}
