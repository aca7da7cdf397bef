//! Who may ask the management API, and what nobody may send it.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{LOGIN, Managed};
use serde_json::json;

#[tokio::test]
async fn whoever_does_not_log_in_is_asked_to() {
    let managed = Managed::start().await;
    for headers in ["", "authorization: Basic Z3Vlc3Q6d3Jvbmc=\r\n", "authorization: Bearer x\r\n"] {
        for (method, path) in [("GET", "/api/overview"), ("PUT", "/api/queues/%2F/q"), ("GET", "/api/none")] {
            let reply = managed.send(method, path, headers, b"").await;
            assert_eq!(reply.status, 401, "{method} {path} {headers}");
            assert!(reply.head.contains("www-authenticate: Basic realm=\"RabbitMQ Management\""));
            assert_eq!(reply.json(), json!({"error": "not_authorized", "reason": "Login failed"}));
        }
    }
    assert!(managed.broker.queue_names().is_empty());
    let caller = managed.get("/api/whoami").await;
    assert_eq!((&caller["name"], &caller["tags"]), (&json!("guest"), &json!(["administrator"])));
}

#[tokio::test]
async fn a_page_of_another_origin_can_neither_read_nor_change_anything() {
    let managed = Managed::start().await;
    for line in [
        "origin: http://evil.example\r\n",
        "origin: null\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
    ] {
        for (method, path) in
            [("GET", "/api/queues"), ("PUT", "/api/queues/%2F/q"), ("POST", "/api/definitions")]
        {
            let reply = managed.send(method, path, &format!("{LOGIN}{line}"), b"{}").await;
            assert_eq!(reply.status, 403, "{method} {path} {line}");
        }
    }
    assert!(managed.broker.queue_names().is_empty());
    let own = format!("{LOGIN}origin: http://localhost\r\nsec-fetch-site: same-origin\r\n");
    assert_eq!(managed.send("PUT", "/api/queues/%2F/q", &own, b"{}").await.status, 201);
    let reply =
        managed.send("OPTIONS", "/api/queues", &format!("{LOGIN}origin: http://localhost\r\n"), b"").await;
    assert!(!reply.head.to_lowercase().contains("access-control-allow"), "{reply:?}");
}

#[tokio::test]
async fn a_name_that_leads_here_from_elsewhere_is_not_served() {
    let managed = Managed::start().await;
    let reply = managed.send("GET", "http://evil.example/api/overview", LOGIN, b"").await;
    assert_eq!(reply.status, 403);
}

#[tokio::test]
async fn a_request_that_is_too_large_or_no_json_is_refused() {
    let managed = Managed::start().await;
    let long = format!("{LOGIN}content-length: 100000000\r\n");
    let head = "PUT /api/queues/%2F/q HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let mut stream = tokio::net::TcpStream::connect(managed.http).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, format!("{head}{long}\r\n").as_bytes()).await.unwrap();
    let mut reply = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
    for body in ["{bad", "[]", "1", "\"text\"", "nope"] {
        let reply = managed.send("PUT", "/api/queues/%2F/q", LOGIN, body.as_bytes()).await;
        assert_eq!((reply.status, &reply.json()["error"]), (400, &json!("bad_request")), "{body}");
    }
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let body = format!("{{\"arguments\": {{\"a\": {deep}}}}}");
    assert_eq!(managed.send("PUT", "/api/queues/%2F/q", LOGIN, body.as_bytes()).await.status, 400);
    assert!(managed.broker.queue_names().is_empty());
}

#[tokio::test]
async fn whatever_a_client_names_is_escaped() {
    let managed = Managed::start().await;
    let name = "a\"},{\"<script>\u{2028}é";
    let quoted = "a%22%7D,%7B%22%3Cscript%3E%E2%80%A8%C3%A9";
    managed.expect(201, "PUT", &format!("/api/queues/%2F/{quoted}"), Some(json!({}))).await;
    let shown = managed.get("/api/queues").await;
    assert_eq!((shown[0]["name"].as_str(), shown.as_array().unwrap().len()), (Some(name), 1));
    assert_eq!(managed.get(&format!("/api/queues/%2F/{quoted}")).await["name"], json!(name));
    let reply = managed.expect(400, "PUT", "/api/queues/%2F/a%0Ab", Some(json!({}))).await;
    assert!(
        reply.head.contains("content-type: application/json") && reply.head.contains("nosniff"),
        "{reply:?}"
    );
}

#[tokio::test]
async fn what_is_not_there_is_said_in_json() {
    let managed = Managed::start().await;
    let nothing = json!({"error": "Object Not Found", "reason": "Not Found"});
    for path in [
        "/api/none",
        "/api/queues/%2F/none",
        "/api/queues/none",
        "/api/exchanges/%2F/none",
        "/api/vhosts/none",
    ] {
        assert_eq!(managed.expect(404, "GET", path, None).await.json(), nothing, "{path}");
    }
    assert_eq!(managed.call("PATCH", "/api/queues", None).await.status, 405);
}
