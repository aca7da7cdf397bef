//! Moves of messages over the management API, and what is told of them while they go on.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::api::{LOGIN, Managed, column, login};
use nexo_admin::AdminOptions;
use nexo_broker::{DeadLetters, NewMessage, QueueConfig};
use nexo_types::QueueName;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// So many that they are not moved between one line and the next.
const MANY: u64 = 200_000;
const PATIENCE: Duration = Duration::from_secs(60);
const REDRIVE: &str = "/api/nexo/queues/%2F/from/redrive";

/// A connection over which messages are moved.
struct Moving(BufReader<TcpStream>);

impl Moving {
    async fn ask(http: SocketAddr, login: &str, path: &str, body: &Value) -> Self {
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{login}\r\n"
        );
        let mut stream = TcpStream::connect(http).await.unwrap();
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        Self(BufReader::new(stream))
    }

    async fn text_line(&mut self) -> String {
        let mut line = String::new();
        timeout(PATIENCE, self.0.read_line(&mut line)).await.unwrap().unwrap();
        line.trim_end().to_owned()
    }

    /// Reads the head of an answer that is a stream.
    async fn begin(mut self) -> Self {
        let mut head = Vec::new();
        while head.last().is_none_or(|line: &String| !line.is_empty()) {
            head.push(self.text_line().await);
        }
        assert!(head[0].contains(" 200 "), "{head:?}");
        for wanted in
            ["content-type: application/x-ndjson", "transfer-encoding: chunked", "cache-control: no-store"]
        {
            assert!(head.iter().any(|line| line.eq_ignore_ascii_case(wanted)), "{wanted}: {head:?}");
        }
        self
    }

    /// The next line of the stream; each is a chunk.
    async fn line(&mut self) -> Option<Value> {
        let length = usize::from_str_radix(&self.text_line().await, 16).unwrap();
        let mut chunk = vec![0; length + 2];
        timeout(PATIENCE, self.0.read_exact(&mut chunk)).await.unwrap().unwrap();
        let line = chunk[..length].strip_suffix(b"\n");
        (length > 0).then(|| serde_json::from_slice(line.unwrap()).unwrap())
    }

    /// The last line of the stream.
    async fn last(&mut self) -> Value {
        let mut last = None;
        while let Some(line) = self.line().await {
            last = Some(line);
        }
        last.unwrap()
    }
}

/// A broker with the queues `from` and `to`, and many messages in the first.
async fn filled() -> Managed {
    let managed = Managed::start().await;
    for queue in ["from", "to"] {
        let durable = json!({ "durable": true });
        managed.expect(201, "PUT", &format!("/api/queues/%2F/{queue}"), Some(durable)).await;
    }
    for _ in 0..MANY / 10_000 {
        let messages = vec![NewMessage::new(b"x".to_vec()); 10_000];
        managed.broker.push(&QueueName::new("from").unwrap(), messages).await.unwrap();
    }
    managed
}

fn waiting(managed: &Managed, queue: &str) -> u64 {
    managed.broker.queue_stats(&QueueName::new(queue).unwrap()).unwrap().ready
}

/// Waits until some have been moved.
async fn until_it_moves(managed: &Managed) {
    while waiting(managed, "to") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until no more are moved, which must be before the end.
async fn assert_stopped(managed: &Managed) {
    let mut before = 0;
    while waiting(managed, "to") != before {
        before = waiting(managed, "to");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(before < MANY, "all were moved");
    assert_eq!(waiting(managed, "from") + before, MANY, "each message is in one queue");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_tell_how_far_a_move_is() {
    let managed = filled().await;
    let asked = json!({ "target": "to", "progress": true, "max": MANY - 1 });
    let mut moving = Moving::ask(managed.http, LOGIN, REDRIVE, &asked).await.begin().await;
    let mut lines = Vec::new();
    while let Some(line) = moving.line().await {
        lines.push(line);
    }
    let last = lines.pop().unwrap();
    assert_eq!(last, json!({ "moved": MANY - 1, "skipped": 0, "done": true }));
    assert!(!lines.is_empty(), "nothing was told before the end");
    let moved: Vec<_> = lines.iter().map(|line| line["moved"].as_u64().unwrap()).collect();
    assert!(moved.is_sorted() && moved.iter().all(|moved| *moved < MANY), "{moved:?}");
    assert!(lines.iter().all(|line| line["done"] == false), "{lines:?}");
    assert_eq!((waiting(&managed, "from"), waiting(&managed, "to")), (1, MANY - 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_ends_its_move() {
    for progress in [true, false] {
        let managed = filled().await;
        let asked = json!({ "target": "to", "progress": progress });
        let mut moving = Moving::ask(managed.http, LOGIN, REDRIVE, &asked).await;
        if progress {
            moving = moving.begin().await;
        }
        until_it_moves(&managed).await;
        drop(moving);
        assert_stopped(&managed).await;
        // What is left can be moved by the next one.
        let left = waiting(&managed, "from");
        let moved = managed.expect(200, "POST", REDRIVE, Some(json!({ "target": "to" }))).await.json();
        assert_eq!(moved, json!({ "moved": left, "skipped": 0 }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_loses_the_right_to_move_is_told_in_the_last_line() {
    let managed = filled().await;
    let user = json!({ "password": "mover", "tags": "management" });
    managed.expect(201, "PUT", "/api/users/mover", Some(user)).await;
    let all = json!({ "configure": "", "write": "^to$", "read": "^from$" });
    managed.expect(201, "PUT", "/api/permissions/%2F/mover", Some(all)).await;
    let asked = json!({ "target": "to", "progress": true });
    let mut moving = Moving::ask(managed.http, &login("mover"), REDRIVE, &asked).await.begin().await;
    until_it_moves(&managed).await;
    managed.expect(204, "DELETE", "/api/permissions/%2F/mover", None).await;
    let last = moving.last().await;
    assert_eq!((&last["error"], &last["done"]), (&json!("not_authorised"), &json!(false)), "{last}");
    assert!((1..MANY).contains(&last["moved"].as_u64().unwrap()), "{last}");
    assert_stopped(&managed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_a_move_is_told_in_the_last_line() {
    let managed = filled().await;
    let asked = json!({ "target": "to", "progress": true });
    let mut moving = Moving::ask(managed.http, LOGIN, REDRIVE, &asked).await.begin().await;
    until_it_moves(&managed).await;
    managed.expect(204, "DELETE", "/api/queues/%2F/from", None).await;
    let last = moving.last().await;
    assert_eq!((&last["error"], &last["done"]), (&json!("Object Not Found"), &json!(false)), "{last}");
    assert!(last["moved"].as_u64().unwrap() <= waiting(&managed, "to"), "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_closes_waits_for_no_move() {
    let managed = filled().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (http, close) = (listener.local_addr().unwrap(), CancellationToken::new());
    let (broker, logins) = (managed.broker.clone(), managed.logins.clone());
    let closing = close.clone().cancelled_owned();
    let serving = tokio::spawn(nexo_admin::serve(broker, logins, listener, AdminOptions::default(), closing));
    let asked = json!({ "target": "to", "progress": true });
    let mut moving = Moving::ask(http, LOGIN, REDRIVE, &asked).await.begin().await;
    until_it_moves(&managed).await;
    close.cancel();
    let last = moving.last().await;
    assert_eq!((&last["error"], &last["done"]), (&json!("service_unavailable"), &json!(false)), "{last}");
    timeout(PATIENCE, serving).await.unwrap().unwrap().unwrap();
    assert_stopped(&managed).await;
}

async fn publish(managed: &Managed, queue: &str, payload: &str) {
    let message =
        json!({ "properties": {}, "routing_key": queue, "payload": payload, "payload_encoding": "string" });
    managed.expect(200, "POST", "/api/exchanges/%2F/amq.default/publish", Some(message)).await;
}

#[tokio::test]
async fn chosen_messages_of_any_queue_move_to_another() {
    let managed = Managed::start().await;
    for queue in ["from", "to"] {
        managed.expect(201, "PUT", &format!("/api/queues/%2F/{queue}"), Some(json!({}))).await;
    }
    for payload in ["a", "b", "c"] {
        publish(&managed, "from", payload).await;
    }
    let shown = managed.get("/api/nexo/queues/%2F/from/messages").await;
    let b = shown["messages"][1]["offset"].clone();
    let asked = json!({ "target": "to", "offsets": [b] });
    let moved = managed.expect(200, "POST", REDRIVE, Some(asked)).await;
    assert_eq!(moved.json(), json!({ "moved": 1, "skipped": 0 }));
    for (queue, there) in [("from", &["a", "c"][..]), ("to", &["b"])] {
        let shown = managed.get(&format!("/api/nexo/queues/%2F/{queue}/messages")).await;
        assert_eq!(column(&shown["messages"], "payload"), there);
    }
    // None of them has died, so without a target they have nowhere to go.
    let asked = json!({ "progress": true });
    let mut moving = Moving::ask(managed.http, LOGIN, REDRIVE, &asked).await.begin().await;
    assert_eq!(moving.last().await, json!({ "moved": 0, "skipped": 2, "done": true }));
    for wrong in [
        json!({ "target": "from" }),
        json!({ "offsets": [] }),
        json!({ "offsets": ["x"] }),
        json!({ "progress": 1 }),
    ] {
        managed.expect(400, "POST", REDRIVE, Some(wrong)).await;
    }
    // What is wrong at the beginning is answered as ever.
    managed.expect(404, "POST", REDRIVE, Some(json!({ "target": "none", "progress": true }))).await;
}

#[tokio::test]
async fn the_last_line_counts_what_may_not_go_back() {
    let managed = Managed::start().await;
    let from = QueueName::new("from").unwrap();
    managed.broker.create_queue(&from, QueueConfig::default()).await.unwrap();
    for queue in ["his", "other"] {
        let config = QueueConfig { dead_letters: DeadLetters::Queue(from.clone()), ..QueueConfig::default() };
        managed.broker.create_queue(&QueueName::new(queue).unwrap(), config).await.unwrap();
        publish(&managed, queue, queue).await;
        let reject = json!({ "count": 1, "ackmode": "reject_requeue_false", "encoding": "auto" });
        managed.expect(200, "POST", &format!("/api/queues/%2F/{queue}/get"), Some(reject)).await;
    }
    managed
        .until("/api/nexo/queues/%2F/from/messages", |shown| shown["messages"].as_array().unwrap().len() == 2)
        .await;
    let user = json!({ "password": "mover", "tags": "management" });
    managed.expect(201, "PUT", "/api/users/mover", Some(user)).await;
    let some = json!({ "configure": "", "write": "^his$", "read": "^from$" });
    managed.expect(201, "PUT", "/api/permissions/%2F/mover", Some(some)).await;
    let asked = json!({ "progress": true });
    let mut moving = Moving::ask(managed.http, &login("mover"), REDRIVE, &asked).await.begin().await;
    let last = json!({
        "moved": 1, "skipped": 0, "refused": 1, "done": false, "error": "not_authorised", "reason": "Access refused.",
    });
    assert_eq!(moving.last().await, last);
    assert_eq!((waiting(&managed, "from"), waiting(&managed, "his")), (1, 1));
}
