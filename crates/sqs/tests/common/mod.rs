//! A broker with an SQS port, and a client that writes HTTP by hand.
#![allow(dead_code)] // Each test file uses its own part.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nexo_access::{FirstUser, Logins};
use nexo_broker::{Broker, BrokerOptions};
use nexo_log::disk::{Disk, MemoryDisk};
use nexo_sqs::SqsOptions;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A broker with an SQS port.
pub(crate) struct Server {
    pub(crate) broker: Broker,
    pub(crate) logins: Logins,
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(disk: &MemoryDisk) -> Self {
        Self::start_with(disk, SqsOptions::default(), |_| {}).await
    }

    pub(crate) async fn start_with(
        disk: &MemoryDisk,
        sqs: SqsOptions,
        change: impl FnOnce(&mut BrokerOptions),
    ) -> Self {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let mut options = BrokerOptions { segment_bytes: 256 * 1024, ..BrokerOptions::new("memory") };
        change(&mut options);
        Self::serve(Broker::open_on(disk, options).unwrap(), sqs).await
    }

    /// With a broker that was opened elsewhere.
    pub(crate) async fn serve(broker: Broker, sqs: SqsOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let logins = Logins::open(&broker, &FirstUser::default()).await.unwrap();
        let server = nexo_sqs::serve(broker.clone(), logins.clone(), listener, sqs, async {
            stopped.await.unwrap();
        });
        let serving = tokio::spawn(async { server.await.unwrap() });
        Self { broker, logins, address, stop, serving }
    }

    pub(crate) async fn end(self) {
        self.stop.send(()).unwrap();
        self.serving.await.unwrap();
        self.broker.shutdown().await;
    }

    pub(crate) fn request(&self, head: &str, body: &str) -> String {
        let (address, length) = (self.address, body.len());
        format!(
            "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{head}Content-Length: {length}\r\n\r\n{body}"
        )
    }

    /// Status and body of an answer.
    pub(crate) async fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let (status, _, body) = self.exchange(&self.request(head, body)).await;
        (status, body)
    }

    /// Status, head and body of the answer to these bytes, after which the connection must be closed.
    pub(crate) async fn exchange(&self, request: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("an answer comes").unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), head.to_ascii_lowercase(), body.to_owned())
    }

    /// The same for a `GET` of this path.
    pub(crate) async fn get(&self, path: &str, head: &str) -> (u16, String, String) {
        let address = self.address;
        self.exchange(&format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{head}\r\n"))
            .await
    }

    pub(crate) async fn json(&self, action: &str, body: &Value) -> Value {
        let (status, text) = self.ask(&json_head(action), &body.to_string()).await;
        assert_eq!(status, 200, "{action}: {text}");
        if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }
    }

    /// Waits until this many receives wait.
    pub(crate) async fn until_waiting(&self, queue: &str, count: u64) {
        let queue = nexo_types::QueueName::new(queue).unwrap();
        for _ in 0..4000 {
            if self.broker.queue_stats(&queue).unwrap().consumers == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{count} receives do not come to wait");
    }

    pub(crate) async fn create(&self, name: &str) -> String {
        let created = self.json("CreateQueue", &json!({ "QueueName": name })).await;
        created["QueueUrl"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn json_head(action: &str) -> String {
    format!("Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.{action}\r\n")
}
