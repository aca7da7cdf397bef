//! Nothing that a client names, sends or says reaches a log line, a header or JSON unescaped.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use common::api::{LOGIN, Managed};
use common::hostile::{HOSTILE, Lines, check, quoted};
use nexo_amqp_client::{Client, Login};
use serde_json::{Value, json};

/// Every way in which the management API is told a name.
async fn say_over_http(managed: &Managed, text: &str) {
    let name = quoted(text);
    let permissions = json!({ "configure": text, "write": text, "read": text });
    let message = json!({ "properties": { "type": text }, "routing_key": text, "payload": text, "payload_encoding": "string" });
    let definitions = json!({
        "users": [{ "name": text, "password": text, "tags": text }],
        "vhosts": [{ "name": text, "description": text }],
        "queues": [{ "name": text, "vhost": text, "arguments": { text: text } }],
        "exchanges": [{ "name": text, "vhost": "/", "type": text }],
        "bindings": [{ "source": text, "vhost": "/", "destination": text, "destination_type": "queue", "routing_key": text }],
    });
    let dangling = json!({ "bindings": [{ "source": "amq.topic", "vhost": "/", "destination": "a\"q",
        "destination_type": "queue", "routing_key": text, "arguments": {} }] });
    let requests = [
        ("PUT", format!("/api/queues/%2F/{name}"), json!({ "arguments": { text: text } })),
        ("PUT", format!("/api/queues/{name}/{name}"), json!({})),
        ("PUT", format!("/api/exchanges/%2F/{name}"), json!({ "type": text })),
        ("PUT", format!("/api/exchanges/%2F/{name}"), json!({ "type": "topic" })),
        ("PUT", format!("/api/vhosts/{name}"), json!({ "description": text, "tags": [text] })),
        ("PUT", format!("/api/users/{name}"), json!({ "password": text, "tags": [text] })),
        ("PUT", format!("/api/users/{name}"), json!({ "password": text, "tags": "management" })),
        (
            "PUT",
            format!("/api/users/{name}"),
            json!({ "password_hash": text, "hashing_algorithm": text, "tags": "" }),
        ),
        ("PUT", format!("/api/permissions/%2F/{name}"), permissions.clone()),
        ("PUT", "/api/permissions/%2F/other".to_owned(), permissions),
        ("PUT", format!("/api/user-limits/guest/{name}"), json!({ "value": text })),
        ("POST", format!("/api/bindings/%2F/e/amq.topic/q/{name}"), json!({ "routing_key": text })),
        ("POST", "/api/bindings/%2F/e/amq.topic/q/plain".to_owned(), json!({ "routing_key": text })),
        ("POST", "/api/exchanges/%2F/amq.topic/publish".to_owned(), message),
        ("GET", "/api/queues/%2F/plain/bindings".to_owned(), Value::Null),
        ("GET", format!("/api/queues?page=1&name={name}&use_regex=true"), Value::Null),
        ("GET", format!("/api/nodes/{name}"), Value::Null),
        ("GET", format!("/api/connections/{name}"), Value::Null),
        ("GET", format!("/api/health/checks/protocol-listener/{name}"), Value::Null),
        ("GET", format!("/api/{name}"), Value::Null),
        ("POST", "/api/definitions".to_owned(), definitions),
        ("POST", "/api/definitions".to_owned(), dangling),
        ("POST", "/api/nexo/session".to_owned(), json!({ "username": text, "password": text })),
        ("DELETE", format!("/api/vhosts/{name}"), Value::Null),
        ("DELETE", format!("/api/users/{name}"), Value::Null),
    ];
    for (method, path, body) in requests {
        let login = if path == "/api/nexo/session" { "" } else { LOGIN };
        let reply = managed.send(method, &path, login, body.to_string().as_bytes()).await;
        check(&format!("{method} {path}"), &reply);
    }
    // What no header can hold is not sent: the server of HTTP refuses it before anybody looks.
    let pair = BASE64_STANDARD.encode(format!("{text}:{text}"));
    managed.send("GET", "/api/whoami", &format!("authorization: Basic {pair}\r\n"), b"").await;
    let reason = text.replace(['\r', '\n'], "\t");
    managed
        .send("DELETE", "/api/connections/username/guest", &format!("{LOGIN}x-reason: {reason}\r\n"), b"")
        .await;
}

async fn say_over_amqp(managed: &Managed, text: &str) {
    let patience = std::time::Duration::from_secs(30);
    let named = |user: &str, vhost: &str| Login {
        user: user.into(),
        password: user.into(),
        virtual_host: vhost.into(),
        ..Login::default()
    };
    assert!(Client::connect(managed.amqp, &named(text, "/"), patience).await.is_err());
    assert!(Client::connect(managed.amqp, &named("guest", text), patience).await.is_err());
}

#[tokio::test]
async fn what_clients_say_forges_neither_lines_nor_headers_nor_json() {
    let lines = Lines::begin();
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/plain", Some(json!({}))).await;
    managed.expect(201, "PUT", "/api/users/other", Some(json!({ "password": "x", "tags": "" }))).await;
    for text in HOSTILE {
        say_over_http(&managed, text).await;
        say_over_amqp(&managed, text).await;
    }
    let log = lines.check();
    assert!(log.contains("login refused"), "something was logged: {log}");
}
