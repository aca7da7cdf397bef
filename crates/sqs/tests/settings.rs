//! Queues whose settings of SQS a later release has written, or nobody: SQS refuses them, and nothing takes the settings' place.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use bytes::Bytes;
use common::{Server, json_head};
use nexo_broker::QueueConfig;
use nexo_log::disk::MemoryDisk;
use nexo_types::QueueName;
use serde_json::{Value, json};

const POLICY: &str = "{\"Statement\":[]}";

fn mail() -> QueueName {
    QueueName::new("mail").unwrap()
}

fn kept(server: &Server) -> Bytes {
    server.broker.queue_stats(&mail()).unwrap().config.annotations["sqs"].clone()
}

/// A queue with a policy, whose settings are changed by somebody else to these.
async fn with_settings(disk: &MemoryDisk, settings: &'static str) -> Server {
    let server = Server::start(disk).await;
    let create = json!({ "QueueName": "mail", "Attributes": { "Policy": POLICY } });
    server.json("CreateQueue", &create).await;
    set(&server, Bytes::from_static(settings.as_bytes())).await;
    server
}

async fn set(server: &Server, settings: Bytes) {
    let change = |config: &QueueConfig| {
        let mut config = config.clone();
        config.annotations.insert("sqs".into(), settings.clone());
        config
    };
    server.broker.update_queue(&mail(), change).await.unwrap();
}

fn every_action() -> Vec<(&'static str, Value)> {
    let arn = "arn:aws:sqs:us-east-1:000000000000:mail";
    let entry = json!([{ "Id": "a", "MessageBody": "x" }]);
    let receipt = json!([{ "Id": "a", "ReceiptHandle": "r" }]);
    let invisible = json!([{ "Id": "a", "ReceiptHandle": "r", "VisibilityTimeout": 1 }]);
    let redrive = json!({ "deadLetterTargetArn": arn, "maxReceiveCount": 3 }).to_string();
    vec![
        (
            "AddPermission",
            json!({ "QueueUrl": "mail", "Label": "l", "AWSAccountIds": ["1"], "Actions": ["SendMessage"] }),
        ),
        (
            "ChangeMessageVisibility",
            json!({ "QueueUrl": "mail", "ReceiptHandle": "r", "VisibilityTimeout": 1 }),
        ),
        ("ChangeMessageVisibilityBatch", json!({ "QueueUrl": "mail", "Entries": invisible })),
        ("CreateQueue", json!({ "QueueName": "mail" })),
        ("CreateQueue", json!({ "QueueName": "other", "Attributes": { "RedrivePolicy": redrive } })),
        ("DeleteMessage", json!({ "QueueUrl": "mail", "ReceiptHandle": "r" })),
        ("DeleteMessageBatch", json!({ "QueueUrl": "mail", "Entries": receipt })),
        ("DeleteQueue", json!({ "QueueUrl": "mail" })),
        ("GetQueueAttributes", json!({ "QueueUrl": "mail", "AttributeNames": ["All"] })),
        ("GetQueueUrl", json!({ "QueueName": "mail" })),
        ("ListDeadLetterSourceQueues", json!({ "QueueUrl": "mail" })),
        ("ListMessageMoveTasks", json!({ "SourceArn": arn })),
        ("ListQueueTags", json!({ "QueueUrl": "mail" })),
        ("PurgeQueue", json!({ "QueueUrl": "mail" })),
        ("ReceiveMessage", json!({ "QueueUrl": "mail" })),
        ("RemovePermission", json!({ "QueueUrl": "mail", "Label": "l" })),
        ("SendMessage", json!({ "QueueUrl": "mail", "MessageBody": "x" })),
        ("SendMessageBatch", json!({ "QueueUrl": "mail", "Entries": entry })),
        ("SetQueueAttributes", json!({ "QueueUrl": "mail", "Attributes": { "DelaySeconds": "1" } })),
        ("StartMessageMoveTask", json!({ "SourceArn": arn })),
        ("TagQueue", json!({ "QueueUrl": "mail", "Tags": { "a": "b" } })),
        ("UntagQueue", json!({ "QueueUrl": "mail", "TagKeys": ["a"] })),
    ]
}

#[tokio::test]
async fn every_action_on_a_queue_of_a_later_version_is_refused_and_changes_nothing() {
    const LATER: &str = "{\"version\":2,\"access\":\"nobody\"}";
    let disk = MemoryDisk::new();
    let server = with_settings(&disk, LATER).await;
    let text = "queue 'mail' has SQS settings of version 2; this release reads up to version 1: serve the queue with the release \
                that wrote them, or a later one";
    for (action, body) in every_action() {
        let (status, answer) = server.ask(&json_head(action), &body.to_string()).await;
        assert_eq!(status, 500, "{action}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["__type"], "com.amazon.coral.service#InternalFailure", "{action}");
        assert_eq!(answer["message"], text, "{action}");
    }
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let (status, answer) = server.ask(form, "Action=ReceiveMessage&QueueUrl=mail").await;
    assert_eq!(status, 500, "{answer}");
    assert!(answer.contains("<Type>Receiver</Type><Code>InternalFailure</Code>"), "{answer}");
    assert_eq!(kept(&server), LATER);
    // It is there, and others are served.
    let listed = server.json("ListQueues", &json!({})).await;
    assert_eq!(listed["QueueUrls"].as_array().unwrap().len(), 1);
    server.create("another").await;
    server.end().await;
    let server = Server::start(&disk).await;
    assert_eq!(kept(&server), LATER, "a start leaves them as they are");
    server.end().await;
}

#[tokio::test]
async fn settings_that_cannot_be_read_lose_no_policy_and_are_served_again_when_they_can() {
    let disk = MemoryDisk::new();
    let server = Server::start(&disk).await;
    let create = json!({ "QueueName": "mail", "Attributes": { "Policy": POLICY } });
    server.json("CreateQueue", &create).await;
    let good = kept(&server);
    let bad = good.slice(..good.len() - 1);
    set(&server, bad.clone()).await;
    let attributes = json!({ "QueueUrl": "mail", "Attributes": { "DelaySeconds": "1" } }).to_string();
    let (status, answer) = server.ask(&json_head("SetQueueAttributes"), &attributes).await;
    assert_eq!(status, 500, "{answer}");
    assert!(answer.contains("queue 'mail' has SQS settings that cannot be read"), "{answer}");
    assert_eq!(kept(&server), bad);
    set(&server, good).await;
    let (status, answer) = server.ask(&json_head("SetQueueAttributes"), &attributes).await;
    assert_eq!(status, 200, "{answer}");
    let asked = json!({ "QueueUrl": "mail", "AttributeNames": ["All"] });
    let seen = server.json("GetQueueAttributes", &asked).await;
    assert_eq!(seen["Attributes"]["Policy"], POLICY);
    server.end().await;
}
