//! Queues over the management API.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod common;

use common::api::{Managed, column};
use nexo_amqp::codec::ShortStr;
use nexo_amqp::codec::method::{basic, queue};
use serde_json::json;

const V: &str = "/api/queues/%2F";

#[tokio::test]
async fn a_queue_is_declared_shown_and_deleted() {
    let managed = Managed::start().await;
    let asked = json!({"durable": "true", "auto_delete": "false", "arguments": {"x-message-ttl": 60000, "x-max-length": 3}});
    managed.expect(201, "PUT", &format!("{V}/q"), Some(asked.clone())).await;
    managed.expect(204, "PUT", &format!("{V}/q"), Some(asked.clone())).await;
    let shown = managed.get(&format!("{V}/q")).await;
    assert_eq!(shown["arguments"], asked["arguments"]);
    for (name, value) in [
        ("name", json!("q")),
        ("vhost", json!("/")),
        ("type", json!("classic")),
        ("durable", json!(true)),
        ("auto_delete", json!(false)),
        ("exclusive", json!(false)),
        ("state", json!("running")),
        ("messages", json!(0)),
        ("consumers", json!(0)),
        ("consumer_details", json!([])),
    ] {
        assert_eq!(shown[name], value, "{name}");
    }
    managed.expect(204, "DELETE", &format!("{V}/q"), None).await;
    managed.expect(404, "DELETE", &format!("{V}/q"), None).await;
    managed.expect(404, "GET", &format!("{V}/q"), None).await;
}

#[tokio::test]
async fn arguments_are_those_of_amqp() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", &format!("{V}/q"), Some(json!({}))).await;
    let reply = managed.expect(400, "PUT", &format!("{V}/q"), Some(json!({"durable": true}))).await;
    assert_eq!(
        reply.json()["reason"],
        json!(
            "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'"
        )
    );
    let wrong = json!({"arguments": {"x-message-ttl": "soon"}});
    let reply = managed.expect(400, "PUT", &format!("{V}/w"), Some(wrong)).await;
    let reason = reply.json()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("invalid arg 'x-message-ttl' for queue 'w'"), "{reason}");
    managed.expect(401, "PUT", &format!("{V}/amq.mine"), Some(json!({}))).await;
    managed.expect(404, "PUT", "/api/queues/none/q", Some(json!({}))).await;
    let quorum = json!({"durable": true, "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 3}});
    managed.expect(201, "PUT", &format!("{V}/quorum"), Some(quorum)).await;
    assert_eq!(managed.get(&format!("{V}/quorum")).await["type"], json!("quorum"));
}

#[tokio::test]
async fn a_list_has_pages_an_order_columns_and_a_filter() {
    let managed = Managed::start().await;
    for (name, length) in [("one", 3), ("two", 1), ("three", 2)] {
        let asked = json!({"durable": true, "arguments": {"x-max-length": length}});
        managed.expect(201, "PUT", &format!("{V}/{name}"), Some(asked)).await;
    }
    let all = managed.get("/api/queues").await;
    assert_eq!(column(&all, "name"), ["one", "three", "two"]);
    assert_eq!(managed.get(V).await, all);
    let by_length = managed.get("/api/queues?sort=arguments.x-max-length&columns=name").await;
    assert_eq!(by_length, json!([{"name": "two"}, {"name": "three"}, {"name": "one"}]));
    let reversed = managed.get("/api/queues?sort=name&sort_reverse=true&columns=name").await;
    assert_eq!(column(&reversed, "name"), ["two", "three", "one"]);
    let page = managed.get("/api/queues?page=2&page_size=2&columns=name").await;
    assert_eq!((&page["items"], &page["page_count"]), (&json!([{"name": "two"}]), &json!(2)));
    let found = managed.get("/api/queues?page=1&name=^t.*e$&use_regex=true&columns=name").await;
    assert_eq!((&found["items"], &found["filtered_count"]), (&json!([{"name": "three"}]), &json!(1)));
    managed.expect(400, "GET", "/api/queues?page=9&page_size=2", None).await;
    managed.expect(400, "GET", "/api/queues?page=1&name=(&use_regex=true", None).await;
    let plain = managed.get("/api/queues?disable_stats=true").await;
    assert!(plain[0].get("messages").is_none() && plain[0]["durable"] == json!(true), "{plain}");
    let totals = managed.get("/api/queues?disable_stats=true&enable_queue_totals=true").await;
    assert!(totals[0]["messages"] == json!(0) && totals[0].get("memory").is_none(), "{totals}");
}

#[tokio::test]
async fn a_queue_with_messages_or_consumers_stays_if_asked_to() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", &format!("{V}/q"), Some(json!({}))).await;
    let publish = json!({"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"});
    managed.expect(200, "POST", "/api/exchanges/%2F/amq.default/publish", Some(publish)).await;
    managed.expect(400, "DELETE", &format!("{V}/q?if-empty=true"), None).await;
    assert_eq!(managed.get(&format!("{V}/q")).await["messages_ready"], json!(1));
    managed.expect(204, "DELETE", &format!("{V}/q/contents"), None).await;
    managed.expect(404, "DELETE", &format!("{V}/none/contents"), None).await;
    assert_eq!(managed.get(&format!("{V}/q")).await["messages_ready"], json!(0));
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    client.consume(1, "q", "tag").await.unwrap();
    managed.expect(400, "DELETE", &format!("{V}/q?if-unused=true"), None).await;
    let shown = managed.get(&format!("{V}/q")).await;
    assert_eq!(
        (&shown["consumers"], &shown["consumer_details"][0]["consumer_tag"]),
        (&json!(1), &json!("tag"))
    );
    managed.expect(204, "POST", &format!("{V}/q/actions"), Some(json!({"action": "sync"}))).await;
    managed.expect(400, "POST", &format!("{V}/q/actions"), Some(json!({"action": "dance"}))).await;
    managed.expect(204, "DELETE", &format!("{V}/q"), None).await;
}

#[tokio::test]
async fn a_consumer_that_has_a_queue_for_itself_is_named() {
    let managed = Managed::start().await;
    let alone = json!({"arguments": {"x-single-active-consumer": true}});
    managed.expect(201, "PUT", &format!("{V}/alone"), Some(alone)).await;
    for name in ["mine", "shared"] {
        managed.expect(201, "PUT", &format!("{V}/{name}"), Some(json!({}))).await;
    }
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    client.consume(1, "alone", "first").await.unwrap();
    client.consume(1, "alone", "second").await.unwrap();
    client.consume(1, "shared", "one of many").await.unwrap();
    let exclusive = basic::Consume {
        ticket: 0,
        queue: ShortStr::from_static("mine"),
        consumer_tag: ShortStr::from_static("only"),
        no_local: false,
        no_ack: false,
        exclusive: true,
        nowait: false,
        arguments: nexo_amqp::codec::Table::EMPTY,
    };
    client.call(1, &exclusive, "basic.consume-ok").await.unwrap();
    let listed = managed.get("/api/queues").await;
    assert_eq!(column(&listed, "name"), ["alone", "mine", "shared"]);
    assert_eq!(column(&listed, "single_active_consumer_tag"), [json!("first"), json!(null), json!(null)]);
    assert_eq!(column(&listed, "exclusive_consumer_tag"), [json!(null), json!("only"), json!(null)]);
    let one = managed.get(&format!("{V}/alone")).await;
    assert_eq!(one["single_active_consumer_tag"], json!("first"));
    let cancel = basic::Cancel { consumer_tag: ShortStr::from_static("first"), nowait: false };
    client.call(1, &cancel, "basic.cancel-ok").await.unwrap();
    let one = managed.get(&format!("{V}/alone")).await;
    assert_eq!(one["single_active_consumer_tag"], json!("second"));
}

#[tokio::test]
async fn a_queue_of_a_connection_is_shown_and_left_alone() {
    let managed = Managed::start().await;
    let mut client = managed.client().await;
    client.open_channel(1).await.unwrap();
    let declare = queue::Declare {
        ticket: 0,
        queue: ShortStr::from_static("mine"),
        passive: false,
        durable: false,
        exclusive: true,
        auto_delete: false,
        nowait: false,
        arguments: nexo_amqp::codec::Table::EMPTY,
    };
    client.call(1, &declare, "queue.declare-ok").await.unwrap();
    let shown = managed.get(&format!("{V}/mine")).await;
    let name = managed.get("/api/connections").await[0]["name"].clone();
    assert_eq!((&shown["exclusive"], &shown["owner_pid_details"]["name"]), (&json!(true), &name));
    for (method, path) in [("PUT", "mine"), ("DELETE", "mine"), ("DELETE", "mine/contents")] {
        let reply = managed.expect(400, method, &format!("{V}/{path}"), Some(json!({}))).await;
        assert!(reply.text.contains("cannot obtain exclusive access to locked queue 'mine'"), "{reply:?}");
    }
    for (method, path) in [("GET", "messages"), ("POST", "redrive"), ("PUT", "pause")] {
        let path = format!("/api/nexo/queues/%2F/mine/{path}");
        let reply = managed.expect(400, method, &path, Some(json!({}))).await;
        assert!(reply.text.contains("cannot obtain exclusive access to locked queue 'mine'"), "{reply:?}");
    }
    assert_eq!(managed.get("/api/nexo/queues/%2F/mine").await["paused"], json!(false));
    assert_eq!(managed.get("/api/definitions").await["queues"], json!([]));
}

#[tokio::test]
async fn history_is_shown_to_whoever_asks_for_it() {
    let managed = Managed::start().await;
    managed.expect(201, "PUT", &format!("{V}/q"), Some(json!({}))).await;
    let path = format!("{V}/q?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5");
    let shown = managed.get(&path).await;
    let samples = shown["messages_ready_details"]["samples"].as_array().unwrap();
    assert!(!samples.is_empty() && samples[0]["sample"] == json!(0), "{shown}");
    assert!(shown["message_stats"]["publish_details"]["avg_rate"].is_number(), "{shown}");
    managed.expect(400, "GET", &format!("{V}/q?lengths_age=x&lengths_incr=5"), None).await;
}
