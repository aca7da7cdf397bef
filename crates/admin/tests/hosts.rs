//! Whom the management port answers, and for how long it waits for a question.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::time::Duration;

use common::Served;
use nexo_admin::AdminOptions;
use nexo_broker::Protocol;
use nexo_log::disk::FaultyDisk;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn only_names_of_this_machine_are_answered() {
    let served = Served::start(&FaultyDisk::new()).await;
    let port = served.address.port();
    for host in ["localhost", "LocalHost", "127.0.0.1", &format!("127.0.0.1:{port}"), "[::1]:15672"] {
        assert_eq!(served.get_with("/health", &format!("host: {host}\r\n")).await.status, 200, "{host}");
    }
    for host in ["evil.example", &format!("evil.example:{port}"), "192.0.2.1", "", "localhost.evil.example"] {
        for path in ["/", "/health", "/metrics", "/nothing"] {
            let answer = served.get_with(path, &format!("host: {host}\r\n")).await;
            assert_eq!(answer.status, 403, "{host}");
            assert!(!answer.body.contains("nexo_"), "{}", answer.body);
        }
    }
    // A page cannot talk its way in with a second name, or with none.
    assert_eq!(served.get_with("/health", "host: localhost\r\nhost: evil.example\r\n").await.status, 403);
    assert_eq!(served.get_with("/health", "").await.status, 403);
    let absolute = "GET http://evil.example/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(served.ask(absolute).await.status, 403);
    // Checks of load balancers may be older than the header.
    assert_eq!(served.ask("GET /health HTTP/1.0\r\n\r\n").await.status, 200);
    assert!(served.broker.traffic().of(Protocol::Http).stats().refused_logins > 20);
    served.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_given_is_answered() {
    let options = AdminOptions { hosts: vec!["nexo.internal".into()], ..AdminOptions::default() };
    let served = Served::start_with(&FaultyDisk::new(), options).await;
    for host in ["nexo.internal", "Nexo.Internal:15672", "localhost"] {
        assert_eq!(served.get_with("/health", &format!("host: {host}\r\n")).await.status, 200, "{host}");
    }
    assert_eq!(served.get_with("/health", "host: other.internal\r\n").await.status, 403);
    served.broker.shutdown().await;
}

/// Time passes at once when everybody waits.
#[tokio::test(start_paused = true)]
async fn a_question_that_does_not_come_is_not_waited_for() {
    let served = Served::start(&FaultyDisk::new()).await;
    for said in ["", "GET /health HT", "GET /health HTTP/1.1\r\nhost: localhost\r\nx: "] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(120), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "{said:?}");
    }
    // One that asks and then keeps the connection for nothing.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(120), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok());
    assert!(rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
}
