//! What the properties of a publish ask of the broker. Most messages ask for nothing beyond their delivery mode.

use nexo_broker::Durability;
use nexo_types::{DedupId, Millis, same_bytes};

use super::arguments::EXPIRY_MAX_MS;
use super::error::Refusal;
use super::publish::dedup_id;
use crate::codec::{Properties, Table, Value};

/// What a message asks for.
#[derive(Clone, Debug)]
pub(super) struct Facts<'a> {
    pub(super) durability: Durability,
    pub(super) priority: u8,
    pub(super) ttl: Option<Millis>,
    pub(super) delay: Millis,
    pub(super) dedup: Option<DedupId>,
    /// Further routing keys.
    pub(super) copies: Vec<&'a [u8]>,
    pub(super) has_blind_copies: bool,
}

/// What a message asks for by properties that say nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asks {
    pub(super) durability: Durability,
    pub(super) priority: u8,
    pub(super) ttl: Option<Millis>,
}

/// What the last such message asked for: the messages of a publisher are mostly alike.
#[derive(Debug, Default)]
pub(super) struct LastAsks {
    properties: Vec<u8>,
    asks: Option<Asks>,
}

/// Longer ones are hardly ever the same twice.
const PROPERTIES_REMEMBERED_MAX: usize = 128;

impl LastAsks {
    /// What a message with these properties asks for, if they are those of the last one.
    #[inline]
    pub(super) fn recall(&self, properties: &[u8]) -> Option<Asks> {
        self.asks.filter(|_| same_bytes(&self.properties, properties))
    }

    /// Notes what a message asked for, if it was nothing special.
    pub(super) fn note(&mut self, properties: &[u8], facts: &Facts<'_>) {
        let is_plain = facts.copies.is_empty()
            && facts.dedup.is_none()
            && facts.delay == Millis::ZERO
            && properties.len() <= PROPERTIES_REMEMBERED_MAX;
        self.asks = is_plain.then(|| {
            self.properties.clear();
            self.properties.extend_from_slice(properties);
            Asks { durability: facts.durability, priority: facts.priority, ttl: facts.ttl }
        });
    }
}

impl<'a> Facts<'a> {
    /// Reads the properties of a message that `user` publishes.
    pub(super) fn of(properties: &Properties<'a>, user: &str) -> Result<Self, Refusal> {
        if let Some(id) = properties.user_id()
            && id != *user
        {
            return Err(Refusal::precondition(format!(
                "user_id property set to '{id}' but authenticated user was '{user}'"
            )));
        }
        let mut facts = Self {
            durability: if properties.delivery_mode() == Some(2) {
                Durability::Durable
            } else {
                Durability::Transient
            },
            priority: properties.priority().unwrap_or(0),
            ttl: properties.expiration().map(|text| expiration(&text)).transpose()?,
            delay: Millis::ZERO,
            dedup: None,
            copies: Vec::new(),
            has_blind_copies: false,
        };
        if let Some(headers) = properties.headers() {
            facts.read_headers(headers)?;
        }
        Ok(facts)
    }

    /// One pass over the headers: most of them mean nothing to a broker.
    fn read_headers(&mut self, headers: Table<'a>) -> Result<(), Refusal> {
        for (name, value) in headers.iter() {
            match name.as_bytes() {
                b"CC" => self.copy("CC", value)?,
                b"BCC" => {
                    self.has_blind_copies = true;
                    self.copy("BCC", value)?;
                }
                b"x-delay" => {
                    let delay = value.as_integer().and_then(|delay| u64::try_from(delay).ok()).unwrap_or(0);
                    self.delay = Millis(delay).min(nexo_types::limits::DELAY_MAX);
                }
                b"x-deduplication-header" => {
                    self.dedup = match (value.as_str(), value.as_integer()) {
                        (Some(text), _) => dedup_id(text),
                        (None, Some(number)) => dedup_id(&number.to_string()),
                        (None, None) => None,
                    };
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn copy(&mut self, name: &str, value: Value<'a>) -> Result<(), Refusal> {
        let Some(keys) = value.as_array() else {
            let kind = value.type_name();
            return Err(Refusal::precondition(format!(
                "invalid message: {{unacceptable_type_in_header,\"{name}\",{kind}}}"
            )));
        };
        self.copies.extend(keys.iter().filter_map(|key| key.as_bytes()));
        Ok(())
    }
}

/// A time to live, as Erlang reads a number from the head of a text.
fn expiration(text: &[u8]) -> Result<Millis, Refusal> {
    let sign = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(sign + digits);
    let shown = String::from_utf8_lossy(number);
    let shown = shown.strip_prefix('+').unwrap_or(&shown);
    let negative = shown.starts_with('-');
    let reason = if digits == 0 {
        "no_integer".to_owned()
    } else if !rest.is_empty() {
        format!("{{leftover_string,\"{}\"}}", String::from_utf8_lossy(rest))
    } else if negative {
        format!("{{value_negative,{shown}}}")
    } else {
        match shown.parse::<i64>() {
            Ok(number) if number <= EXPIRY_MAX_MS => return Ok(Millis(number.unsigned_abs())),
            Ok(_) | Err(_) => format!("{{value_too_large,{shown}}}"),
        }
    };
    let text = String::from_utf8_lossy(text);
    Err(Refusal::precondition(format!("invalid expiration '{text}': {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiration_is_a_number_and_nothing_else() {
        assert_eq!(expiration(b"60000"), Ok(Millis(60_000)));
        assert_eq!(expiration(b"0"), Ok(Millis(0)));
        let reason = |text: &[u8]| expiration(text).unwrap_err().text;
        assert_eq!(reason(b"10s"), "invalid expiration '10s': {leftover_string,\"s\"}");
        assert_eq!(reason(b""), "invalid expiration '': no_integer");
        assert_eq!(reason(b"-1"), "invalid expiration '-1': {value_negative,-1}");
        assert_eq!(reason(b"4294967296"), "invalid expiration '4294967296': {value_too_large,4294967296}");
        let long = "9".repeat(200);
        assert!(reason(long.as_bytes()).ends_with(&format!("{{value_too_large,{long}}}")));
    }
}
