//! What a policy says: keys and values, in JSON. Each key that RabbitMQ knows is taken, and so are some of Nexo's own; the
//! words in which a value is refused are RabbitMQ's. What a queue has no use for here is checked, kept and shown.

use bytes::Bytes;
use nexo_types::{ExchangeName, Millis, limits};
use serde_json::{Map, Value};

use super::erlang;
use super::error::PolicyError;
use super::policy::PolicyKind;
use crate::config::{Backoff, RateLimit};

/// A definition that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    terms: Map<String, Value>,
    settings: PolicySettings,
}

/// What a definition says that has a meaning here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySettings {
    /// Longest life of a message.
    pub message_ttl: Option<Millis>,
    /// The queue goes when nobody has used it for this long.
    pub expires: Option<Millis>,
    /// Most messages that wait.
    pub max_length: Option<u64>,
    /// Most bytes that wait.
    pub max_length_bytes: Option<u64>,
    /// What a full queue does.
    pub overflow: Option<OverflowWord>,
    /// Where dead letters go: an exchange of the same virtual host.
    pub dead_letter_exchange: Option<String>,
    /// The routing key they get instead of their own.
    pub dead_letter_routing_key: Option<Bytes>,
    /// Deliveries after the first, before a message is a dead letter.
    pub delivery_limit: Option<u32>,
    /// Where messages go that match no binding: an exchange of the same virtual host.
    pub alternate_exchange: Option<String>,
    /// How long a consumer may hold a message.
    pub visibility: Option<Millis>,
    /// Deliveries before a message is a dead letter.
    pub max_attempts: Option<u32>,
    /// How long a rejected message waits.
    pub retry: Option<Backoff>,
    /// Most deliveries in a period.
    pub rate: Option<RateLimit>,
}

/// What RabbitMQ calls the ways in which a queue may be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverflowWord {
    /// `drop-head`.
    DropHead,
    /// `reject-publish`.
    RejectPublish,
    /// `reject-publish-dlx`.
    RejectPublishDlx,
}

/// Keys that an operator policy may have: those that bound something.
const OPERATOR_KEYS: [&str; 12] = [
    "delivery-limit",
    "expires",
    "ha-mode",
    "ha-params",
    "ha-sync-mode",
    "max-in-memory-bytes",
    "max-in-memory-length",
    "max-length",
    "max-length-bytes",
    "message-ttl",
    "overflow",
    "queue-version",
];

impl Definition {
    /// Checks a definition.
    ///
    /// # Errors
    /// Says what is wrong with the first key that cannot be.
    pub fn new(kind: PolicyKind, terms: Map<String, Value>) -> Result<Self, PolicyError> {
        if terms.is_empty() {
            return Err(PolicyError::fault("no policy provided"));
        }
        let bytes = text_of(&terms).len();
        let max = limits::POLICY_DEFINITION_BYTES_MAX;
        if bytes > max {
            return Err(PolicyError::TooLarge { what: "a policy's definition", max, bytes });
        }
        let mut settings = PolicySettings::default();
        let mut unknown = Vec::new();
        for (key, value) in &terms {
            let is_allowed = match kind {
                PolicyKind::Regular => true,
                PolicyKind::Operator => OPERATOR_KEYS.contains(&key.as_str()),
            };
            match settings.read(key, value) {
                _ if !is_allowed => unknown.push((key, value)),
                Read::Taken => {}
                Read::Wrong(words) => {
                    return Err(PolicyError::fault(format!("{} is not {words}", erlang::shown(value))));
                }
                Read::Unknown => unknown.push((key, value)),
            }
        }
        if !unknown.is_empty() {
            return Err(PolicyError::fault(format!(
                "{} are not recognised policy settings",
                erlang::terms(&unknown)
            )));
        }
        Ok(Self { terms, settings })
    }

    /// What was checked before: what is wrong with it for this build has no effect.
    pub(super) fn of_checked(terms: Map<String, Value>) -> Self {
        let mut settings = PolicySettings::default();
        for (key, value) in &terms {
            settings.read(key, value);
        }
        Self { terms, settings }
    }

    /// Reads back [`Self::text`].
    pub(super) fn from_text(text: &str) -> Option<Self> {
        match serde_json::from_str(text) {
            Ok(Value::Object(terms)) => Some(Self::of_checked(terms)),
            Ok(_) | Err(_) => None,
        }
    }

    /// Its keys and values as JSON.
    #[must_use]
    pub fn text(&self) -> String {
        text_of(&self.terms)
    }

    /// Its keys and values.
    #[must_use]
    pub const fn terms(&self) -> &Map<String, Value> {
        &self.terms
    }

    /// What of it has a meaning here.
    #[must_use]
    pub const fn settings(&self) -> &PolicySettings {
        &self.settings
    }

    /// Whether it has a key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.terms.contains_key(key)
    }
}

fn text_of(terms: &Map<String, Value>) -> String {
    serde_json::to_string(terms).unwrap_or_default()
}

/// What came of reading one key.
enum Read {
    Taken,
    /// It should be this.
    Wrong(&'static str),
    /// There is no such key.
    Unknown,
}

impl PolicySettings {
    /// Takes one key. A value that cannot be changes nothing.
    fn read(&mut self, key: &str, value: &Value) -> Read {
        let whole = value.as_u64();
        let millis = |min: u64| whole.filter(|ms| *ms >= min).map(|ms| Millis(ms.min(limits::DELAY_MAX.0)));
        match key {
            "message-ttl" => put(&mut self.message_ttl, millis(0), "a valid message TTL"),
            "expires" => put(&mut self.expires, millis(1), "a valid queue expiry"),
            "max-length" => put(&mut self.max_length, whole, "a valid maximum length"),
            "max-length-bytes" => put(&mut self.max_length_bytes, whole, "a valid maximum length in bytes"),
            "overflow" => put(&mut self.overflow, overflow(value), "a valid overflow value"),
            "dead-letter-exchange" => {
                let wanted = "a valid dead letter exchange name";
                put(&mut self.dead_letter_exchange, exchange(value), wanted)
            }
            "dead-letter-routing-key" => {
                let key = value.as_str().filter(|key| key.len() <= limits::ROUTING_KEY_BYTES_MAX);
                let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
                put(&mut self.dead_letter_routing_key, key, "a valid dead letter routing key")
            }
            "delivery-limit" => {
                let most = limits::MAX_ATTEMPTS_MAX - 1;
                let limit = whole.map(|limit| u32::try_from(limit).map_or(most, |limit| limit.min(most)));
                put(&mut self.delivery_limit, limit, "a valid delivery limit")
            }
            "alternate-exchange" => {
                let wanted = "a valid alternate exchange name";
                put(&mut self.alternate_exchange, exchange(value), wanted)
            }
            "visibility" => {
                let time = whole.filter(|ms| (1..=limits::VISIBILITY_MAX.0).contains(ms)).map(Millis);
                put(&mut self.visibility, time, "a valid visibility timeout in milliseconds")
            }
            "max-attempts" => {
                let max = whole.and_then(|max| u32::try_from(max).ok());
                let max = max.filter(|max| (1..=limits::MAX_ATTEMPTS_MAX).contains(max));
                put(&mut self.max_attempts, max, "a valid number of attempts")
            }
            "retry" => put(&mut self.retry, retry(value), "a valid retry policy"),
            "rate" => put(&mut self.rate, rate(value), "a valid delivery rate"),
            _ => without_effect(key, value),
        }
    }
}

fn put<T>(place: &mut Option<T>, value: Option<T>, wanted: &'static str) -> Read {
    match value {
        None => Read::Wrong(wanted),
        given => {
            *place = given;
            Read::Taken
        }
    }
}

/// Keys that RabbitMQ knows and that change nothing here: there are no mirrors, no streams and no lazy queues.
fn without_effect(key: &str, value: &Value) -> Read {
    let (whole, word) = (value.as_u64(), value.as_str());
    let is_word = |words: &[&str]| word.is_some_and(|word| words.contains(&word));
    let (is_valid, wanted) = match key {
        "consumer-timeout" => (whole.is_some(), "a valid consumer timeout"),
        "dead-letter-strategy" => {
            (is_word(&["at-most-once", "at-least-once"]), "a valid dead letter strategy")
        }
        "max-in-memory-length" | "max-in-memory-bytes" => {
            (whole.is_some(), "a valid maximum memory in bytes")
        }
        "queue-mode" => (is_word(&["default", "lazy"]), "a valid queue-mode value"),
        "queue-version" => (matches!(whole, Some(1 | 2)), "a valid queue-version value"),
        "queue-leader-locator" => {
            let words = ["client-local", "balanced", "random", "least-leaders"];
            (is_word(&words), "a valid queue leader locator value")
        }
        "queue-master-locator" => {
            (is_word(&["client-local", "random", "min-masters"]), "a valid master locator")
        }
        "max-age" => (word.is_some_and(is_age), "a valid max age"),
        "stream-max-segment-size-bytes" => (whole.is_some(), "a valid segment size"),
        "stream-filter-size-bytes" => (whole.is_some(), "a valid filter size"),
        "initial-cluster-size" => (whole.is_some(), "a valid cluster size"),
        "target-group-size" => (whole.is_some_and(|size| size > 0), "a valid target quorum queue group size"),
        "ha-mode" => (is_word(&["all", "exactly", "nodes"]), "a valid ha-mode value"),
        "ha-params" => (value.is_array() || whole.is_some(), "a valid ha-params value"),
        "ha-sync-mode" => (is_word(&["manual", "automatic"]), "a valid ha-sync-mode value"),
        "ha-sync-batch-size" => (whole.is_some_and(|size| size > 0), "a valid ha-sync-batch-size value"),
        "ha-promote-on-shutdown" => {
            (is_word(&["always", "when-synced"]), "a valid ha-promote-on-shutdown value")
        }
        "ha-promote-on-failure" => {
            (is_word(&["always", "when-synced"]), "a valid ha-promote-on-failure value")
        }
        _ => return Read::Unknown,
    };
    if is_valid { Read::Taken } else { Read::Wrong(wanted) }
}

/// Such as `7D`.
fn is_age(text: &str) -> bool {
    let number = text.trim_end_matches(|c: char| "YMDhms".contains(c));
    text.len() == number.len() + 1 && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn overflow(value: &Value) -> Option<OverflowWord> {
    match value.as_str()? {
        "drop-head" => Some(OverflowWord::DropHead),
        "reject-publish" => Some(OverflowWord::RejectPublish),
        "reject-publish-dlx" => Some(OverflowWord::RejectPublishDlx),
        _ => None,
    }
}

/// The name of an exchange, in whichever virtual host the policy is.
fn exchange(value: &Value) -> Option<String> {
    let name = value.as_str()?;
    ExchangeName::new(name).ok().map(|_| name.to_owned())
}

/// Milliseconds, or `{"base": 100, "factor": 2, "cap": 30000}`.
fn retry(value: &Value) -> Option<Backoff> {
    let within = |ms: u64| (ms <= limits::DELAY_MAX.0).then_some(Millis(ms));
    if let Some(ms) = value.as_u64() {
        return Some(if ms == 0 { Backoff::None } else { Backoff::Fixed { delay: within(ms)? } });
    }
    let object = value.as_object()?;
    if !object.keys().all(|key| ["base", "factor", "cap"].contains(&key.as_str())) {
        return None;
    }
    let base = within(object.get("base")?.as_u64()?)?;
    let cap = within(object.get("cap")?.as_u64()?)?;
    let factor = object.get("factor").map_or(Some(2.0), Value::as_f64)?;
    let permille = (factor * 1000.0).round();
    let most = f64::from(limits::BACKOFF_FACTOR_PERMILLE_MAX);
    let factor_permille = (1000.0..=most).contains(&permille).then_some(permille as u32)?;
    Some(Backoff::Exponential { base, factor_permille, cap })
}

/// Deliveries in a second, or `{"deliveries": 5, "period": 60000}` with a period in milliseconds.
fn rate(value: &Value) -> Option<RateLimit> {
    let (deliveries, period) = match value.as_object() {
        None => (value.as_u64()?, 1000),
        Some(object) if object.len() == 2 => {
            (object.get("deliveries")?.as_u64()?, object.get("period")?.as_u64()?)
        }
        Some(_) => return None,
    };
    let deliveries = u32::try_from(deliveries).ok()?;
    let fits = (1..=limits::RATE_DELIVERIES_MAX).contains(&deliveries)
        && (1..=limits::RATE_PERIOD_MAX.0).contains(&period);
    fits.then_some(RateLimit { deliveries, period: Millis(period) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn terms(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(terms) => terms,
            other => panic!("{other} is no object"),
        }
    }

    fn refused(kind: PolicyKind, value: Value) -> String {
        Definition::new(kind, terms(value)).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_said_in_rabbitmqs_words() {
        let wrong = |value| refused(PolicyKind::Regular, value);
        assert_eq!(wrong(json!({"message-ttl": "soon"})), "<<\"soon\">> is not a valid message TTL");
        assert_eq!(wrong(json!({"message-ttl": -1})), "-1 is not a valid message TTL");
        assert_eq!(wrong(json!({"expires": 0})), "0 is not a valid queue expiry");
        assert_eq!(wrong(json!({"max-length": 1.5})), "1.5 is not a valid maximum length");
        assert_eq!(wrong(json!({"overflow": "burst"})), "<<\"burst\">> is not a valid overflow value");
        assert_eq!(wrong(json!({"ha-mode": "some"})), "<<\"some\">> is not a valid ha-mode value");
        assert_eq!(
            wrong(json!({"max-priority": 5, "message-ttl": 1})),
            "[{<<\"max-priority\">>,5}] are not recognised policy settings"
        );
        assert_eq!(wrong(json!({})), "no policy provided");
        assert!(wrong(json!({"ha-params": "x".repeat(20_000)})).contains("at most"));
    }

    #[test]
    fn an_operator_policy_bounds_and_does_nothing_else() {
        assert_eq!(
            refused(PolicyKind::Operator, json!({"dead-letter-exchange": "x", "max-length": 1})),
            "[{<<\"dead-letter-exchange\">>,<<\"x\">>}] are not recognised policy settings"
        );
        let bounds = json!({"message-ttl": 5, "expires": 5, "max-length": 0, "delivery-limit": 0});
        assert!(Definition::new(PolicyKind::Operator, terms(bounds)).is_ok());
    }

    #[test]
    fn what_has_a_meaning_here_is_read() {
        let all = json!({
            "message-ttl": 0, "expires": 1, "max-length": 2, "max-length-bytes": 3, "overflow": "reject-publish",
            "dead-letter-exchange": "", "dead-letter-routing-key": "k", "delivery-limit": 4,
            "alternate-exchange": "ae", "visibility": 5, "max-attempts": 6, "retry": 7, "rate": 8,
            "queue-mode": "lazy", "max-age": "7D", "ha-mode": "exactly", "ha-params": 2,
        });
        let definition = Definition::new(PolicyKind::Regular, terms(all.clone())).unwrap();
        assert_eq!(
            *definition.settings(),
            PolicySettings {
                message_ttl: Some(Millis(0)),
                expires: Some(Millis(1)),
                max_length: Some(2),
                max_length_bytes: Some(3),
                overflow: Some(OverflowWord::RejectPublish),
                dead_letter_exchange: Some(String::new()),
                dead_letter_routing_key: Some("k".into()),
                delivery_limit: Some(4),
                alternate_exchange: Some("ae".into()),
                visibility: Some(Millis(5)),
                max_attempts: Some(6),
                retry: Some(Backoff::Fixed { delay: Millis(7) }),
                rate: Some(RateLimit { deliveries: 8, period: Millis(1000) }),
            }
        );
        assert_eq!(Definition::from_text(&definition.text()), Some(definition.clone()));
        assert_eq!(Value::Object(definition.terms().clone()), all);
    }

    #[test]
    fn retries_and_rates_may_be_said_at_length() {
        let read = |value| {
            let mut settings = PolicySettings::default();
            settings.read("retry", &value);
            settings.read("rate", &value);
            (settings.retry, settings.rate)
        };
        let (base, cap) = (Millis(100), Millis(900));
        let grows = |factor_permille| Some(Backoff::Exponential { base, factor_permille, cap });
        assert_eq!(read(json!({"base": 100, "cap": 900})).0, grows(2000));
        assert_eq!(read(json!({"base": 100, "cap": 900, "factor": 1.5})).0, grows(1500));
        let slow = RateLimit { deliveries: 5, period: Millis(60_000) };
        assert_eq!(read(json!({"deliveries": 5, "period": 60_000})).1, Some(slow));
        for wrong in [json!({"base": 1}), json!({"deliveries": 0, "period": 1}), json!("x"), json!(-1)] {
            assert_eq!(read(wrong), (None, None));
        }
    }
}
