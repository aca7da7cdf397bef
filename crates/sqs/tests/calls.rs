//! The port as a client without an SDK sees it; what SDKs see is in `conformance/sqs`.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nexo_broker::{Broker, BrokerOptions};
use nexo_log::disk::{Disk, MemoryDisk};
use nexo_sqs::SqsOptions;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A broker with an SQS port.
struct Server {
    broker: Broker,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(disk: &MemoryDisk) -> Self {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let options = BrokerOptions { segment_bytes: 256 * 1024, ..BrokerOptions::new("memory") };
        let broker = Broker::open_on(disk, options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = nexo_sqs::serve(broker.clone(), listener, SqsOptions::default(), async {
            stopped.await.unwrap();
        });
        let serving = tokio::spawn(async { server.await.unwrap() });
        Self { broker, address, stop, serving }
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        self.serving.await.unwrap();
        self.broker.shutdown().await;
    }

    fn request(&self, head: &str, body: &str) -> String {
        let (address, length) = (self.address, body.len());
        format!(
            "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{head}Content-Length: {length}\r\n\r\n{body}"
        )
    }

    /// Status and body of an answer.
    async fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(self.request(head, body).as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("an answer comes").unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    async fn json(&self, action: &str, body: &Value) -> Value {
        let (status, text) = self.ask(&json_head(action), &body.to_string()).await;
        assert_eq!(status, 200, "{action}: {text}");
        if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }
    }

    /// Waits until this many receives wait.
    async fn until_waiting(&self, queue: &str, count: u64) {
        let queue = nexo_types::QueueName::new(queue).unwrap();
        for _ in 0..4000 {
            if self.broker.queue_stats(&queue).unwrap().consumers == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{count} receives do not come to wait");
    }

    async fn create(&self, name: &str) -> String {
        let created = self.json("CreateQueue", &json!({ "QueueName": name })).await;
        created["QueueUrl"].as_str().unwrap().to_owned()
    }
}

fn json_head(action: &str) -> String {
    format!("Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.{action}\r\n")
}

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
