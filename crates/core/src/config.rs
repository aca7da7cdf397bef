//! What a queue is told to be. Part of the queue's durable state; changing it is a record like any other.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use nexo_types::{ExchangeName, Millis, Priority, QueueName, limits};
use thiserror::Error;

use crate::wire::{Reader, WireError, Writer};

/// The version in which settings are written.
const VERSION: u64 = 3;
/// The first version with a highest priority and a fate of refused messages. Before that only a protocol's arguments told of
/// them.
const WITH_LIMITS: u64 = 2;
/// The first version that may say what the queue was told itself, beside what policies have made of it.
const WITH_BASE: u64 = 3;

/// Everything that can be set on a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// How long a consumer may hold a message before it comes back.
    pub visibility: Millis,
    /// With this set, a consumer must say *received* within this time, or the message is sent again.
    pub receipt_timeout: Option<Millis>,
    /// Deliveries before a message becomes a dead letter; `None` never gives up.
    pub max_attempts: Option<u32>,
    /// Where dead letters go.
    pub dead_letters: DeadLetters,
    /// What becomes of a message whose time to live is over.
    pub on_expiry: Fate,
    /// What becomes of a message that [`Overflow::DropOldest`] pushes out.
    pub on_overflow: Fate,
    /// How long a rejected message waits before it is delivered again.
    pub retry: Backoff,
    /// Longest life of a message in this queue; a message may ask for less. With 0 it goes unless somebody takes it at
    /// once.
    pub ttl: Option<Millis>,
    /// How long a deduplication id is remembered.
    pub dedup_window: Millis,
    /// Most messages that wait in the queue; those with a consumer do not count.
    pub max_messages: Option<u64>,
    /// Most bytes of bodies that wait in the queue.
    pub max_bytes: Option<u64>,
    /// What happens to a push that would pass one of these two.
    pub overflow: Overflow,
    /// What becomes of a message that [`Overflow::Reject`] refuses. Its sender is told that it was refused in any case.
    pub on_refusal: Fate,
    /// A paused queue takes messages and hands none out.
    pub paused: bool,
    /// Most deliveries in a period.
    pub rate_limit: Option<RateLimit>,
    /// When a reply to a push may be sent.
    pub sync: SyncMode,
    /// The queue goes when nobody has used it for this long.
    pub expires: Option<Millis>,
    /// The queue goes when its last consumer leaves.
    pub auto_delete: bool,
    /// Only the consumer that came first gets messages, until it leaves.
    pub single_active_consumer: bool,
    /// What else a protocol was told when the queue was declared, in that protocol's own bytes. The rules never look
    /// inside; a second declaration is compared with it.
    pub arguments: Bytes,
    /// What ways in keep with the queue for themselves, by the name of each, in its own bytes. The rules never look
    /// inside, and nothing is compared with it.
    pub annotations: BTreeMap<String, Bytes>,
    /// What the group of a message means.
    pub groups: GroupMode,
    /// The highest priority of messages that [keep to it](crate::message::PriorityCap::Queue). Without it theirs is 0.
    pub max_priority: Option<Priority>,
    /// The settings were written before all of these fields were there. What the missing ones would be, only the protocol
    /// can tell whose arguments they are.
    pub has_unread_arguments: bool,
    /// What the queue was told to be itself, if policies have made something else of it. Has none in turn.
    pub base: Option<Arc<QueueConfig>>,
}

/// What the group of a message means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupMode {
    /// Messages of one group are worked on one at a time and in order.
    #[default]
    Ordered,
    /// Groups share the queue fairly: the more a group has in it, the more of the others goes before its next message.
    Fair,
}

/// Where dead letters go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeadLetters {
    /// To `{queue}_dlq`, which is created when it is first needed.
    #[default]
    OwnQueue,
    /// To this queue.
    Queue(QueueName),
    /// To an exchange, which sends them where its bindings say.
    Exchange {
        /// The exchange.
        exchange: ExchangeName,
        /// The routing key they get instead of their own.
        routing_key: Option<Bytes>,
    },
    /// Nowhere: they are dropped.
    Nowhere,
}

/// What happens to a message that leaves without having been worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is gone.
    Drop,
    /// It moves to the dead-letter queue.
    DeadLetter,
}

/// How long a message waits after a failure, by the number of attempts so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// Not at all.
    None,
    /// The same time after every failure.
    Fixed {
        /// That time.
        delay: Millis,
    },
    /// `base`, then `base × factor`, then `base × factor²` …, never above `cap`.
    Exponential {
        /// After the first failure.
        base: Millis,
        /// The factor in thousandths, so that the rules need no floating point.
        factor_permille: u32,
        /// The longest wait, in milliseconds.
        cap: Millis,
    },
}

/// What a full queue does with a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// Of the ready messages of the lowest priority, the one that has been there longest makes room.
    DropOldest,
    /// The message that would be delivered next makes room, as RabbitMQ does it.
    DropHead,
    /// The push is refused.
    Reject,
}

/// At most `deliveries` in any `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Deliveries in each period, from 1 on.
    pub deliveries: u32,
    /// In which time.
    pub period: Millis,
}

/// What a reply to a push promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// As the broker is set.
    Inherit,
    /// The message has reached the disk: it survives a power cut.
    Always,
    /// The message has been written and is synced soon: it survives the death of the process.
    Interval,
    /// The message has been written; the operating system syncs when it likes.
    Os,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            visibility: limits::VISIBILITY_DEFAULT,
            receipt_timeout: None,
            max_attempts: Some(limits::MAX_ATTEMPTS_DEFAULT),
            dead_letters: DeadLetters::OwnQueue,
            on_expiry: Fate::Drop,
            on_overflow: Fate::Drop,
            retry: Backoff::None,
            ttl: None,
            dedup_window: limits::DEDUP_WINDOW_DEFAULT,
            max_messages: None,
            max_bytes: None,
            overflow: Overflow::Reject,
            on_refusal: Fate::Drop,
            paused: false,
            rate_limit: None,
            sync: SyncMode::Inherit,
            expires: None,
            auto_delete: false,
            single_active_consumer: false,
            arguments: Bytes::new(),
            annotations: BTreeMap::new(),
            groups: GroupMode::Ordered,
            max_priority: None,
            has_unread_arguments: false,
            base: None,
        }
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A number outside its range.
    #[error("{field} must be between {min} and {max}; it is {value}")]
    OutOfRange {
        /// As clients call it.
        field: &'static str,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
        /// What was given.
        value: u64,
    },
    /// A queue that would move its dead letters to itself.
    #[error("queue '{queue}' cannot be its own dead-letter queue")]
    OwnDeadLetterQueue {
        /// The one that would be sent its own dead letters.
        queue: QueueName,
    },
    /// Dead letters that would leave their virtual host.
    #[error("dead letters of queue '{queue}' cannot go to another virtual host")]
    DeadLettersElsewhere {
        /// The one whose dead letters would leave its virtual host.
        queue: QueueName,
    },
    /// The dead-letter queue's name, made from the queue's, is no name.
    #[error(
        "queue '{queue}' needs a named dead-letter queue, because '{queue}_dlq' is longer than {max} bytes"
    )]
    DeadLetterNameTooLong {
        /// The one whose dead-letter queue has no valid name.
        queue: QueueName,
        /// In bytes.
        max: usize,
    },
}

impl QueueConfig {
    /// The settings of a dead-letter queue that nobody configured: it keeps what it is given.
    #[must_use]
    pub fn for_dead_letters() -> Self {
        Self { max_attempts: None, ..Self::default() }
    }

    /// What the queue was told to be itself, whatever policies say.
    #[must_use]
    pub fn base(&self) -> &Self {
        self.base.as_deref().unwrap_or(self)
    }

    /// The queue that dead letters of the queue `own` go to, unless they go elsewhere.
    ///
    /// # Errors
    /// If `{queue}_dlq` would be too long a name.
    pub fn dead_letter_queue_of(&self, own: &QueueName) -> Result<Option<QueueName>, ConfigError> {
        match &self.dead_letters {
            DeadLetters::OwnQueue => {}
            DeadLetters::Queue(named) => return Ok(Some(named.clone())),
            DeadLetters::Exchange { .. } | DeadLetters::Nowhere => return Ok(None),
        }
        let name = QueueName::at(&own.vhost(), &format!("{own}_dlq"));
        let name = name.map_err(|_| ConfigError::DeadLetterNameTooLong {
            queue: own.clone(),
            max: limits::QUEUE_NAME_BYTES_MAX,
        })?;
        Ok(Some(name))
    }

    /// Whether any message can ever become a dead letter.
    #[must_use]
    pub fn has_dead_letters(&self) -> bool {
        self.max_attempts.is_some()
            || (self.on_expiry == Fate::DeadLetter)
            || match self.overflow {
                Overflow::DropOldest | Overflow::DropHead => self.on_overflow == Fate::DeadLetter,
                Overflow::Reject => self.on_refusal == Fate::DeadLetter,
            }
    }

    /// Checks every setting of a queue called `own`.
    ///
    /// # Errors
    /// Names the first setting that cannot be, and its range.
    pub fn check(&self, own: &QueueName) -> Result<(), ConfigError> {
        in_range("visibility_ms", self.visibility.0, 1, limits::VISIBILITY_MAX.0)?;
        if let Some(timeout) = self.receipt_timeout {
            in_range("receipt_timeout_ms", timeout.0, 1, limits::VISIBILITY_MAX.0)?;
        }
        if let Some(max) = self.max_attempts {
            in_range("max_attempts", max.into(), 1, limits::MAX_ATTEMPTS_MAX.into())?;
        }
        self.retry.check()?;
        if let Some(ttl) = self.ttl {
            in_range("ttl_ms", ttl.0, 0, limits::DELAY_MAX.0)?;
        }
        in_range("dedup_window_ms", self.dedup_window.0, 0, limits::DEDUP_WINDOW_MAX.0)?;
        if let Some(rate) = self.rate_limit {
            in_range("rate_limit.deliveries", rate.deliveries.into(), 1, limits::RATE_DELIVERIES_MAX.into())?;
            in_range("rate_limit.period_ms", rate.period.0, 1, limits::RATE_PERIOD_MAX.0)?;
        }
        if let Some(span) = self.expires {
            in_range("expires_ms", span.0, 1, limits::DELAY_MAX.0)?;
        }
        let dead_letters_in = match &self.dead_letters {
            DeadLetters::Queue(queue) => Some(queue.vhost_str()),
            DeadLetters::Exchange { exchange, .. } => Some(exchange.vhost_str()),
            DeadLetters::OwnQueue | DeadLetters::Nowhere => None,
        };
        if dead_letters_in.is_some_and(|vhost| vhost != own.vhost_str()) {
            return Err(ConfigError::DeadLettersElsewhere { queue: own.clone() });
        }
        if self.dead_letters == DeadLetters::Queue(own.clone()) {
            return Err(ConfigError::OwnDeadLetterQueue { queue: own.clone() });
        }
        if self.has_dead_letters() {
            self.dead_letter_queue_of(own)?;
        }
        Ok(())
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.version(VERSION);
        out.u64(self.visibility.0);
        out.optional(self.receipt_timeout.map(|t| t.0));
        out.optional(self.max_attempts.map(u64::from));
        match &self.dead_letters {
            DeadLetters::OwnQueue => out.u8(0),
            DeadLetters::Queue(queue) => {
                out.u8(1);
                out.text(queue.stored());
            }
            DeadLetters::Exchange { exchange, routing_key } => {
                out.u8(2);
                out.text(exchange.stored());
                out.u8(u8::from(routing_key.is_some()));
                out.bytes(routing_key.as_deref().unwrap_or_default());
            }
            DeadLetters::Nowhere => out.u8(3),
        }
        out.u8(u8::from(self.on_expiry == Fate::DeadLetter));
        out.u8(u8::from(self.on_overflow == Fate::DeadLetter));
        self.retry.encode(out);
        out.optional(self.ttl.map(|t| t.0));
        out.u64(self.dedup_window.0);
        out.optional(self.max_messages);
        out.optional(self.max_bytes);
        out.u8(match self.overflow {
            Overflow::DropOldest => 0,
            Overflow::Reject => 1,
            Overflow::DropHead => 2,
        });
        out.u8(u8::from(self.paused));
        out.optional(self.rate_limit.map(|r| r.deliveries.into()));
        out.u64(self.rate_limit.map_or(0, |r| r.period.0));
        out.u8(match self.sync {
            SyncMode::Inherit => 0,
            SyncMode::Always => 1,
            SyncMode::Interval => 2,
            SyncMode::Os => 3,
        });
        out.optional(self.expires.map(|t| t.0));
        out.u8(u8::from(self.auto_delete));
        out.u8(u8::from(self.single_active_consumer));
        out.bytes(&self.arguments);
        out.u64(self.annotations.len() as u64);
        for (owner, annotation) in &self.annotations {
            out.text(owner);
            out.bytes(annotation);
        }
        out.u8(match self.groups {
            GroupMode::Ordered => 0,
            GroupMode::Fair => 1,
        });
        out.optional(self.max_priority.map(|max| max.0.into()));
        out.u8(u8::from(self.on_refusal == Fate::DeadLetter));
        out.u8(u8::from(self.has_unread_arguments));
        out.u8(u8::from(self.base.is_some()));
        if let Some(base) = &self.base {
            debug_assert!(base.base.is_none(), "what a queue was told itself rests on nothing");
            base.encode(out);
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let (mut config, has_base) = Self::decode_own(input)?;
        if has_base {
            let (base, has_base) = Self::decode_own(input)?;
            if has_base {
                return Err(WireError::Unknown { what: "base of settings", value: 1 });
            }
            config.base = Some(Arc::new(base));
        }
        Ok(config)
    }

    /// One set of settings, and whether what they rest on follows.
    fn decode_own(input: &mut Reader<'_>) -> Result<(Self, bool), WireError> {
        let version = input.version("a queue's settings", VERSION)?;
        let fate = |byte| match byte {
            0 => Ok(Fate::Drop),
            1 => Ok(Fate::DeadLetter),
            other => Err(WireError::Unknown { what: "fate", value: other }),
        };
        let mut config = Self {
            visibility: Millis(input.u64()?),
            receipt_timeout: input.optional()?.map(Millis),
            max_attempts: input.optional_u32()?,
            dead_letters: match input.u8()? {
                0 => DeadLetters::OwnQueue,
                1 => {
                    DeadLetters::Queue(QueueName::from_stored(input.text()?).map_err(|_| WireError::BadName)?)
                }
                2 => {
                    let exchange =
                        ExchangeName::from_stored(input.text()?).map_err(|_| WireError::BadName)?;
                    let has_key = input.flag()?;
                    let key = Bytes::copy_from_slice(input.bytes()?);
                    DeadLetters::Exchange { exchange, routing_key: has_key.then_some(key) }
                }
                3 => DeadLetters::Nowhere,
                other => return Err(WireError::Unknown { what: "place for dead letters", value: other }),
            },
            on_expiry: fate(input.u8()?)?,
            on_overflow: fate(input.u8()?)?,
            retry: Backoff::decode(input)?,
            ttl: input.optional()?.map(Millis),
            dedup_window: Millis(input.u64()?),
            max_messages: input.optional()?,
            max_bytes: input.optional()?,
            overflow: match input.u8()? {
                0 => Overflow::DropOldest,
                1 => Overflow::Reject,
                2 => Overflow::DropHead,
                other => return Err(WireError::Unknown { what: "way to overflow", value: other }),
            },
            paused: input.flag()?,
            rate_limit: {
                let deliveries = input.optional_u32()?;
                let period = Millis(input.u64()?);
                deliveries.map(|deliveries| RateLimit { deliveries, period })
            },
            sync: match input.u8()? {
                0 => SyncMode::Inherit,
                1 => SyncMode::Always,
                2 => SyncMode::Interval,
                3 => SyncMode::Os,
                other => return Err(WireError::Unknown { what: "sync mode", value: other }),
            },
            expires: input.optional()?.map(Millis),
            auto_delete: input.flag()?,
            single_active_consumer: input.flag()?,
            arguments: Bytes::copy_from_slice(input.bytes()?),
            annotations: {
                let mut annotations = BTreeMap::new();
                for _ in 0..input.u64()? {
                    let owner = input.text()?.to_owned();
                    annotations.insert(owner, Bytes::copy_from_slice(input.bytes()?));
                }
                annotations
            },
            groups: match input.u8()? {
                0 => GroupMode::Ordered,
                1 => GroupMode::Fair,
                other => return Err(WireError::Unknown { what: "meaning of groups", value: other }),
            },
            max_priority: None,
            on_refusal: Fate::Drop,
            has_unread_arguments: false,
            base: None,
        };
        if version < WITH_LIMITS {
            config.has_unread_arguments = !config.arguments.is_empty();
            return Ok((config, false));
        }
        let max_priority = input.optional()?.map(u8::try_from).transpose();
        config.max_priority = max_priority.map_err(|_| WireError::Range)?.map(Priority);
        config.on_refusal = fate(input.u8()?)?;
        config.has_unread_arguments = input.flag()?;
        let has_base = version >= WITH_BASE && input.flag()?;
        Ok((config, has_base))
    }
}

impl Backoff {
    /// How long to wait after attempt number `attempts` (counting from 1) has failed.
    #[must_use]
    pub fn wait_after(&self, attempts: u32) -> Millis {
        match *self {
            Self::None => Millis::ZERO,
            Self::Fixed { delay } => delay,
            Self::Exponential { base, factor_permille, cap } => {
                let mut wait = u128::from(base.0);
                // At most 64 doublings reach any cap, and a factor of one never grows.
                for _ in 1..attempts.min(10_000) {
                    if wait >= u128::from(cap.0) || factor_permille == 1000 {
                        break;
                    }
                    let grown = wait * u128::from(factor_permille) / 1000;
                    wait = grown.max(wait + u128::from(wait > 0));
                    if wait == 0 {
                        break;
                    }
                }
                Millis(u64::try_from(wait).unwrap_or(u64::MAX).min(cap.0))
            }
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match *self {
            Self::None => Ok(()),
            Self::Fixed { delay } => in_range("retry.delay_ms", delay.0, 0, limits::DELAY_MAX.0),
            Self::Exponential { base, factor_permille, cap } => {
                in_range("retry.base_ms", base.0, 0, limits::DELAY_MAX.0)?;
                in_range("retry.cap_ms", cap.0, 0, limits::DELAY_MAX.0)?;
                let max = limits::BACKOFF_FACTOR_PERMILLE_MAX.into();
                in_range("retry.factor (in thousandths)", factor_permille.into(), 1000, max)
            }
        }
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        match *self {
            Self::None => out.u8(0),
            Self::Fixed { delay } => {
                out.u8(1);
                out.u64(delay.0);
            }
            Self::Exponential { base, factor_permille, cap } => {
                out.u8(2);
                out.u64(base.0);
                out.u64(factor_permille.into());
                out.u64(cap.0);
            }
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match input.u8()? {
            0 => Self::None,
            1 => Self::Fixed { delay: Millis(input.u64()?) },
            2 => Self::Exponential {
                base: Millis(input.u64()?),
                factor_permille: input.u32()?,
                cap: Millis(input.u64()?),
            },
            other => return Err(WireError::Unknown { what: "back-off", value: other }),
        })
    }
}

fn in_range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange { field, min, max, value })
    }
}

#[cfg(test)]
mod tests;
