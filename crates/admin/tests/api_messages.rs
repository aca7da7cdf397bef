//! Publishing and getting over the management API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use serde_json::{Value, json};

const DEFAULT: &str = "/api/exchanges/%2F/amq.default/publish";

fn text(key: &str, payload: &str) -> Option<Value> {
    Some(json!({"properties": {}, "routing_key": key, "payload": payload, "payload_encoding": "string"}))
}

fn get(count: u32, ackmode: &str) -> Option<Value> {
    Some(json!({"count": count, "ackmode": ackmode, "encoding": "auto"}))
}

#[tokio::test]
async fn a_message_goes_in_and_comes_out_with_its_properties() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    managed
        .expect(201, "POST", "/api/bindings/%2F/e/amq.topic/q/q", Some(json!({"routing_key": "a.#"})))
        .await;
    let properties = json!({
        "delivery_mode": 2, "content_type": "text/plain", "priority": 3, "timestamp": 1_700_000_000u64,
        "expiration": "600000", "message_id": "m", "user_id": "guest",
        "headers": {"h": 1, "l": [1, {"x": "y"}], "b": true, "f": 1.5},
    });
    let sent = json!({"properties": properties, "routing_key": "a.b", "payload": "aGVsbG8=", "payload_encoding": "base64"});
    let path = "/api/exchanges/%2F/amq.topic/publish";
    assert_eq!(managed.expect(200, "POST", path, Some(sent)).await.json(), json!({"routed": true}));
    let got = managed.expect(200, "POST", "/api/queues/%2F/q/get", get(5, "ack_requeue_true")).await.json();
    assert_eq!(
        got,
        json!([{
            "payload": "hello", "payload_bytes": 5, "payload_encoding": "string", "exchange": "amq.topic",
            "routing_key": "a.b", "redelivered": false, "message_count": 0, "properties": properties,
        }])
    );
    let again = json!({"count": "1", "ackmode": "ack_requeue_false", "encoding": "base64", "truncate": 2});
    let got = managed.expect(200, "POST", "/api/queues/%2F/q/get", Some(again)).await.json();
    assert_eq!((&got[0]["payload"], &got[0]["payload_encoding"]), (&json!("aGU="), &json!("base64")));
    assert_eq!((&got[0]["redelivered"], &got[0]["payload_bytes"]), (&json!(true), &json!(5)));
    let empty = managed.expect(200, "POST", "/api/queues/%2F/q/get", get(1, "ack_requeue_true")).await;
    assert_eq!(empty.json(), json!([]));
}

#[tokio::test]
async fn what_goes_nowhere_is_said_to() {
    let managed = Managed::start().await;
    assert_eq!(
        managed.expect(200, "POST", DEFAULT, text("none", "x")).await.json(),
        json!({"routed": false})
    );
    let reply = managed.expect(400, "POST", "/api/exchanges/%2F/none/publish", text("k", "x")).await;
    assert_eq!(reply.json()["reason"], json!("404 NOT_FOUND - no exchange 'none' in vhost '/'"));
    let full = json!({"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}});
    managed.expect(201, "PUT", "/api/queues/%2F/full", Some(full)).await;
    assert_eq!(managed.expect(200, "POST", DEFAULT, text("full", "1")).await.json(), json!({"routed": true}));
    assert_eq!(
        managed.expect(200, "POST", DEFAULT, text("full", "2")).await.json(),
        json!({"routed": false})
    );
    managed
        .expect(201, "PUT", "/api/exchanges/%2F/in", Some(json!({"type": "fanout", "internal": true})))
        .await;
    managed.expect(400, "POST", "/api/exchanges/%2F/in/publish", text("k", "x")).await;
}

#[tokio::test]
async fn messages_are_put_back_taken_or_rejected() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/dead", Some(json!({}))).await;
    let dlx = json!({"arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}});
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(dlx)).await;
    for payload in ["1", "2", "3"] {
        managed.expect(200, "POST", DEFAULT, text("q", payload)).await;
    }
    let path = "/api/queues/%2F/q/get";
    for ackmode in ["ack_requeue_true", "reject_requeue_true"] {
        let got = managed.expect(200, "POST", path, get(2, ackmode)).await.json();
        assert_eq!(
            (column(&got, "payload"), column(&got, "message_count")),
            (vec![json!("1"), json!("2")], vec![json!(2), json!(1)])
        );
    }
    let got = managed.expect(200, "POST", path, get(1, "ack_requeue_false")).await.json();
    assert_eq!(column(&got, "payload"), ["1"]);
    let got = managed.expect(200, "POST", path, get(1, "reject_requeue_false")).await.json();
    assert_eq!(column(&got, "payload"), ["2"]);
    let dead =
        managed.expect(200, "POST", "/api/queues/%2F/dead/get", get(5, "ack_requeue_true")).await.json();
    assert_eq!(column(&dead, "payload"), ["2"]);
    assert_eq!(dead[0]["properties"]["headers"]["x-death"][0]["reason"], json!("rejected"));
    let left = managed.get("/api/queues/%2F/q").await;
    assert_eq!((&left["messages_ready"], &left["messages_unacknowledged"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn a_question_with_a_mistake_takes_nothing() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    managed.expect(200, "POST", DEFAULT, text("q", "x")).await;
    for wrong in [
        json!({"count": 1, "encoding": "auto"}),
        json!({"count": 1, "ackmode": "x", "encoding": "auto"}),
        json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "x"}),
        json!({"count": "x", "ackmode": "ack_requeue_false", "encoding": "auto"}),
        json!({"ackmode": "ack_requeue_false", "encoding": "auto"}),
    ] {
        managed.expect(400, "POST", "/api/queues/%2F/q/get", Some(wrong)).await;
    }
    for wrong in [
        json!({"routing_key": "q"}),
        json!({"properties": {}, "routing_key": "q", "payload": "!!", "payload_encoding": "base64"}),
        json!({"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "rot13"}),
        json!({"properties": {"user_id": "other"}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}),
        json!({"properties": {"headers": {"a": null}}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}),
        json!({"properties": {"priority": "x"}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}),
        json!({"properties": {"expiration": "soon"}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}),
    ] {
        managed.expect(400, "POST", DEFAULT, Some(wrong)).await;
    }
    assert_eq!(managed.get("/api/queues/%2F/q").await["messages_ready"], json!(1));
    managed.expect(404, "POST", "/api/queues/%2F/none/get", get(1, "ack_requeue_false")).await;
}
