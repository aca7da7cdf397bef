//! A message as it is printed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nexo_grpc::proto;
use serde::Serialize;

use super::header::{HeaderView, header_text, header_views};
use super::moment;

/// Everything about a message. Bytes that are not UTF-8 are given in base64, under another name.
#[derive(Debug, Serialize)]
pub(crate) struct MessageView<'a> {
    queue: &'a str,
    id: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    receipt: &'a str,
    attempt: u32,
    priority: u32,
    #[serde(flatten)]
    body: Body<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers: Vec<HeaderView>,
    enqueued_at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    group_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    dedup_id: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    transient: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter: Option<DeadLetterView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amqp: Option<AmqpView<'a>>,
}

/// How a message of AMQP was published.
#[derive(Debug, Serialize)]
struct AmqpView<'a> {
    exchange: &'a str,
    routing_key: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    properties: Vec<HeaderView>,
}

#[derive(Debug, Serialize)]
enum Body<'a> {
    #[serde(rename = "body")]
    Text(&'a str),
    #[serde(rename = "body_base64")]
    Base64(String),
}

#[derive(Debug, Serialize)]
struct DeadLetterView<'a> {
    reason: &'static str,
    source_queue: &'a str,
    source_id: u64,
    attempts: u32,
    dead_lettered_at_ms: u64,
    enqueued_at_ms: u64,
}

impl<'a> MessageView<'a> {
    pub(crate) fn new(queue: &'a str, message: &'a proto::Message) -> Self {
        Self {
            queue,
            id: message.id,
            receipt: &message.receipt,
            attempt: message.attempt,
            priority: message.priority,
            body: match std::str::from_utf8(&message.body) {
                Ok(text) => Body::Text(text),
                Err(_) => Body::Base64(STANDARD.encode(&message.body)),
            },
            headers: header_views(&message.headers),
            enqueued_at_ms: message.enqueued_at_ms,
            lease_until_ms: message.lease_until_ms,
            expires_at_ms: message.expires_at_ms,
            group_id: &message.group_id,
            dedup_id: &message.dedup_id,
            transient: message.transient,
            dead_letter: message.dead_letter.as_ref().map(dead_letter),
            amqp: message.amqp.as_ref().map(amqp),
        }
    }

    /// Everything but the body for people, a line for each thing that there is to say.
    pub(crate) fn summary(&self) -> String {
        let mut lines = vec![format!(
            "id {}, priority {}, pushed {}",
            self.id,
            self.priority,
            moment(self.enqueued_at_ms)
        )];
        let first = &mut lines[0];
        let mut add = |text: String| first.push_str(&text);
        if self.attempt > 0 {
            add(format!(", delivered {} times", self.attempt));
        }
        if let Some(at) = self.expires_at_ms {
            add(format!(", expires {}", moment(at)));
        }
        if !self.group_id.is_empty() {
            add(format!(", group '{}'", self.group_id));
        }
        if !self.dedup_id.is_empty() {
            add(format!(", dedup id '{}'", self.dedup_id));
        }
        if self.transient {
            add(", transient".into());
        }
        if let Some(amqp) = &self.amqp {
            lines.push(format!(
                "  published to exchange '{}' with routing key '{}'",
                amqp.exchange, amqp.routing_key
            ));
            lines.extend(
                amqp.properties.iter().map(|property| format!("  property {}", header_text(property))),
            );
        }
        lines.extend(self.headers.iter().map(|header| format!("  header {}", header_text(header))));
        if let Some(letter) = &self.dead_letter {
            lines.push(format!(
                "  dead letter: {}, after {} deliveries as message {} of '{}'; moved {}",
                letter.reason,
                letter.attempts,
                letter.source_id,
                letter.source_queue,
                moment(letter.dead_lettered_at_ms)
            ));
        }
        lines.join("\n")
    }
}

fn amqp(envelope: &proto::AmqpEnvelope) -> AmqpView<'_> {
    AmqpView {
        exchange: &envelope.exchange,
        routing_key: &envelope.routing_key,
        properties: header_views(&envelope.properties),
    }
}

fn dead_letter(letter: &proto::DeadLetter) -> DeadLetterView<'_> {
    DeadLetterView {
        reason: match letter.reason() {
            proto::DeathReason::Unspecified => "unknown",
            proto::DeathReason::MaxAttempts => "max_attempts",
            proto::DeathReason::Expired => "expired",
            proto::DeathReason::Overflow => "overflow",
            proto::DeathReason::Rejected => "rejected",
        },
        source_queue: &letter.source_queue,
        source_id: letter.source_id,
        attempts: letter.attempts,
        dead_lettered_at_ms: letter.dead_lettered_at_ms,
        enqueued_at_ms: letter.enqueued_at_ms,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn json(message: &proto::Message) -> String {
        serde_json::to_string(&MessageView::new("q", message)).unwrap()
    }

    #[test]
    fn a_plain_message_is_short() {
        let message = proto::Message {
            id: 3,
            receipt: "1-3-1".into(),
            attempt: 1,
            body: Bytes::from_static("grüße".as_bytes()),
            enqueued_at_ms: 5,
            ..proto::Message::default()
        };
        assert_eq!(
            json(&message),
            r#"{"queue":"q","id":3,"receipt":"1-3-1","attempt":1,"priority":0,"body":"grüße","enqueued_at_ms":5}"#
        );
    }

    #[test]
    fn a_summary_tells_id_headers_and_properties() {
        let text = |name: &str, value: &str| proto::Header {
            name: name.into(),
            value: Some(proto::header::Value::Text(value.into())),
            ..Default::default()
        };
        let message = proto::Message {
            id: 3,
            priority: 9,
            headers: vec![text("kind", "letter")],
            amqp: Some(proto::AmqpEnvelope {
                exchange: "orders".into(),
                routing_key: "new".into(),
                properties: vec![text("content-type", "text/plain")],
            }),
            ..proto::Message::default()
        };
        assert_eq!(
            MessageView::new("q", &message).summary(),
            "id 3, priority 9, pushed 1970-01-01T00:00:00Z\n  published to exchange 'orders' with routing key 'new'\n  \
             property content-type: text/plain\n  header kind: letter"
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_base64() {
        let message = proto::Message { body: Bytes::from_static(&[0xff, 0]), ..proto::Message::default() };
        assert!(json(&message).contains(r#""body_base64":"/wA=""#));
    }

    #[test]
    fn a_dead_letter_tells_its_story() {
        let letter = proto::DeadLetter {
            reason: proto::DeathReason::MaxAttempts.into(),
            source_queue: "mail".into(),
            attempts: 5,
            ..proto::DeadLetter::default()
        };
        let message = proto::Message { dead_letter: Some(letter), ..proto::Message::default() };
        let text = json(&message);
        assert!(text.contains(r#""dead_letter":{"reason":"max_attempts","source_queue":"mail""#), "{text}");
    }
}
