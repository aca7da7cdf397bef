//! The arguments of `queue.declare`: what they may be, and what they mean to the broker.

use std::time::Duration;

use bytes::Bytes;
use nexo_broker::{DeadLetters, Fate, Overflow, QueueConfig};
use nexo_types::{Millis, Priority, QueueName};

use super::error::{Refusal, exchange_name};
use crate::codec::method::queue::Declare;
use crate::codec::{Table, Value};

/// RabbitMQ's longest time to live, in milliseconds.
pub(super) const EXPIRY_MAX_MS: i64 = 4_294_967_295;

/// Arguments that a classic queue does not take.
const NOT_CLASSIC: &[&str] = &[
    "x-delivery-limit",
    "x-quorum-initial-group-size",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-dead-letter-strategy",
    "x-queue-leader-locator",
];
/// Arguments that a quorum queue does not take.
const NOT_QUORUM: &[&str] = &["x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"];
/// Arguments that neither takes.
const STREAMS_ALONE: &[&str] = &["x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"];

/// What RabbitMQ calls the type of a queue. Both are the same queue here; they differ in which arguments they take, in
/// what they count, and in what survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Classic,
    Quorum,
}

/// What a connection must know of a queue beside its handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    pub(crate) kind: QueueKind,
    /// The highest priority that counts. The queue itself sees to that; here it says which queues take a message in the same
    /// form.
    pub(super) max_priority: Priority,
    /// How long a client may hold a message, if the queue says so; zero for any time.
    pub(super) consumer_timeout: Option<Duration>,
}

impl Traits {
    /// Reads them from the arguments that are kept with a queue.
    pub(crate) fn of(config: &QueueConfig) -> Self {
        let arguments = Table::parse(&config.arguments).unwrap_or(Table::EMPTY);
        let integer = |name| arguments.get(name).and_then(|value| value.as_integer());
        let timeout = integer("x-consumer-timeout").and_then(|ms| u64::try_from(ms).ok());
        let kind = kind_of(arguments);
        Self {
            kind,
            max_priority: config.max_priority.unwrap_or_default(),
            consumer_timeout: timeout.map(Duration::from_millis),
        }
    }
}

/// The argument `x-max-priority`, as far as it is one.
fn max_priority(arguments: Table<'_>) -> Option<Priority> {
    let max = arguments.get("x-max-priority")?.as_integer()?;
    u8::try_from(max).ok().map(Priority)
}

/// Completes settings that were written when only the arguments told of some of them.
pub(crate) fn read_arguments(config: &mut QueueConfig) {
    let arguments = config.arguments.clone();
    let arguments = Table::parse(&arguments).unwrap_or(Table::EMPTY);
    config.max_priority = max_priority(arguments);
    config.on_refusal = on_refusal(arguments);
}

/// What becomes of messages that a full queue refuses.
fn on_refusal(arguments: Table<'_>) -> Fate {
    let how = arguments.get("x-overflow").and_then(|how| how.as_bytes());
    match (how, kind_of(arguments)) {
        (Some(b"reject-publish-dlx"), QueueKind::Classic) => Fate::DeadLetter,
        (Some(_) | None, _) => Fate::Drop,
    }
}

pub(super) fn kind_of(arguments: Table<'_>) -> QueueKind {
    match arguments.get("x-queue-type").and_then(|kind| kind.as_bytes()) {
        Some(b"quorum") => QueueKind::Quorum,
        Some(_) | None => QueueKind::Classic,
    }
}

/// The settings that a declaration asks for.
pub(super) fn queue_config(declare: &Declare<'_>, name: &QueueName) -> Result<QueueConfig, Refusal> {
    let read = Arguments { table: declare.arguments, name };
    let mut config = QueueConfig {
        max_attempts: None,
        dead_letters: DeadLetters::Nowhere,
        auto_delete: declare.auto_delete,
        arguments: Bytes::copy_from_slice(declare.arguments.as_raw()),
        ..QueueConfig::default()
    };
    config.expires = read.time("x-expires", 1)?;
    config.ttl = read.time("x-message-ttl", 0)?;
    read.dead_letters(&mut config)?;
    config.max_messages = read.count("x-max-length")?;
    config.max_bytes = read.count("x-max-length-bytes")?;
    read.integer("x-max-priority", |number| match number {
        256.. => Some(format!("{{max_value_exceeded,{number}}}")),
        _ => not_negative(number),
    })?;
    config.max_priority = max_priority(declare.arguments);
    let overflows = ["drop-head", "reject-publish", "reject-publish-dlx"];
    config.overflow = match read.word("x-overflow", &overflows, |_| "invalid_overflow".into())? {
        Some("reject-publish") => Overflow::Reject,
        // A quorum queue takes the word, and drops the head all the same.
        Some("reject-publish-dlx") if kind_of(declare.arguments) == QueueKind::Classic => Overflow::Reject,
        Some(_) | None => Overflow::DropHead,
    };
    config.on_refusal = on_refusal(declare.arguments);
    read.word("x-queue-mode", &["default", "lazy"], |mode| format!("\"unsupported queue mode '{mode}'\""))?;
    read.integer("x-queue-version", |version| {
        (!(1..=2).contains(&version)).then(|| format!("\"unsupported queue version '{version}'\""))
    })?;
    config.single_active_consumer = read.truth("x-single-active-consumer")?;
    read.word("x-queue-type", &["classic", "quorum"], |kind| format!("\"unsupported queue type '{kind}'\""))?;
    read.time("x-consumer-timeout", 0)?;
    // RabbitMQ does not look at this one: below 0 is as 0, and what is no number is no limit.
    if let Some(limit) = declare.arguments.get("x-delivery-limit").and_then(|limit| limit.as_integer()) {
        let most = i64::from(nexo_types::limits::MAX_ATTEMPTS_MAX) - 1;
        config.max_attempts = u32::try_from(limit.clamp(0, most)).ok().map(|limit| limit + 1);
    }
    read.keys_of_kind(declare)?;
    let strategies = ["at-most-once", "at-least-once"];
    read.word("x-dead-letter-strategy", &strategies, |_| "invalid_dlx_strategy".into())?;
    let locators = ["client-local", "balanced", "random", "least-leaders"];
    read.word("x-queue-leader-locator", &locators, |_| "invalid_queue_locator_arg".into())?;
    Ok(config)
}

/// The arguments of one declaration.
struct Arguments<'a> {
    table: Table<'a>,
    name: &'a QueueName,
}

impl<'a> Arguments<'a> {
    fn wrong(&self, key: &str, reason: &str) -> Refusal {
        let (name, vhost) = (self.name, self.name.vhost_str());
        Refusal::precondition(format!("invalid arg '{key}' for queue '{name}' in vhost '{vhost}': {reason}"))
    }

    /// A whole number that `fault` finds nothing wrong with.
    fn integer(&self, key: &str, fault: impl Fn(i64) -> Option<String>) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let Some(number) = value.as_integer() else {
            return Err(self.wrong(key, &format!("\"expected integer, got {}\"", value.type_name())));
        };
        match fault(number) {
            Some(reason) => Err(self.wrong(key, &reason)),
            None => Ok(Some(number)),
        }
    }

    fn count(&self, key: &str) -> Result<Option<u64>, Refusal> {
        Ok(self.integer(key, not_negative)?.and_then(|number| u64::try_from(number).ok()))
    }

    fn time(&self, key: &str, min: i64) -> Result<Option<Millis>, Refusal> {
        let fault = |number| match number {
            0 if min > 0 => Some("{value_zero,0}".to_owned()),
            number if number > EXPIRY_MAX_MS => Some(format!("{{value_too_large,{number}}}")),
            number => not_negative(number),
        };
        Ok(self.integer(key, fault)?.and_then(|number| u64::try_from(number).ok()).map(Millis))
    }

    /// One of several words.
    fn word(
        &self,
        key: &str,
        words: &[&str],
        fault: impl Fn(&str) -> String,
    ) -> Result<Option<&'a str>, Refusal> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let Value::LongStr(bytes) = value else { return Err(self.unacceptable(key, value)) };
        match value.as_str() {
            Some(word) if words.contains(&word) => Ok(Some(word)),
            Some(word) => Err(self.wrong(key, &fault(word))),
            None => Err(self.wrong(key, &fault(&String::from_utf8_lossy(bytes)))),
        }
    }

    fn truth(&self, key: &str) -> Result<bool, Refusal> {
        let Some(value) = self.table.get(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.unacceptable(key, value))
    }

    fn unacceptable(&self, key: &str, value: Value<'_>) -> Refusal {
        self.wrong(key, &format!("{{unacceptable_type,{}}}", value.type_name()))
    }

    fn dead_letters(&self, config: &mut QueueConfig) -> Result<(), Refusal> {
        let key = self.table.get("x-dead-letter-routing-key");
        let routing_key = match key {
            None => None,
            Some(Value::LongStr(bytes)) => Some(Bytes::copy_from_slice(bytes)),
            Some(value) => return Err(self.unacceptable("x-dead-letter-routing-key", value)),
        };
        let exchange = match self.table.get("x-dead-letter-exchange") {
            None if routing_key.is_some() => {
                return Err(self.wrong("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined"));
            }
            None => return Ok(()),
            Some(Value::LongStr(bytes)) => exchange_name(&self.name.vhost(), bytes)?,
            Some(value) => {
                let kind = value.type_name();
                return Err(Refusal::precondition(format!(
                    "invalid type '{kind}' for arg 'x-dead-letter-exchange' in queue '{}' in vhost '{}'",
                    self.name,
                    self.name.vhost_str()
                )));
            }
        };
        config.dead_letters = DeadLetters::Exchange { exchange, routing_key };
        config.on_expiry = Fate::DeadLetter;
        config.on_overflow = Fate::DeadLetter;
        Ok(())
    }

    /// Some arguments and properties are only for one type of queue.
    fn keys_of_kind(&self, declare: &Declare<'_>) -> Result<(), Refusal> {
        let kind = kind_of(self.table);
        let (module, foreign) = match kind {
            QueueKind::Classic => ("rabbit_classic_queue", NOT_CLASSIC),
            QueueKind::Quorum => ("rabbit_quorum_queue", NOT_QUORUM),
        };
        let (name, vhost) = (self.name, self.name.vhost_str());
        let mut foreign = foreign.iter().chain(STREAMS_ALONE);
        if let Some(key) = foreign.find(|key| self.table.get(key).is_some()) {
            return Err(Refusal::precondition(format!(
                "invalid arg '{key}' for queue '{name}' in vhost '{vhost}' of queue type {module}"
            )));
        }
        let property = match declare {
            _ if kind == QueueKind::Classic => None,
            Declare { auto_delete: true, .. } => Some("auto-delete"),
            Declare { exclusive: true, .. } => Some("exclusive-owner"),
            Declare { durable: false, .. } => Some("non-durable"),
            _ => None,
        };
        match property {
            Some(property) => Err(Refusal::precondition(format!(
                "invalid property '{property}' for queue '{name}' in vhost '{vhost}'"
            ))),
            None => Ok(()),
        }
    }
}

fn not_negative(number: i64) -> Option<String> {
    (number < 0).then(|| format!("{{value_negative,{number}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{ShortStr, TableBuf};

    fn q() -> QueueName {
        QueueName::new("q").unwrap()
    }

    fn declare(table: &TableBuf) -> Declare<'_> {
        Declare {
            ticket: 0,
            queue: ShortStr::from_static("q"),
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            nowait: false,
            arguments: table.as_table(),
        }
    }

    #[test]
    fn nothing_said_is_a_queue_that_keeps_everything() {
        let config = queue_config(&declare(&TableBuf::new()), &q()).unwrap();
        assert_eq!((config.max_attempts, config.dead_letters), (None, DeadLetters::Nowhere));
        assert_eq!(config.overflow, Overflow::DropHead);
    }

    #[test]
    fn a_delivery_limit_counts_those_after_the_first() {
        let mut table = TableBuf::new();
        table.put(ShortStr::from_static("x-queue-type"), "quorum");
        table.put(ShortStr::from_static("x-delivery-limit"), Value::I32(2));
        assert_eq!(queue_config(&declare(&table), &q()).unwrap().max_attempts, Some(3));
    }

    #[test]
    fn a_wrong_argument_is_named_with_its_fault() {
        let mut table = TableBuf::new();
        table.put(ShortStr::from_static("x-max-priority"), Value::I32(256));
        let refusal = queue_config(&declare(&table), &q()).unwrap_err();
        assert_eq!(
            refusal.text,
            "invalid arg 'x-max-priority' for queue 'q' in vhost '/': {max_value_exceeded,256}"
        );
    }
}
