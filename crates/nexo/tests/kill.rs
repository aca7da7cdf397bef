//! The real binary, killed with SIGKILL at random under load by real clients, again and again: nothing confirmed
//! is lost, nothing whose acknowledgement was confirmed comes back, attempts and delays are kept.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::Server;
use nexo_grpc::client::Client;
use nexo_grpc::proto;

const KILLS: usize = 22;
const QUEUE: &str = "work";
/// Far longer than a client needs, short enough to wait for what was held when the broker died.
const VISIBILITY_MS: u64 = 5_000;

/// What clients were told, over all lives of the broker.
#[derive(Default)]
struct Told {
    pushed: BTreeSet<String>,
    confirmed: BTreeSet<String>,
    /// An acknowledgement was sent; whether it counted is not known.
    ack_sent: BTreeSet<String>,
    ack_confirmed: BTreeSet<String>,
    /// A failure that was confirmed as this attempt: the next delivery is a later one.
    failed: BTreeMap<String, u32>,
    /// Confirmed with a delay: not to be seen before this moment.
    not_before_ms: BTreeMap<String, u64>,
    deliveries: u64,
}

type Books = Arc<Mutex<Told>>;

/// Pushes numbered messages until the broker is gone; some are delayed.
async fn produce(client: Client, told: Books, life: usize, producer: usize) {
    let mut messages = client.messages();
    for n in 0.. {
        let batch: Vec<proto::NewMessage> = (0..5)
            .map(|i| {
                let body = format!("{life}-{producer}-{n}-{i}");
                let delay_ms = if i == 4 { 150 } else { 0 };
                proto::NewMessage {
                    body: body.into_bytes().into(),
                    delay_ms,
                    priority: i,
                    ..Default::default()
                }
            })
            .collect();
        let bodies: Vec<String> = batch.iter().map(|m| String::from_utf8(m.body.to_vec()).unwrap()).collect();
        told.lock().unwrap().pushed.extend(bodies.iter().cloned());
        let sent_ms = now_ms();
        let request = proto::PushRequest { queue: QUEUE.into(), messages: batch, ..Default::default() };
        let Ok(reply) = messages.push(request).await else { return };
        let mut told = told.lock().unwrap();
        for (body, result) in bodies.into_iter().zip(&reply.get_ref().results) {
            let pushed = matches!(result.outcome, Some(proto::push_result::Outcome::Pushed(_)));
            assert!(pushed, "a push was refused: {result:?}");
            if body.ends_with("-4") {
                told.not_before_ms.insert(body.clone(), sent_ms + 150);
            }
            told.confirmed.insert(body);
        }
    }
}

/// Pops, acknowledges most and fails some, until the broker is gone.
async fn consume(client: Client, told: Books) {
    let mut messages = client.messages();
    loop {
        let request = proto::PopRequest {
            queue: QUEUE.into(),
            max: 7,
            wait_ms: 1000,
            visibility_ms: Some(VISIBILITY_MS),
            ..Default::default()
        };
        let Ok(reply) = messages.pop(request).await else { return };
        let popped = reply.into_inner().messages;
        check(&told, &popped);
        if popped.is_empty() {
            continue;
        }
        let (failing, working): (Vec<_>, Vec<_>) =
            popped.into_iter().partition(|m| m.id % 6 == 5 && m.attempt < 3);
        let receipts = |of: &[proto::Message]| of.iter().map(|m| m.receipt.clone()).collect::<Vec<_>>();
        if !working.is_empty() {
            told.lock().unwrap().ack_sent.extend(working.iter().map(body));
            let Ok(reply) = messages.ack(proto::AckRequest { receipts: receipts(&working) }).await else {
                return;
            };
            let mut told = told.lock().unwrap();
            for (message, result) in working.iter().zip(&reply.get_ref().results) {
                // A lease may have ended on a machine that stood still.
                if result.error.is_none() {
                    told.ack_confirmed.insert(body(message));
                }
            }
        }
        if !failing.is_empty() {
            let nack =
                proto::NackRequest { receipts: receipts(&failing), delay_ms: Some(20), ..Default::default() };
            if messages.nack(nack).await.is_err() {
                return;
            }
            let mut told = told.lock().unwrap();
            for message in &failing {
                told.failed.insert(body(message), message.attempt);
            }
        }
    }
}

fn check(told: &Books, messages: &[proto::Message]) {
    let now = now_ms();
    let mut told = told.lock().unwrap();
    for message in messages {
        let body = body(message);
        told.deliveries += 1;
        assert!(told.pushed.contains(&body), "'{body}' was never pushed");
        assert!(!told.ack_confirmed.contains(&body), "'{body}' was acknowledged and came back");
        if let Some(before) = told.failed.get(&body) {
            assert!(message.attempt > *before, "'{body}': attempt {} after {before}", message.attempt);
        }
        if let Some(not_before) = told.not_before_ms.get(&body) {
            // The broker's clock runs on its own from the moment it starts; the two may round differently.
            assert!(now + 2 >= *not_before, "'{body}' came {} ms early", not_before - now);
        }
    }
}

fn body(message: &proto::Message) -> String {
    String::from_utf8(message.body.to_vec()).unwrap()
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

async fn one_life(server: &mut Server, told: &Books, life: usize) {
    let mut clients = Vec::new();
    for number in 0..2 {
        let client = Client::connect(&server.url()).await.unwrap();
        clients.push(tokio::spawn(produce(client.clone(), Arc::clone(told), life, number)));
        clients.push(tokio::spawn(consume(client, Arc::clone(told))));
    }
    tokio::time::sleep(Duration::from_millis(fastrand::u64(20..250))).await;
    server.kill();
    for client in clients {
        tokio::time::timeout(common::PATIENCE, client).await.expect("clients notice").unwrap();
    }
}

/// Takes everything that is left, of whatever state, until the queue is empty.
async fn drain(server: &Server) -> BTreeSet<String> {
    let client = Client::connect(&server.url()).await.unwrap();
    let mut left = BTreeSet::new();
    let deadline = std::time::Instant::now() + common::PATIENCE;
    loop {
        let request = proto::PopRequest {
            queue: QUEUE.into(),
            max: 1000,
            wait_ms: 300,
            visibility_ms: Some(VISIBILITY_MS),
            ..Default::default()
        };
        let popped = client.messages().pop(request).await.unwrap().into_inner().messages;
        if !popped.is_empty() {
            left.extend(popped.iter().map(body));
            let receipts = popped.into_iter().map(|m| m.receipt).collect();
            client.messages().ack(proto::AckRequest { receipts }).await.unwrap();
            continue;
        }
        let queue = client
            .queues()
            .get_queue(proto::GetQueueRequest { queue: QUEUE.into(), ..Default::default() })
            .await
            .unwrap();
        let stats = queue.into_inner().queue.and_then(|queue| queue.stats).unwrap();
        if stats.ready + stats.delayed + stats.leased == 0 {
            return left;
        }
        assert!(std::time::Instant::now() < deadline, "the queue does not run empty: {stats:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_kills_under_load_lose_nothing_that_was_confirmed() {
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    let told: Books = Books::default();
    // Small segments, so that there are seals, checkpoints and retired segments to die in.
    let args = ["--segment-bytes", "1048576"];
    let mut server = Server::start_with(&args);
    let create = proto::CreateQueueRequest {
        queue: QUEUE.into(),
        // Nothing dies here: a message that keeps failing would be counted as lost.
        config: Some(proto::QueueConfig { max_attempts: Some(0), ..Default::default() }),
        ..Default::default()
    };
    Client::connect(&server.url()).await.unwrap().queues().create_queue(create).await.unwrap();
    for life in 0..KILLS {
        one_life(&mut server, &told, life).await;
        server.restart_with(&args);
    }
    let left = drain(&server).await;
    let told = told.lock().unwrap();
    println!(
        "{KILLS} kills: {} pushed, {} confirmed, {} deliveries, {} acknowledged, {} left at the end",
        told.pushed.len(),
        told.confirmed.len(),
        told.deliveries,
        told.ack_confirmed.len(),
        left.len()
    );
    assert!(told.ack_confirmed.len() > KILLS, "there was load");
    let lost: Vec<&String> = told
        .confirmed
        .iter()
        .filter(|body| !told.ack_sent.contains(*body) && !left.contains(*body))
        .collect();
    assert!(lost.is_empty(), "confirmed and lost: {lost:?}");
    let back: Vec<&String> = left.intersection(&told.ack_confirmed).collect();
    assert!(back.is_empty(), "acknowledged and back: {back:?}");
    let invented: Vec<&String> = left.difference(&told.pushed).collect();
    assert!(invented.is_empty(), "never pushed: {invented:?}");
    assert_eq!(server.stop().code(), Some(0));
}
