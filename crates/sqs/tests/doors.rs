//! Who is let in, and how much memory those who are can take.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::*;
use nexo_broker::topology::{Binding, Destination};
use nexo_broker::{EVENT_EXCHANGE, MemoryHigh, QueueConfig};
use nexo_log::disk::MemoryDisk;
use nexo_net::HttpLimits;
use nexo_sqs::SqsOptions;
use nexo_types::{ExchangeName, QueueName, VhostName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn without_keys_only_names_of_this_machine_are_answered() {
    let server = Server::start(&MemoryDisk::new()).await;
    server.create("q").await;
    for (host, expected) in [
        ("localhost:9324", 200),
        ("q.localhost", 200),
        ("127.0.0.1", 200),
        ("[::1]:9324", 200),
        ("rebound.example:9324", 403),
        ("localhost.example", 403),
        ("192.168.0.1:9324", 403),
    ] {
        for target in ["/?Action=ListQueues", "/?Action=PurgeQueue&QueueUrl=q"] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            let (status, _, text) = server.exchange(&request).await;
            assert_eq!(status, expected, "{host}: {text}");
            assert_eq!(text.contains("<Code>AccessDenied</Code>"), expected == 403, "{text}");
        }
    }
    server.end().await;
}

#[tokio::test]
async fn with_keys_any_name_will_do_and_refusals_are_those_of_aws() {
    let sqs = SqsOptions { access_keys: vec!["AKID:secret".parse().unwrap()], ..SqsOptions::default() };
    let server = Server::start_with(&MemoryDisk::new(), sqs, |_| {}).await;
    for _ in 0..3 {
        let request = "GET /?Action=ListQueues HTTP/1.1\r\nHost: sqs.example\r\nConnection: close\r\n\r\n";
        let (status, _, text) = server.exchange(request).await;
        assert!(status == 403 && text.contains("MissingAuthenticationToken"), "{text}");
    }
    server.end().await;
}

/// Says that so many bytes of a send come, and sends some of them.
async fn begin_send(server: &Server, length: usize, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nHost: {}\r\n{}Content-Length: {length}\r\n\r\n",
        server.address,
        json_head("SendMessage")
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; sent]).await.unwrap();
    stream
}

async fn until_held(server: &Server, bytes: u64) {
    for _ in 0..4000 {
        if server.broker.intake().held_bytes() == bytes {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{} bytes are held, not {bytes}", server.broker.intake().held_bytes());
}

#[tokio::test]
async fn bodies_that_are_unfinished_hold_no_more_than_there_is() {
    let limit = 16 * MIB as u64;
    let server = Server::start_with(&MemoryDisk::new(), SqsOptions::default(), |options| {
        options.memory_bytes_max = 4 * limit;
    })
    .await;
    server.create("q").await;
    let mut begun = Vec::new();
    for _ in 0..8 {
        begun.push(begin_send(&server, 8 * MIB, 100).await);
    }
    until_held(&server, limit).await;
    // Small requests need not wait for large ones.
    server.json("SendMessage", &json!({ "QueueUrl": "q", "MessageBody": "small" })).await;
    // Whoever goes away makes room.
    drop(begun);
    until_held(&server, 0).await;
    let body = "x".repeat(4 * MIB);
    server.json("SendMessage", &json!({ "QueueUrl": "q", "MessageBody": body })).await;
    until_held(&server, 0).await;
    server.end().await;
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded_and_others_get_theirs() {
    let server = Server::start_with(&MemoryDisk::new(), SqsOptions::default(), |options| {
        // Room for two answers of 8 MiB, each counted twice.
        options.memory_bytes_max = 4 * 32 * MIB as u64;
    })
    .await;
    server.create("q").await;
    for _ in 0..4 {
        server.json("SendMessage", &json!({ "QueueUrl": "q", "MessageBody": "x".repeat(8 * MIB) })).await;
    }
    let ask = json!({ "QueueUrl": "q", "AttributeNames": ["All"] }).to_string();
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(server.request(&json_head("ReceiveMessage"), &ask).as_bytes()).await.unwrap();
        readers.push(stream);
    }
    let queue = nexo_types::QueueName::new("q").unwrap();
    for _ in 0..4000 {
        if server.broker.queue_stats(&queue).unwrap().leased == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.broker.queue_stats(&queue).unwrap().leased, 2, "two have their answers");
    // When those are read the others get theirs, and nothing was counted as received in vain.
    let read = readers.into_iter().map(|mut stream| async move {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.len() > 8 * MIB, "{}", &answer[..200]);
        assert!(answer.contains("\"ApproximateReceiveCount\":\"1\""));
    });
    let all = futures_util::future::join_all(read);
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("all answers come");
    server.end().await;
}

/// A port where clients may take little time.
async fn impatient(idle: Duration, head: Duration) -> Server {
    let times = HttpLimits { idle, head, ..SqsOptions::default().times };
    Server::start_with(&MemoryDisk::new(), SqsOptions { times, ..SqsOptions::default() }, |_| {}).await
}

/// Waits until the broker has ended a connection.
async fn until_ended(stream: &mut TcpStream) {
    let ended = async {
        let mut buffer = [0; 4096];
        while matches!(stream.read(&mut buffer).await, Ok(count) if count > 0) {}
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the connection ends");
}

#[tokio::test]
async fn a_head_that_drips_is_not_waited_for() {
    let head = Duration::from_millis(500);
    let server = impatient(Duration::from_secs(600), head).await;
    let began = Instant::now();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nX-Slow: ").await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let mut answer = [0; 4096];
    let drip = async {
        while writer.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = async {
        tokio::select! {
            () = drip => {}
            () = async { while matches!(reader.read(&mut answer).await, Ok(count) if count > 0) {} } => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the connection ends");
    assert!(began.elapsed() >= head, "it had its time, not {:?}", began.elapsed());
    // Others are served as ever.
    server.create("q").await;
    server.end().await;
}

#[tokio::test]
async fn a_connection_that_is_silent_ends_before_its_first_request_and_after_it() {
    let idle = Duration::from_secs(1);
    let server = impatient(idle, Duration::from_secs(600)).await;
    let began = Instant::now();
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    until_ended(&mut silent).await;
    assert!(began.elapsed() >= idle, "it had its time, not {:?}", began.elapsed());

    let mut kept = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET /?Action=ListQueues HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    // Not from when the answer is read: that may be long after it was written.
    let asked = Instant::now();
    kept.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 4096];
    let count = kept.read(&mut answer).await.unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    until_ended(&mut kept).await;
    assert!(asked.elapsed() >= idle, "it had its time, not {:?}", asked.elapsed());
    server.end().await;
}

/// The answer to a request with a wrong key from this address of the loopback network.
async fn refused_from(server: SocketAddr, from: &str) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(from.parse().unwrap()).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    let request = "GET /?Action=ListQueues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[tokio::test]
async fn whoever_is_refused_again_and_again_waits_and_others_do_not() {
    let sqs = SqsOptions { access_keys: vec!["AKID:secret".parse().unwrap()], ..SqsOptions::default() };
    let server = Server::start_with(&MemoryDisk::new(), sqs, |_| {}).await;
    let address = server.address;
    for refusal in 1..=8 {
        let began = Instant::now();
        refused_from(address, "127.0.0.1:0").await;
        // 10 ms for the second, twice as long each time, half a second at most.
        let least = match refusal {
            1 => Duration::ZERO,
            number => Duration::from_millis(10 << (number - 2)).min(Duration::from_millis(500)),
        };
        assert!(began.elapsed() >= least, "refusal {refusal} came after {:?}", began.elapsed());
    }
    // Another address is answered while the first one waits. A busy machine may hide that once, not each time.
    let mut was_first = false;
    for other in 2..=20 {
        let other = format!("127.0.0.{other}:0");
        tokio::select! {
            biased;
            () = refused_from(address, "127.0.0.1:0") => {}
            () = refused_from(address, &other) => was_first = true,
        }
        if was_first {
            break;
        }
    }
    assert!(was_first, "others wait as well");
    server.end().await;
}

#[tokio::test]
async fn while_memory_is_short_sends_may_be_tried_again_and_receives_go_on() {
    let server = Server::start_with(&MemoryDisk::new(), SqsOptions::default(), |options| {
        options.owns_process = true;
        options.memory_high = MemoryHigh::Bytes(1 << 40);
    })
    .await;
    server.create("q").await;
    let send = json!({ "QueueUrl": "q", "MessageBody": "x" });
    server.json("SendMessage", &send).await;
    server.broker.set_memory_high(MemoryHigh::Bytes(0));
    let (status, text) = server.ask(&json_head("SendMessage"), &send.to_string()).await;
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("ServiceUnavailableException") && text.contains("(memory_high)"), "{text}");
    let batch = json!({ "QueueUrl": "q", "Entries": [{ "Id": "a", "MessageBody": "x" }] });
    assert_eq!(server.ask(&json_head("SendMessageBatch"), &batch.to_string()).await.0, 503);
    let got = server.json("ReceiveMessage", &json!({ "QueueUrl": "q" })).await;
    let receipt = &got["Messages"][0]["ReceiptHandle"];
    server.json("DeleteMessage", &json!({ "QueueUrl": "q", "ReceiptHandle": receipt })).await;
    server.broker.set_memory_high(MemoryHigh::Bytes(1 << 40));
    server.json("SendMessage", &send).await;
    server.end().await;
}

#[tokio::test]
async fn limits_that_an_operator_sets_are_told_in_the_words_of_sqs() {
    let server = Server::start_with(&MemoryDisk::new(), SqsOptions::default(), |options| {
        options.queues_max = 1;
        options.body_bytes_max = 1000;
    })
    .await;
    server.create("q").await;
    let (status, text) = server.ask(&json_head("CreateQueue"), r#"{"QueueName": "r"}"#).await;
    assert!(status == 403 && text.contains("OverLimit") && text.contains("there are 1 queues"), "{text}");
    let send = json!({ "QueueUrl": "q", "MessageBody": "x".repeat(1001) });
    let (status, text) = server.ask(&json_head("SendMessage"), &send.to_string()).await;
    assert!(status == 400 && text.contains("Message must be shorter than 1000 bytes"), "{text}");
    server.end().await;
}

#[tokio::test]
async fn who_makes_a_queue_and_who_is_refused_is_told() {
    let sqs = SqsOptions { access_keys: vec!["AKID:secret".parse().unwrap()], ..SqsOptions::default() };
    for (sqs, expected) in [
        (SqsOptions::default(), ("queue.created", "user_who_performed_action", "guest")),
        (sqs, ("user.authentication.failure", "name", "OTHER")),
    ] {
        let server = Server::start_with(&MemoryDisk::new(), sqs, |_| {}).await;
        let (broker, events) = (&server.broker, QueueName::new("events").unwrap());
        broker.ensure_event_exchange().await.unwrap();
        broker.create_queue(&events, QueueConfig::default()).await.unwrap();
        let exchange = ExchangeName::at(&VhostName::DEFAULT, EVENT_EXCHANGE).unwrap();
        let to = Destination::Queue(events);
        broker.bind(Binding::new(exchange, to, b"#".as_slice().into(), Vec::new())).await.unwrap();
        let signed = "Authorization: AWS4-HMAC-SHA256 Credential=OTHER/20260101/us-east-1/sqs/aws4_request, \
                      SignedHeaders=host;x-amz-date;x-amz-target, Signature=00\r\nX-Amz-Date: 20260101T000000Z\r\n";
        let head = format!("{}{signed}", json_head("CreateQueue"));
        server.ask(&head, &json!({"QueueName": "q"}).to_string()).await;
        let (name, field, value) = expected;
        let told = broker.events().next().await;
        let event = told.iter().find(|event| event.name == name).unwrap_or_else(|| panic!("{told:?}"));
        assert!(event.fields.contains(&(field.to_owned(), value.into())), "{event:?}");
        server.end().await;
    }
}
