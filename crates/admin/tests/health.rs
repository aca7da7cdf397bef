//! Health as somebody outside sees it, on a disk that fills up and on one that fails.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::time::Duration;

use nexo_broker::{NewMessage, QueueConfig};
use nexo_log::disk::FaultyDisk;
use nexo_types::QueueName;

/// A served broker with a queue.
struct Served {
    port: common::Served,
    queue: QueueName,
}

impl Served {
    async fn start(disk: &FaultyDisk) -> Self {
        let port = common::Served::start(disk).await;
        let queue = QueueName::new("q").unwrap();
        port.broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
        Self { port, queue }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.port.get(path).await
    }

    async fn push(&self, bytes: usize) -> Result<(), String> {
        let pushed = self.port.broker.push(&self.queue, vec![NewMessage::new(vec![b'x'; bytes])]).await;
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
            served.port.broker.shutdown().await;
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
    served.port.broker.shutdown().await;
}
