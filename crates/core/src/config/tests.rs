//! Settings: their ranges, and how they are written down.

use super::*;

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

#[test]
fn exponential_back_off_grows_to_its_cap() {
    let retry = Backoff::Exponential { base: Millis(100), factor_permille: 2000, cap: Millis(1000) };
    let waits: Vec<u64> = (1..=6).map(|n| retry.wait_after(n).0).collect();
    assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
    assert_eq!(retry.wait_after(u32::MAX), Millis(1000));
}

#[test]
fn a_factor_of_one_and_a_base_of_zero_end() {
    let flat = Backoff::Exponential { base: Millis(7), factor_permille: 1000, cap: Millis(1000) };
    assert_eq!(flat.wait_after(u32::MAX), Millis(7));
    let zero = Backoff::Exponential { base: Millis(0), factor_permille: 2000, cap: Millis(1000) };
    assert_eq!(zero.wait_after(u32::MAX), Millis(0));
}

#[test]
fn a_queue_is_never_its_own_dead_letter_queue() {
    let config = QueueConfig { dead_letters: DeadLetters::Queue(name("a")), ..QueueConfig::default() };
    assert_eq!(config.check(&name("a")), Err(ConfigError::OwnDeadLetterQueue { queue: name("a") }));
    assert_eq!(config.check(&name("b")), Ok(()));
}

#[test]
fn an_error_names_the_setting_and_its_range() {
    let config = QueueConfig { visibility: Millis(0), ..QueueConfig::default() };
    let error = config.check(&name("a")).unwrap_err().to_string();
    assert_eq!(error, "visibility_ms must be between 1 and 31622400000; it is 0");
}

#[test]
fn settings_survive_being_written_down() {
    let config = QueueConfig {
        receipt_timeout: Some(Millis(5)),
        max_attempts: None,
        dead_letters: DeadLetters::Queue(name("morgue")),
        on_expiry: Fate::DeadLetter,
        retry: Backoff::Exponential { base: Millis(1), factor_permille: 1500, cap: Millis(9) },
        ttl: Some(Millis(77)),
        max_messages: Some(3),
        overflow: Overflow::DropOldest,
        paused: true,
        rate_limit: Some(RateLimit { deliveries: 5, period: Millis(1000) }),
        sync: SyncMode::Os,
        ..QueueConfig::default()
    };
    let other = QueueConfig {
        dead_letters: DeadLetters::Exchange {
            exchange: ExchangeName::new("dlx").unwrap(),
            routing_key: Some(Bytes::from_static(b"k")),
        },
        expires: Some(Millis(5)),
        auto_delete: true,
        single_active_consumer: true,
        arguments: Bytes::from_static(b"table"),
        annotations: BTreeMap::from([
            ("sqs".to_owned(), Bytes::from_static(b"{}")),
            ("web".to_owned(), Bytes::new()),
        ]),
        groups: GroupMode::Fair,
        max_priority: Some(Priority(255)),
        on_refusal: Fate::DeadLetter,
        has_unread_arguments: true,
        ..QueueConfig::default()
    };
    let by_policy = QueueConfig { ttl: Some(Millis(9)), base: Some(other.clone().into()), ..other.clone() };
    for config in [config, other, by_policy, QueueConfig::default()] {
        let mut out = Writer::default();
        config.encode(&mut out);
        let bytes = out.into_bytes();
        assert_eq!(QueueConfig::decode(&mut Reader::new(&bytes)), Ok(config));
    }
}

/// As version 1 wrote them: all but the last three fields.
fn written_by_version_1(config: &QueueConfig) -> Bytes {
    let mut out = Writer::default();
    config.encode(&mut out);
    let bytes = out.into_vec();
    let mut old = Writer::default();
    old.version(1);
    let head = old.len();
    old.raw(&bytes[head..bytes.len() - 3]);
    old.into_bytes()
}

#[test]
fn settings_of_the_version_before_are_read_and_say_that_arguments_are_not() {
    for arguments in [Bytes::new(), Bytes::from_static(b"table")] {
        let config = QueueConfig { arguments, ttl: Some(Millis(7)), ..QueueConfig::default() };
        let old = written_by_version_1(&config);
        let read = QueueConfig::decode(&mut Reader::new(&old)).unwrap();
        assert_eq!(read.has_unread_arguments, !config.arguments.is_empty());
        assert_eq!(QueueConfig { has_unread_arguments: false, ..read }, config);
    }
}

#[test]
fn settings_of_a_later_version_are_refused_by_name() {
    let mut out = Writer::default();
    out.version(VERSION + 1);
    let bytes = out.into_bytes();
    let refused = QueueConfig::decode(&mut Reader::new(&bytes));
    assert!(
        matches!(refused, Err(WireError::LaterVersion { what: "a queue's settings", .. })),
        "{refused:?}"
    );
}

#[test]
fn what_a_queue_was_told_itself_is_kept_beside_what_policies_made_of_it() {
    let base = QueueConfig { ttl: Some(Millis(100)), ..QueueConfig::default() };
    let config = QueueConfig { ttl: Some(Millis(5)), base: Some(base.clone().into()), ..base.clone() };
    assert_eq!((config.base(), base.base()), (&base, &base));
}
