//! What the broker must know of AMQP messages: their headers, what one looks like that the broker sends by itself, and how one
//! that died is addressed anew, with the headers
//! by which RabbitMQ tells of it (`x-death`, `x-first-death-…`).

use std::collections::HashMap;

use bytes::Bytes;
use nexo_broker::topology::{HeaderSource, NoHeaders};
use nexo_broker::{
    Codecs, DeadLetter, DeadLetterCodec, DeadLetters, DeathInfo, DeathReason, Durability, Envelope,
    HeaderValue, Headers, HeadersError, NewMessage, PriorityCap, Properties, PropertyCodec, PropertyFormat,
    Publication, PublishCodec, QueueCodec, QueueConfig, QueueKind, StoredMessage, ToldDeath,
};
use nexo_types::{Priority, QueueName, Timestamp};

use crate::address::Address;
use crate::codec::{self, ArrayBuf, PropertiesBuilder, ShortStr, Table, TableBuf, Value};
use crate::headers::{MessageHeaders, native_table};
use crate::json;
use crate::server::{self, Traits, read_arguments};

const X_DEATH: ShortStr<'static> = ShortStr::from_static("x-death");
const CC: ShortStr<'static> = ShortStr::from_static("CC");

/// Knows AMQP messages and queues for the broker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AmqpPropertyCodec;

/// Has a broker know AMQP messages and queues.
#[must_use]
pub fn register(codecs: Codecs) -> Codecs {
    let codec = &AmqpPropertyCodec;
    codecs.with_properties(codec).with_queues(codec).with_dead_letters(codec).with_publications(codec)
}

impl PropertyCodec for AmqpPropertyCodec {
    fn format(&self) -> PropertyFormat {
        PropertyFormat::Amqp
    }

    fn headers(&self, properties: &Properties) -> Result<Headers, HeadersError> {
        let headers = amqp(properties).and_then(|(_, properties)| properties.headers());
        let entries = headers.into_iter().flat_map(|headers| headers.iter());
        let named = entries.filter(|(name, _)| !name.is_empty());
        Ok(Headers(named.map(|(name, value)| (name.to_string(), native(value))).collect()))
    }

    fn header_source<'a>(&self, properties: &'a Properties) -> Box<dyn HeaderSource + 'a> {
        match amqp(properties) {
            Some((_, properties)) => Box::new(MessageHeaders::new(properties)),
            None => Box::new(NoHeaders),
        }
    }

    fn envelope(&self, properties: &Properties) -> Option<Envelope> {
        let (address, properties) = amqp(properties)?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Some(Envelope {
            exchange: text(address.exchange),
            routing_key: text(address.routing_key),
            properties: named_properties(&properties),
        })
    }

    fn death(&self, properties: &Properties) -> Option<ToldDeath> {
        let (_, properties) = amqp(properties)?;
        let deaths = properties.headers()?.get("x-death")?.as_array()?;
        // Newest first.
        let latest = deaths.iter().next()?.as_table()?;
        let text = |name| {
            let bytes = latest.get(name)?.as_bytes()?;
            Some(String::from_utf8_lossy(bytes).into_owned())
        };
        let count = latest.get("count").and_then(|count| u64::try_from(count.as_integer()?).ok());
        let at = match latest.get("time") {
            Some(Value::Timestamp(seconds)) => Some(Timestamp(seconds.saturating_mul(1000))),
            Some(_) | None => None,
        };
        Some(ToldDeath {
            reason: text("reason")?,
            queue: text("queue")?,
            exchange: text("exchange").unwrap_or_default(),
            count: count.unwrap_or(1),
            at,
        })
    }
}

impl DeadLetterCodec for AmqpPropertyCodec {
    fn dead_letter(&self, message: StoredMessage, note: &DeathInfo<'_>) -> DeadLetter {
        dead_letter(message, note)
    }

    fn for_queue(&self, dead_letter: &NewMessage, queue: &QueueConfig) -> NewMessage {
        let mut dead_letter = dead_letter.clone();
        if let Some(priority) =
            amqp(&dead_letter.properties).and_then(|(_, properties)| properties.priority())
        {
            (dead_letter.priority, dead_letter.priority_cap) = (Priority(priority), PriorityCap::Queue);
        }
        if Traits::of(queue).kind == server::QueueKind::Quorum {
            dead_letter.durability = Durability::Durable;
        }
        dead_letter
    }

    fn is_cycle(&self, dead_letter: &NewMessage, queue: &QueueName) -> bool {
        let Some((_, properties)) = amqp(&dead_letter.properties) else { return false };
        let deaths = properties.headers().and_then(|headers| headers.get("x-death")?.as_array());
        let Some(deaths) = deaths else { return false };
        // Newest first: a ring is closed if the queue is met again before anybody rejected the message.
        let deaths = deaths.iter().filter_map(|death| death.as_table());
        for death in deaths {
            if death.get("reason").and_then(|reason| reason.as_bytes()) == Some(b"rejected") {
                return false;
            }
            if death.get("queue").and_then(|queue| queue.as_bytes()) == Some(queue.as_str().as_bytes()) {
                return true;
            }
        }
        false
    }
}

impl PublishCodec for AmqpPropertyCodec {
    fn publication(&self, publication: &Publication<'_>) -> NewMessage {
        let mut headers = TableBuf::new();
        for (name, value) in publication.headers {
            headers.put(ShortStr::clipped(name.as_bytes()), &**value);
        }
        let mut properties = PropertiesBuilder::new()
            .headers(headers.as_table())
            .delivery_mode(2)
            .timestamp(publication.at.0 / 1000);
        if !publication.content_type.is_empty() {
            properties = properties.content_type(ShortStr::clipped(publication.content_type.as_bytes()));
        }
        if publication.priority != Priority::default() {
            properties = properties.priority(publication.priority.0);
        }
        let (exchange, routing_key) = (publication.exchange.as_bytes(), publication.routing_key.as_bytes());
        let mut bytes = Address { exchange, routing_key }.encode().to_vec();
        properties.encode(&mut bytes);
        NewMessage {
            properties: Properties { format: PropertyFormat::Amqp, bytes: bytes.into() },
            priority: publication.priority,
            ..NewMessage::new(publication.body.clone())
        }
    }
}

impl QueueCodec for AmqpPropertyCodec {
    fn kind(&self, _name: &QueueName, queue: &QueueConfig) -> Option<QueueKind> {
        let is_declared = !queue.arguments.is_empty()
            // The native API has no way to ask for these two.
            || matches!(queue.dead_letters, DeadLetters::Exchange { .. } | DeadLetters::Nowhere);
        match Traits::of(queue).kind {
            server::QueueKind::Quorum => Some(QueueKind::Quorum),
            server::QueueKind::Classic => is_declared.then_some(QueueKind::Classic),
        }
    }

    fn arguments(&self, queue: &QueueConfig) -> Headers {
        let table = Table::parse(&queue.arguments).unwrap_or(Table::EMPTY);
        Headers(table.iter().map(|(name, value)| (name.to_string(), native(value))).collect())
    }

    fn names_overflow(&self, queue: &QueueConfig) -> bool {
        Table::parse(&queue.arguments).is_ok_and(|arguments| arguments.get("x-overflow").is_some())
    }

    fn read_arguments(&self, queue: &mut QueueConfig) {
        read_arguments(queue);
    }
}

/// The properties that a message has, without its headers.
fn named_properties(properties: &codec::Properties<'_>) -> Headers {
    let short = |text: Option<ShortStr<'_>>| text.map(|text| HeaderValue::Text(text.to_string()));
    let number = |number: Option<u64>| number.map(|number| HeaderValue::Number(number.to_string()));
    let found = codec::Property::ALL.into_iter().filter_map(|property| {
        let value = match property {
            codec::Property::Headers => None,
            codec::Property::ContentType => short(properties.content_type()),
            codec::Property::ContentEncoding => short(properties.content_encoding()),
            codec::Property::DeliveryMode => number(properties.delivery_mode().map(u64::from)),
            codec::Property::Priority => number(properties.priority().map(u64::from)),
            codec::Property::CorrelationId => short(properties.correlation_id()),
            codec::Property::ReplyTo => short(properties.reply_to()),
            codec::Property::Expiration => short(properties.expiration()),
            codec::Property::MessageId => short(properties.message_id()),
            codec::Property::Timestamp => number(properties.timestamp()),
            codec::Property::Type => short(properties.kind()),
            codec::Property::UserId => short(properties.user_id()),
            codec::Property::AppId => short(properties.app_id()),
            codec::Property::ClusterId => short(properties.cluster_id()),
        };
        value.map(|value| (property.name().to_owned(), value))
    });
    Headers(found.collect())
}

/// The address and the properties of an AMQP message; `None` for one that came another way.
fn amqp(properties: &Properties) -> Option<(Address<'_>, codec::Properties<'_>)> {
    match properties.format {
        PropertyFormat::Amqp => {}
        PropertyFormat::Native => return None,
    }
    let (address, raw) = Address::split(&properties.bytes)?;
    Some((address, codec::Properties::parse(raw).ok()?))
}

/// The word that RabbitMQ has for a reason.
const fn reason_word(reason: DeathReason) -> &'static str {
    match reason {
        DeathReason::MaxAttempts => "delivery_limit",
        DeathReason::Expired => "expired",
        DeathReason::Overflow => "maxlen",
        DeathReason::Rejected => "rejected",
    }
}

fn dead_letter(message: StoredMessage, note: &DeathInfo<'_>) -> DeadLetter {
    let stored = message.properties.clone();
    let native_headers;
    let native_properties;
    let (address, properties) = match amqp(&stored) {
        Some(found) => found,
        None => {
            native_headers = native_table(&note.codecs.headers(&stored).unwrap_or_default());
            native_properties = PropertiesBuilder::new().headers(native_headers.as_table()).to_vec();
            let own = Address { exchange: b"", routing_key: note.queue.as_str().as_bytes() };
            (own, codec::Properties::parse(&native_properties).unwrap_or(codec::Properties::EMPTY))
        }
    };
    let old_headers = properties.headers().unwrap_or(Table::EMPTY);
    let copies = old_headers.get("CC").and_then(|cc| cc.as_array());
    let copies: Vec<&[u8]> =
        copies.into_iter().flat_map(|cc| cc.iter()).filter_map(|key| key.as_bytes()).collect();
    let mut headers = TableBuf::from(old_headers);
    tell_of_death(&mut headers, address, &copies, properties.expiration(), note);
    let own_keys = || {
        let keys = std::iter::once(address.routing_key).chain(copies.iter().copied());
        keys.map(Bytes::copy_from_slice).collect::<Vec<_>>()
    };
    let routing_keys = match note.routing_key {
        Some(key) => {
            headers.remove(CC);
            vec![key.clone()]
        }
        None => own_keys(),
    };
    let builder = PropertiesBuilder::from_base(properties)
        .without(codec::Property::Expiration)
        .headers(headers.as_table());
    let routing_key = routing_keys.first().map_or(&b""[..], |key| &key[..]);
    let mut bytes = Address { exchange: note.exchange.as_str().as_bytes(), routing_key }.encode().to_vec();
    builder.encode(&mut bytes);
    let mut message = message.into_moved(None);
    message.properties = Properties { format: PropertyFormat::Amqp, bytes: bytes.into() };
    DeadLetter { message, routing_keys }
}

/// Puts the death at the head of `x-death`: a new entry, or the one of the same queue and reason counted up.
fn tell_of_death(
    headers: &mut TableBuf,
    address: Address<'_>,
    copies: &[&[u8]],
    expiration: Option<ShortStr<'_>>,
    note: &DeathInfo<'_>,
) {
    let reason = reason_word(note.reason);
    let queue = note.queue.as_str();
    let before = TableBuf::from(headers.as_table());
    let old = before.as_table().get("x-death").and_then(|deaths| deaths.as_array());
    let is_same =
        |death: &TableBuf| cause(death.as_table()) == (Some(queue.as_bytes()), Some(reason.as_bytes()));
    let old: Vec<Table<'_>> =
        old.into_iter().flat_map(|deaths| deaths.iter()).filter_map(|death| death.as_table()).collect();
    let old = merged(&old);
    let mut entry = TableBuf::new();
    match old.iter().find(|death| is_same(death)) {
        Some(same) => {
            let same = same.as_table();
            entry = TableBuf::from(same);
            let count = same.get("count").and_then(|count| count.as_integer()).unwrap_or(0);
            entry.set(ShortStr::from_static("count"), count.saturating_add(1));
        }
        None => {
            let mut keys = ArrayBuf::new();
            keys.push(Value::LongStr(address.routing_key));
            for copy in copies {
                keys.push(Value::LongStr(copy));
            }
            entry
                .put(ShortStr::from_static("count"), 1i64)
                .put(ShortStr::from_static("reason"), reason)
                .put(ShortStr::from_static("queue"), queue)
                .put(ShortStr::from_static("time"), Value::Timestamp(note.at.0 / 1000))
                .put(ShortStr::from_static("exchange"), Value::LongStr(address.exchange))
                .put(ShortStr::from_static("routing-keys"), keys.as_array());
            if let Some(expiration) = expiration {
                entry
                    .put(ShortStr::from_static("original-expiration"), Value::LongStr(expiration.as_bytes()));
            }
        }
    }
    let mut deaths = ArrayBuf::new();
    deaths.push(entry.as_table());
    for death in old.iter().filter(|death| !is_same(death)) {
        deaths.push(death.as_table());
    }
    headers.set(X_DEATH, deaths.as_array());
    if before.as_table().get("x-death").is_none() {
        headers.put(ShortStr::from_static("x-first-death-reason"), reason);
        headers.put(ShortStr::from_static("x-first-death-queue"), queue);
        headers.put(ShortStr::from_static("x-first-death-exchange"), Value::LongStr(address.exchange));
    }
}

/// By what two entries of `x-death` are the same: the queue and the reason.
fn cause(death: Table<'_>) -> (Option<&[u8]>, Option<&[u8]>) {
    let text = |name| death.get(name).and_then(|value| value.as_bytes());
    (text("queue"), text("reason"))
}

/// The entries of `x-death` that a message came with, one for each cause: the publisher may have written them, or copied
/// them from several messages. As RabbitMQ 3.10 does it, the first of a cause stays, with the number of its like where
/// it has no count; and two or more entries turn round.
fn merged(deaths: &[Table<'_>]) -> Vec<TableBuf> {
    let mut counts: HashMap<_, i64> = HashMap::new();
    for death in deaths {
        *counts.entry(cause(*death)).or_default() += 1;
    }
    let mut merged: Vec<TableBuf> = Vec::new();
    for death in deaths {
        let Some(count) = counts.remove(&cause(*death)) else { continue };
        let mut entry = TableBuf::new();
        if deaths.len() > 1 && death.get("count").is_none() {
            entry.put(ShortStr::from_static("count"), count);
        }
        for (name, value) in death.iter() {
            entry.put(name, value);
        }
        merged.push(entry);
    }
    merged.reverse();
    merged
}

/// A header's value as native clients have them: text, a number, or the bytes of anything else.
fn native(value: Value<'_>) -> HeaderValue {
    let text = |text: String| HeaderValue::Text(text);
    let number = |digits: String| HeaderValue::Number(digits);
    match value {
        Value::LongStr(bytes) => match std::str::from_utf8(bytes) {
            Ok(string) => text(string.to_owned()),
            Err(_) => HeaderValue::Bytes(Bytes::copy_from_slice(bytes)),
        },
        Value::Bytes(bytes) => HeaderValue::Bytes(Bytes::copy_from_slice(bytes)),
        Value::Bool(truth) => text(truth.to_string()),
        Value::F32(real) if real.is_finite() => number(real.to_string()),
        Value::F64(real) if real.is_finite() => number(real.to_string()),
        Value::F32(real) => text(real.to_string()),
        Value::F64(real) => text(real.to_string()),
        Value::Timestamp(seconds) => text(seconds.to_string()),
        Value::Decimal { scale, digits } => text((f64::from(digits) / 10f64.powi(scale.into())).to_string()),
        Value::Void => text(String::new()),
        Value::Array(_) | Value::Table(_) => HeaderValue::Json(json::value(value)),
        Value::I8(_)
        | Value::U8(_)
        | Value::I16(_)
        | Value::U16(_)
        | Value::I32(_)
        | Value::U32(_)
        | Value::I64(_) => number(value.as_integer().unwrap_or_default().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nexo_types::ExchangeName;

    fn stored(properties: &[u8]) -> StoredMessage {
        let mut bytes = Address { exchange: b"orders", routing_key: b"new" }.encode().to_vec();
        bytes.extend_from_slice(properties);
        StoredMessage {
            priority: Default::default(),
            durability: Default::default(),
            delay: Default::default(),
            lifetime: None,
            dedup: None,
            group: None,
            origin: None,
            properties: Properties { format: PropertyFormat::Amqp, bytes: bytes.into() },
            body: Bytes::from_static(b"body"),
        }
    }

    fn die(message: StoredMessage, queue: &str, reason: DeathReason, key: Option<&Bytes>) -> DeadLetter {
        let (queue, exchange) = (QueueName::new(queue).unwrap(), ExchangeName::new("dlx").unwrap());
        let codecs = register(Codecs::default());
        let at = Timestamp(5_000);
        let note =
            DeathInfo { queue: &queue, reason, at, exchange: &exchange, routing_key: key, codecs: &codecs };
        AmqpPropertyCodec.dead_letter(message, &note)
    }

    fn again(dead_letter: &DeadLetter) -> StoredMessage {
        StoredMessage { properties: dead_letter.message.properties.clone(), ..stored(&[]) }
    }

    fn deaths(dead_letter: &DeadLetter) -> Vec<(String, String, i64)> {
        let (_, properties) = amqp(&dead_letter.message.properties).unwrap();
        let deaths = properties.headers().unwrap().get("x-death").unwrap().as_array().unwrap();
        let tell = |death: Value<'_>| {
            let death = death.as_table().unwrap();
            let text = |name| death.get(name).unwrap().as_str().unwrap().to_owned();
            (text("queue"), text("reason"), death.get("count").unwrap().as_integer().unwrap())
        };
        deaths.iter().map(tell).collect()
    }

    #[test]
    fn a_death_is_told_and_the_message_goes_by_its_own_key() {
        let expiring = PropertiesBuilder::new().expiration(ShortStr::from_static("100")).to_vec();
        let dead_letter = die(stored(&expiring), "work", DeathReason::Expired, None);
        assert_eq!(dead_letter.routing_keys, [Bytes::from_static(b"new")]);
        assert_eq!(deaths(&dead_letter), [("work".into(), "expired".into(), 1)]);
        let (_, properties) = amqp(&dead_letter.message.properties).unwrap();
        assert_eq!(properties.expiration(), None);
        let headers = properties.headers().unwrap();
        assert_eq!(headers.get("x-first-death-queue").unwrap().as_str(), Some("work"));
        assert_eq!(headers.get("x-first-death-exchange").unwrap().as_str(), Some("orders"));
        let death = headers.get("x-death").unwrap().as_array().unwrap().iter().next().unwrap();
        assert_eq!(death.as_table().unwrap().get("original-expiration").unwrap().as_str(), Some("100"));
        assert_eq!(death.as_table().unwrap().get("time"), Some(Value::Timestamp(5)));
    }

    #[test]
    fn the_same_death_counts_up_and_another_comes_first() {
        let key = Bytes::from_static(b"dead");
        let first = die(stored(&[0, 0]), "work", DeathReason::Rejected, Some(&key));
        let second = die(again(&first), "wait", DeathReason::Expired, Some(&key));
        let third = die(again(&second), "work", DeathReason::Rejected, Some(&key));
        assert_eq!(
            deaths(&third),
            [("work".into(), "rejected".into(), 2), ("wait".into(), "expired".into(), 1)]
        );
        assert_eq!(third.routing_keys, [key]);
        let told = ToldDeath {
            reason: "rejected".to_owned(),
            queue: "work".to_owned(),
            exchange: "orders".to_owned(),
            count: 2,
            at: Some(Timestamp(5_000)),
        };
        assert_eq!(AmqpPropertyCodec.death(&third.message.properties), Some(told));
    }

    #[test]
    fn a_header_that_is_no_list_of_deaths_tells_of_none() {
        let told_by = |headers: &TableBuf| {
            let message = stored(&PropertiesBuilder::new().headers(headers.as_table()).to_vec());
            AmqpPropertyCodec.death(&message.properties)
        };
        let told = |deaths: Value<'_>| {
            let mut headers = TableBuf::new();
            headers.put(X_DEATH, deaths);
            told_by(&headers)
        };
        let listed = |entry: &TableBuf| {
            let mut deaths = ArrayBuf::new();
            deaths.push(entry.as_table());
            told(Value::Array(deaths.as_array()))
        };
        assert_eq!(told_by(&TableBuf::new()), None);
        assert_eq!(told(Value::LongStr(b"rejected")), None);
        assert_eq!(told(Value::Array(ArrayBuf::new().as_array())), None);
        let mut entry = TableBuf::new();
        entry.put(ShortStr::from_static("queue"), "work");
        assert_eq!(listed(&entry), None);
        entry.put(ShortStr::from_static("reason"), "expired").put(ShortStr::from_static("count"), -1i64);
        let told = listed(&entry).unwrap();
        assert_eq!(
            (told.queue.as_str(), told.reason.as_str(), told.count, told.at),
            ("work", "expired", 1, None)
        );
    }

    #[test]
    fn entries_that_a_publisher_wrote_are_merged_by_queue_and_reason() {
        let told = |queue: &'static str, reason: &'static str, count: Option<i64>| {
            let mut death = TableBuf::new();
            death.put(ShortStr::from_static("queue"), queue).put(ShortStr::from_static("reason"), reason);
            if let Some(count) = count {
                death.put(ShortStr::from_static("count"), count);
            }
            death
        };
        let mut deaths_before = ArrayBuf::new();
        for death in [
            told("work", "rejected", None),
            told("wait", "expired", Some(7)),
            told("work", "rejected", None),
            told("wait", "expired", Some(3)),
            told("wait", "maxlen", None),
        ] {
            deaths_before.push(death.as_table());
        }
        let mut headers = TableBuf::new();
        headers.put(X_DEATH, deaths_before.as_array());
        let properties = PropertiesBuilder::new().headers(headers.as_table()).to_vec();
        let dead_letter = die(stored(&properties), "work", DeathReason::Rejected, None);
        assert_eq!(
            deaths(&dead_letter),
            [
                ("work".into(), "rejected".into(), 3),
                ("wait".into(), "maxlen".into(), 1),
                ("wait".into(), "expired".into(), 7)
            ]
        );
    }

    #[test]
    fn a_ring_is_cut_unless_somebody_rejected() {
        let (one, two) = (QueueName::new("one").unwrap(), QueueName::new("two").unwrap());
        let expired = die(stored(&[0, 0]), "one", DeathReason::Expired, None);
        assert!(AmqpPropertyCodec.is_cycle(&expired.message, &one));
        assert!(!AmqpPropertyCodec.is_cycle(&expired.message, &two));
        let rejected = die(again(&expired), "two", DeathReason::Rejected, None);
        assert!(!AmqpPropertyCodec.is_cycle(&rejected.message, &one));
    }

    #[test]
    fn a_named_key_takes_the_place_of_copies() {
        let mut keys = ArrayBuf::new();
        keys.push("copy");
        let mut headers = TableBuf::new();
        headers.put(CC, keys.as_array());
        let properties = PropertiesBuilder::new().headers(headers.as_table()).to_vec();
        let own = die(stored(&properties), "work", DeathReason::Rejected, None);
        assert_eq!(own.routing_keys, [Bytes::from_static(b"new"), Bytes::from_static(b"copy")]);
        let named = die(stored(&properties), "work", DeathReason::Rejected, Some(&Bytes::from_static(b"k")));
        assert_eq!(named.routing_keys, [Bytes::from_static(b"k")]);
        let (_, written) = amqp(&named.message.properties).unwrap();
        assert_eq!(written.headers().unwrap().get("CC"), None);
    }
}
