//! Health as somebody outside sees it, on a disk that fills up and on one that fails.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

use std::sync::Arc;
use std::time::Duration;

use nexo_broker::{Broker, BrokerOptions, NewMessage, QueueConfig};
use nexo_log::disk::FaultyDisk;
use nexo_types::QueueName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct Served {
    broker: Broker,
    queue: QueueName,
    address: std::net::SocketAddr,
}

impl Served {
    async fn start(disk: &FaultyDisk) -> Self {
        let options = BrokerOptions { segment_bytes: 64 * 1024, ..BrokerOptions::new("faulty") };
        let broker = Broker::open_on(Arc::new(disk.clone()), options).unwrap();
        let queue = QueueName::new("q").unwrap();
        broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(nexo_admin::serve(broker.clone(), listener, std::future::pending()));
        Self { broker, queue, address }
    }

    /// Status and body of a GET.
    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let status = reply.split_whitespace().nth(1).unwrap().parse().unwrap();
        (status, reply.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    async fn push(&self, bytes: usize) -> Result<(), String> {
        let pushed = self.broker.push(&self.queue, vec![NewMessage::new(vec![b'x'; bytes])]).await;
        pushed.map(|_| ()).map_err(|error| error.to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_unhealthy_until_there_is_space_again() {
    let disk = FaultyDisk::new();
    let served = Served::start(&disk).await;
    assert_eq!(served.get("/health").await.0, 200);
    disk.set_bytes_max(Some(disk.used_bytes()));
    let mut pushed = 0;
    while served.push(1000).await.is_ok() {
        pushed += 1;
        assert!(pushed < 1000, "the disk never fills");
    }
    let (status, body) = served.get("/health").await;
    assert_eq!(status, 503);
    assert!(body.contains("full"), "{body}");
    assert!(served.get("/metrics").await.1.contains("nexo_healthy 0"));
    disk.set_bytes_max(None);
    for _ in 0..2000 {
        if served.get("/health").await.0 == 200 {
            served.push(1000).await.unwrap();
            served.broker.shutdown().await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the broker does not recover");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_disk_is_unhealthy_for_good() {
    let disk = FaultyDisk::new();
    let served = Served::start(&disk).await;
    disk.fail_next_sync();
    assert!(served.push(10).await.is_err());
    let (status, body) = served.get("/health").await;
    assert_eq!(status, 503);
    assert!(body.contains("failed"), "{body}");
    served.broker.shutdown().await;
}
