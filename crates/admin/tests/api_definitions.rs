//! Definitions over the management API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use nexo_log::disk::{CutMode, FaultyDisk};
use serde_json::{Value, json};

fn file() -> Value {
    json!({
        "rabbit_version": "3.13.7",
        "users": [
            // As RabbitMQ's documentation has it: password `test12`.
            {"name": "alice", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
             "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ["monitoring"],
             "limits": {"max-connections": 5}},
            {"name": "bob", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256",
             "tags": [], "limits": {}},
        ],
        "vhosts": [{"name": "/"}, {"name": "shop", "description": "a shop", "tags": ["x"]}],
        "permissions": [{"user": "alice", "vhost": "shop", "configure": "", "write": "^a", "read": ".*"}],
        "topic_permissions":
            [{"user": "alice", "vhost": "shop", "exchange": "amq.topic", "write": "^{username}", "read": ""}],
        "parameters":
            [{"component": "vhost-limits", "name": "limits", "vhost": "shop", "value": {"max-queues": 7}}],
        "policies": [{"name": "p", "vhost": "/", "pattern": ".*", "definition": {"max-length": 5}}],
        "queues": [
            {"name": "plain", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}},
            {"name": "limited", "vhost": "/", "durable": true, "auto_delete": false,
             "arguments": {"x-queue-type": "quorum", "x-max-length": 5}},
        ],
        "exchanges": [
            {"name": "topics", "vhost": "/", "type": "topic", "durable": true, "auto_delete": false,
             "internal": false, "arguments": {"alternate-exchange": "amq.fanout"}},
        ],
        "bindings": [
            {"source": "topics", "vhost": "/", "destination": "plain", "destination_type": "queue",
             "routing_key": "a.*", "arguments": {"note": 1}},
            {"source": "amq.direct", "vhost": "/", "destination": "topics", "destination_type": "exchange",
             "routing_key": "k", "arguments": {}},
        ],
    })
}

#[tokio::test]
async fn what_is_exported_can_be_imported_elsewhere() {
    let one = Managed::start().await;
    one.expect(204, "POST", "/api/definitions", Some(file())).await;
    one.expect(204, "POST", "/api/definitions", Some(file())).await;
    let exported = one.get("/api/definitions").await;
    assert_eq!(column(&exported["queues"], "name"), ["limited", "plain"]);
    assert_eq!(exported["exchanges"], file()["exchanges"]);
    assert_eq!(exported["bindings"].as_array().unwrap().len(), 2);
    let two = Managed::start().await;
    two.expect(204, "POST", "/api/definitions", Some(exported.clone())).await;
    assert_eq!(two.get("/api/definitions").await, exported);
    for (kind, name) in [("users", "alice"), ("users", "bob"), ("vhosts", "shop")] {
        let given =
            file()[kind].as_array().unwrap().iter().find(|item| item["name"] == name).cloned().unwrap();
        let shown = exported[kind].as_array().unwrap().iter().find(|item| item["name"] == name).unwrap();
        for (field, value) in given.as_object().unwrap() {
            assert_eq!(&shown[field], value, "{kind} {name} {field}");
        }
    }
    assert_eq!(exported["topic_permissions"], file()["topic_permissions"]);
    assert_eq!(exported["parameters"], file()["parameters"]);
    let policy = json!([{"name": "p", "vhost": "/", "pattern": ".*", "definition": {"max-length": 5}, "priority": 0,
        "apply-to": "all"}]);
    assert_eq!(exported["policies"], policy);
    assert_eq!(two.get("/api/queues/%2F/plain").await["policy"], "p");
    assert_eq!(two.call_as("alice:test12", "GET", "/api/whoami", None).await.status, 200);
    assert_eq!(two.get("/api/permissions/shop/alice").await, file()["permissions"][0]);
}

#[tokio::test]
async fn a_virtual_host_goes_into_another() {
    let one = Managed::start().await;
    one.expect(204, "POST", "/api/definitions", Some(file())).await;
    let of_vhost = one.get("/api/definitions/%2F").await;
    assert!(of_vhost["queues"][0].get("vhost").is_none(), "{of_vhost}");
    assert!(of_vhost.get("users").is_none() && of_vhost.get("permissions").is_none());
    one.expect(201, "PUT", "/api/vhosts/copy", None).await;
    one.expect(204, "POST", "/api/definitions/copy", Some(of_vhost.clone())).await;
    assert_eq!(one.get("/api/definitions/copy").await, of_vhost);
    let limits = one.get("/api/definitions/shop").await["parameters"].clone();
    assert_eq!(limits, json!([{"component": "vhost-limits", "name": "limits", "value": {"max-queues": 7}}]));
}

/// Everything is read before anything is done.
#[tokio::test]
async fn a_broken_file_changes_nothing() {
    let managed = Managed::start().await;
    let before = managed.get("/api/definitions").await;
    let broken = [
        ("queues", json!({"name": "x", "vhost": "/", "arguments": {"x-max-length": "many"}})),
        ("exchanges", json!({"name": "x", "vhost": "/", "type": "none"})),
        ("bindings", json!({"source": "a", "vhost": "/", "destination": "b", "destination_type": "x"})),
        ("users", json!({"name": "eve", "password_hash": "AAAA", "tags": ""})),
        ("users", json!({"name": "eve", "password_hash": ""})),
        ("permissions", json!({"user": "none", "vhost": "/", "configure": "", "write": "", "read": ""})),
        ("permissions", json!({"user": "bob", "vhost": "none", "configure": "", "write": "", "read": ""})),
        ("permissions", json!({"user": "bob", "vhost": "/", "configure": "(", "write": "", "read": ""})),
        ("topic_permissions", json!({"user": "bob", "vhost": "/", "write": "", "read": ""})),
        ("vhosts", json!({"name": "x", "default_queue_type": "stream"})),
        ("parameters", json!({"name": "x", "vhost": "/"})),
        ("policies", json!({"name": "x", "vhost": "/", "pattern": "(", "definition": {"max-length": 5}})),
        ("policies", json!({"name": "x", "vhost": "/", "pattern": "", "definition": {"max-length": "many"}})),
    ];
    for (kind, item) in broken {
        let mut file = file();
        file[kind].as_array_mut().unwrap().push(item.clone());
        let reply = managed.expect(400, "POST", "/api/definitions", Some(file)).await;
        assert_eq!(managed.get("/api/definitions").await, before, "{kind} {item}: {reply:?}");
    }
}

#[tokio::test]
async fn what_was_done_before_something_failed_is_told() {
    let managed = Managed::start().await;
    let mut file = file();
    file["parameters"][0]["vhost"] = "/".into();
    file["parameters"][0]["value"] = json!({"max-queues": 1});
    let reply = managed.expect(400, "POST", "/api/definitions", Some(file)).await;
    let reason = reply.json()["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("queue \"limited\": "), "{reason}");
    let done = "done before that: 2 vhosts, 1 limits of vhosts, 2 users, 1 permissions, 1 topic permissions, \
                1 policies and parameters, 1 queues";
    assert!(reason.ends_with(done), "{reason}");
    assert_eq!(column(&managed.get("/api/queues").await, "name"), ["plain"]);
    assert_eq!(column(&managed.get("/api/users").await, "name"), ["alice", "bob", "guest"]);
}

#[tokio::test]
async fn a_large_file_is_taken_in() {
    let managed = Managed::start().await;
    let queues: Vec<Value> =
        (0..1_000).map(|n| json!({"name": format!("q{n}"), "vhost": "/", "durable": true})).collect();
    managed.expect(204, "POST", "/api/definitions", Some(json!({ "queues": queues }))).await;
    assert_eq!(managed.get("/api/overview").await["object_totals"]["queues"], json!(1_000));
}

#[tokio::test]
async fn what_was_imported_survives_a_power_cut() {
    let disk = FaultyDisk::new();
    let before = {
        let managed = Managed::start_on(&disk).await;
        managed.expect(204, "POST", "/api/definitions", Some(file())).await;
        managed.get("/api/definitions").await
    };
    disk.cut_power();
    let managed = Managed::start_on(&disk.restart(CutMode::Drop, 1)).await;
    assert_eq!(managed.get("/api/definitions").await, before);
}

#[tokio::test]
async fn a_mistake_in_a_file_is_named() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/plain", Some(json!({"durable": false}))).await;
    for (wrong, words) in [
        (
            json!({"queues": [{"name": "x", "vhost": "/", "arguments": {"x-expires": 0}}]}),
            "invalid arg 'x-expires'",
        ),
        (json!({"queues": [{"name": "x", "vhost": "other"}]}), "[\"no_such_vhost\",\"other\"]"),
        (json!({"queues": [{"name": "x"}]}), "[\"no_such_vhost\",\"undefined\"]"),
        (json!({"queues": {}}), "queues must be a list of objects"),
        (json!({"vhosts": [{"name": "a\nb"}]}), "control characters"),
    ] {
        let reply = managed.expect(400, "POST", "/api/definitions", Some(wrong)).await;
        assert!(reply.text.contains(words), "{words}: {reply:?}");
    }
    managed.expect(400, "GET", "/api/definitions/none", None).await;
    managed.expect(400, "POST", "/api/definitions/none", Some(json!({}))).await;
    let elsewhere =
        json!({"vhosts": [{"name": "other"}], "queues": [{"name": "x", "vhost": "other", "durable": true}]});
    managed.expect(204, "POST", "/api/definitions", Some(elsewhere)).await;
    assert_eq!(managed.get("/api/queues/other/x").await["vhost"], json!("other"));
    // What is there stays as it is, and a binding without an end is passed over.
    let dangling = json!({"bindings": [{"source": "amq.direct", "vhost": "/", "destination": "gone",
        "destination_type": "queue", "routing_key": "k", "arguments": {}}]});
    managed.expect(204, "POST", "/api/definitions", Some(dangling)).await;
    managed.expect(204, "POST", "/api/definitions", Some(file())).await;
    assert_eq!(managed.get("/api/queues/%2F/plain").await["durable"], json!(false));
}
