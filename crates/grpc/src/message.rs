//! Messages between the wire and the broker.

use nexo_broker::{
    DeathReason, Delivery, Durability, Envelope, HeaderValue, Headers, HeadersError, NewMessage, Origin,
};
use nexo_types::{DedupId, GroupId, Millis, Priority, limits};

use crate::fields;
use crate::proto;
use crate::status::Failure;

/// What a message of the wire counts for beyond its body, when the size of a reply is estimated.
const OVERHEAD_BYTES: usize = 64;

/// The messages of a push, each checked. A body has at most `body_bytes_max`, as the broker says.
pub(crate) fn new_messages(
    messages: Vec<proto::NewMessage>,
    body_bytes_max: usize,
) -> Result<Vec<NewMessage>, Failure> {
    fields::count("messages", messages.len(), limits::PUSH_BATCH_MAX)?;
    let checked = messages.into_iter().enumerate();
    checked.map(|(index, message)| new_message(index, message, body_bytes_max)).collect()
}

fn new_message(
    index: usize,
    message: proto::NewMessage,
    body_bytes_max: usize,
) -> Result<NewMessage, Failure> {
    // Formatted only if something is wrong: this runs for every message there is.
    macro_rules! field {
        ($name:literal) => {
            format_args!(concat!("messages[{}].", $name), index)
        };
    }
    if message.body.len() > body_bytes_max {
        let (field, len) = (field!("body"), message.body.len());
        return Err(Failure::invalid(format!("{field} has at most {body_bytes_max} bytes; it has {len}")));
    }
    let priority = fields::in_range(field!("priority"), message.priority.into(), 0, u8::MAX.into())?;
    let delay = fields::in_range(field!("delay_ms"), message.delay_ms, 0, limits::DELAY_MAX.0)?;
    let ttl = message
        .ttl_ms
        .map(|ttl| fields::in_range(field!("ttl_ms"), ttl, 1, limits::DELAY_MAX.0))
        .transpose()?;
    let dedup = unless_empty(&message.dedup_id)
        .map(DedupId::new)
        .transpose()
        .map_err(|error| fields::named(field!("dedup_id"), &error))?;
    let group = unless_empty(&message.group_id)
        .map(GroupId::new)
        .transpose()
        .map_err(|error| fields::named(field!("group_id"), &error))?;
    let properties = headers(message.headers)
        .to_properties()
        .map_err(|error| Failure::invalid(format!("{}: {error}", field!("headers"))))?;
    Ok(NewMessage {
        body: message.body,
        properties,
        priority: Priority(u8::try_from(priority).expect("the range was checked")),
        delay: Millis(delay),
        ttl: ttl.map(Millis),
        dedup,
        group,
        durability: if message.transient { Durability::Transient } else { Durability::Durable },
        ..NewMessage::default()
    })
}

fn unless_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn headers(headers: Vec<proto::Header>) -> Headers {
    Headers(
        headers
            .into_iter()
            .map(|header| {
                let value = match header.value {
                    Some(proto::header::Value::Text(text)) => HeaderValue::Text(text),
                    Some(proto::header::Value::Bytes(bytes)) => HeaderValue::Bytes(bytes),
                    None => HeaderValue::Text(String::new()),
                };
                (header.name, value)
            })
            .collect(),
    )
}

/// A delivered message, with its receipt.
pub(crate) fn delivered(delivery: Delivery) -> proto::Message {
    let receipt = delivery.receipt().to_string();
    proto::Message { receipt, ..shown(delivery) }
}

/// A message that was only shown, which nothing can be said about.
pub(crate) fn shown(delivery: Delivery) -> proto::Message {
    let headers = match delivery.headers() {
        Ok(headers) => headers_to_proto(headers),
        Err(error) => unreadable(&delivery.queue_name, delivery.offset, &error),
    };
    let amqp = delivery.envelope().map(envelope);
    let message = delivery.message;
    proto::Message {
        id: delivery.offset.0,
        receipt: String::new(),
        attempt: delivery.attempt,
        priority: message.priority.0.into(),
        headers,
        body: message.body,
        enqueued_at_ms: delivery.enqueued_at.0,
        lease_until_ms: delivery.lease_until.map(|until| until.0),
        expires_at_ms: message.lifetime.map(|lifetime| delivery.enqueued_at.plus(lifetime).0),
        group_id: message.group.map_or_else(String::new, |group| group.as_str().to_owned()),
        dedup_id: message.dedup.map_or_else(String::new, |dedup| dedup.as_str().to_owned()),
        transient: message.durability == Durability::Transient,
        dead_letter: message.origin.as_ref().map(dead_letter),
        amqp,
    }
}

/// Headers that the broker stored and cannot read are our fault, and no reason to keep back the body.
fn unreadable(
    queue: &nexo_types::QueueName,
    offset: nexo_types::Offset,
    error: &HeadersError,
) -> Vec<proto::Header> {
    let queue = queue.in_full();
    tracing::error!(%queue, %offset, %error, "a message is delivered without its headers");
    Vec::new()
}

pub(crate) fn headers_to_proto(headers: Headers) -> Vec<proto::Header> {
    headers
        .0
        .into_iter()
        .map(|(name, value)| proto::Header {
            name,
            r#type: match value {
                HeaderValue::Text(_) | HeaderValue::Bytes(_) => proto::HeaderType::Unspecified,
                HeaderValue::Number(_) => proto::HeaderType::Number,
                HeaderValue::Json(_) => proto::HeaderType::Json,
            }
            .into(),
            value: Some(match value {
                HeaderValue::Text(text) | HeaderValue::Number(text) | HeaderValue::Json(text) => {
                    proto::header::Value::Text(text)
                }
                HeaderValue::Bytes(bytes) => proto::header::Value::Bytes(bytes),
            }),
        })
        .collect()
}

fn envelope(envelope: Envelope) -> proto::AmqpEnvelope {
    proto::AmqpEnvelope {
        exchange: envelope.exchange,
        routing_key: envelope.routing_key,
        properties: headers_to_proto(envelope.properties),
    }
}

fn dead_letter(origin: &Origin) -> proto::DeadLetter {
    proto::DeadLetter {
        reason: match origin.reason {
            DeathReason::MaxAttempts => proto::DeathReason::MaxAttempts,
            DeathReason::Expired => proto::DeathReason::Expired,
            DeathReason::Overflow => proto::DeathReason::Overflow,
            DeathReason::Rejected => proto::DeathReason::Rejected,
        }
        .into(),
        source_queue: origin.queue.as_str().to_owned(),
        source_id: origin.offset.0,
        attempts: origin.attempts,
        dead_lettered_at_ms: origin.at.0,
        enqueued_at_ms: origin.enqueued_at.0,
    }
}

/// About how many bytes a delivery takes in a reply.
pub(crate) fn size_estimate(delivery: &Delivery) -> usize {
    delivery.message.body.len() + delivery.message.properties.bytes.len() + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn refused(message: proto::NewMessage) -> String {
        let good = proto::NewMessage::default();
        new_messages(vec![good, message], 9).unwrap_err().message
    }

    #[test]
    fn a_bad_field_is_named_with_the_place_of_its_message() {
        let plain = proto::NewMessage::default;
        assert_eq!(
            refused(proto::NewMessage { body: Bytes::from_static(b"ten bytes!"), ..plain() }),
            "messages[1].body has at most 9 bytes; it has 10"
        );
        assert_eq!(
            refused(proto::NewMessage { priority: 300, ..plain() }),
            "messages[1].priority must be between 0 and 255; it is 300"
        );
        assert_eq!(
            refused(proto::NewMessage { delay_ms: u64::MAX, ..plain() }),
            "messages[1].delay_ms must be between 0 and 3162240000000; it is 18446744073709551615"
        );
        assert_eq!(
            refused(proto::NewMessage { ttl_ms: Some(0), ..plain() }),
            "messages[1].ttl_ms must be between 1 and 3162240000000; it is 0"
        );
        assert_eq!(
            refused(proto::NewMessage { group_id: "x".repeat(513), ..plain() }),
            "messages[1].group_id: a group id has at most 512 bytes; this one has 513"
        );
        assert_eq!(
            refused(proto::NewMessage { headers: vec![proto::Header::default()], ..plain() }),
            "messages[1].headers: header 0 has no name"
        );
    }

    #[test]
    fn a_push_holds_at_least_one_message_and_not_too_many() {
        let text = |count| new_messages(vec![proto::NewMessage::default(); count], 9).unwrap_err().message;
        assert_eq!(text(0), "messages must hold between 1 and 10000 items; it holds 0");
        assert_eq!(text(10_001), "messages must hold between 1 and 10000 items; it holds 10001");
    }

    #[test]
    fn headers_cross_the_wire_in_order_and_kind() {
        let sent = vec![
            proto::Header {
                name: "b".into(),
                value: Some(proto::header::Value::Text("zwei".into())),
                ..proto::Header::default()
            },
            proto::Header {
                name: "a".into(),
                value: Some(proto::header::Value::Bytes(Bytes::from_static(&[0, 255]))),
                ..proto::Header::default()
            },
        ];
        assert_eq!(headers_to_proto(headers(sent.clone())), sent);
    }
}
