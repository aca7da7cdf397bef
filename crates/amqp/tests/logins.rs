//! How connections begin or fail to, and what is counted of that.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::time::Duration;

use nexo_amqp::codec::method::connection;
use nexo_amqp::codec::{PROTOCOL_HEADER, ShortStr, TableBuf};
use nexo_broker::Protocol;
use raw_client::{Client, PERSISTENT, Served, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn log_in_wrongly(served: &Served) {
    let mut client = Client::begin(served.address).await;
    client.raw(&PROTOCOL_HEADER).await;
    client.expect("connection.start").await;
    let mut abilities = TableBuf::new();
    abilities.put(ShortStr::from_static("authentication_failure_close"), true);
    let mut properties = TableBuf::new();
    properties.put(ShortStr::from_static("capabilities"), abilities.as_table());
    let start_ok = connection::StartOk {
        client_properties: properties.as_table(),
        mechanism: ShortStr::from_static("PLAIN"),
        response: b"\0mallory\0guess",
        locale: ShortStr::from_static("en_US"),
    };
    client.send(0, &start_ok).await;
    client.expect_close(403).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_logins_are_counted_and_slow_down_the_next() {
    let served = Served::start().await;
    for _ in 0..8 {
        log_in_wrongly(&served).await;
    }
    let stats = || served.broker.traffic().of(Protocol::Amqp).stats();
    assert_eq!(stats().refused_logins, 8);
    // Whoever logs in rightly comes in all the same.
    let before = std::time::Instant::now();
    let client = within(served.client()).await;
    assert!(before.elapsed() >= Duration::from_millis(700), "{:?}", before.elapsed());
    assert_eq!((stats().connections, stats().channels), (1, 1));
    drop(client);
    let gone = async {
        while (stats().connections, stats().channels) != (0, 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(gone).await;
    assert_eq!(stats().connections_opened, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_counted() {
    let served = Served::start().await;
    let mut client = served.client().await;
    client.declare("q").await;
    client.select_confirms().await;
    for _ in 0..3 {
        client.publish("q", PERSISTENT, b"x").await;
        client.expect("basic.ack").await;
    }
    client.consume("q", false).await;
    for _ in 0..3 {
        client.delivery().await;
    }
    let ack = nexo_amqp::codec::method::basic::Ack { delivery_tag: 2, multiple: true };
    client.send(1, &ack).await;
    client.close_channel(1).await;
    let stats = served.broker.traffic().of(Protocol::Amqp).stats();
    assert_eq!((stats.published, stats.delivered, stats.acked), (3, 3, 2));
    assert_eq!(stats.refused_pushes, 0);
}

/// Time passes at once when everybody waits.
#[tokio::test(start_paused = true)]
async fn a_handshake_that_does_not_come_is_not_waited_for() {
    let served = Served::start().await;
    for said in [&b""[..], b"AM", &PROTOCOL_HEADER, &[&PROTOCOL_HEADER[..], &[1, 0, 0, 0, 0]].concat()] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(said).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "{said:?}");
    }
}
