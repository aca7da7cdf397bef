//! What clients are answered, whatever protocol they speak. The names are those of AWS's service model; how they look as
//! XML is in `protocol/xml.rs`.

use std::collections::BTreeMap;

use bytes::Bytes;
use nexo_broker::IntakeHold;
use serde::{Serialize, Serializer};

use crate::fault::Fault;

/// The answer to a request that was done.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Response {
    /// There is nothing to say.
    Done,
    QueueUrl(QueueUrl),
    Queues(Queues),
    DeadLetterSources(DeadLetterSources),
    QueueAttributes(QueueAttributes),
    QueueTags(QueueTags),
    Sent(Sent),
    SentBatch(SentBatch),
    SettledBatch(BatchReply<SettledEntry>),
    Messages(Messages),
    MoveTaskStarted(MoveTaskStarted),
    MoveTaskCancelled(MoveTaskCancelled),
    MoveTasks(MoveTasks),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueUrl {
    pub(crate) queue_url: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Queues {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) queue_urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_token: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct DeadLetterSources {
    // The one list that AWS begins with a small letter.
    #[serde(rename = "queueUrls")]
    pub(crate) queue_urls: Vec<String>,
    #[serde(rename = "NextToken", skip_serializing_if = "Option::is_none")]
    pub(crate) next_token: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueAttributes {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) attributes: BTreeMap<&'static str, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueTags {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
}

/// A message that was taken.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Sent {
    pub(crate) message_id: String,
    #[serde(rename = "MD5OfMessageBody")]
    pub(crate) md5_of_body: String,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    pub(crate) md5_of_attributes: Option<String>,
    #[serde(rename = "MD5OfMessageSystemAttributes", skip_serializing_if = "Option::is_none")]
    pub(crate) md5_of_system_attributes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sequence_number: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SentEntry {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) sent: Sent,
}

/// An entry of a batch that was deleted, or whose lease was changed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SettledEntry {
    pub(crate) id: String,
}

/// A batch, of which each entry has done well or not.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchReply<T> {
    pub(crate) successful: Vec<T>,
    pub(crate) failed: Vec<FailedEntry>,
}

/// A batch of messages that were sent. AWS leaves an empty list of failures out of this one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SentBatch {
    pub(crate) successful: Vec<SentEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<FailedEntry>,
}

impl From<BatchReply<SentEntry>> for SentBatch {
    fn from(batch: BatchReply<SentEntry>) -> Self {
        Self { successful: batch.successful, failed: batch.failed }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FailedEntry {
    pub(crate) id: String,
    pub(crate) sender_fault: bool,
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Messages {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) messages: Vec<Message>,
    /// The memory that they take, until they are sent.
    #[serde(skip)]
    pub(crate) hold: Option<IntakeHold>,
}

/// What a message or an entry of a batch takes in an answer besides its body, or a little more.
const ENTRY_BYTES: usize = 512;

impl Response {
    /// How long it is when it is written, about: no attributes are counted, and nothing that must be written otherwise.
    pub(crate) fn bytes_about(&self) -> usize {
        let bodies = match self {
            Self::Messages(messages) => messages.messages.iter().map(|message| message.body.0.len()).sum(),
            _ => 0,
        };
        let entries = match self {
            Self::Messages(messages) => messages.messages.len(),
            Self::SentBatch(batch) => batch.successful.len() + batch.failed.len(),
            Self::SettledBatch(batch) => batch.successful.len() + batch.failed.len(),
            _ => 1,
        };
        bodies + entries * ENTRY_BYTES
    }

    /// The memory that is to be kept until the answer is sent.
    pub(crate) fn take_hold(&mut self) -> Option<IntakeHold> {
        if let Self::Messages(messages) = self { messages.hold.take() } else { None }
    }
}

/// A message that was received.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Message {
    pub(crate) message_id: String,
    pub(crate) receipt_handle: String,
    #[serde(rename = "MD5OfBody")]
    pub(crate) md5_of_body: String,
    pub(crate) body: Body,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) attributes: BTreeMap<&'static str, String>,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    pub(crate) md5_of_attributes: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) message_attributes: BTreeMap<String, MessageAttribute>,
}

/// A body: text that still lies where the broker had it.
#[derive(Clone, Debug)]
pub(crate) struct Body(pub(crate) Bytes);

impl Body {
    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a body is made of bytes that were found to be text")
    }
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct MessageAttribute {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) string_value: Option<String>,
    /// In base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) binary_value: Option<String>,
    pub(crate) data_type: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct MoveTaskStarted {
    pub(crate) task_handle: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct MoveTaskCancelled {
    pub(crate) approximate_number_of_messages_moved: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct MoveTasks {
    pub(crate) results: Vec<MoveTask>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct MoveTask {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) task_handle: Option<String>,
    pub(crate) status: &'static str,
    pub(crate) source_arn: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) destination_arn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_number_of_messages_per_second: Option<u64>,
    pub(crate) approximate_number_of_messages_moved: u64,
    pub(crate) approximate_number_of_messages_to_move: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure_reason: Option<String>,
    pub(crate) started_timestamp: u64,
}

impl FailedEntry {
    pub(crate) fn new(id: String, fault: &Fault) -> Self {
        Self {
            id,
            sender_fault: fault.code.is_senders(),
            code: fault.code.query(),
            message: fault.message.clone().into_owned(),
        }
    }
}
