//! Queue settings between the wire and the broker.
//!
//! On the wire everything is optional: in a create what is left out is a default, in an update it stays as it
//! is. Both are [`patch`], once over the defaults and once over the settings there are.

use nexo_broker::policy::Policy;
use nexo_broker::{
    Backoff, DeadLetters, Durability, Fate, Overflow, QueueConfig, QueueDetails, QueueKind, QueueStats,
    RateLimit, SyncMode,
};
use nexo_types::{Millis, QueueName};

use crate::fields;
use crate::message::headers_to_proto;
use crate::proto;
use crate::status::Failure;

/// `base`, settings of the queue `own`, with every setting that `change` gives. Ranges are left to the broker, which knows them.
pub(crate) fn patch(
    own: &QueueName,
    mut base: QueueConfig,
    change: &proto::QueueConfig,
) -> Result<QueueConfig, Failure> {
    if let Some(value) = change.visibility_ms {
        base.visibility = Millis(value);
    }
    if let Some(value) = change.receipt_timeout_ms {
        base.receipt_timeout = unless_zero(value).map(Millis);
    }
    if let Some(value) = change.max_attempts {
        base.max_attempts = (value > 0).then_some(value);
    }
    match change.dead_letter_queue.as_deref() {
        None => {}
        Some("") => base.dead_letters = DeadLetters::OwnQueue,
        Some(name) => {
            base.dead_letters =
                DeadLetters::Queue(fields::queue_in("config.dead_letter_queue", &own.vhost(), name)?);
        }
    }
    if let Some(value) = fate("config.on_expiry", change.on_expiry)? {
        base.on_expiry = value;
    }
    if let Some(value) = fate("config.on_overflow", change.on_overflow)? {
        base.on_overflow = value;
    }
    if let Some(policy) = change.retry.and_then(|retry| retry.policy) {
        base.retry = backoff(policy);
    }
    if let Some(value) = change.ttl_ms {
        base.ttl = unless_zero(value).map(Millis);
    }
    if let Some(value) = change.dedup_window_ms {
        base.dedup_window = Millis(value);
    }
    if let Some(value) = change.max_messages {
        base.max_messages = unless_zero(value);
    }
    if let Some(value) = change.max_bytes {
        base.max_bytes = unless_zero(value);
    }
    if let Some(value) = overflow(change.overflow)? {
        base.overflow = value;
    }
    if let Some(value) = change.paused {
        base.paused = value;
    }
    if let Some(limit) = change.rate_limit {
        base.rate_limit = (limit.deliveries > 0)
            .then_some(RateLimit { deliveries: limit.deliveries, period: Millis(limit.period_ms) });
    }
    if let Some(value) = sync(change.sync)? {
        base.sync = value;
    }
    Ok(base)
}

/// All settings of a queue, with 0 where there is no limit.
pub(crate) fn to_proto(config: &QueueConfig) -> proto::QueueConfig {
    let limit = config.rate_limit.unwrap_or(RateLimit { deliveries: 0, period: Millis::ZERO });
    proto::QueueConfig {
        visibility_ms: Some(config.visibility.0),
        receipt_timeout_ms: Some(config.receipt_timeout.map_or(0, |time| time.0)),
        max_attempts: Some(config.max_attempts.unwrap_or(0)),
        dead_letter_queue: Some(match &config.dead_letters {
            DeadLetters::Queue(name) => name.as_str().to_owned(),
            DeadLetters::OwnQueue | DeadLetters::Exchange { .. } | DeadLetters::Nowhere => String::new(),
        }),
        on_expiry: fate_to_proto(config.on_expiry).into(),
        on_overflow: fate_to_proto(config.on_overflow).into(),
        retry: Some(proto::Retry { policy: Some(backoff_to_proto(config.retry)) }),
        ttl_ms: Some(config.ttl.map_or(0, |time| time.0)),
        dedup_window_ms: Some(config.dedup_window.0),
        max_messages: Some(config.max_messages.unwrap_or(0)),
        max_bytes: Some(config.max_bytes.unwrap_or(0)),
        overflow: match config.overflow {
            Overflow::Reject => proto::Overflow::Reject,
            Overflow::DropOldest => proto::Overflow::DropOldest,
            Overflow::DropHead => proto::Overflow::DropHead,
        }
        .into(),
        paused: Some(config.paused),
        rate_limit: Some(proto::RateLimit { deliveries: limit.deliveries, period_ms: limit.period.0 }),
        sync: match config.sync {
            SyncMode::Inherit => proto::SyncMode::Inherit,
            SyncMode::Always => proto::SyncMode::Always,
            SyncMode::Interval => proto::SyncMode::Interval,
            SyncMode::Os => proto::SyncMode::Os,
        }
        .into(),
    }
}

/// A queue as clients see it.
pub(crate) fn queue_to_proto(queue: &QueueStats) -> proto::Queue {
    proto::Queue {
        name: QueueName::as_str(&queue.name).to_owned(),
        vhost: queue.name.vhost_str().to_owned(),
        created_at_ms: queue.created_at.0,
        config: Some(to_proto(&queue.config)),
        dead_letters: Some(dead_letters_to_proto(&queue.name, &queue.config)),
        details: None,
        stats: Some(proto::QueueStats {
            ready: queue.ready,
            leased: queue.leased,
            delayed: queue.delayed,
            grouped: queue.grouped,
            bytes: queue.bytes,
            consumers: queue.consumers,
            pushed: queue.pushed,
            delivered: queue.delivered,
            redelivered: queue.redelivered,
            acked: queue.acked,
            dead_lettered: queue.dead_lettered,
            expired: queue.expired,
            overflowed: queue.overflowed,
            damaged: queue.damaged,
            duplicates: queue.duplicates,
            push_rate: queue.push_rate,
            deliver_rate: queue.deliver_rate,
            ack_rate: queue.ack_rate,
            redeliver_rate: queue.redeliver_rate,
            oldest_age_ms: queue.oldest_age.0,
            average_wait_ms: queue.average_wait_ms,
        }),
    }
}

/// A queue with what it was declared with and what leads to it.
pub(crate) fn details_to_proto(details: QueueDetails) -> proto::Queue {
    let config = &details.stats.config;
    let shown = proto::QueueDetails {
        kind: match details.kind {
            QueueKind::Native => proto::QueueKind::Native,
            QueueKind::Classic => proto::QueueKind::Classic,
            QueueKind::Quorum => proto::QueueKind::Quorum,
            QueueKind::SqsStandard => proto::QueueKind::SqsStandard,
            QueueKind::SqsFifo => proto::QueueKind::SqsFifo,
        }
        .into(),
        durable: details.durability == Durability::Durable,
        exclusive: details.exclusive,
        auto_delete: config.auto_delete,
        expires_ms: config.expires.map_or(0, |time| time.0),
        single_active_consumer: config.single_active_consumer,
        arguments: headers_to_proto(details.arguments),
        bindings: details
            .bindings
            .into_iter()
            .map(|binding| proto::QueueBinding {
                exchange: binding.exchange,
                routing_key: binding.routing_key,
                arguments: headers_to_proto(binding.arguments),
            })
            .collect(),
        bindings_total: details.bindings_total,
        policy: name_of(details.policies.regular.as_deref()),
        operator_policy: name_of(details.policies.operator.as_deref()),
    };
    proto::Queue { details: Some(shown), ..queue_to_proto(&details.stats) }
}

fn name_of(policy: Option<&Policy>) -> String {
    policy.map(|policy| policy.name.to_string()).unwrap_or_default()
}

fn dead_letters_to_proto(queue: &QueueName, config: &QueueConfig) -> proto::DeadLetterTarget {
    use proto::dead_letter_target::Target;
    let target = match &config.dead_letters {
        DeadLetters::OwnQueue => Target::Queue(format!("{queue}_dlq")),
        DeadLetters::Queue(name) => Target::Queue(name.as_str().to_owned()),
        DeadLetters::Exchange { exchange, routing_key } => Target::Exchange(proto::DeadLetterExchange {
            name: exchange.as_str().to_owned(),
            routing_key: routing_key.as_ref().map(|key| String::from_utf8_lossy(key).into_owned()),
        }),
        DeadLetters::Nowhere => Target::None(proto::NoDeadLetters {}),
    };
    proto::DeadLetterTarget { target: Some(target) }
}

const fn unless_zero(value: u64) -> Option<u64> {
    if value == 0 { None } else { Some(value) }
}

fn fate(field: &str, value: i32) -> Result<Option<Fate>, Failure> {
    match proto::Fate::try_from(value) {
        Ok(proto::Fate::Unspecified) => Ok(None),
        Ok(proto::Fate::Drop) => Ok(Some(Fate::Drop)),
        Ok(proto::Fate::DeadLetter) => Ok(Some(Fate::DeadLetter)),
        Err(_) => Err(unknown(field, "FATE_DROP or FATE_DEAD_LETTER", value)),
    }
}

fn overflow(value: i32) -> Result<Option<Overflow>, Failure> {
    match proto::Overflow::try_from(value) {
        Ok(proto::Overflow::Unspecified) => Ok(None),
        Ok(proto::Overflow::Reject) => Ok(Some(Overflow::Reject)),
        Ok(proto::Overflow::DropOldest) => Ok(Some(Overflow::DropOldest)),
        Ok(proto::Overflow::DropHead) => Ok(Some(Overflow::DropHead)),
        Err(_) => Err(unknown("config.overflow", "OVERFLOW_REJECT or OVERFLOW_DROP_OLDEST", value)),
    }
}

fn sync(value: i32) -> Result<Option<SyncMode>, Failure> {
    match proto::SyncMode::try_from(value) {
        Ok(proto::SyncMode::Unspecified) => Ok(None),
        Ok(proto::SyncMode::Inherit) => Ok(Some(SyncMode::Inherit)),
        Ok(proto::SyncMode::Always) => Ok(Some(SyncMode::Always)),
        Ok(proto::SyncMode::Interval) => Ok(Some(SyncMode::Interval)),
        Ok(proto::SyncMode::Os) => Ok(Some(SyncMode::Os)),
        Err(_) => Err(unknown("config.sync", "one of the values of SyncMode", value)),
    }
}

fn unknown(field: &str, demand: &str, value: i32) -> Failure {
    Failure::invalid(format!("{field} must be {demand}; it is {value}"))
}

pub(crate) const fn backoff(policy: proto::retry::Policy) -> Backoff {
    match policy {
        proto::retry::Policy::None(_) => Backoff::None,
        proto::retry::Policy::Fixed(fixed) => Backoff::Fixed { delay: Millis(fixed.delay_ms) },
        proto::retry::Policy::Exponential(growing) => Backoff::Exponential {
            base: Millis(growing.base_ms),
            factor_permille: growing.factor_permille,
            cap: Millis(growing.cap_ms),
        },
    }
}

pub(crate) const fn backoff_to_proto(retry: Backoff) -> proto::retry::Policy {
    match retry {
        Backoff::None => proto::retry::Policy::None(proto::NoRetryDelay {}),
        Backoff::Fixed { delay } => proto::retry::Policy::Fixed(proto::FixedRetryDelay { delay_ms: delay.0 }),
        Backoff::Exponential { base, factor_permille, cap } => {
            proto::retry::Policy::Exponential(proto::ExponentialRetryDelay {
                base_ms: base.0,
                factor_permille,
                cap_ms: cap.0,
            })
        }
    }
}

const fn fate_to_proto(fate: Fate) -> proto::Fate {
    match fate {
        Fate::Drop => proto::Fate::Drop,
        Fate::DeadLetter => proto::Fate::DeadLetter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> QueueName {
        QueueName::new("q").unwrap()
    }

    fn unusual() -> QueueConfig {
        QueueConfig {
            visibility: Millis(1),
            receipt_timeout: Some(Millis(2)),
            max_attempts: None,
            dead_letters: DeadLetters::Queue(QueueName::new("morgue").unwrap()),
            on_expiry: Fate::DeadLetter,
            on_overflow: Fate::DeadLetter,
            retry: Backoff::Exponential { base: Millis(3), factor_permille: 1500, cap: Millis(4) },
            ttl: Some(Millis(5)),
            dedup_window: Millis(6),
            max_messages: Some(7),
            max_bytes: Some(8),
            overflow: Overflow::DropOldest,
            paused: true,
            rate_limit: Some(RateLimit { deliveries: 9, period: Millis(10) }),
            sync: SyncMode::Os,
            ..QueueConfig::default()
        }
    }

    #[test]
    fn settings_cross_the_wire_whole() {
        for config in [unusual(), QueueConfig::default()] {
            assert_eq!(patch(&own(), unusual(), &to_proto(&config)), Ok(config.clone()));
            assert_eq!(patch(&own(), QueueConfig::default(), &to_proto(&config)), Ok(config));
        }
    }

    #[test]
    fn what_is_left_out_stays_as_it_is() {
        assert_eq!(patch(&own(), unusual(), &proto::QueueConfig::default()), Ok(unusual()));
    }

    #[test]
    fn zero_takes_a_limit_away() {
        let change = proto::QueueConfig {
            max_messages: Some(0),
            ttl_ms: Some(0),
            dead_letter_queue: Some(String::new()),
            rate_limit: Some(proto::RateLimit::default()),
            ..proto::QueueConfig::default()
        };
        let config = patch(&own(), unusual(), &change).unwrap();
        assert_eq!((config.max_messages, config.ttl, config.rate_limit), (None, None, None));
        assert_eq!(config.dead_letters, DeadLetters::OwnQueue);
        assert_eq!(config.max_bytes, Some(8));
    }

    #[test]
    fn an_unknown_choice_is_refused_by_name() {
        let change = proto::QueueConfig { on_expiry: 17, ..proto::QueueConfig::default() };
        let refused = patch(&own(), QueueConfig::default(), &change).unwrap_err().message;
        assert_eq!(refused, "config.on_expiry must be FATE_DROP or FATE_DEAD_LETTER; it is 17");
    }
}
