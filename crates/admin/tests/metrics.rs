//! The metrics as a scraper sees them, in both formats.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::Served;
use common::exposition::{Format, read};
use nexo_broker::{NewMessage, PopRequest, Protocol, QueueConfig};
use nexo_log::disk::FaultyDisk;
use nexo_types::{Millis, QueueName};

const OPEN_METRICS: &str = "host: localhost\r\naccept: application/openmetrics-text;version=1.0.0\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn both_formats_are_strictly_as_described_and_say_the_same() {
    let served = Served::start(&FaultyDisk::new()).await;
    for name in ["mail", "a \"quoted\" \\ name", "two\nlines", "# EOF", "ünïcode"] {
        // Not every name is one.
        let Ok(name) = QueueName::new(name) else { continue };
        served.broker.create_queue(&name, QueueConfig::default()).await.unwrap();
        served.broker.push(&name, vec![NewMessage::new(b"x".to_vec())]).await.unwrap();
    }
    let text = served.get_with("/metrics", "host: localhost\r\n").await;
    assert_eq!(text.status, 200);
    assert!(text.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{}", text.head);
    let text = read(&text.body, Format::Text);
    let open = served.get_with("/metrics", OPEN_METRICS).await;
    assert!(
        open.head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{}",
        open.head
    );
    let open = read(&open.body, Format::OpenMetrics);
    let names = |samples: &common::exposition::Samples| {
        let mut names: Vec<String> = samples.keys().cloned().collect();
        names.sort();
        names
    };
    assert_eq!(names(&text), names(&open));
    assert_eq!(text["nexo_queue_ready{queue=mail,vhost=/}"], 1.0);
    assert_eq!(text["nexo_build_info{version=0.1.0}"], 1.0);
    served.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_messages_and_the_process_are_among_the_figures() {
    let served = Served::start(&FaultyDisk::new()).await;
    let queue = QueueName::new("q").unwrap();
    served.broker.create_queue(&queue, QueueConfig::default()).await.unwrap();
    let amqp = served.broker.over(Protocol::Amqp);
    let sqs = served.broker.over(Protocol::Sqs);
    amqp.push(&queue, vec![NewMessage::new(b"x".to_vec()); 3]).await.unwrap();
    let missing = QueueName::new("missing").unwrap();
    assert!(amqp.push(&missing, vec![NewMessage::new(b"x".to_vec())]).await.is_err());
    let popped = sqs
        .pop(&queue, PopRequest { max: 2, wait: Millis::ZERO, visibility: None, bytes_max: None })
        .await
        .unwrap();
    sqs.ack(&[popped[0].receipt()]).await[0].as_ref().unwrap();
    let _channel = served.broker.traffic().channel(Protocol::Amqp);
    served.broker.traffic().of(Protocol::Amqp).login_refused();

    let samples = read(&served.get("/metrics").await.1, Format::Text);
    for (name, value) in [
        ("nexo_published_messages_total{protocol=amqp}", 3.0),
        ("nexo_refused_pushes_total{protocol=amqp}", 1.0),
        ("nexo_delivered_messages_total{protocol=amqp}", 0.0),
        ("nexo_delivered_messages_total{protocol=sqs}", 2.0),
        ("nexo_acked_messages_total{protocol=sqs}", 1.0),
        ("nexo_channels{protocol=amqp}", 1.0),
        ("nexo_refused_logins_total{protocol=amqp}", 1.0),
        ("nexo_connections{protocol=http}", 1.0),
        ("nexo_connections{protocol=grpc}", 0.0),
    ] {
        assert_eq!(samples.get(name), Some(&value), "{name}");
    }
    for name in
        ["process_open_fds", "process_max_fds", "process_resident_memory_bytes", "process_start_time_seconds"]
    {
        assert!(samples[name] > 0.0, "{name}");
    }
    assert!(samples["process_cpu_seconds_total"] >= 0.0);
    served.broker.shutdown().await;
}
