//! Puts load on SQS endpoints and prints a table: `load throughput nexo=127.0.0.1:9324 moto=127.0.0.1:5000`, or
//! `load longpoll nexo=127.0.0.1:9324`. All endpoints are measured in turns, round by round, so that a noisy moment of the
//! machine meets all of them.
//!
//! The client is plain HTTP/1.1 over kept connections, so that it costs little beside what it measures.
#![allow(clippy::unwrap_used, reason = "a program that measures stops where something is wrong")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CONNECTIONS: usize = 16;
const BODY_BYTES: usize = 1024;
const BATCH: usize = 10;
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(5);
/// An answer that takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(60);
const WAITING: usize = 2000;
const WAKES: usize = 2000;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let endpoints: Vec<(String, String)> = arguments
        .map(|argument| {
            let (name, address) = argument.split_once('=').expect("an endpoint is NAME=HOST:PORT");
            (name.to_owned(), address.to_owned())
        })
        .collect();
    match (&*mode, endpoints.is_empty()) {
        ("throughput", false) => throughput(&endpoints).await,
        ("longpoll", false) => long_poll(&endpoints).await,
        _ => eprintln!("usage: load throughput|longpoll NAME=HOST:PORT …"),
    }
}

/// One connection.
struct Client {
    stream: TcpStream,
    address: String,
    buffer: Vec<u8>,
    /// The other side closes the connection after its last answer.
    is_closing: bool,
}

impl Client {
    async fn new(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, address: address.to_owned(), buffer: Vec::new(), is_closing: false }
    }

    /// Sends a request and gives back the answer's body.
    async fn call(&mut self, action: &str, body: &[u8]) -> &[u8] {
        let head = format!(
            "POST / HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.{action}\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0\r\n\
             Content-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        if self.is_closing {
            *self = Self::new(&self.address).await;
        }
        self.stream.write_all(&request).await.unwrap();
        tokio::time::timeout(PATIENCE, self.answer(action)).await.expect("an answer comes")
    }

    async fn answer(&mut self, action: &str) -> &[u8] {
        self.buffer.clear();
        let (start, len) = loop {
            if let Some(found) = head_of(&self.buffer) {
                break found;
            }
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the connection was closed");
        };
        while self.buffer.len() < start + len {
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the connection was closed");
        }
        let head = String::from_utf8_lossy(&self.buffer[..start]).to_ascii_lowercase();
        self.is_closing = head.contains("connection: close") || head.starts_with("http/1.0");
        let status = &self.buffer[9..12];
        assert_eq!(status, b"200", "{action}: {}", String::from_utf8_lossy(&self.buffer));
        &self.buffer[start..start + len]
    }

    async fn json(&mut self, action: &str, body: &Value) -> Value {
        let answer = self.call(action, &serde_json::to_vec(body).unwrap()).await;
        if answer.is_empty() { Value::Null } else { serde_json::from_slice(answer).unwrap() }
    }

    /// A queue of this name, empty.
    async fn queue(&mut self, name: &str) -> String {
        let created = self.json("CreateQueue", &json!({ "QueueName": name })).await;
        let url = created["QueueUrl"].as_str().unwrap().to_owned();
        self.json("PurgeQueue", &json!({ "QueueUrl": url })).await;
        url
    }
}

/// Where the body of an answer begins, and how long it is, once its head is there.
fn head_of(buffer: &[u8]) -> Option<(usize, usize)> {
    let end = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&buffer[..end]).unwrap();
    let length = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    });
    Some((end + 4, length.expect("an answer says how long it is")))
}

/// Sends ten, receives ten, deletes ten, on every connection, as often as it goes.
async fn throughput(endpoints: &[(String, String)]) {
    println!(
        "SendMessageBatch + ReceiveMessage + DeleteMessageBatch, {BATCH} × {BODY_BYTES} B, {CONNECTIONS} connections,\n\
         {ROUNDS} rounds of {} s in turns, messages a second through all three:\n",
        ROUND.as_secs()
    );
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); endpoints.len()];
    for round in 0..ROUNDS {
        for (at, (name, address)) in endpoints.iter().enumerate() {
            let url = Client::new(address).await.queue(&format!("load-{round}")).await;
            let began = Instant::now();
            let work = (0..CONNECTIONS).map(|_| tokio::spawn(cycle(address.clone(), url.clone(), began)));
            let mut count = 0;
            for one in work.collect::<Vec<_>>() {
                count += one.await.unwrap();
            }
            let rate = count as f64 / began.elapsed().as_secs_f64();
            eprintln!("round {round}: {name} {rate:.0}");
            rates[at].push(rate);
        }
    }
    println!("| endpoint | median | lowest | highest |\n|---|---:|---:|---:|");
    for ((name, _), rates) in endpoints.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        let (low, middle, high) = (rates[0], rates[rates.len() / 2], rates[rates.len() - 1]);
        println!("| {name} | {middle:.0} | {low:.0} | {high:.0} |");
    }
}

async fn cycle(address: String, url: String, began: Instant) -> usize {
    let mut client = Client::new(&address).await;
    let body = "x".repeat(BODY_BYTES);
    let entries: Vec<Value> =
        (0..BATCH).map(|id| json!({ "Id": id.to_string(), "MessageBody": body })).collect();
    let send = serde_json::to_vec(&json!({ "QueueUrl": url, "Entries": entries })).unwrap();
    let receive = serde_json::to_vec(&json!({ "QueueUrl": url, "MaxNumberOfMessages": BATCH })).unwrap();
    let mut count = 0;
    while began.elapsed() < ROUND {
        client.call("SendMessageBatch", &send).await;
        let received: Value = serde_json::from_slice(client.call("ReceiveMessage", &receive).await).unwrap();
        let Some(messages) = received["Messages"].as_array() else { continue };
        let entries: Vec<Value> = messages
            .iter()
            .enumerate()
            .map(|(id, message)| json!({ "Id": id.to_string(), "ReceiptHandle": message["ReceiptHandle"] }))
            .collect();
        let delete = serde_json::to_vec(&json!({ "QueueUrl": url, "Entries": entries })).unwrap();
        client.call("DeleteMessageBatch", &delete).await;
        count += messages.len();
    }
    count
}

/// Has very many wait, and wakes them one at a time.
async fn long_poll(endpoints: &[(String, String)]) {
    for (name, address) in endpoints {
        let mut sender = Client::new(address).await;
        let url = sender.queue("waiting").await;
        let (wake, mut woken) = tokio::sync::mpsc::unbounded_channel();
        let began = Instant::now();
        for _ in 0..WAITING {
            let (address, url, wake) = (address.clone(), url.clone(), wake.clone());
            tokio::spawn(async move {
                let mut client = Client::new(&address).await;
                loop {
                    let wait = json!({ "QueueUrl": url, "WaitTimeSeconds": 20 });
                    let answer = client.json("ReceiveMessage", &wait).await;
                    let at = began.elapsed();
                    for message in answer["Messages"].as_array().into_iter().flatten() {
                        let body = message["Body"].as_str().unwrap().to_owned();
                        let delete = json!({ "QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"] });
                        client.json("DeleteMessage", &delete).await;
                        wake.send((body, at)).unwrap();
                    }
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        println!("{name}: {WAITING} receives wait; look at the broker's processor time now");
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut waits = Vec::with_capacity(WAKES);
        for number in 0..WAKES {
            let message = json!({ "QueueUrl": url, "MessageBody": number.to_string() });
            let sent = began.elapsed();
            // The answer is waited for as well, so that the next message finds a quiet broker.
            sender.json("SendMessage", &message).await;
            let (body, at) = woken.recv().await.unwrap();
            assert_eq!(body, number.to_string(), "one message wakes one receiver");
            assert!(woken.try_recv().is_err(), "one message wakes one receiver");
            waits.push(at.saturating_sub(sent));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        waits.sort_unstable();
        let at = |share: f64| waits[(waits.len() as f64 * share) as usize].as_secs_f64() * 1000.0;
        println!(
            "from the send to the answer of the receive that waited, its message on disk, {WAKES} times:"
        );
        println!(
            "p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms",
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999)
        );
    }
}
