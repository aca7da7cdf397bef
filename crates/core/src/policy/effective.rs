//! What a queue is, once its own settings and what policies say are put together, as RabbitMQ does it: of two bounds the smaller
//! counts; of anything else, what the queue itself was given.

use std::sync::Arc;

use nexo_types::{ExchangeName, QueueKind, QueueName};

use super::definition::{OverflowWord, PolicySettings};
use crate::config::{Backoff, DeadLetters, Fate, Overflow, QueueConfig};

/// What must be known of a queue besides its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFacts {
    /// In whose words it was asked for.
    pub kind: QueueKind,
    /// Whether it was told what to do when it is full. Of other settings that can be seen.
    pub names_overflow: bool,
}

/// The settings of a queue to which a policy applies. `base` is what it was told to be itself, and is kept with them if they
/// differ. A policy that makes no sense for this queue changes nothing.
#[must_use]
pub fn effective(
    base: &QueueConfig,
    own: &QueueName,
    facts: QueueFacts,
    policy: Option<&PolicySettings>,
) -> QueueConfig {
    let base = base.base();
    let Some(policy) = policy else { return base.clone() };
    let mut config = base.clone();
    let default = QueueConfig::default();
    config.ttl = smaller(base.ttl, policy.message_ttl);
    config.expires = smaller(base.expires, policy.expires);
    config.max_messages = smaller(base.max_messages, policy.max_length);
    config.max_bytes = smaller(base.max_bytes, policy.max_length_bytes);
    let by_limit = policy.delivery_limit.map(|limit| limit + 1);
    // What a queue has without having been asked is no word of its own.
    let is_unasked = facts.kind == QueueKind::Native && base.max_attempts == default.max_attempts;
    let own_attempts = base.max_attempts.filter(|_| !is_unasked);
    config.max_attempts = smaller(own_attempts, smaller(policy.max_attempts, by_limit)).or(base.max_attempts);
    if let Some(word) = policy.overflow.filter(|_| !facts.names_overflow) {
        overflow(&mut config, word, facts.kind);
    }
    dead_letters(&mut config, own, policy);
    if base.visibility == default.visibility {
        config.visibility = policy.visibility.unwrap_or(base.visibility);
    }
    if base.retry == Backoff::None {
        config.retry = policy.retry.unwrap_or(base.retry);
    }
    config.rate_limit = base.rate_limit.or(policy.rate);
    if config.check(own).is_err() {
        // What cannot be in this queue has no effect; what bounds it holds all the same.
        let QueueConfig { ttl, expires, max_messages, max_bytes, .. } = config;
        config = QueueConfig { ttl, expires, max_messages, max_bytes, ..base.clone() };
    }
    if config == *base || config.check(own).is_err() {
        return base.clone();
    }
    config.base = Some(Arc::new(base.clone()));
    config
}

fn smaller<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

fn overflow(config: &mut QueueConfig, word: OverflowWord, kind: QueueKind) {
    (config.overflow, config.on_refusal) = match word {
        OverflowWord::DropHead => (Overflow::DropHead, Fate::Drop),
        OverflowWord::RejectPublish => (Overflow::Reject, Fate::Drop),
        // A quorum queue takes the word, and drops the head all the same.
        OverflowWord::RejectPublishDlx if kind == QueueKind::Quorum => (Overflow::DropHead, Fate::Drop),
        OverflowWord::RejectPublishDlx => (Overflow::Reject, Fate::DeadLetter),
    };
}

/// The exchange and the key are two settings, each of which the queue may have been given itself.
fn dead_letters(config: &mut QueueConfig, own: &QueueName, policy: &PolicySettings) {
    match &mut config.dead_letters {
        DeadLetters::Exchange { routing_key, .. } => {
            if routing_key.is_none() {
                routing_key.clone_from(&policy.dead_letter_routing_key);
            }
        }
        DeadLetters::Queue(_) => {}
        DeadLetters::OwnQueue | DeadLetters::Nowhere => {
            let Some(name) = &policy.dead_letter_exchange else { return };
            let Ok(exchange) = ExchangeName::at(&own.vhost(), name) else { return };
            let routing_key = policy.dead_letter_routing_key.clone();
            config.dead_letters = DeadLetters::Exchange { exchange, routing_key };
            config.on_expiry = Fate::DeadLetter;
            config.on_overflow = Fate::DeadLetter;
        }
    }
}

#[cfg(test)]
mod tests {
    use nexo_types::Millis;

    use super::*;
    use crate::config::RateLimit;

    fn q() -> QueueName {
        QueueName::new("q").unwrap()
    }

    fn facts(kind: QueueKind) -> QueueFacts {
        QueueFacts { kind, names_overflow: false }
    }

    /// What a declaration over AMQP without arguments asks for.
    fn amqp() -> QueueConfig {
        QueueConfig {
            max_attempts: None,
            dead_letters: DeadLetters::Nowhere,
            overflow: Overflow::DropHead,
            ..QueueConfig::default()
        }
    }

    fn with(base: &QueueConfig, policy: &PolicySettings) -> QueueConfig {
        effective(base, &q(), facts(QueueKind::Classic), Some(policy))
    }

    fn exchange(name: &str, key: Option<&'static str>) -> DeadLetters {
        DeadLetters::Exchange { exchange: ExchangeName::new(name).unwrap(), routing_key: key.map(Into::into) }
    }

    #[test]
    fn of_two_bounds_the_smaller_counts() {
        let policy = PolicySettings {
            message_ttl: Some(Millis(50)),
            max_length: Some(9),
            expires: Some(Millis(7)),
            ..PolicySettings::default()
        };
        let base = QueueConfig { ttl: Some(Millis(100)), max_messages: Some(5), ..amqp() };
        let config = with(&base, &policy);
        assert_eq!(
            (config.ttl, config.max_messages, config.expires),
            (Some(Millis(50)), Some(5), Some(Millis(7)))
        );
        assert_eq!(*config.base(), base, "what it was told itself is kept");
    }

    #[test]
    fn without_a_policy_the_base_is_back() {
        let base = amqp();
        let policy = PolicySettings { max_length: Some(9), ..PolicySettings::default() };
        let config = with(&base, &policy);
        assert_ne!(config, base);
        assert_eq!(effective(&config, &q(), facts(QueueKind::Classic), None), base);
        assert_eq!(with(&config, &PolicySettings::default()), base, "a policy may say nothing of queues");
    }

    #[test]
    fn dead_letters_go_where_the_queue_says_and_else_where_the_policy_does() {
        let policy = PolicySettings {
            dead_letter_exchange: Some("by policy".into()),
            dead_letter_routing_key: Some("key".into()),
            ..PolicySettings::default()
        };
        let config = with(&amqp(), &policy);
        assert_eq!(config.dead_letters, exchange("by policy", Some("key")));
        assert_eq!((config.on_expiry, config.on_overflow), (Fate::DeadLetter, Fate::DeadLetter));
        let own = QueueConfig { dead_letters: exchange("own", None), ..amqp() };
        assert_eq!(with(&own, &policy).dead_letters, exchange("own", Some("key")));
        let own = QueueConfig { dead_letters: exchange("own", Some("k")), ..amqp() };
        assert_eq!(with(&own, &policy), own);
    }

    #[test]
    fn a_full_queue_does_what_it_was_told_and_else_what_the_policy_says() {
        let policy =
            PolicySettings { overflow: Some(OverflowWord::RejectPublishDlx), ..PolicySettings::default() };
        let config = with(&amqp(), &policy);
        assert_eq!((config.overflow, config.on_refusal), (Overflow::Reject, Fate::DeadLetter));
        let quorum = effective(&amqp(), &q(), facts(QueueKind::Quorum), Some(&policy));
        assert_eq!(quorum, amqp());
        let named = QueueFacts { kind: QueueKind::Classic, names_overflow: true };
        assert_eq!(effective(&amqp(), &q(), named, Some(&policy)), amqp());
    }

    #[test]
    fn attempts_that_nobody_asked_for_give_way() {
        let policy = PolicySettings { max_attempts: Some(8), ..PolicySettings::default() };
        let with = |base: &QueueConfig| effective(base, &q(), facts(QueueKind::Native), Some(&policy));
        assert_eq!(with(&QueueConfig::default()).max_attempts, Some(8));
        let asked = QueueConfig { max_attempts: Some(3), ..QueueConfig::default() };
        assert_eq!(with(&asked).max_attempts, Some(3));
        let limited = PolicySettings { delivery_limit: Some(2), ..policy };
        let quorum = effective(&amqp(), &q(), facts(QueueKind::Quorum), Some(&limited));
        assert_eq!(quorum.max_attempts, Some(3), "deliveries after the first are counted");
    }

    #[test]
    fn a_limit_of_its_own_is_not_raised_even_if_it_is_the_usual_one() {
        let policy =
            PolicySettings { max_attempts: Some(8), delivery_limit: Some(9), ..PolicySettings::default() };
        let usual = QueueConfig::default().max_attempts;
        let own = QueueConfig { max_attempts: usual, ..amqp() };
        for kind in [QueueKind::Classic, QueueKind::Quorum] {
            assert_eq!(effective(&own, &q(), facts(kind), Some(&policy)).max_attempts, usual, "{kind:?}");
        }
    }

    #[test]
    fn what_cannot_be_takes_no_bounds_away() {
        // With attempts it would need a queue for dead letters, whose name would be too long.
        let long = QueueName::new(&"q".repeat(nexo_types::limits::QUEUE_NAME_BYTES_MAX)).unwrap();
        let base = QueueConfig { max_attempts: None, ..QueueConfig::default() };
        assert_eq!(base.check(&long), Ok(()));
        let policy = PolicySettings {
            max_attempts: Some(3),
            message_ttl: Some(Millis(60)),
            expires: Some(Millis(70)),
            max_length: Some(8),
            max_length_bytes: Some(90),
            ..PolicySettings::default()
        };
        let config = effective(&base, &long, facts(QueueKind::Native), Some(&policy));
        assert_eq!(config.max_attempts, None);
        assert_eq!((config.ttl, config.expires), (Some(Millis(60)), Some(Millis(70))));
        assert_eq!((config.max_messages, config.max_bytes), (Some(8), Some(90)));
        assert_eq!((config.check(&long), config.base()), (Ok(()), &base));
    }

    #[test]
    fn settings_of_our_own_are_given_where_the_queue_has_none() {
        let rate = RateLimit { deliveries: 5, period: Millis(1000) };
        let policy = PolicySettings {
            visibility: Some(Millis(9)),
            retry: Some(Backoff::Fixed { delay: Millis(4) }),
            rate: Some(rate),
            ..PolicySettings::default()
        };
        let config = with(&amqp(), &policy);
        assert_eq!((config.visibility, config.rate_limit), (Millis(9), Some(rate)));
        assert_eq!(config.retry, Backoff::Fixed { delay: Millis(4) });
        let own = QueueConfig { visibility: Millis(77), ..amqp() };
        assert_eq!(with(&own, &policy).visibility, Millis(77));
    }
}
