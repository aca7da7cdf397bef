//! One schedule: when it is due, what it does then, and what becomes of times at which nobody could do it.

use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{ExchangeName, Priority, QueueName, Timestamp, VhostName, check_name, limits};

use super::error::ScheduleError;
use super::timetable::{TimeTable, check_time};
use crate::wire::{Reader, WireError, Writer};

/// A schedule as it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What it is called.
    pub name: Arc<str>,
    /// When it is due.
    pub table: TimeTable,
    /// What it does then.
    pub action: Action,
    /// What becomes of times that have passed unnoticed.
    pub catch_up: CatchUp,
    /// No time after this is fired.
    pub until: Option<Timestamp>,
    /// It ends after so many runs.
    pub runs_max: Option<u64>,
    /// For those who look after it.
    pub description: Arc<str>,
}

/// What a schedule does. Kinds are numbered in its bytes, so that there is room for more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Pushes a message to a queue.
    Push {
        /// The queue.
        queue: QueueName,
        /// The message.
        message: ScheduledMessage,
    },
    /// Publishes a message to an exchange.
    Publish {
        /// The exchange.
        exchange: ExchangeName,
        /// The key it is routed by.
        routing_key: Arc<str>,
        /// The message.
        message: ScheduledMessage,
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

/// What becomes of times that passed while the broker was away, or could not take messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// They are missed.
    Skip,
    /// The latest of them is fired, the others are missed.
    #[default]
    Once,
    /// Each of them is fired, the latest `max` if they are more.
    All {
        /// How many at most.
        max: u32,
    },
}

impl Schedule {
    /// Whether it can be, whatever else there is.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn check(&self, vhost: &VhostName) -> Result<(), ScheduleError> {
        check_name(&self.name, "schedule name", limits::SCHEDULE_NAME_BYTES_MAX)?;
        let within = |what, max, bytes| match bytes > max {
            true => Err(ScheduleError::TooLarge { what, max, bytes }),
            false => Ok(()),
        };
        within("a description", limits::SCHEDULE_DESCRIPTION_BYTES_MAX, self.description.len())?;
        let (Action::Push { message, .. } | Action::Publish { message, .. }) = &self.action;
        within("the body of a scheduled message", limits::SCHEDULE_BODY_BYTES_MAX, message.body.len())?;
        within("a content type", limits::ROUTING_KEY_BYTES_MAX, message.content_type.len())?;
        let headers = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        within("the headers of a scheduled message", limits::SCHEDULE_HEADERS_BYTES_MAX, headers)?;
        for (name, _) in &message.headers {
            check_name(name, "header name", limits::ROUTING_KEY_BYTES_MAX)?;
        }
        if message.headers.len() > limits::SCHEDULE_HEADERS_MAX {
            let (what, max) = ("headers of a scheduled message", limits::SCHEDULE_HEADERS_MAX);
            return Err(ScheduleError::TooMany { what, max });
        }
        let target = match &self.action {
            Action::Push { queue, .. } => queue.vhost(),
            Action::Publish { exchange, routing_key, .. } => {
                within("a routing key", limits::ROUTING_KEY_BYTES_MAX, routing_key.len())?;
                if exchange.is_default() {
                    let reason = "the default exchange stands for queues: name the queue".to_owned();
                    return Err(ScheduleError::Target { reason });
                }
                exchange.vhost()
            }
        };
        if target != *vhost {
            let reason =
                format!("a schedule of virtual host '{vhost}' cannot send to virtual host '{target}'");
            return Err(ScheduleError::Target { reason });
        }
        let between = |field, max, value| match (1..=max).contains(&value) {
            true => Ok(()),
            false => Err(ScheduleError::OutOfRange { field, min: 1, max, value }),
        };
        if let CatchUp::All { max } = self.catch_up {
            between("catch_up_max", limits::CATCH_UP_MAX.into(), max.into())?;
        }
        self.until.map_or(Ok(()), |until| check_time("until", until))?;
        self.runs_max.map_or(Ok(()), |max| between("max_runs", u64::from(u32::MAX), max))
    }

    /// What it takes in memory and in a snapshot, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let (Action::Push { message, .. } | Action::Publish { message, .. }) = &self.action;
        let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        message.body.len() + headers + self.description.len() + self.name.len() + limits::CRON_BYTES_MAX
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.text(&self.name);
        self.table.encode(out);
        self.action.encode(out);
        let (kind, max) = match self.catch_up {
            CatchUp::Skip => (0, 0),
            CatchUp::Once => (1, 0),
            CatchUp::All { max } => (2, max),
        };
        out.u8(kind);
        out.u64(max.into());
        out.optional(self.until.map(|until| until.0));
        out.optional(self.runs_max);
        out.text(&self.description);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            name: input.text()?.into(),
            table: TimeTable::decode(input)?,
            action: Action::decode(input)?,
            catch_up: match (input.u8()?, input.u32()?) {
                (0, _) => CatchUp::Skip,
                (1, _) => CatchUp::Once,
                (2, max) => CatchUp::All { max },
                (value, _) => return Err(WireError::Unknown { what: "way to catch up", value }),
            },
            until: input.optional()?.map(Timestamp),
            runs_max: input.optional()?,
            description: input.text()?.into(),
        })
    }
}

impl Action {
    fn encode(&self, out: &mut Writer) {
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
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
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
            value => Err(WireError::Unknown { what: "action of a schedule", value }),
        }
    }
}

impl ScheduledMessage {
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
