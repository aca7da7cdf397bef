//! Answers of the Query protocol to clients that ask for JSON with `Accept`: the names of the XML around the values, and
//! lists of names and values where JSON 1.0 has objects.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::fault::Fault;
use crate::request::Action;
use crate::response::Response;

/// What such answers are, as HTTP says it.
pub(crate) const CONTENT_TYPE: &str = "application/json";

/// An answer.
pub(crate) fn response(action: Action, response: &Response, request_id: &str) -> Bytes {
    let name = action.name();
    let mut inner = Map::new();
    if !matches!(response, Response::Done) {
        let plain = serde_json::to_value(response).expect("answers have text for keys");
        inner.insert(format!("{name}Result"), named(plain));
    }
    inner.insert("ResponseMetadata".into(), json!({ "RequestId": request_id }));
    to_bytes(&json!({ format!("{name}Response"): inner }))
}

/// An error.
pub(crate) fn fault(fault: &Fault, request_id: &str) -> Bytes {
    let error = json!({
        "Type": fault.code.side(), "Code": fault.code.query(), "Message": fault.query_message(), "Detail": null,
    });
    to_bytes(&json!({ "Error": error, "RequestId": request_id }))
}

/// The same values under the names that AWS has for them here.
fn named(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| match (&*name, value) {
                ("Attributes" | "MessageAttributes", Value::Object(map)) => (name, pairs(map, "Name")),
                ("Tags", Value::Object(map)) => (name, pairs(map, "Key")),
                ("Messages", value) => ("messages".into(), named(value)),
                ("QueueUrls", value) => ("queueUrls".into(), value),
                (_, value) => (name, named(value)),
            });
            Value::Object(fields.collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(named).collect()),
        other => other,
    }
}

fn pairs(map: Map<String, Value>, key: &str) -> Value {
    map.into_iter().map(|(name, value)| json!({ key: name, "Value": value })).collect()
}

fn to_bytes(value: &Value) -> Bytes {
    serde_json::to_vec(value).expect("a value of JSON can be written").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultCode;
    use crate::response::QueueTags;

    #[test]
    fn an_answer_has_the_names_of_the_xml() {
        let tags = QueueTags { tags: [("a".to_owned(), "b".to_owned())].into() };
        let bytes = response(Action::ListQueueTags, &Response::QueueTags(tags), "id");
        let expected = json!({ "ListQueueTagsResponse": {
            "ListQueueTagsResult": { "Tags": [{ "Key": "a", "Value": "b" }] },
            "ResponseMetadata": { "RequestId": "id" },
        }});
        assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), expected);
        let bytes = fault(&Fault::new(FaultCode::EmptyBatchRequest, "none"), "id");
        let said: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(said["Error"]["Code"], "AWS.SimpleQueueService.EmptyBatchRequest");
    }
}
