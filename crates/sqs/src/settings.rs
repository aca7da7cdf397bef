//! What SQS keeps with a queue beside what the broker knows of it. Stored as JSON with a version, as an annotation of the queue.
//!
//! A queue whose settings cannot be read is not served by SQS: with defaults in their place it would be another queue, one without
//! its policies, say, and the next change would write that down.

use std::collections::BTreeMap;

use bytes::Bytes;
use nexo_broker::QueueConfig;
use nexo_types::QueueName;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::fault::{Fault, FaultCode};
use crate::limits::SETTINGS_BYTES_MAX;

/// The name under which it is kept.
pub(crate) const ANNOTATION: &str = "sqs";

/// The version that this release writes, and the latest that it reads. Settings without one are of version 1. A field may be added
/// in it if a release that passes it over does no harm.
const VERSION: u64 = 1;
/// Where the version stands beside the settings.
const VERSION_FIELD: &str = "version";

/// Settings that are of no use to this release.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum SettingsError {
    /// A later release has written them.
    #[error(
        "has SQS settings of version {version}; this release reads up to version {VERSION}: serve the queue with the release that \
         wrote them, or a later one"
    )]
    Later {
        /// Their version.
        version: u64,
    },
    /// They are not what any release writes.
    #[error(
        "has SQS settings that cannot be read ({reason}): restore the data directory from a backup, or delete the queue with \
         'nexo queue delete'"
    )]
    Unreadable {
        /// What is wrong with them.
        reason: String,
    },
}

impl SettingsError {
    /// The answer to a request for the queue.
    pub(crate) fn fault(&self, queue: &QueueName) -> Fault {
        Fault::new(FaultCode::InternalFailure, format!("queue '{}' {self}", queue.in_full()))
    }
}

/// What is written: the version, and the settings beside it.
#[derive(Serialize)]
struct Stored<'a> {
    version: u64,
    #[serde(flatten)]
    settings: &'a Settings,
}

/// What SQS keeps with a queue. A queue that was made another way has none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    /// How long nobody sees a message that does not say so itself.
    pub(crate) delay_s: u64,
    /// How long a receive that does not say so itself waits.
    pub(crate) wait_s: u64,
    /// The largest message; as large as may be, if it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_bytes_max: Option<u64>,
    /// Set for FIFO queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fifo: Option<Fifo>,
    /// Whether groups are tenants that share the queue fairly. A queue that was made another way keeps them in order.
    pub(crate) fair_groups: bool,
    /// Stored and shown; nothing follows from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    /// Who may have this queue for its dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redrive_allow_policy: Option<String>,
    /// Stored and shown; nothing follows from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kms_master_key_id: Option<String>,
    /// The same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kms_data_key_reuse_period_s: Option<u64>,
    /// The same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sqs_managed_sse: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
    /// When an attribute was last set, in seconds; 0 for never.
    pub(crate) modified_s: u64,
}

/// What only FIFO queues have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Fifo {
    /// Whether a message without a deduplication id gets the hash of its body for one.
    pub(crate) content_based_deduplication: bool,
    pub(crate) deduplication_scope: DeduplicationScope,
    pub(crate) throughput_limit: ThroughputLimit,
}

/// Among which messages a deduplication id is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum DeduplicationScope {
    MessageGroup,
    #[default]
    Queue,
}

/// What AWS limits the rate of. Here nothing follows from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ThroughputLimit {
    #[default]
    PerQueue,
    PerMessageGroupId,
}

impl Settings {
    /// What is kept with a queue of these settings.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn of(config: &QueueConfig) -> Result<Self, SettingsError> {
        config
            .annotations
            .get(ANNOTATION)
            .map_or_else(|| Ok(Self::default()), |bytes| Self::from_bytes(bytes))
    }

    /// What these bytes say. Fields that this release does not know are passed over.
    ///
    /// # Errors
    /// If they are of a later version, or no settings at all.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, SettingsError> {
        let unreadable = |reason: String| SettingsError::Unreadable { reason };
        let mut fields: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))?;
        // First of all: what a later version means by the rest is not known.
        match fields.remove(VERSION_FIELD).as_ref().map_or(Some(1), Value::as_u64) {
            Some(1..=VERSION) => {}
            Some(version) if version > VERSION => return Err(SettingsError::Later { version }),
            Some(_) | None => return Err(unreadable(format!("'{VERSION_FIELD}' is no version"))),
        }
        serde_json::from_value(Value::Object(fields)).map_err(|error| unreadable(error.to_string()))
    }

    /// Checks that it is not more than a queue can be asked to carry along: it is copied with every change.
    pub(crate) fn check_size(&self) -> Result<(), Fault> {
        let texts = [&self.policy, &self.redrive_allow_policy, &self.kms_master_key_id];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        let tags: usize = self.tags.iter().map(|(key, value)| key.len() + value.len()).sum();
        let bytes = texts + tags;
        if bytes > SETTINGS_BYTES_MAX {
            return Err(Fault::new(
                FaultCode::OverLimit,
                format!(
                    "Attributes and tags of a queue have at most {SETTINGS_BYTES_MAX} bytes. These have {bytes}."
                ),
            ));
        }
        Ok(())
    }

    /// Keeps it with a queue.
    pub(crate) fn write_to(&self, config: &mut QueueConfig) {
        let stored = Stored { version: VERSION, settings: self };
        let bytes = serde_json::to_vec(&stored).expect("plain fields, and text for keys");
        config.annotations.insert(ANNOTATION.to_owned(), Bytes::from(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_and_what_is_not_there_has_its_default() {
        let settings = Settings {
            delay_s: 5,
            fifo: Some(Fifo { content_based_deduplication: true, ..Fifo::default() }),
            tags: BTreeMap::from([("a".into(), "b".into())]),
            sqs_managed_sse: Some(false),
            ..Settings::default()
        };
        let mut config = QueueConfig::default();
        assert_eq!(Settings::of(&config), Ok(Settings::default()));
        settings.write_to(&mut config);
        assert_eq!(Settings::of(&config), Ok(settings));
        let wait_s = |text: &str| Settings::from_bytes(text.as_bytes()).map(|settings| settings.wait_s);
        assert_eq!(wait_s("{\"wait_s\":3,\"new\":1}"), Ok(3), "the first releases wrote no version");
        assert_eq!(wait_s("{\"version\":1,\"wait_s\":3}"), Ok(3));
    }

    #[test]
    fn what_is_written_begins_with_its_version() {
        let mut config = QueueConfig::default();
        Settings::default().write_to(&mut config);
        let written = std::str::from_utf8(&config.annotations[ANNOTATION]).unwrap();
        assert!(written.starts_with("{\"version\":1,"), "{written}");
    }

    #[test]
    fn a_later_version_is_refused_by_name_whatever_else_it_says() {
        for text in ["{\"version\":2}", "{\"wait_s\":{\"other\":1},\"version\":2}"] {
            let refused = Settings::from_bytes(text.as_bytes());
            assert_eq!(refused, Err(SettingsError::Later { version: 2 }), "{text}");
        }
        let name = QueueName::new("mail").unwrap();
        let fault = SettingsError::Later { version: 2 }.fault(&name);
        let words = "queue 'mail' has SQS settings of version 2; this release reads up to version 1: ";
        assert!(fault.message.starts_with(words), "{}", fault.message);
        assert_eq!((fault.code, fault.code.status()), (FaultCode::InternalFailure, 500));
    }

    #[test]
    fn what_is_no_settings_is_refused_and_no_default_takes_its_place() {
        for text in [
            "",
            "{",
            "[]",
            "null",
            "1",
            "{\"wait_s\":\"3\"}",
            "{\"policy\":7}",
            "{\"version\":0}",
            "{\"version\":\"1\"}",
            "{\"version\":-1}",
            "{\"version\":null}",
            "{\"fifo\":{\"deduplication_scope\":\"other\"}}",
            "\u{1}",
        ] {
            let refused = Settings::from_bytes(text.as_bytes());
            assert!(matches!(refused, Err(SettingsError::Unreadable { .. })), "{text}: {refused:?}");
        }
    }
}
