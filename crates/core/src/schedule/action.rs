//! What a schedule does when it is due: it sends a message, or asks for a job.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{ExchangeName, JobQueueName, Priority, QueueName, VhostName, check_name, limits};

use super::error::{ScheduleError, within};
use crate::wire::{Reader, WireError, Writer};

/// What a schedule does. Kinds are numbered in its bytes, so that there is room for more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Pushes a message to a queue.
    Push {
        /// In the schedule's own virtual host.
        queue: QueueName,
        /// The message.
        message: ScheduledMessage,
    },
    /// Publishes a message to an exchange.
    Publish {
        /// In the schedule's own virtual host, and not internal.
        exchange: ExchangeName,
        /// Empty for none.
        routing_key: Arc<str>,
        /// The message.
        message: ScheduledMessage,
    },
    /// Asks for work of a job queue, for which nobody waits.
    Ask {
        /// In the schedule's own virtual host.
        queue: JobQueueName,
        /// What is asked for at each time.
        job: ScheduledJob,
    },
}

/// The message that is sent each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduledMessage {
    /// What it says.
    pub body: Bytes,
    /// What kind of text or bytes that is; empty if nobody says.
    pub content_type: Arc<str>,
    /// Headers, in their order.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// How urgent it is.
    pub priority: Priority,
}

/// The job that is asked for each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledJob {
    /// What kind of work it is.
    pub kind: Arc<str>,
    /// What it is about: if a job of that key is pending, it is that one.
    pub key: Arc<str>,
    /// What its worker is told, as JSON; empty for nothing.
    pub payload: Bytes,
    /// What it costs; `None` for what its job queue says when it is asked for.
    pub cost: Option<u64>,
    /// Whether it is done only when nothing more urgent is there.
    pub background: bool,
}

impl Action {
    /// The virtual host of what it sends to, or asks for work.
    #[must_use]
    pub fn vhost(&self) -> VhostName {
        match self {
            Self::Push { queue, .. } => queue.vhost(),
            Self::Publish { exchange, .. } => exchange.vhost(),
            Self::Ask { queue, .. } => queue.vhost(),
        }
    }

    /// Whether it can be, whatever else there is.
    pub(super) fn check(&self) -> Result<(), ScheduleError> {
        match self {
            Self::Push { message, .. } => message.check(),
            Self::Publish { exchange, routing_key, message } => {
                message.check()?;
                within("a routing key", limits::ROUTING_KEY_BYTES_MAX, routing_key.len())?;
                if exchange.is_default() {
                    let reason = "the default exchange stands for queues: name the queue".to_owned();
                    return Err(ScheduleError::Target { reason });
                }
                Ok(())
            }
            Self::Ask { job, .. } => job.check(),
        }
    }

    /// What it takes in memory and in a snapshot, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Push { message, .. } | Self::Publish { message, .. } => message.bytes(),
            Self::Ask { job, .. } => job.kind.len() + job.key.len() + job.payload.len(),
        }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        match self {
            Self::Push { queue, message } => {
                out.u8(0);
                out.text(queue.stored());
                message.encode(out);
            }
            Self::Publish { exchange, routing_key, message } => {
                out.u8(1);
                out.text(exchange.stored());
                out.text(routing_key);
                message.encode(out);
            }
            Self::Ask { queue, job } => {
                out.u8(2);
                out.text(queue.stored());
                job.encode(out);
            }
        }
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        match input.u8()? {
            0 => {
                let queue = QueueName::from_stored(input.text()?).map_err(|_| WireError::BadName)?;
                Ok(Self::Push { queue, message: ScheduledMessage::decode(input)? })
            }
            1 => {
                let exchange = ExchangeName::from_stored(input.text()?).map_err(|_| WireError::BadName)?;
                let routing_key = input.text()?.into();
                Ok(Self::Publish { exchange, routing_key, message: ScheduledMessage::decode(input)? })
            }
            2 => {
                let queue = JobQueueName::from_stored(input.text()?).map_err(|_| WireError::BadName)?;
                Ok(Self::Ask { queue, job: ScheduledJob::decode(input)? })
            }
            value => Err(WireError::Unknown { what: "action of a schedule", value }),
        }
    }
}

impl ScheduledMessage {
    fn check(&self) -> Result<(), ScheduleError> {
        within("the body of a scheduled message", limits::SCHEDULE_BODY_BYTES_MAX, self.body.len())?;
        within("a content type", limits::ROUTING_KEY_BYTES_MAX, self.content_type.len())?;
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        within("the headers of a scheduled message", limits::SCHEDULE_HEADERS_BYTES_MAX, headers)?;
        for (name, _) in &self.headers {
            check_name(name, "header name", limits::ROUTING_KEY_BYTES_MAX)?;
        }
        if self.headers.len() > limits::SCHEDULE_HEADERS_MAX {
            let (what, max) = ("headers of a scheduled message", limits::SCHEDULE_HEADERS_MAX);
            return Err(ScheduleError::TooMany { what, max });
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        self.body.len() + headers
    }

    fn encode(&self, out: &mut Writer) {
        out.bytes(&self.body);
        out.text(&self.content_type);
        out.u64(self.headers.len() as u64);
        for (name, value) in &self.headers {
            out.text(name);
            out.text(value);
        }
        out.u8(self.priority.0);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let body = Bytes::copy_from_slice(input.bytes()?);
        let content_type = input.text()?.into();
        let mut headers = Vec::new();
        for _ in 0..input.u64()? {
            headers.push((input.text()?.into(), input.text()?.into()));
        }
        Ok(Self { body, content_type, headers, priority: Priority(input.u8()?) })
    }
}

impl ScheduledJob {
    fn check(&self) -> Result<(), ScheduleError> {
        check_name(&self.kind, "job type", limits::JOB_WORD_BYTES_MAX)?;
        check_name(&self.key, "job key", limits::JOB_KEY_BYTES_MAX)?;
        within("the payload of a job", limits::JOB_PAYLOAD_BYTES_MAX, self.payload.len())?;
        if !self.payload.is_empty()
            && let Err(error) = serde_json::from_slice::<serde_json::Value>(&self.payload)
        {
            let reason = format!("the payload of a job is JSON; this is none: {error}");
            return Err(ScheduleError::Invalid { reason });
        }
        match self.cost {
            Some(value) if value > limits::TOKENS_MAX => {
                Err(ScheduleError::OutOfRange { field: "cost", min: 0, max: limits::TOKENS_MAX, value })
            }
            _ => Ok(()),
        }
    }

    fn encode(&self, out: &mut Writer) {
        out.text(&self.kind);
        out.text(&self.key);
        out.bytes(&self.payload);
        out.optional(self.cost);
        out.u8(self.background.into());
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            kind: input.text()?.into(),
            key: input.text()?.into(),
            payload: Bytes::copy_from_slice(input.bytes()?),
            cost: input.optional()?,
            background: input.flag()?,
        })
    }
}
