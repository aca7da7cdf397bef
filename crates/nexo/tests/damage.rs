//! Damage to the files of a real broker: only what was hit is lost, and every place that shows figures says so. A file
//! that is missing refuses the start by name, until the loss is accepted.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use common::{Process, Server, serve_command};
use nexo_grpc::client::Client;
use nexo_grpc::proto;

const QUEUE: &str = "work";
const SEGMENT: [&str; 2] = ["--segment-bytes", "1MiB"];
const BODY_BYTES: usize = 4096;
/// Messages of one frame.
const BATCH: u64 = 10;
const COUNT: u64 = 1_200;

async fn fill(server: &Server) {
    server.ok(&["queue", "create", QUEUE]);
    let client = Client::connect(&server.url()).await.unwrap();
    for start in (0..COUNT).step_by(BATCH as usize) {
        let message = |n: u64| {
            let mut body = n.to_le_bytes().to_vec();
            body.resize(BODY_BYTES, b'x');
            proto::NewMessage { body: body.into(), ..Default::default() }
        };
        let messages = (start..start + BATCH).map(message).collect();
        let request = proto::PushRequest { queue: QUEUE.into(), messages, ..Default::default() };
        let reply = client.messages().push(request).await.unwrap().into_inner();
        let is_pushed = |result: &proto::PushResult| {
            matches!(result.outcome, Some(proto::push_result::Outcome::Pushed(_)))
        };
        assert!(reply.results.iter().all(is_pushed), "{:?}", reply.results);
    }
}

/// Takes everything out and gives the numbers.
async fn drain(server: &Server) -> BTreeSet<u64> {
    let client = Client::connect(&server.url()).await.unwrap();
    let mut numbers = BTreeSet::new();
    loop {
        let request = proto::PopRequest {
            queue: QUEUE.into(),
            max: 100,
            wait_ms: 300,
            visibility_ms: Some(600_000),
            ..Default::default()
        };
        let reply = client.messages().pop(request).await.unwrap().into_inner();
        if reply.messages.is_empty() {
            return numbers;
        }
        numbers.extend(reply.messages.iter().map(|m| u64::from_le_bytes(m.body[..8].try_into().unwrap())));
    }
}

fn segments(server: &Server) -> Vec<PathBuf> {
    let files = fs::read_dir(server.data_dir().join("segments")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

fn copies(server: &Server) -> usize {
    fs::read_dir(server.data_dir().join("damaged")).unwrap().count()
}

/// The sum of all values of a metric.
fn metric(metrics: &str, name: &str) -> f64 {
    let lines = metrics
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    let values: Vec<f64> = lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(!values.is_empty(), "no {name} in {metrics}");
    values.iter().sum()
}

/// Every place that shows figures says that so many messages of the queue are lost.
fn assert_told(server: &Server, lost: u64) {
    let (status, body) = server.get("/health");
    assert_eq!(status, 200, "it serves: {body}");
    let health: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(health["status"], "degraded", "{body}");
    assert!(health["reason"].as_str().unwrap().contains(&format!("{lost} message")), "{body}");

    let (_, metrics) = server.get("/metrics");
    assert_eq!(metric(&metrics, "nexo_degraded"), 1.0);
    assert!(metric(&metrics, "nexo_log_damage_total") > 0.0);
    assert_eq!(metric(&metrics, "nexo_queue_damaged_total"), lost as f64);
    assert_eq!(metric(&metrics, "nexo_damaged_messages_total"), lost as f64);

    let shown = server.json(&["queue", "show", QUEUE]);
    assert_eq!(shown[0]["stats"]["damaged"], lost, "{shown:?}");
    let stats = server.json(&["stats"]);
    assert_eq!(stats[0]["degraded"], true, "{stats:?}");
    assert_eq!(stats[0]["damaged_messages"], lost, "{stats:?}");
    assert!(stats[0]["log"]["damage"].as_u64().unwrap() > 0, "{stats:?}");
    // It can serve, so it is no failure.
    let health = server.run(&["health"]);
    assert_eq!(health.code, Some(0), "{health:?}");
    assert!(health.stdout.starts_with("degraded: "), "{health:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_changed_bytes_cost_the_frames_they_hit_and_every_figure_says_so() {
    let mut server = Server::start_with(&SEGMENT);
    fill(&server).await;
    assert_eq!(server.get("/health").1.trim(), r#"{"status":"ok"}"#);
    assert!(server.stop().success());
    assert_eq!(copies(&server), 0);

    // In the middle of a sealed segment, which is full of messages.
    let victim = &segments(&server)[2];
    let file = OpenOptions::new().read(true).write(true).open(victim).unwrap();
    let at = file.metadata().unwrap().len() / 2;
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, at).unwrap();
    file.write_all_at(&bytes.map(|byte| !byte), at).unwrap();
    drop(file);

    server.restart_with(&SEGMENT);
    let found = drain(&server).await;
    let lost = COUNT - found.len() as u64;
    assert!((1..=2 * BATCH).contains(&lost), "16 bytes touch two frames at most: {lost} are lost");
    let missing: Vec<u64> = (0..COUNT).filter(|n| !found.contains(n)).collect();
    assert_eq!(missing.last().unwrap() - missing[0], lost - 1, "{missing:?} lay side by side");
    assert_told(&server, lost);
    assert!(copies(&server) > 0, "a copy of the damaged bytes is kept");
    assert!(victim.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_segment_refuses_the_start_by_name_until_the_loss_is_accepted() {
    let mut server = Server::start_with(&SEGMENT);
    fill(&server).await;
    assert!(server.stop().success());
    let victim = segments(&server)[1].clone();
    fs::remove_file(&victim).unwrap();

    let refused = Process::spawn(
        serve_command(server.data_dir())
            .env("NEXO_GRPC", "127.0.0.1:0")
            .env("NEXO_HTTP", "127.0.0.1:0")
            .args(SEGMENT),
    )
    .finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let name = victim.file_name().unwrap().to_str().unwrap();
    assert!(refused.stderr.contains(&format!("segments/{name} is missing")), "{refused:?}");
    assert!(refused.stderr.contains("accept-loss"), "{refused:?}");

    server.restart_with(&[&SEGMENT[..], &["--accept-loss"]].concat());
    let found = drain(&server).await;
    let lost = COUNT - found.len() as u64;
    // A segment of 1 MiB holds some 250 messages of 4 KiB.
    assert!((100..=260).contains(&lost), "{lost} are lost");
    assert_told(&server, lost);
    assert!(server.get("/health").1.contains("missing"), "{}", server.get("/health").1);

    // It was told, and is not asked for again.
    assert!(server.stop().success());
    server.restart_with(&SEGMENT);
    assert_eq!(server.json(&["queue", "show", QUEUE])[0]["stats"]["damaged"], lost);
}
