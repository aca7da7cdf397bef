//! Messages as SQS says them: what is sent, and what a receive brought.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::clock::{self, Micros};
use crate::ledger::{Attempt, Delivery, SessionId, Violation, What};
use crate::queues::{Family, Place};
use crate::stamp::{Form, HEADER, Stamp};
use crate::workload::Message;
use crate::world::World;

/// An attribute of every message that SQS sends: its number.
const NUMBER: &str = "number";
/// Another: the bytes of its number.
const BYTES: &str = "bytes";

/// The address of a queue, of which only the last part counts.
pub(super) fn url(place: Place) -> String {
    format!("http://sqs/000000000000/{}", place.name())
}

/// The address of the queue that a message goes to.
pub(super) fn url_of(message: &Message) -> String {
    format!("http://sqs/000000000000/{}", message.queue())
}

/// A message as an entry of a batch, or, but for the id, as a request.
pub(super) fn entry(message: &Message) -> Value {
    let stamp = &message.stamp;
    let mut entry = json!({
        "Id": stamp.seq.to_string(),
        "MessageBody": String::from_utf8_lossy(&stamp.body()),
        "MessageAttributes": {
            HEADER: { "DataType": "String", "StringValue": stamp.to_string() },
            NUMBER: { "DataType": "Number", "StringValue": stamp.seq.to_string() },
            BYTES: { "DataType": "Binary.number", "BinaryValue": bytes_of(stamp) },
        },
    });
    if let Some(delay) = message.delay {
        entry["DelaySeconds"] = delay.as_secs().into();
    }
    if stamp.targets.contains(Family::GROUPS) {
        entry["MessageGroupId"] = stamp.group().to_string().into();
        entry["MessageDeduplicationId"] = stamp.to_string().into();
    } else if stamp.targets.contains(Family::TASKS) && stamp.seq.is_multiple_of(3) {
        // A tenant of a fair queue.
        entry["MessageGroupId"] = stamp.group().to_string().into();
    }
    entry
}

fn bytes_of(stamp: &Stamp) -> String {
    BASE64_STANDARD.encode(stamp.seq.to_be_bytes())
}

/// What a receive brought: the message, and what to say something about it with.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) delivery: Delivery,
    pub(super) body: Vec<u8>,
    pub(super) handle: String,
}

/// A receive that was asked for at a moment, with leases of some length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) session: SessionId,
    pub(super) place: Place,
    pub(super) at: Micros,
    pub(super) visibility: Micros,
}

/// Reads a message of an answer; `None` if it carries no stamp of ours or says what cannot be, which is told.
pub(super) fn read(world: &World, asked: Asked, message: &Value) -> Option<Received> {
    let Asked { session, place, .. } = asked;
    let attributes = &message["MessageAttributes"];
    let Some(stamp) = attributes[HEADER]["StringValue"].as_str().and_then(Stamp::parse) else {
        let fact = format!("{} without a stamp came from '{}'", message["MessageId"], place.name());
        world.ledger().report(Violation::new(What::Invented, fact));
        return None;
    };
    check_attributes(world, &stamp, place, message);
    let number = |name: &str| message["Attributes"][name].as_str().and_then(|text| text.parse::<u64>().ok());
    let attempt = number("ApproximateReceiveCount").and_then(|count| u32::try_from(count).ok());
    let body = body(message);
    let (Some(attempt), Some(body), Some(handle)) = (attempt, body, message["ReceiptHandle"].as_str()) else {
        let copy = stamp.copy_in(place.family());
        world.ledger().tell(What::Altered, format!("{copy} came without what SQS promises"), copy);
        return None;
    };
    // The lease began after it was asked for, and not before the message could be seen; of a first receive that is exact.
    let seen = number("ApproximateFirstReceiveTimestamp").unwrap_or(0) * 1000;
    let until = Some(asked.at.max(seen) + asked.visibility);
    // The count goes on when a message becomes a dead letter.
    let attempt = if place.is_dead() { Attempt::in_all(attempt) } else { Attempt::exact(attempt) };
    let delivery = Delivery { session, stamp, place, attempt, until, cause: None, at: clock::now() };
    Some(Received { delivery, body, handle: handle.to_owned() })
}

/// What else a message says of itself must be true.
fn check_attributes(world: &World, stamp: &Stamp, place: Place, message: &Value) {
    let attributes = &message["MessageAttributes"];
    let tell = |what: What, fact: String| {
        let copy = stamp.copy_in(place.family());
        world.ledger().tell(what, format!("{copy} came from '{}': {fact}", place.name()), copy);
    };
    let as_sent = attributes[NUMBER]["StringValue"].as_str() == Some(&stamp.seq.to_string())
        && attributes[NUMBER]["DataType"] == "Number"
        && attributes[BYTES]["BinaryValue"].as_str() == Some(&bytes_of(stamp))
        && attributes[BYTES]["DataType"] == "Binary.number";
    if stamp.form == Form::Text && !as_sent {
        tell(What::Altered, format!("its attributes are {attributes}"));
    }
    let system = &message["Attributes"];
    if place == Place::GROUPS && system["MessageGroupId"].as_str() != Some(&stamp.group().to_string()) {
        tell(What::Altered, format!("its group is {}", system["MessageGroupId"]));
    }
    // Dead letters of RabbitMQ's kind say it in a header; this is the one of the native kind.
    let died_in = system["DeadLetterQueueSourceArn"].as_str();
    let is_true = match place {
        Place::LIMITED_DEAD => died_in.is_some_and(|arn| arn.ends_with(":limited")),
        _ => place.is_dead() || died_in.is_none(),
    };
    if !is_true {
        tell(What::DeadLetter, format!("it died in {died_in:?}"));
    }
}

/// The bytes that were sent: SQS says what is no text in base64.
fn body(message: &Value) -> Option<Vec<u8>> {
    let text = message["Body"].as_str()?;
    let is_encoded = message["MessageAttributes"]["Content-Transfer-Encoding"]["StringValue"] == "base64";
    if is_encoded { BASE64_STANDARD.decode(text).ok() } else { Some(text.as_bytes().to_vec()) }
}
