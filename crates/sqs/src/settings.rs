//! What SQS keeps with a queue beside what the broker knows of it. Stored as JSON, as an annotation of the queue.

use std::collections::BTreeMap;

use bytes::Bytes;
use nexo_broker::QueueConfig;
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, FaultCode};
use crate::limits::SETTINGS_BYTES_MAX;

/// The name under which it is kept.
pub(crate) const ANNOTATION: &str = "sqs";

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
    pub(crate) fn of(config: &QueueConfig) -> Self {
        config.annotations.get(ANNOTATION).map(|bytes| Self::from_bytes(bytes)).unwrap_or_default()
    }

    /// What these bytes say. We have written them; if a later version wrote more, that is passed over.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_else(|error| {
            tracing::error!(%error, "what SQS keeps with a queue cannot be read; taking the defaults");
            Self::default()
        })
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
        let bytes = serde_json::to_vec(self).expect("plain fields, and text for keys");
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
        assert_eq!(Settings::of(&config), Settings::default());
        settings.write_to(&mut config);
        assert_eq!(Settings::of(&config), settings);
        assert_eq!(Settings::from_bytes(b"{\"wait_s\":3,\"new\":1}").wait_s, 3);
    }
}
