//! The port as a client without an SDK sees it; what SDKs see is in `tools/conformance/sqs`.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::sync::Arc;

use common::*;
use nexo_broker::topology::VhostSpec;
use nexo_broker::{Broker, BrokerOptions, NewMessage, PopRequest, QueueConfig};
use nexo_log::disk::MemoryDisk;
use nexo_sqs::{LimitMode, SqsOptions};
use nexo_types::{GroupId, Millis, QueueName, Timestamp, VhostName};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[tokio::test]
async fn both_protocols_reach_the_same_queue() {
    let server = Server::start(&MemoryDisk::new()).await;
    let url = server.create("q").await;
    let form = format!("Action=SendMessage&QueueUrl={url}&MessageBody=%3Chi%3E+there");
    let (status, text) = server.ask("", &form).await;
    assert_eq!(status, 200, "{text}");
    let received = server.json("ReceiveMessage", &json!({ "QueueUrl": url })).await;
    assert_eq!(received["Messages"][0]["Body"], "<hi> there");
    let handle = received["Messages"][0]["ReceiptHandle"].as_str().unwrap();
    let (status, text) =
        server.ask("", &format!("Action=DeleteMessage&QueueUrl={url}&ReceiptHandle={handle}")).await;
    assert!(status == 200 && text.contains("<RequestId>"), "{text}");
    let (status, text) = server.ask("", "Action=GetQueueUrl&QueueName=none").await;
    assert!(status == 400 && text.contains("<Code>AWS.SimpleQueueService.NonExistentQueue</Code>"), "{text}");
    let (status, text) = server.ask(&json_head("GetQueueUrl"), "{\"QueueName\":\"none\"}").await;
    assert!(status == 400 && text.contains("com.amazonaws.sqs#QueueDoesNotExist"), "{text}");
    server.end().await;
}

#[tokio::test]
async fn queues_of_other_virtual_hosts_are_not_seen() {
    let server = Server::start(&MemoryDisk::new()).await;
    let acme = VhostName::new("acme").unwrap();
    server.broker.put_vhost(&acme, VhostSpec::default()).await.unwrap();
    for name in ["q", "theirs"] {
        let name = QueueName::at(&acme, name).unwrap();
        server.broker.create_queue(&name, QueueConfig::default()).await.unwrap();
        server.broker.push(&name, vec![NewMessage::new("theirs")]).await.unwrap();
    }
    let url = server.create("q").await;
    let listed = server.json("ListQueues", &json!({})).await;
    assert_eq!(listed["QueueUrls"], json!([url]));
    let received = server.json("ReceiveMessage", &json!({ "QueueUrl": url })).await;
    assert!(received["Messages"].as_array().is_none_or(Vec::is_empty), "{received}");
    for name in ["theirs", "\u{1}acme\u{1}theirs"] {
        let asked = json!({ "QueueName": name }).to_string();
        let (status, text) = server.ask(&json_head("GetQueueUrl"), &asked).await;
        assert!(status == 400 && text.contains("QueueDoesNotExist"), "{name:?}: {text}");
    }
    server.end().await;
}

#[tokio::test]
async fn a_receive_without_any_visibility_leaves_the_message_where_it_is() {
    let server = Server::start(&MemoryDisk::new()).await;
    let url = server.create("q").await;
    server.json("SendMessage", &json!({ "QueueUrl": url, "MessageBody": "x" })).await;
    let look = json!({ "QueueUrl": url, "VisibilityTimeout": 0, "AttributeNames": ["All"] });
    for count in 1..=50 {
        let seen = server.json("ReceiveMessage", &look).await;
        assert_eq!(seen["Messages"][0]["Attributes"]["ApproximateReceiveCount"], count.to_string());
    }
    server.end().await;
}

/// The system's clock was set back by an hour since the data was written.
#[tokio::test]
async fn the_limit_of_visibility_counts_by_the_clock_that_receipts_are_from() {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let ahead = Timestamp((wall.as_millis() as u64) + 3_600_000);
    let options = BrokerOptions::new("memory");
    let broker = Broker::open_at(Arc::new(MemoryDisk::new()), options, ahead).unwrap();
    let strict = SqsOptions { limits: LimitMode::Strict, ..SqsOptions::default() };
    let server = Server::serve(broker, strict).await;
    let url = server.create("q").await;
    server.json("SendMessage", &json!({ "QueueUrl": url, "MessageBody": "x" })).await;
    let received = server.json("ReceiveMessage", &json!({ "QueueUrl": url })).await;
    let handle = &received["Messages"][0]["ReceiptHandle"];
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    let change =
        |seconds: u32| json!({ "QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": seconds });
    let head = json_head("ChangeMessageVisibility");
    let (status, text) = server.ask(&head, &change(43_200).to_string()).await;
    assert!(status == 400 && text.contains("beyond the limit [43200 seconds]"), "{status} {text}");
    server.json("ChangeMessageVisibility", &change(43_000)).await;
    server.end().await;
}

#[tokio::test]
async fn a_client_that_goes_away_takes_nothing_with_it() {
    let server = Server::start(&MemoryDisk::new()).await;
    let url = server.create("q").await;
    let wait = json!({ "QueueUrl": url, "WaitTimeSeconds": 20 }).to_string();
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(server.request(&json_head("ReceiveMessage"), &wait).as_bytes()).await.unwrap();
        clients.push(stream);
    }
    server.until_waiting("q", 10).await;
    drop(clients);
    server.until_waiting("q", 0).await;
    server.json("SendMessage", &json!({ "QueueUrl": url, "MessageBody": "x" })).await;
    let received = server.json("ReceiveMessage", &json!({ "QueueUrl": url, "WaitTimeSeconds": 5 })).await;
    assert_eq!(received["Messages"][0]["Body"], "x");
    server.end().await;
}

#[tokio::test]
async fn what_sqs_keeps_with_a_queue_survives_a_restart() {
    let disk = MemoryDisk::new();
    let server = Server::start(&disk).await;
    let attributes = json!({ "FifoQueue": "true", "ContentBasedDeduplication": "true", "DelaySeconds": "1" });
    let create = json!({ "QueueName": "q.fifo", "Attributes": attributes, "tags": { "a": "b" } });
    let url = server.json("CreateQueue", &create).await["QueueUrl"].as_str().unwrap().to_owned();
    let send = json!({ "QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g" });
    let first = server.json("SendMessage", &send).await;
    server.end().await;
    let server = Server::start(&disk).await;
    let ask = json!({ "QueueUrl": url, "AttributeNames": ["All"] });
    let seen = server.json("GetQueueAttributes", &ask).await;
    assert_eq!(seen["Attributes"]["ContentBasedDeduplication"], "true");
    assert_eq!(seen["Attributes"]["DelaySeconds"], "1");
    assert_eq!(server.json("ListQueueTags", &json!({ "QueueUrl": url })).await["Tags"]["a"], "b");
    let again = server.json("SendMessage", &send).await;
    assert_eq!(again["MessageId"], first["MessageId"], "a repetition is recognised after a restart");
    server.end().await;
}

/// AWS lets 20,000 messages of a FIFO queue be in flight. What receives take together stays within that, however they race.
#[tokio::test(flavor = "multi_thread")]
async fn receives_that_race_take_no_more_than_may_be_in_flight() {
    let options = SqsOptions { limits: LimitMode::Strict, ..SqsOptions::default() };
    let server = Server::start_with(&MemoryDisk::new(), options, |_| {}).await;
    let create = json!({ "QueueName": "q.fifo", "Attributes": { "FifoQueue": "true" } });
    let url = server.json("CreateQueue", &create).await["QueueUrl"].as_str().unwrap().to_owned();
    let queue = nexo_types::QueueName::new("q.fifo").unwrap();
    let message = |number: u32| NewMessage {
        group: Some(GroupId::new(&number.to_string()).unwrap()),
        ..NewMessage::new("x")
    };
    for first in (0..20_500).step_by(500) {
        server.broker.push(&queue, (first..first + 500).map(message).collect()).await.unwrap();
    }
    let mut held = 0;
    while held < 19_985 {
        let max = (19_985 - held).min(500);
        let hour = Some(Millis::from_secs(3600));
        let request = PopRequest { max, wait: Millis::ZERO, visibility: hour, bytes_max: None };
        held += server.broker.pop(&queue, request).await.unwrap().len();
    }
    let receive = json!({ "QueueUrl": url, "MaxNumberOfMessages": 10 });
    let receives = (0..4).map(|_| server.json("ReceiveMessage", &receive));
    let received = futures_util::future::join_all(receives).await;
    let count = |answer: &serde_json::Value| answer["Messages"].as_array().map_or(0, Vec::len);
    assert_eq!(received.iter().map(count).sum::<usize>(), 15);
    assert_eq!(server.broker.queue(&queue).unwrap().in_flight(), 20_000);
    server.end().await;
}
