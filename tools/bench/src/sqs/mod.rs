//! The SQS API as a protocol for loads, over AWS JSON 1.0 and plain HTTP/1.1, for any endpoint that speaks it: Nexo, moto,
//! ElasticMQ, LocalStack. Requests are laid out once where that can be; answers are read as far as it takes to know that
//! everything was taken and what to delete.
//!
//! Some things are what SQS makes them: every message is confirmed, and a publisher has one batch on its way; nothing is
//! acknowledged by being delivered, so that `--ack auto` deletes whatever one receive brought; whether messages survive a
//! restart is for the endpoint to say.

mod answers;
mod connection;
mod consumer;
mod http;
mod paced;
mod publisher;
mod requests;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{bail, ensure};

use crate::protocol::{Consume, Declared, Protocol, Publish, PublishPaced};
use crate::schedule::Schedule;
use crate::tally::{Tally, add_tally};
use crate::work::{Delayed, MessageShape, Settings, Wants};
pub(crate) use answers::{Received, all_taken};
pub(crate) use connection::{AnswerSize, Connection, PATIENCE, SentOn};
use consumer::Consumer;
use paced::PacedPublisher;
use publisher::Publisher;
pub(crate) use requests::{BATCH_MAX, Request};

/// Where an SQS API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqsUrl {
    address: String,
}

impl FromStr for SqsUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("sqs://").or_else(|| text.strip_prefix("http://"));
        match rest.map(|rest| rest.trim_end_matches('/')) {
            Some(address) if address.contains(':') && !address.contains(['/', '@']) => {
                Ok(Self { address: address.to_owned() })
            }
            _ => Err(format!(
                "'{text}' is not the address of an SQS API; one looks like 'sqs://127.0.0.1:9324'"
            )),
        }
    }
}

impl fmt::Display for SqsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqs://{}", self.address)
    }
}

impl serde::Serialize for SqsUrl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl SqsUrl {
    /// Makes queues; gives back their addresses, in the same order.
    pub(crate) fn create_queues(&self, names: &[String]) -> anyhow::Result<Queues> {
        let mut queues = Queues {
            url: self.clone(),
            connection: Connection::open(self, AnswerSize::Small)?,
            addresses: Vec::new(),
        };
        for name in names {
            let created = queues.connection.call(&requests::by_name(self, "CreateQueue", name))?;
            let queue: answers::Queue = answers::parse("CreateQueue", &created)?;
            queues.addresses.push(queue.url);
        }
        Ok(queues)
    }

    /// The address of a queue that is there.
    fn queue_url(&self, connection: &mut Connection, name: &str) -> anyhow::Result<String> {
        let found = connection.call(&requests::by_name(self, "GetQueueUrl", name))?;
        Ok(answers::parse::<answers::Queue>("GetQueueUrl", &found)?.url)
    }
}

impl Protocol for SqsUrl {
    fn declare(
        &self,
        queues: &[String],
        fan_out: Option<&str>,
        settings: &Settings,
    ) -> anyhow::Result<Box<dyn Declared>> {
        ensure!(fan_out.is_none(), "SQS has no exchanges; --fan-out needs AMQP");
        ensure!(settings.arguments.is_empty(), "SQS has no priorities and no queue arguments");
        Ok(Box::new(self.create_queues(queues)?))
    }

    fn declare_delayed(&self, _: &str) -> anyhow::Result<Box<dyn Declared>> {
        bail!("SQS has no priorities")
    }

    fn publish_delayed(&self, _: &str, _: &mut dyn Iterator<Item = Delayed>) -> anyhow::Result<()> {
        bail!("SQS has no priorities")
    }

    fn publishers(
        &self,
        shapes: &[MessageShape],
        _: u32,
        limit: Option<u64>,
        tallies: &mut Vec<Arc<Tally>>,
    ) -> anyhow::Result<Vec<Box<dyn Publish>>> {
        let mut publishers: Vec<Box<dyn Publish>> = Vec::new();
        for shape in shapes {
            publishers.push(Box::new(Publisher::open(self, shape, limit, add_tally(tallies))?));
        }
        Ok(publishers)
    }

    fn paced(
        &self,
        shape: &MessageShape,
        window: u32,
        schedule: Schedule,
        tally: Arc<Tally>,
    ) -> anyhow::Result<Box<dyn PublishPaced>> {
        Ok(Box::new(PacedPublisher::open(self, shape, window, schedule, tally)?))
    }

    fn consumer(&self, wants: &Wants, tally: Arc<Tally>) -> anyhow::Result<Box<dyn Consume>> {
        Ok(Box::new(Consumer::open(self, wants, tally)?))
    }
}

/// Queues that were made for a load.
pub(crate) struct Queues {
    url: SqsUrl,
    connection: Connection,
    pub(crate) addresses: Vec<String>,
}

impl Declared for Queues {
    fn delete(mut self: Box<Self>) -> anyhow::Result<()> {
        for address in &self.addresses {
            self.connection.call(&requests::by_url(&self.url, "DeleteQueue", address))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood() {
        for text in ["sqs://a:1", "http://a:1/", "sqs://a:1/"] {
            assert_eq!(text.parse::<SqsUrl>().unwrap().to_string(), "sqs://a:1");
        }
        for text in ["", "sqs://", "sqs://a", "a:1", "sqs://me@a:1", "https://a:1", "sqs://a:1/b"] {
            assert!(text.parse::<SqsUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_sqs_does_not_have_is_said() {
        let url: SqsUrl = "sqs://127.0.0.1:1".parse().unwrap();
        let error = url.declare(&[], Some("x"), &Settings::default()).err().unwrap();
        assert_eq!(error.to_string(), "SQS has no exchanges; --fan-out needs AMQP");
    }
}
