//! The native API as a protocol for loads, with the gRPC client as anybody would use it: batches on a push stream, a
//! subscription with credit. Each side has a thread with a runtime of its own.
//!
//! Two things differ from AMQP and cannot be helped: every push is confirmed, so that a load without a window has a large
//! one; and nothing is acknowledged by being delivered, so that `--ack auto` acknowledges each batch as it comes.

mod consumer;
mod paced;
mod publisher;

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, ensure};
use nexo_grpc::client::Client;
use nexo_grpc::proto::{CreateQueueRequest, DeleteQueueRequest, NewMessage, PushRequest, QueueConfig};
use tokio::runtime::{Builder, Runtime};

use crate::protocol::{Consume, Declared, Protocol, Publish, PublishPaced};
use crate::schedule::Schedule;
use crate::tally::{Tally, add_tally};
use crate::work::{Delayed, MessageShape, Persistence, Settings, Wants, mixed};

pub(crate) use publisher::accepted;

/// Delayed messages in one push.
const DELAYED_BATCH: usize = 500;

/// Where a broker's native API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeUrl(String);

impl FromStr for NativeUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("http://") {
            Some(rest) if !rest.is_empty() => Ok(Self(text.to_owned())),
            _ => Err(format!(
                "'{text}' is not the address of a native API; one looks like 'http://127.0.0.1:7654'"
            )),
        }
    }
}

impl fmt::Display for NativeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A client and the runtime it lives in.
pub(crate) struct Line {
    runtime: Runtime,
    pub(crate) client: Client,
}

impl Line {
    pub(crate) fn open(url: &NativeUrl) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
        let client = runtime.block_on(Client::connect(&url.0))?;
        Ok(Self { runtime, client })
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

impl Protocol for NativeUrl {
    fn declare(
        &self,
        queues: &[String],
        fan_out: Option<&str>,
        settings: &Settings,
    ) -> anyhow::Result<Box<dyn Declared>> {
        ensure!(fan_out.is_none(), "the native API has no exchanges; --fan-out needs AMQP");
        // Every queue has all priorities.
        let foreign = settings.arguments.iter().find(|argument| argument.name != "x-max-priority");
        ensure!(foreign.is_none(), "the native API has no queue arguments such as {:?}", foreign);
        let line = Line::open(self)?;
        for queue in queues {
            let request = CreateQueueRequest {
                queue: queue.clone(),
                config: Some(QueueConfig::default()),
                ..Default::default()
            };
            line.block_on(line.client.queues().create_queue(request))
                .with_context(|| format!("cannot create the queue '{queue}'"))?;
        }
        Ok(Box::new(Queues { line, names: queues.to_vec() }))
    }

    fn declare_delayed(&self, queue: &str) -> anyhow::Result<Box<dyn Declared>> {
        self.declare(&[queue.to_owned()], None, &Settings::default())
    }

    fn publish_delayed(
        &self,
        queue: &str,
        messages: &mut dyn Iterator<Item = Delayed>,
    ) -> anyhow::Result<()> {
        let line = Line::open(self)?;
        loop {
            let batch: Vec<NewMessage> = (&mut *messages)
                .take(DELAYED_BATCH)
                .map(|message| NewMessage {
                    body: message.body.into(),
                    delay_ms: message.delay.as_millis() as u64,
                    priority: u32::from(message.priority),
                    ..NewMessage::default()
                })
                .collect();
            if batch.is_empty() {
                return Ok(());
            }
            let request = PushRequest { queue: queue.to_owned(), messages: batch, ..Default::default() };
            let reply = line.block_on(line.client.messages().push(request))?.into_inner();
            publisher::accepted(&reply.results)?;
        }
    }

    fn publishers(
        &self,
        shapes: &[MessageShape],
        window: u32,
        limit: Option<u64>,
        tallies: &mut Vec<Arc<Tally>>,
    ) -> anyhow::Result<Vec<Box<dyn Publish>>> {
        let mut publishers: Vec<Box<dyn Publish>> = Vec::new();
        for shape in shapes {
            let line = Line::open(self)?;
            let tally = add_tally(tallies);
            publishers.push(Box::new(publisher::Publisher::open(line, shape, window, limit, tally)?));
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
        Ok(Box::new(paced::PacedPublisher::open(&self.0, shape, window, schedule, tally)?))
    }

    fn consumer(&self, wants: &Wants, tally: Arc<Tally>) -> anyhow::Result<Box<dyn Consume>> {
        Ok(Box::new(consumer::Consumer::open(Line::open(self)?, wants, tally)?))
    }
}

/// Queues that were made for a load.
struct Queues {
    line: Line,
    names: Vec<String>,
}

impl Declared for Queues {
    fn delete(self: Box<Self>) -> anyhow::Result<()> {
        for queue in &self.names {
            let request = DeleteQueueRequest { queue: queue.clone(), ..Default::default() };
            self.line.block_on(self.line.client.queues().delete_queue(request))?;
        }
        Ok(())
    }
}

/// A message by its number.
fn message(shape: &MessageShape, body: &bytes::Bytes, index: u64) -> NewMessage {
    NewMessage {
        body: body.clone(),
        transient: shape.persistence == Persistence::Transient,
        priority: shape.priorities.map_or(0, |priorities| u32::from(mixed(index as usize, priorities))),
        ..NewMessage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_is_understood() {
        assert_eq!("http://a:1".parse::<NativeUrl>().unwrap().to_string(), "http://a:1");
        for text in ["", "http://", "https://a:1", "a:1"] {
            assert!(text.parse::<NativeUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn queues_take_no_arguments_of_amqp() {
        let url: NativeUrl = "http://127.0.0.1:1".parse().unwrap();
        let error = url.declare(&[], Some("x"), &Settings::default()).err().unwrap();
        assert_eq!(error.to_string(), "the native API has no exchanges; --fan-out needs AMQP");
    }
}
