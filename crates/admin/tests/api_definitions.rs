//! Definitions over the management API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use nexo_log::disk::{CutMode, FaultyDisk};
use serde_json::{Value, json};

fn file() -> Value {
    json!({
        "rabbit_version": "3.13.7",
        "users": [{"name": "alice", "password_hash": "x", "tags": []}],
        "vhosts": [{"name": "/"}],
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
    let of_vhost = one.get("/api/definitions/%2F").await;
    assert!(of_vhost["queues"][0].get("vhost").is_none(), "{of_vhost}");
    let three = Managed::start().await;
    three.expect(204, "POST", "/api/definitions/%2F", Some(of_vhost)).await;
    assert_eq!(three.get("/api/definitions").await, exported);
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
