//! A publisher that waits until its stream has stored each message before it goes on, whoever leads the stream.

use std::time::Duration;

use anyhow::{Context, ensure};
use nexo_amqp_client::Filled;

use super::NatsUrl;
use super::connection::{Connection, Line};

/// How often a message is sent again before the connection is given up.
const TRIES_MAX: u32 = 4;

/// A connection with a subject that a stream listens to.
pub(crate) struct Acknowledged {
    connection: Connection,
    subject: String,
    inbox: String,
}

impl Acknowledged {
    /// Makes a stream, and gives back the name of the server that leads it.
    pub(crate) fn declare(url: &NatsUrl, stream: &str) -> anyhow::Result<String> {
        let mut connection = Connection::open(url)?;
        connection.ask(&format!("$JS.API.STREAM.CREATE.{stream}"), &url.stream(stream, "file"))?;
        let told = connection.ask(&format!("$JS.API.STREAM.INFO.{stream}"), "")?;
        leader_in(&told).map(str::to_owned).with_context(|| format!("nobody leads the stream: {told}"))
    }

    /// Connects. A message that is not acknowledged for `again_after` is sent again.
    pub(crate) fn open(url: &NatsUrl, stream: &str, again_after: Duration) -> anyhow::Result<Self> {
        let connection = Connection::open(url)?;
        connection.socket.set_read_timeout(Some(again_after))?;
        let inbox = connection.inbox("stored")?;
        Ok(Self { connection, subject: stream.to_owned(), inbox })
    }

    /// Publishes a message until it is stored.
    pub(crate) fn publish(&mut self, body: &[u8]) -> anyhow::Result<()> {
        for _ in 0..TRIES_MAX {
            self.send(body)?;
            if self.wait()? {
                return Ok(());
            }
        }
        anyhow::bail!("the stream does not answer")
    }

    fn send(&mut self, body: &[u8]) -> anyhow::Result<()> {
        let mut line = format!("PUB {} {} {}\r\n", self.subject, self.inbox, body.len()).into_bytes();
        line.extend_from_slice(body);
        line.extend_from_slice(b"\r\n");
        self.connection.write(&line)
    }

    /// Whether it was stored; no if there is no word of it for a while.
    fn wait(&mut self) -> anyhow::Result<bool> {
        loop {
            let mut is_stored = false;
            let mut pings = 0;
            while let Some((line, bytes)) = Line::parse(self.connection.input.bytes())? {
                match line {
                    Line::Message { payload, .. } => {
                        let told = String::from_utf8_lossy(payload);
                        ensure!(!told.contains("\"error\""), "NATS refuses a message: {told}");
                        is_stored = true;
                    }
                    Line::Ping => pings += 1,
                    Line::Other => {}
                }
                self.connection.input.consume(bytes);
            }
            for _ in 0..pings {
                self.connection.write(b"PONG\r\n")?;
            }
            if is_stored {
                return Ok(true);
            }
            let Connection { socket, input } = &mut self.connection;
            if input.fill(socket).context("cannot read from NATS")? == Filled::Nothing {
                return Ok(false);
            }
        }
    }
}

/// The name behind `"leader":`.
fn leader_in(told: &str) -> Option<&str> {
    let (_, rest) = told.split_once("\"leader\":\"")?;
    rest.split_once('"').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_found_in_what_a_server_tells() {
        assert_eq!(leader_in(r#"{"cluster":{"name":"c","leader":"n2","replicas":[]}}"#), Some("n2"));
        assert_eq!(leader_in(r#"{"cluster":{"name":"c"}}"#), None);
    }
}
