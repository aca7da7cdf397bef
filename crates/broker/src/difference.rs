//! Finding what differs between two settings of a queue, in words.

use nexo_core::config::QueueConfig;

/// The first setting in which two differ: as it is in each.
pub(crate) fn first_difference(one: &QueueConfig, other: &QueueConfig) -> Option<(String, String)> {
    macro_rules! compare {
        ($($field:ident),+ $(,)?) => {
            // Taken apart, so that a new setting cannot be forgotten here. What a way in keeps for itself is no setting,
            // and neither is how settings were written, nor what they rest on.
            let QueueConfig { $($field: _),+, annotations: _, has_unread_arguments: _, base: _ } = one;
            $(if one.$field != other.$field {
                let say = |config: &QueueConfig| format!(concat!(stringify!($field), "={}"), value(&config.$field));
                return Some((say(one), say(other)));
            })+
        };
    }
    compare!(
        visibility,
        receipt_timeout,
        max_attempts,
        dead_letters,
        on_expiry,
        on_overflow,
        retry,
        ttl,
        dedup_window,
        max_messages,
        max_bytes,
        overflow,
        paused,
        rate_limit,
        sync,
        expires,
        auto_delete,
        single_active_consumer,
        arguments,
        groups,
        max_priority,
        on_refusal,
    );
    None
}

/// A value as people read it: the words of `Debug` without the wrapping.
fn value(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    let text = text.strip_prefix("Some(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(&text);
    match text.strip_prefix("Millis(").and_then(|rest| rest.strip_suffix(')')) {
        Some(number) => format!("{number} ms"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nexo_types::Millis;

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let one = QueueConfig::default();
        let other = QueueConfig { ttl: Some(Millis(5)), paused: true, ..QueueConfig::default() };
        assert_eq!(first_difference(&one, &other), Some(("ttl=None".into(), "ttl=5 ms".into())));
        assert_eq!(first_difference(&one, &one), None);
    }
}
