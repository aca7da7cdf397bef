//! Messages between SQS and the broker.
//!
//! A body is the body. An attribute is a header of the same name; names that begin with `AWS.`, which SQS forbids for
//! attributes, carry what else SQS knows of a message. `docs/interop.md` says what other protocols see of it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use nexo_broker::{DedupScope, Delivery, HeaderValue, Headers, NewMessage, Properties};
use nexo_types::{DedupId, GroupId, Millis, QueueId, QueueName, Timestamp};
use sha2::{Digest, Sha256};

use crate::arn;
use crate::fault::{Fault, FaultCode};
use crate::ids::{hex, message_id, sequence_number};
use crate::limits::Limits;
use crate::md5_lanes;
use crate::message_attributes::{self, Attribute, Attributes, Data};
use crate::protocol::xml::has_forbidden;
use crate::receipt_handle;
use crate::request::SendEntry;
use crate::response;
use crate::settings::{DeduplicationScope, Fifo, Settings};

/// The header of the group of a message in a queue that was not made by SQS and would keep it in order.
const GROUP_ID: &str = "AWS.MessageGroupId";
/// The header of the deduplication id that the sender chose.
const DEDUPLICATION_ID: &str = "AWS.MessageDeduplicationId";
/// The header of the one system attribute that senders may set.
const TRACE_HEADER: &str = "AWS.TraceHeader";
/// What stands before the name of an attribute whose type has a label.
const TYPE_OF: &str = "AWS.Type.";
/// The attribute that says that a body is base64, because it is no text.
const TRANSFER_ENCODING: &str = "Content-Transfer-Encoding";

/// A message on its way to the broker, and what its sender will be told.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) message: NewMessage,
    pub(crate) md5_of_attributes: Option<String>,
    pub(crate) md5_of_system_attributes: Option<String>,
}

/// Checks a message that is to be sent to a queue of these settings. `trace` is what the request says of where it comes
/// from, for a message that does not say so itself.
pub(crate) fn outgoing(
    entry: SendEntry<'_>,
    queue: &Settings,
    limits: &Limits,
    trace: Option<&str>,
) -> Result<Outgoing, Fault> {
    let body = entry.message_body.ok_or_else(|| Fault::missing("MessageBody"))?;
    if body.is_empty() {
        return Err(Fault::missing("MessageBody"));
    }
    if has_forbidden(&body) {
        return Err(Fault::new(
            FaultCode::InvalidMessageContents,
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to \
             #xFFFD | #x10000 to #x10FFFF.",
        ));
    }
    let max = queue.message_bytes_max.unwrap_or(limits.message_bytes).min(limits.message_bytes);
    let bytes = body.len() as u64 + message_attributes::bytes_of(entry.message_attributes.as_ref());
    let attributes = message_attributes::parse(entry.message_attributes, limits.message_attributes)?;
    if bytes > max {
        return Err(Fault::invalid(format!(
            "One or more parameters are invalid. Reason: Message must be shorter than {max} bytes."
        )));
    }
    let delay = delay(entry.delay_seconds, queue, limits)?;
    let mut headers = Headers::default();
    let mut system = Attributes::new();
    for (name, value) in entry.message_system_attributes.unwrap_or_default() {
        if &*name != "AWSTraceHeader" {
            let name: String = name.chars().take(256).collect();
            return Err(Fault::invalid(format!("Message system attribute name '{name}' is invalid.")));
        }
        let attribute = Attribute::parse(&name, &value)?;
        let Data::Text(trace) = &attribute.data else {
            return Err(Fault::value("AWSTraceHeader", "Binary", "It must be of type String."));
        };
        headers.0.push((TRACE_HEADER.to_owned(), HeaderValue::Text(trace.clone())));
        system.insert(name.to_string(), attribute);
    }
    if let (true, Some(trace)) = (system.is_empty(), trace) {
        headers.0.push((TRACE_HEADER.to_owned(), HeaderValue::Text(trace.to_owned())));
    }
    let group = entry.message_group_id.map(|id| id.to_string());
    let dedup = entry.message_deduplication_id.map(|id| id.to_string());
    check_id("MessageGroupId", group.as_deref(), limits)?;
    check_id("MessageDeduplicationId", dedup.as_deref(), limits)?;
    let mut scope = DedupScope::default();
    let (group, dedup) = match &queue.fifo {
        Some(fifo) => {
            let (group, dedup) = fifo_ids(group, dedup, fifo, &body)?;
            headers.0.push((DEDUPLICATION_ID.to_owned(), HeaderValue::Text(dedup.clone())));
            // What was sent before is known whichever scope the queue had then. No id has a space.
            let key = format!("{dedup} {group}");
            scope = match fifo.deduplication_scope {
                DeduplicationScope::Queue => DedupScope::Stem,
                DeduplicationScope::MessageGroup => DedupScope::Id,
            };
            let group = group_id(&group)?;
            let key = DedupId::new(&key)
                .map_err(|error| Fault::value("MessageDeduplicationId", &key, &error.to_string()))?;
            (Some(group), Some(key))
        }
        None => {
            if let Some(dedup) = dedup {
                return Err(Fault::wrong_queue_type("MessageDeduplicationId", &dedup));
            }
            match group {
                Some(group) if queue.fair_groups => (Some(group_id(&group)?), None),
                Some(group) => {
                    headers.0.push((GROUP_ID.to_owned(), HeaderValue::Text(group)));
                    (None, None)
                }
                None => (None, None),
            }
        }
    };
    let md5_of_attributes = message_attributes::md5(&attributes);
    for (name, attribute) in attributes {
        let (value, label) = attribute.to_header();
        if let Some(label) = label {
            headers.0.push((format!("{TYPE_OF}{name}"), HeaderValue::Text(label.to_owned())));
        }
        headers.0.push((name, value));
    }
    let properties = if headers.0.is_empty() {
        Properties::default()
    } else {
        headers.to_properties().map_err(|error| Fault::invalid(error.to_string()))?
    };
    let body = Bytes::copy_from_slice(body.as_bytes());
    Ok(Outgoing {
        message: NewMessage { properties, delay, dedup, dedup_scope: scope, group, ..NewMessage::new(body) },
        md5_of_attributes,
        md5_of_system_attributes: message_attributes::md5(&system),
    })
}

fn group_id(text: &str) -> Result<GroupId, Fault> {
    GroupId::new(text).map_err(|error| Fault::value("MessageGroupId", text, &error.to_string()))
}

/// What a message counts for in the size of its batch: body and attributes, whether or not they are right.
pub(crate) fn bytes_of(entry: &SendEntry<'_>) -> u64 {
    let body = entry.message_body.as_ref().map_or(0, |body| body.len());
    body as u64 + message_attributes::bytes_of(entry.message_attributes.as_ref())
}

fn delay(asked: Option<i64>, queue: &Settings, limits: &Limits) -> Result<Millis, Fault> {
    let Some(asked) = asked else { return Ok(Millis::from_secs(queue.delay_s)) };
    let max = limits.delay_s;
    let seconds = u64::try_from(asked).ok().filter(|seconds| *seconds <= max).ok_or_else(|| {
        let reason = format!("DelaySeconds must be >= 0 and <= {max}.");
        Fault::value("DelaySeconds", &asked.to_string(), &reason)
    })?;
    match &queue.fifo {
        // A delay of one message would hold up its group; clients that always send 0 mean nothing by it.
        Some(_) if seconds > 0 => Err(Fault::wrong_queue_type("DelaySeconds", &asked.to_string())),
        Some(_) => Ok(Millis::from_secs(queue.delay_s)),
        None => Ok(Millis::from_secs(seconds)),
    }
}

/// Letters, digits and punctuation, as AWS has it.
pub(crate) fn check_id(parameter: &str, id: Option<&str>, limits: &Limits) -> Result<(), Fault> {
    let Some(id) = id else { return Ok(()) };
    let max = limits.id_chars;
    if (1..=max).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let reason = format!(
        "{parameter} can only include alphanumeric and punctuation characters. 1 to {max} in length."
    );
    Err(Fault::value(parameter, id, &reason))
}

fn fifo_ids(
    group: Option<String>,
    dedup: Option<String>,
    fifo: &Fifo,
    body: &str,
) -> Result<(String, String), Fault> {
    let group = group.ok_or_else(|| Fault::missing("MessageGroupId"))?;
    let dedup = match dedup {
        Some(dedup) => dedup,
        None if fifo.content_based_deduplication => hex(&Sha256::digest(body.as_bytes())),
        None => return Err(no_deduplication_id()),
    };
    Ok((group, dedup))
}

/// Checks what AWS refuses a whole batch for although it is the fault of one entry, and with another code than that of a
/// single send.
pub(crate) fn check_fifo_batch(entries: &[SendEntry<'_>], fifo: &Fifo) -> Result<(), Fault> {
    for entry in entries {
        if entry.message_group_id.is_none() {
            return Err(Fault::invalid(Fault::missing("MessageGroupId").message));
        }
        if entry.message_deduplication_id.is_none() && !fifo.content_based_deduplication {
            return Err(no_deduplication_id());
        }
    }
    Ok(())
}

fn no_deduplication_id() -> Fault {
    Fault::invalid(
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
    )
}

/// The queue that a message is received from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) id: QueueId,
    pub(crate) created_at: Timestamp,
    pub(crate) is_fifo: bool,
}

/// What a client wants to see of messages.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    system: Names,
    attributes: Names,
}

/// Names that were asked for.
#[derive(Debug, Default)]
struct Names {
    all: bool,
    exact: Vec<String>,
    prefixes: Vec<String>,
}

impl Names {
    fn want(&self, name: &str) -> bool {
        self.all
            || self.exact.iter().any(|exact| exact == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    const fn is_empty(&self) -> bool {
        !self.all && self.exact.is_empty() && self.prefixes.is_empty()
    }
}

/// The attributes that SQS itself gives a message.
const SYSTEM: &[&str] = &[
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
];

impl Wanted {
    /// Reads the names of a request. `system` are names of attributes that SQS gives, `attributes` of those that senders
    /// give, where `.*` at the end stands for anything.
    pub(crate) fn new<'a>(
        system: impl Iterator<Item = &'a str>,
        attributes: impl Iterator<Item = &'a str>,
    ) -> Result<Self, Fault> {
        let mut wanted = Self::default();
        for name in system {
            match name {
                "All" => wanted.system.all = true,
                known if SYSTEM.contains(&known) => wanted.system.exact.push(known.to_owned()),
                // Old clients name attributes of queues here, and get nothing for it.
                queue if crate::attributes::QueueAttribute::named(queue).is_some() => {}
                unknown => return Err(Fault::unknown_attribute(unknown)),
            }
        }
        for name in attributes {
            match name {
                "All" | ".*" | "*" => wanted.attributes.all = true,
                _ => match name.strip_suffix(".*") {
                    Some(prefix) => wanted.attributes.prefixes.push(prefix.to_owned()),
                    None => wanted.attributes.exact.push(name.to_owned()),
                },
            }
        }
        Ok(wanted)
    }
}

/// A message as its receiver sees it, but for the digest of its body: those of several are made at once
/// ([`fill_in_digests`]). `find` knows the queues that dead letters came from.
pub(crate) fn received(
    delivery: &Delivery,
    source: Source,
    wanted: &Wanted,
    region_and_account: (&str, &str),
    find: impl Fn(&QueueName) -> Option<(QueueId, Timestamp)>,
) -> response::Message {
    let receipt_handle = receipt_handle::encode(&delivery.receipt());
    let headers = if delivery.message.properties.bytes.is_empty() {
        Headers::default()
    } else {
        delivery.headers().unwrap_or_else(|error| {
            tracing::warn!(queue = %delivery.queue_name.in_full(), offset = %delivery.offset, %error, "a message is received without its attributes");
            Headers::default()
        })
    };
    let mut known = Known::of(headers);
    let body = if is_text(&delivery.message.body) {
        delivery.message.body.clone()
    } else {
        let encoding = Attribute { data_type: "String".into(), data: Data::Text("base64".into()) };
        known.attributes.insert(TRANSFER_ENCODING.to_owned(), encoding);
        BASE64_STANDARD.encode(&delivery.message.body).into()
    };
    // A dead letter is the message that it was.
    let first =
        delivery.message.origin.as_ref().and_then(|origin| Some((find(&origin.queue)?, origin.offset)));
    let ((home, created_at), offset) = first.unwrap_or(((source.id, source.created_at), delivery.offset));
    let system = if wanted.system.is_empty() {
        BTreeMap::new()
    } else {
        system_attributes(delivery, source, wanted, region_and_account, &known)
    };
    known.attributes.retain(|name, _| wanted.attributes.want(name));
    response::Message {
        message_id: message_id(home, created_at, offset),
        receipt_handle,
        md5_of_body: String::new(),
        body: response::Body(body),
        attributes: system,
        md5_of_attributes: message_attributes::md5(&known.attributes),
        message_attributes: known
            .attributes
            .into_iter()
            .map(|(name, attribute)| (name, attribute.into_response()))
            .collect(),
    }
}

/// Gives each message the digest of its body.
pub(crate) fn fill_in_digests(messages: &mut [response::Message]) {
    let bodies: Vec<&[u8]> = messages.iter().map(|message| &*message.body.0).collect();
    let digests = md5_lanes::digests(&bodies);
    for (message, digest) in messages.iter_mut().zip(digests) {
        message.md5_of_body = hex(&digest);
    }
}

fn system_attributes(
    delivery: &Delivery,
    source: Source,
    wanted: &Wanted,
    (region, account): (&str, &str),
    known: &Known,
) -> BTreeMap<&'static str, String> {
    let message = &delivery.message;
    let origin = message.origin.as_ref();
    let sent_at = origin.map_or(delivery.enqueued_at, |origin| origin.enqueued_at);
    // When a message was first received is not kept: it is known at that receive, and before that is as near as can be
    // later on.
    let first_received = match (delivery.attempt, origin) {
        (1, None) => delivery.granted_at,
        _ => sent_at.plus(message.delay),
    };
    // A dead letter goes on counting.
    let receives = delivery.attempt.saturating_add(origin.map_or(0, |origin| origin.attempts));
    let group = message.group.as_ref().map(|group| group.as_str().to_owned());
    let dedup = message.dedup.as_ref().map(|dedup| dedup.as_str().to_owned());
    let value = |name: &str| match name {
        "SenderId" => Some(account.to_owned()),
        "SentTimestamp" => Some(sent_at.0.to_string()),
        "ApproximateReceiveCount" => Some(receives.to_string()),
        "ApproximateFirstReceiveTimestamp" => Some(first_received.0.to_string()),
        "SequenceNumber" => source.is_fifo.then(|| sequence_number(delivery.offset)),
        "MessageDeduplicationId" => known.dedup.clone().or_else(|| dedup.clone()),
        "MessageGroupId" => group.clone().or_else(|| known.group.clone()),
        "AWSTraceHeader" => known.trace.clone(),
        "DeadLetterQueueSourceArn" => {
            origin.map(|origin| arn::of_queue(region, account, origin.queue.as_str()))
        }
        _ => None,
    };
    let wanted = SYSTEM.iter().filter(|name| wanted.system.want(name));
    wanted.filter_map(|name| Some((*name, value(name)?))).collect()
}

/// What the headers of a message say.
#[derive(Debug, Default)]
struct Known {
    attributes: Attributes,
    group: Option<String>,
    dedup: Option<String>,
    trace: Option<String>,
}

impl Known {
    fn of(headers: Headers) -> Self {
        let mut known = Self::default();
        let mut types: BTreeMap<String, String> = BTreeMap::new();
        let mut plain = Vec::new();
        for (name, value) in headers.0 {
            match (&*name, value) {
                (GROUP_ID, HeaderValue::Text(text)) => known.group = Some(text),
                (DEDUPLICATION_ID, HeaderValue::Text(text)) => known.dedup = Some(text),
                (TRACE_HEADER, HeaderValue::Text(text)) => known.trace = Some(text),
                (other, HeaderValue::Text(text)) if other.starts_with(TYPE_OF) => {
                    types.insert(other[TYPE_OF.len()..].to_owned(), text);
                }
                (_, value) => plain.push((name, value)),
            }
        }
        for (name, value) in plain {
            let data_type = types.remove(&name);
            known.attributes.insert(name, Attribute::from_header(value, data_type));
        }
        known
    }
}

/// Whether a body can be said in either protocol as it is.
fn is_text(body: &[u8]) -> bool {
    std::str::from_utf8(body).is_ok_and(|text| !has_forbidden(text))
}
