//! What clients ask for, whatever protocol they speak. A field is missing here if the request did not have it; whether it
//! may be is for the action to say. Names are those of AWS's service model.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::object::{self, Object};
use crate::text::Text;

/// Names and values.
pub(crate) type TextMap<'a> = BTreeMap<Text<'a>, Text<'a>>;

macro_rules! requests {
    ($($action:ident { $($(#[$attribute:meta])* $field:ident: $kind:ty),* $(,)? })+) => {
        $(
            #[derive(Debug, Default, Deserialize)]
            #[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
            pub(crate) struct $action<'a> {
                $($(#[$attribute])* #[serde(default)] pub(crate) $field: $kind,)*
            }
        )+

        /// A request for one of the actions.
        #[derive(Debug)]
        pub(crate) enum Request<'a> {
            $($action($action<'a>),)+
        }

        /// The actions there are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Action {
            $(#[doc = stringify!($action)] $action,)+
        }

        impl Action {
            /// The action of this name.
            pub(crate) fn named(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($action) => Some(Self::$action),)+
                    _ => None,
                }
            }

            /// What AWS calls it.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$action => stringify!($action),)+
                }
            }

            /// Reads the request for it from JSON.
            pub(crate) fn parse_json(self, body: &[u8]) -> serde_json::Result<Request<'_>> {
                match self {
                    $(Self::$action => serde_json::from_slice(body).map(|Object(request)| Request::$action(request)),)+
                }
            }
        }
    };
}

requests! {
    AddPermission {
        queue_url: Option<Text<'a>>,
        label: Option<Text<'a>>,
        #[serde(rename = "AWSAccountIds")] aws_account_ids: Option<Vec<Text<'a>>>,
        actions: Option<Vec<Text<'a>>>,
    }
    CancelMessageMoveTask { task_handle: Option<Text<'a>> }
    ChangeMessageVisibility {
        queue_url: Option<Text<'a>>,
        receipt_handle: Option<Text<'a>>,
        visibility_timeout: Option<i64>,
    }
    ChangeMessageVisibilityBatch {
        queue_url: Option<Text<'a>>,
        #[serde(deserialize_with = "object::list")] entries: Option<Vec<ChangeVisibilityEntry<'a>>>,
    }
    CreateQueue {
        queue_name: Option<Text<'a>>,
        attributes: Option<TextMap<'a>>,
        #[serde(rename = "tags")] tags: Option<TextMap<'a>>,
    }
    DeleteMessage { queue_url: Option<Text<'a>>, receipt_handle: Option<Text<'a>> }
    DeleteMessageBatch {
        queue_url: Option<Text<'a>>,
        #[serde(deserialize_with = "object::list")] entries: Option<Vec<DeleteEntry<'a>>>,
    }
    DeleteQueue { queue_url: Option<Text<'a>> }
    GetQueueAttributes { queue_url: Option<Text<'a>>, attribute_names: Option<Vec<Text<'a>>> }
    GetQueueUrl {
        queue_name: Option<Text<'a>>,
        #[serde(rename = "QueueOwnerAWSAccountId")] _queue_owner: Option<Text<'a>>,
    }
    ListDeadLetterSourceQueues {
        queue_url: Option<Text<'a>>,
        next_token: Option<Text<'a>>,
        max_results: Option<i64>,
    }
    ListMessageMoveTasks { source_arn: Option<Text<'a>>, max_results: Option<i64> }
    ListQueueTags { queue_url: Option<Text<'a>> }
    ListQueues {
        queue_name_prefix: Option<Text<'a>>,
        next_token: Option<Text<'a>>,
        max_results: Option<i64>,
    }
    PurgeQueue { queue_url: Option<Text<'a>> }
    ReceiveMessage {
        queue_url: Option<Text<'a>>,
        attribute_names: Option<Vec<Text<'a>>>,
        message_system_attribute_names: Option<Vec<Text<'a>>>,
        message_attribute_names: Option<Vec<Text<'a>>>,
        max_number_of_messages: Option<i64>,
        visibility_timeout: Option<i64>,
        wait_time_seconds: Option<i64>,
        receive_request_attempt_id: Option<Text<'a>>,
    }
    RemovePermission { queue_url: Option<Text<'a>>, label: Option<Text<'a>> }
    SendMessage {
        queue_url: Option<Text<'a>>,
        message_body: Option<Text<'a>>,
        delay_seconds: Option<i64>,
        #[serde(deserialize_with = "object::map")]
        message_attributes: Option<BTreeMap<Text<'a>, AttributeValue<'a>>>,
        #[serde(deserialize_with = "object::map")]
        message_system_attributes: Option<BTreeMap<Text<'a>, AttributeValue<'a>>>,
        message_deduplication_id: Option<Text<'a>>,
        message_group_id: Option<Text<'a>>,
    }
    SendMessageBatch {
        queue_url: Option<Text<'a>>,
        #[serde(deserialize_with = "object::list")] entries: Option<Vec<SendEntry<'a>>>,
    }
    SetQueueAttributes { queue_url: Option<Text<'a>>, attributes: Option<TextMap<'a>> }
    StartMessageMoveTask {
        source_arn: Option<Text<'a>>,
        destination_arn: Option<Text<'a>>,
        max_number_of_messages_per_second: Option<i64>,
    }
    TagQueue { queue_url: Option<Text<'a>>, tags: Option<TextMap<'a>> }
    UntagQueue { queue_url: Option<Text<'a>>, tag_keys: Option<Vec<Text<'a>>> }
}

/// A message of a batch that is to be sent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct SendEntry<'a> {
    pub(crate) id: Option<Text<'a>>,
    pub(crate) message_body: Option<Text<'a>>,
    pub(crate) delay_seconds: Option<i64>,
    #[serde(deserialize_with = "object::map")]
    pub(crate) message_attributes: Option<BTreeMap<Text<'a>, AttributeValue<'a>>>,
    #[serde(deserialize_with = "object::map")]
    pub(crate) message_system_attributes: Option<BTreeMap<Text<'a>, AttributeValue<'a>>>,
    pub(crate) message_deduplication_id: Option<Text<'a>>,
    pub(crate) message_group_id: Option<Text<'a>>,
}

/// A message of a batch that is done.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct DeleteEntry<'a> {
    pub(crate) id: Option<Text<'a>>,
    pub(crate) receipt_handle: Option<Text<'a>>,
}

/// A message of a batch whose lease is to end at another moment.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct ChangeVisibilityEntry<'a> {
    pub(crate) id: Option<Text<'a>>,
    pub(crate) receipt_handle: Option<Text<'a>>,
    pub(crate) visibility_timeout: Option<i64>,
}

/// What an attribute of a message says, as it came.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default, bound(deserialize = "'de: 'a"))]
pub(crate) struct AttributeValue<'a> {
    pub(crate) data_type: Option<Text<'a>>,
    pub(crate) string_value: Option<Text<'a>>,
    /// In base64.
    pub(crate) binary_value: Option<Text<'a>>,
    /// Reserved by AWS, and refused.
    pub(crate) string_list_values: Option<Vec<Text<'a>>>,
    /// The same.
    pub(crate) binary_list_values: Option<Vec<Text<'a>>>,
}

impl<'a> SendMessage<'a> {
    /// The message as one of a batch.
    pub(crate) fn into_entry(self) -> SendEntry<'a> {
        SendEntry {
            id: None,
            message_body: self.message_body,
            delay_seconds: self.delay_seconds,
            message_attributes: self.message_attributes,
            message_system_attributes: self.message_system_attributes,
            message_deduplication_id: self.message_deduplication_id,
            message_group_id: self.message_group_id,
        }
    }
}
