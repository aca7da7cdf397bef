//! Exchanges and bindings over the management API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use serde_json::json;

const E: &str = "/api/exchanges/%2F";
const B: &str = "/api/bindings/%2F";

#[tokio::test]
async fn every_broker_has_its_exchanges() {
    let managed = Managed::start().await;
    let all = managed.get("/api/exchanges").await;
    let names =
        ["", "amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.rabbitmq.trace", "amq.topic"];
    assert_eq!(column(&all, "name"), names);
    assert_eq!(managed.get("/api/exchanges/%2F/").await, all);
    assert_eq!(managed.get(&format!("{E}/amq.default")).await["name"], json!(""));
    assert_eq!(managed.get(E).await, all);
    let found = managed.get("/api/exchanges?page=1&name=topic&columns=name,type").await;
    assert_eq!(found["items"], json!([{"name": "amq.topic", "type": "topic"}]));
}

#[tokio::test]
async fn an_exchange_is_declared_shown_and_deleted() {
    let managed = Managed::start().await;
    let asked = json!({"type": "fanout", "durable": false, "auto_delete": "true", "internal": true,
        "arguments": {"alternate-exchange": "amq.topic"}});
    managed.expect(201, "PUT", &format!("{E}/e"), Some(asked.clone())).await;
    managed.expect(204, "PUT", &format!("{E}/e"), Some(asked)).await;
    let shown = managed.get(&format!("{E}/e")).await;
    for (name, value) in [
        ("type", json!("fanout")),
        ("durable", json!(false)),
        ("auto_delete", json!(true)),
        ("internal", json!(true)),
        ("arguments", json!({"alternate-exchange": "amq.topic"})),
    ] {
        assert_eq!(shown[name], value, "{name}");
    }
    let reply = managed.expect(400, "PUT", &format!("{E}/e"), Some(json!({"type": "direct"}))).await;
    assert!(reply.text.contains("inequivalent arg 'type' for exchange 'e'"), "{reply:?}");
    managed.expect(400, "PUT", &format!("{E}/f"), Some(json!({"type": "dance"}))).await;
    managed.expect(401, "PUT", &format!("{E}/amq.mine"), Some(json!({"type": "direct"}))).await;
    managed.expect(401, "DELETE", &format!("{E}/amq.topic"), None).await;
    managed.expect(401, "DELETE", &format!("{E}/amq.default"), None).await;
    managed.expect(204, "DELETE", &format!("{E}/e"), None).await;
    managed.expect(404, "DELETE", &format!("{E}/e"), None).await;
}

#[tokio::test]
async fn bindings_are_made_found_by_their_key_and_taken_away() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    managed.expect(201, "PUT", &format!("{E}/e"), Some(json!({"type": "topic"}))).await;
    let path = format!("{B}/e/e/q/q");
    let plain = managed.expect(201, "POST", &path, Some(json!({"routing_key": "a.*"}))).await;
    assert!(plain.head.contains("location: q/a.%252A"), "{plain:?}");
    managed.expect(201, "POST", &path, Some(json!({"routing_key": "a.*"}))).await;
    managed.expect(201, "POST", &path, None).await;
    let arguments = json!({"x": 1, "y": "z"});
    managed.expect(201, "POST", &path, Some(json!({"routing_key": "k", "arguments": arguments}))).await;
    let found = managed.get(&path).await;
    assert_eq!(column(&found, "routing_key"), ["a.*", "", "k"]);
    assert_eq!(column(&found, "properties_key")[..2], ["a.%2A", "~"]);
    assert_eq!(found[2]["arguments"], arguments);
    for one in found.as_array().unwrap() {
        let key = one["properties_key"].as_str().unwrap().replace('%', "%25");
        assert_eq!(&managed.get(&format!("{path}/{key}")).await, one);
        managed.expect(204, "DELETE", &format!("{path}/{key}"), None).await;
        managed.expect(404, "DELETE", &format!("{path}/{key}"), None).await;
    }
    assert_eq!(managed.get(&path).await, json!([]));
}

#[tokio::test]
async fn bindings_are_listed_from_both_ends() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    for name in ["from", "to"] {
        managed.expect(201, "PUT", &format!("{E}/{name}"), Some(json!({"type": "topic"}))).await;
    }
    managed.expect(201, "POST", &format!("{B}/e/from/e/to"), Some(json!({"routing_key": "#"}))).await;
    managed.expect(201, "POST", &format!("{B}/e/from/q/q"), Some(json!({"routing_key": "k"}))).await;
    let default = json!({"source": "", "vhost": "/", "destination": "q", "destination_type": "queue",
        "routing_key": "q", "arguments": {}, "properties_key": "q"});
    let all = managed.get("/api/bindings").await;
    assert_eq!((all.as_array().unwrap().len(), &all[0]), (3, &default));
    assert_eq!(managed.get(B).await, all);
    assert_eq!(column(&managed.get("/api/queues/%2F/q/bindings").await, "source"), ["", "from"]);
    assert_eq!(column(&managed.get(&format!("{E}/from/bindings/source")).await, "destination"), ["to", "q"]);
    assert_eq!(column(&managed.get(&format!("{E}/to/bindings/destination")).await, "source"), ["from"]);
    assert_eq!(managed.get(&format!("{E}/amq.default/bindings/source")).await, json!([default]));
    assert_eq!(managed.get(&format!("{B}/e/amq.default/q/q")).await, json!([default]));
    managed.expect(401, "DELETE", &format!("{B}/e/amq.default/q/q/q"), None).await;
}

#[tokio::test]
async fn a_binding_needs_both_ends() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", "/api/queues/%2F/q", Some(json!({}))).await;
    for (status, path) in [
        (404, "e/none/q/q"),
        (404, "e/amq.topic/q/none"),
        (404, "e/amq.topic/e/none"),
        (401, "e/amq.default/q/q"),
    ] {
        managed.expect(status, "POST", &format!("{B}/{path}"), Some(json!({}))).await;
    }
    let wrong = json!({"arguments": {"x-match": "some"}});
    let reply = managed.expect(400, "POST", &format!("{B}/e/amq.headers/q/q"), Some(wrong)).await;
    assert!(reply.text.contains("Invalid x-match field value"), "{reply:?}");
    managed.expect(404, "POST", &format!("{B}/e/amq.topic/x/q"), Some(json!({}))).await;
    assert_eq!(managed.get(&format!("{B}/e/none/q/q")).await, json!([]));
    managed.expect(404, "GET", "/api/bindings/none", None).await;
}
