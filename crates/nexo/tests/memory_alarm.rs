//! A real broker that is short of memory on purpose: publishers without confirms are blocked with a reason, memory stays near
//! the watermark, consumers that come back drain, publishing goes on, and nothing is lost.
#![allow(clippy::unwrap_used)]

mod common;

use common::{PATIENCE, Server};
use nexo_harness::http;
use serde_json::{Value, json};

const LOGIN: &str = "Host: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";

fn watermark(server: &Server, method: &str, body: &str) -> Value {
    let request = http::request(method, "/api/nexo/memory", LOGIN, body);
    let answer = http::exchange(&server.http, &request, PATIENCE).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

#[test]
fn publishers_are_blocked_near_the_watermark_and_nothing_is_lost() {
    let server = Server::start_with(&["--amqp", "127.0.0.1:0", "--memory-high", "96MiB"]);
    let (url, pid) = (server.amqp_url(), server.pid().to_string());
    let args = ["bench", "abuse", "memory-alarm", "--divide", "2", "--url", &url, "--http", &server.http];
    let report = server.ok(&[&args[..], &["--broker-pid", &pid, "--output", "json"]].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    let number = |name: &str| report["numbers"][name].as_f64().unwrap_or_else(|| panic!("{name}: {report}"));
    assert!(number("peak_part") <= 1.15, "{report}");
    assert!(number("blocked") >= 1.0, "low on memory: {report}");
    assert_eq!((number("unblocked_part"), number("come_part")), (1.0, 1.0), "{report}");
}

#[test]
fn the_watermark_is_set_at_the_start_by_hand_and_by_the_settings_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nexo.toml");
    std::fs::write(&file, "memory_high = '1GiB'\n").unwrap();
    let mut server = Server::start_with(&["--config", file.to_str().unwrap()]);
    assert_eq!(watermark(&server, "GET", "")["limit_bytes"], json!(1u64 << 30));
    let set = watermark(&server, "PUT", r#"{"absolute_bytes": 1}"#);
    assert_eq!((&set["limit_bytes"], &set["alarm"]), (&json!(1), &json!(true)));
    assert!(set["used_bytes"].as_u64().unwrap() > 1 << 20, "{set}");
    let (status, health) = server.get("/health");
    assert!(status == 200 && health.contains("degraded") && health.contains("memory_high"), "{health}");
    server.ok(&["queue", "create", "q"]);
    let refused = server.run(&["push", "q", "x"]).error();
    assert!(refused.contains("(memory_high)"), "{refused}");
    server.signal(rustix::process::Signal::HUP);
    common::eventually("the settings are read again", || {
        watermark(&server, "GET", "")["limit_bytes"] == json!(1u64 << 30)
    });
    server.ok(&["push", "q", "x"]);
    let said = server.stop_and_collect().stderr;
    assert!(said.contains("alarm set: publishers wait") && said.contains("resource=\"memory\""), "{said}");
    assert!(said.contains("alarm cleared: publishers go on"), "{said}");
}
