//! NATS JetStream as a protocol for loads, as cheaply as AMQP: lines that are prepared once, large writes, reads that are
//! scanned in place. Only here to compare with, so it knows what a load of persistent messages needs and no more.
//!
//! A queue is a stream with one push consumer that acknowledges all messages up to one. Messages stay in the stream, which
//! spares NATS the work of removing them.

mod acknowledged;
mod connection;
mod consumer;
mod publisher;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{bail, ensure};

use crate::crew::{CREW_MIN, Crew};
use crate::protocol::{Consume, Declared, Protocol, Publish, PublishPaced};
use crate::schedule::Schedule;
use crate::tally::{Tally, add_tally};
use crate::work::{Delayed, Durability, MessageShape, Settings, Wants};
pub(crate) use acknowledged::Acknowledged;
use connection::Connection;
use consumer::Consumer;
use publisher::Publisher;

/// Where a NATS server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsUrl {
    address: String,
    /// On how many servers a stream is, if its cluster has several.
    replicas: u8,
}

impl FromStr for NatsUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || {
            format!(
                "'{text}' is not the address of a NATS server; one looks like 'nats://127.0.0.1:4222', or with \
                 '?replicas=3' behind it for streams on three servers"
            )
        };
        let rest = text.strip_prefix("nats://").ok_or_else(malformed)?;
        let (address, replicas) = match rest.split_once("?replicas=") {
            Some((address, replicas)) => (address, replicas.parse().map_err(|_| malformed())?),
            None => (rest, 1),
        };
        let address = address.trim_end_matches('/');
        if !address.contains(':') || address.contains(['/', '@', '?']) || replicas == 0 {
            return Err(malformed());
        }
        Ok(Self { address: address.to_owned(), replicas })
    }
}

impl fmt::Display for NatsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nats://{}", self.address)?;
        match self.replicas {
            1 => Ok(()),
            replicas => write!(f, "?replicas={replicas}"),
        }
    }
}

impl NatsUrl {
    /// How a stream is asked for.
    pub(crate) fn stream(&self, name: &str, storage: &str) -> String {
        format!(
            r#"{{"name":"{name}","subjects":["{name}"],"storage":"{storage}","num_replicas":{}}}"#,
            self.replicas
        )
    }
}

impl Protocol for NatsUrl {
    fn declare(
        &self,
        queues: &[String],
        fan_out: Option<&str>,
        settings: &Settings,
    ) -> anyhow::Result<Box<dyn Declared>> {
        ensure!(
            fan_out.is_none() && settings.arguments.is_empty(),
            "NATS has no exchanges and no queue arguments"
        );
        let storage = match settings.durability {
            Durability::Durable => "file",
            Durability::Transient => "memory",
        };
        let mut connection = Connection::open(self)?;
        for queue in queues {
            connection.ask(&format!("$JS.API.STREAM.CREATE.{queue}"), &self.stream(queue, storage))?;
        }
        Ok(Box::new(Streams { connection, names: queues.to_vec() }))
    }

    fn declare_delayed(&self, _: &str) -> anyhow::Result<Box<dyn Declared>> {
        bail!("NATS has no priorities and no delays")
    }

    fn publish_delayed(&self, _: &str, _: &mut dyn Iterator<Item = Delayed>) -> anyhow::Result<()> {
        bail!("NATS has no priorities and no delays")
    }

    fn publishers(
        &self,
        shapes: &[MessageShape],
        window: u32,
        limit: Option<u64>,
        tallies: &mut Vec<Arc<Tally>>,
    ) -> anyhow::Result<Vec<Box<dyn Publish>>> {
        ensure!(window > 0, "JetStream confirms every message; --confirm must be more than 0");
        let mut publishers = Vec::new();
        for shape in shapes {
            publishers.push(Publisher::open(self, shape, window, limit, add_tally(tallies))?);
        }
        if limit.is_none() && publishers.len() >= CREW_MIN {
            return Ok(vec![Box::new(Crew::new(publishers))]);
        }
        Ok(publishers.into_iter().map(|publisher| Box::new(publisher) as Box<dyn Publish>).collect())
    }

    fn paced(
        &self,
        _: &MessageShape,
        _: u32,
        _: Schedule,
        _: Arc<Tally>,
    ) -> anyhow::Result<Box<dyn PublishPaced>> {
        bail!("latency at a fixed rate is not measured over NATS")
    }

    fn consumer(&self, wants: &Wants, tally: Arc<Tally>) -> anyhow::Result<Box<dyn Consume>> {
        Ok(Box::new(Consumer::open(self, wants, tally)?))
    }
}

/// Streams that were made for a load.
struct Streams {
    connection: Connection,
    names: Vec<String>,
}

impl Declared for Streams {
    fn delete(mut self: Box<Self>) -> anyhow::Result<()> {
        for name in &self.names {
            self.connection.ask(&format!("$JS.API.STREAM.DELETE.{name}"), "")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood() {
        assert_eq!("nats://a:1/".parse::<NatsUrl>().unwrap().to_string(), "nats://a:1");
        let three = "nats://a:1?replicas=3".parse::<NatsUrl>().unwrap();
        assert_eq!(three.to_string(), "nats://a:1?replicas=3");
        assert!(three.stream("s", "file").ends_with(r#""num_replicas":3}"#));
        for text in [
            "nats://a:1?replicas=0",
            "nats://a:1?replicas=x",
            "nats://a:1?x=1",
            "",
            "nats://",
            "nats://a",
            "a:1",
            "nats://me@a:1",
        ] {
            assert!(text.parse::<NatsUrl>().is_err(), "{text}");
        }
    }
}
